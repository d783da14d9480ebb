//! What the images of the pull bench are filled with: the files of Debian packages, as they are. Owns the list
//! of packages and the reading of their archives; packs nothing. Called by `image` and, for the download,
//! by xtask outside of the bench's namespaces.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use tar::EntryType;

use crate::debian;

/// The list's name in the cache of packages.
const NAME: &str = "pull-bench";

/// Compilers, interpreters, headers, sources, libraries: 1.3 GB of files of all sizes, as in images of
/// languages. The order is that of the layers.
const PACKAGES: [&str; 27] = [
    "nginx-common",
    "libc6",
    "coreutils",
    "perl-base",
    "bash",
    "openssl",
    "libssl3",
    "perl-modules-5.36",
    "libperl5.36",
    "git",
    "mercurial-common",
    "libpython3.11-stdlib",
    "libpython3.11-dev",
    "gcc-12",
    "cpp-12",
    "g++-12",
    "libstdc++-12-dev",
    "libicu-dev",
    "libboost1.74-dev",
    "golang-1.19-src",
    "python3-scipy",
    "python3-numpy",
    "postgresql-15",
    "mariadb-server-core",
    "llvm-14",
    "libllvm14",
    "openjdk-17-jre-headless",
];

/// One file.
pub(super) struct Item {
    /// Without a slash in front.
    pub(super) path: String,
    pub(super) mode: u32,
    pub(super) content: Content,
}

pub(super) enum Content {
    File(Vec<u8>),
    Symlink(String),
}

/// Downloads the packages, unless they are there.
///
/// # Errors
/// When apt does not know one of them or cannot be reached.
pub(super) fn fetch() -> Result<()> {
    debian::fetch_alone(NAME, &PACKAGES)
}

/// The archives, in the order of [`PACKAGES`].
///
/// # Errors
/// When they were not fetched.
pub(super) fn archives() -> Result<Vec<PathBuf>> {
    let found = debian::archives(NAME)?;
    let named = |archive: &&PathBuf, package: &str| {
        let name = archive.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.split('_').next() == Some(package)
    };
    let in_order = PACKAGES.iter().map(|package| {
        let archive = found.iter().find(|archive| named(archive, package)).cloned();
        archive.with_context(|| format!("no archive of {package} in the list {NAME}: remove it"))
    });
    in_order.collect()
}

/// Shows each file and symbolic link of an archive, until `take` says that it has enough (`false`).
///
/// # Errors
/// When the archive is none, or `take` fails.
pub(super) fn each(archive: &Path, mut take: impl FnMut(Item) -> Result<bool>) -> Result<bool> {
    let at = || archive.display().to_string();
    let mut child = Command::new("dpkg-deb")
        .arg("--fsys-tarfile")
        .arg(archive)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| gantry_needs::remedy("dpkg-deb"))?;
    let out = child.stdout.take().context("dpkg-deb has no output")?;
    let mut tar = tar::Archive::new(out);
    let mut more = true;
    for entry in tar.entries().with_context(at)? {
        let mut entry = entry.with_context(at)?;
        let Some(item) = item(&mut entry).with_context(at)? else { continue };
        more = take(item)?;
        if !more {
            break;
        }
    }
    drop(tar);
    let status = child.wait().with_context(at)?;
    // One that is not heard to its end is told so.
    ensure!(!more || status.success(), "dpkg-deb --fsys-tarfile {}: {status}", archive.display());
    Ok(more)
}

fn item(entry: &mut tar::Entry<'_, impl Read>) -> Result<Option<Item>> {
    let path = entry.path()?.to_str().context("a name that is not UTF-8")?.to_owned();
    let path = path.trim_start_matches("./").trim_end_matches('/').to_owned();
    let mode = entry.header().mode()? & 0o7777;
    let content = match entry.header().entry_type() {
        EntryType::Regular => {
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes)?;
            Content::File(bytes)
        }
        EntryType::Symlink => {
            let target = entry.link_name()?.context("a link to nothing")?;
            Content::Symlink(target.to_str().context("a target that is not UTF-8")?.to_owned())
        }
        // Folders are made as they are needed; the few hard links are left out.
        _ => return Ok(None),
    };
    Ok(Some(Item { path, mode, content }))
}
