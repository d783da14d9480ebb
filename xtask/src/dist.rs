//! `cargo xtask dist`: the package, the archive and what stands beside them, in `dist` of the target
//! folder. Owns their names and the rule that the same programs make the same bytes; how programs are
//! built is `build`'s, what a package does to a machine its scripts' (`contrib/debian`). Called by `main`
//! and by the tier of that name.

pub(crate) mod chroot;
mod sbom;
mod share;
mod tarball;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use gantry_tests::image::sha256;

use crate::{build, sh};

/// The version of cargo-deb.
const CARGO_DEB: &str = "3.8.0";
/// A package that is made already.
const DEB: &str = "DEB";

/// Bytes that gantry itself may have: docs/adr/0033-packages.md.
const LARGEST: u64 = 36_000_000;

/// What all parts carry.
#[derive(Debug)]
struct Stamp {
    version: String,
    /// Of the commit, in seconds since 1970.
    epoch: String,
    /// The same as RFC 3339 has it.
    date: String,
}

impl Stamp {
    fn of_the_commit() -> Result<Self> {
        let manifest = fs::read_to_string(sh::root().join("Cargo.toml")).context("read Cargo.toml")?;
        let manifest: toml::Table = toml::from_str(&manifest).context("Cargo.toml")?;
        let version = manifest
            .get("workspace")
            .and_then(|workspace| workspace.get("package")?.get("version")?.as_str())
            .context("no version in Cargo.toml")?;
        let of = |format: &str| -> Result<String> {
            let mut git = Command::new("git");
            git.args(["log", "-1", format, "--date=format-local:%Y-%m-%dT%H:%M:%SZ"]).env("TZ", "UTC");
            let text = sh::output(git.current_dir(sh::root()))?;
            Ok(String::from_utf8_lossy(&text).trim().to_owned())
        };
        Ok(Self { version: version.to_owned(), epoch: of("--format=%ct")?, date: of("--format=%cd")? })
    }

    fn deb(&self) -> String {
        format!("gantry_{}_amd64.deb", self.version)
    }

    fn archive(&self) -> String {
        format!("gantry-{}-linux-amd64.tar.gz", self.version)
    }

    fn sbom(&self) -> String {
        format!("gantry-{}.cdx.json", self.version)
    }
}

/// The programs that are shipped, and gantry-workload: a folder for tests.
pub(crate) fn programs() -> Result<PathBuf> {
    build::dist(&Stamp::of_the_commit()?.epoch)
}

/// Makes all of it and says how large it is.
pub(crate) fn run(no_install: bool) -> Result<()> {
    let Made { programs, folder } = make(no_install)?;
    for name in build::SHIPPED {
        println!("{:>11} {name}", size(&programs.join(name))?);
    }
    println!("in {}:", folder.display());
    for name in names(&folder)?.into_iter().filter(|name| is_ours(&name.to_string_lossy())) {
        println!("{:>11} {}", size(&folder.join(&name))?, name.to_string_lossy());
    }
    Ok(())
}

/// The package: the one that is named by `DEB`, or a new one.
pub(crate) fn package() -> Result<PathBuf> {
    match std::env::var_os(DEB) {
        Some(deb) => fs::canonicalize(&deb).with_context(|| format!("{DEB}={}", deb.display())),
        None => Ok(make(false)?.folder.join(Stamp::of_the_commit()?.deb())),
    }
}

/// The folder of a package's programs, which is unpacked there.
pub(crate) fn unpack(deb: &Path, to: &Path) -> Result<PathBuf> {
    sh::run(Command::new("dpkg-deb").arg("--extract").arg(deb).arg(to))?;
    Ok(to.join("usr/lib/gantry"))
}

/// Where things are.
#[derive(Debug)]
struct Made {
    programs: PathBuf,
    /// The package and all that is beside it.
    folder: PathBuf,
}

/// Builds, packs twice, compares, and looks at the package as Debian does.
fn make(no_install: bool) -> Result<Made> {
    let tool = cargo_deb(no_install)?;
    let stamp = Stamp::of_the_commit()?;
    let programs = build::dist(&stamp.epoch)?;
    let bytes = size(&programs.join("gantry"))?;
    if bytes > LARGEST {
        bail!("gantry has {bytes} bytes, {LARGEST} at most");
    }
    let target = sh::target_dir();
    let made = [tempfile::tempdir_in(&target)?, tempfile::tempdir_in(&target)?];
    for folder in &made {
        pack(&tool, &programs, &stamp, folder.path())?;
    }
    same(made[0].path(), made[1].path())?;
    let folder = target.join("dist");
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    for name in names(&folder)?.into_iter().filter(|name| is_ours(&name.to_string_lossy())) {
        fs::remove_file(folder.join(name)).context("remove what an earlier run made")?;
    }
    for name in names(made[0].path())? {
        fs::rename(made[0].path().join(&name), folder.join(&name)).context("move what was made")?;
    }
    lintian(&folder.join(stamp.deb()))?;
    Ok(Made { programs, folder })
}

/// Cargo has folders there, too: it is the place of its profile's build scripts.
fn is_ours(name: &str) -> bool {
    let endings = [".deb", ".tar.gz", ".cdx.json"];
    name == "SHA256SUMS" || name.starts_with("gantry") && endings.iter().any(|end| name.ends_with(end))
}

/// Everything that is made of the programs.
fn pack(tool: &Path, programs: &Path, stamp: &Stamp, to: &Path) -> Result<()> {
    let sbom = sbom::of_the_lock_file(&stamp.version, &stamp.date)?;
    // The package has it, too.
    fs::write(programs.join("gantry.cdx.json"), &sbom).context("write the SBOM")?;
    fs::write(to.join(stamp.sbom()), &sbom).context("write the SBOM")?;
    let share = share::write(programs)?;
    let mut deb = Command::new(tool);
    deb.args(["deb", "--quiet", "--no-build", "--no-strip", "--locked", "--package", "gantry"]);
    deb.args(["--profile", "dist", "--target", build::TARGET, "--output"]).arg(to.join(stamp.deb()));
    deb.current_dir(sh::root()).env("CARGO_TARGET_DIR", sh::target_dir());
    sh::run(deb.env("SOURCE_DATE_EPOCH", &stamp.epoch))?;
    let epoch = stamp.epoch.parse().context("the commit's time")?;
    let top = stamp.archive().trim_end_matches(".tar.gz").to_owned();
    let archive = tarball::of(programs, &share::files(&share)?, &sh::root(), &top, epoch)?;
    fs::write(to.join(stamp.archive()), archive).context("write the archive")?;
    let mut sums = String::new();
    for name in names(to)? {
        let digest = sha256(&fs::read(to.join(&name))?);
        let hex = digest.trim_start_matches("sha256:");
        sums.push_str(&format!("{hex}  {}\n", name.to_string_lossy()));
    }
    fs::write(to.join("SHA256SUMS"), sums).context("write SHA256SUMS")
}

/// An error when two folders differ in a byte.
fn same(one: &Path, other: &Path) -> Result<()> {
    let (left, right) = (names(one)?, names(other)?);
    if left != right {
        bail!("packed twice: {left:?}, then {right:?}");
    }
    for name in left {
        if fs::read(one.join(&name))? != fs::read(other.join(&name))? {
            bail!("packed twice, and {} is another one the second time", name.to_string_lossy());
        }
    }
    Ok(())
}

/// What Debian finds wrong. Warnings are printed, errors are one.
fn lintian(deb: &Path) -> Result<()> {
    let mut lintian = Command::new("lintian");
    lintian.args(["--allow-root", "--fail-on", "error", "--tag-display-limit", "0"]).arg(deb);
    sh::run(&mut lintian)
}

/// cargo-deb of that version, installed into the cache unless it is there.
fn cargo_deb(no_install: bool) -> Result<PathBuf> {
    let tools = sh::cache_dir().join("tools");
    let tool = tools.join("bin/cargo-deb");
    let says = Command::new(&tool).arg("--version").output().map(|output| output.stdout).unwrap_or_default();
    if String::from_utf8_lossy(&says).trim() == format!("cargo-deb {CARGO_DEB}") {
        return Ok(tool);
    }
    let package = format!("cargo-deb@{CARGO_DEB}");
    if no_install {
        bail!("cargo install --locked {package} --root {}", tools.display());
    }
    println!("installing cargo-deb {CARGO_DEB}, some minutes the first time");
    sh::run(sh::cargo(&["install", "--quiet", "--locked", &package, "--root"]).arg(&tools))?;
    Ok(tool)
}

/// The names in a folder, in order.
fn names(folder: &Path) -> Result<Vec<OsString>> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut names = entries.map(|entry| Ok(entry?.file_name())).collect::<Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

fn size(file: &Path) -> Result<u64> {
    Ok(fs::metadata(file).with_context(|| file.display().to_string())?.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_of_different_bytes_are_told_apart() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(one.path().join("a"), "x").unwrap();
        assert!(same(one.path(), other.path()).unwrap_err().to_string().contains("packed twice"));
        fs::write(other.path().join("a"), "y").unwrap();
        assert!(same(one.path(), other.path()).unwrap_err().to_string().contains("a is another one"));
        fs::write(other.path().join("a"), "x").unwrap();
        same(one.path(), other.path()).unwrap();
    }

    #[test]
    fn debians_changelog_has_this_version() {
        let stamp = Stamp::of_the_commit().unwrap();
        let changelog = fs::read_to_string(sh::root().join("contrib/debian/changelog")).unwrap();
        assert!(changelog.starts_with(&format!("gantry ({}) ", stamp.version)), "{changelog}");
        assert!(stamp.date.ends_with('Z') && stamp.epoch.parse::<u64>().is_ok(), "{stamp:?}");
    }
}
