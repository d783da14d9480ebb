//! Debian's cloud kernel, unpacked. Owns its download into the cache; never installs it. Called by
//! `vm`.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::{debian_repository, sh};

/// A kernel with its modules.
#[derive(Debug)]
pub(super) struct Kernel {
    pub(super) image: PathBuf,
    pub(super) modules: PathBuf,
    /// What it was built with
    pub(super) config: PathBuf,
    pub(super) version: String,
}

/// Which of Debian 12's kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Release {
    /// 6.1: it still has cgroup v1's memory controller
    Stable,
    /// 6.12: user namespaces with idmapped overlay and tmpfs
    Backports,
}

impl Release {
    fn folder(self) -> &'static str {
        match self {
            Release::Stable => "kernel",
            Release::Backports => "kernel-backports",
        }
    }
}

/// The kernel from the cache, or downloaded into it.
pub(super) fn fetch(release: Release) -> Result<Kernel> {
    let cache = sh::cache_dir().join("vm");
    let folder = cache.join(release.folder());
    if !folder.join("boot").is_dir() {
        std::fs::create_dir_all(&cache).with_context(|| format!("make {}", cache.display()))?;
        // Machines that boot side by side fetch it once: the other one finds it here when it has its turn.
        let turn = cache.join("kernel.lock");
        let lock = File::create(&turn).with_context(|| turn.display().to_string())?;
        lock.lock().with_context(|| format!("lock {}", turn.display()))?;
        if !folder.join("boot").is_dir() {
            download(release, &cache, &folder).context("fetch linux-image-cloud-amd64")?;
        }
    }
    let version = std::fs::read_dir(folder.join("lib/modules"))?
        .next()
        .context("the kernel package has no modules")??
        .file_name()
        .to_string_lossy()
        .into_owned();
    Ok(Kernel {
        image: folder.join("boot").join(format!("vmlinuz-{version}")),
        modules: folder.join("lib/modules").join(&version),
        config: folder.join("boot").join(format!("config-{version}")),
        version,
    })
}

fn download(release: Release, cache: &Path, folder: &Path) -> Result<()> {
    let scratch = tempfile::Builder::new().prefix("kernel-").tempdir_in(cache)?;
    let options = match release {
        Release::Stable => Vec::new(),
        Release::Backports => backports(scratch.path())?,
    };
    let mut depends = Command::new("apt-cache");
    let depends = sh::output(depends.args(&options).args(["depends", "linux-image-cloud-amd64"]))?;
    let depends = String::from_utf8_lossy(&depends).into_owned();
    let package = depends
        .split_whitespace()
        .find(|word| word.starts_with("linux-image-") && word.ends_with("-cloud-amd64") && word.len() > 26)
        .context("apt knows no linux-image-cloud-amd64: apt-get update")?;
    sh::run(
        Command::new("apt-get")
            .args(&options)
            // The scratch folder is root's alone, so apt's own user could not write there.
            .args(["--quiet", "--option", "APT::Sandbox::User=root", "download", package])
            .current_dir(scratch.path()),
    )?;
    let archive = std::fs::read_dir(scratch.path())?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|ending| ending == "deb"))
        .context("apt-get download left no package")?;
    let tree = scratch.path().join("tree");
    sh::run(Command::new("dpkg-deb").arg("--extract").arg(&archive).arg(&tree))?;
    // Busybox loads modules as they are.
    let modules = tree.join("lib/modules");
    sh::run(Command::new("find").arg(modules).args([
        "-name",
        "*.ko.xz",
        "-exec",
        "xz",
        "--decompress",
        "{}",
        "+",
    ]))?;
    let version = package.trim_start_matches("linux-image-");
    sh::run(Command::new("depmod").arg("--basedir").arg(&tree).arg(version))?;
    // Only a whole kernel gets the name that is looked for.
    std::fs::rename(&tree, folder).with_context(|| format!("move to {}", folder.display()))
}

/// Options with which apt asks Debian's backports alone, and keeps its lists in `scratch`.
fn backports(scratch: &Path) -> Result<Vec<String>> {
    let (lists, cache, sources) =
        (scratch.join("lists"), scratch.join("cache"), scratch.join("sources.list"));
    for folder in [lists.join("partial"), cache.join("archives/partial")] {
        std::fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    }
    let repository = debian_repository::find()?;
    let signed = format!("signed-by={}", debian_repository::KEYRING);
    let line = format!("deb [{signed}] {} {}-backports main\n", repository.uri, repository.suite);
    std::fs::write(&sources, line).with_context(|| format!("write {}", sources.display()))?;
    let options: Vec<String> = [
        format!("Dir::Etc::sourcelist={}", sources.display()),
        "Dir::Etc::sourceparts=/dev/null".to_owned(),
        format!("Dir::State::lists={}", lists.display()),
        format!("Dir::Cache={}", cache.display()),
        "APT::Sandbox::User=root".to_owned(),
    ]
    .map(|option| format!("--option={option}"))
    .to_vec();
    sh::run(Command::new("apt-get").args(&options).args(["--quiet=2", "update"]))?;
    Ok(options)
}
