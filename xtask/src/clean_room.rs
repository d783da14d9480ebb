//! `cargo xtask clean-room`: holds the list of needed packages against a Debian system that has
//! nothing else. Owns the system (debootstrap's minbase, kept in the cache; each run works on a copy)
//! and what is bound into it: the toolchains and this checkout. Never changes the host:
//! mounts are in a namespace of their own. Called by `main`, by the tier of that name and, for the system,
//! by the tier `dist`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use gantry_needs::{NEEDS, packages};
use tempfile::TempDir;

use crate::debian_repository::{self, Repository};
use crate::{build, sh};

/// What is run inside when nothing else is asked for: the look, and each program once.
const CHECKS: [&str; 2] = ["demo", "test --full"];

/// Inside a mount namespace. $1 is the work folder; what stands after the script is bound. The system is
/// a copy, for an overlay takes no folder of an overlay; its root is the namespace's, for who is in a
/// chroot may make no user namespace (`user_namespaces(7)`).
const ENTER: &str = r#"
set -eu
work=$1; base=$2; sources=$3; script=$4; proxies=$5; shift 5
mount --make-rprivate /
cp -a --reflink=auto "$base" "$work/root"
mount --bind "$work/root" "$work/root"
for folder in /proc /sys /dev; do mount --rbind "$folder" "$work/root$folder"; done
for folder in "$@"; do
  mkdir -p "$work/root$folder"
  mount --rbind "$folder" "$work/root$folder"
done
# cargo looks for its subcommands here before it looks in PATH, and rustup's own want rustup's toolchains.
if [ -d "$work/root$proxies" ]; then mount -t tmpfs none "$work/root$proxies"; fi
rm -f "$work/root/etc/resolv.conf"
cat /etc/resolv.conf >"$work/root/etc/resolv.conf"
# debootstrap leaves this to the installer; every machine has it.
if [ ! -e "$work/root/etc/hosts" ]; then echo "127.0.0.1 localhost" >"$work/root/etc/hosts"; fi
cp "$sources" "$work/root/etc/apt/sources.list"
if [ -d /etc/apt/apt.conf.d ]; then cp -r /etc/apt/apt.conf.d "$work/root/etc/apt/"; fi
# Authorities of the network that this machine is in: the package's set-up takes them up.
if [ -d /usr/local/share/ca-certificates ]; then
  mkdir -p "$work/root/usr/local/share"
  cp -r /usr/local/share/ca-certificates "$work/root/usr/local/share/"
fi
cd "$work/root"
pivot_root . mnt
cd /
umount -l /mnt
exec /bin/sh -euc "$script"
"#;

/// Runs the checks with every package of the list, or `command` with only the C compiler that Rust
/// itself wants.
///
/// # Errors
/// When the list lacks something, or the command fails.
pub(crate) fn run(command: &[String]) -> Result<()> {
    sh::require_root("a clean room")?;
    let repository = debian_repository::find()?;
    let (base, work) = system(&repository)?;
    let sources = work.path().join("sources.list");
    fs::write(&sources, repository.line())?;
    let toolchain = build::toolchain()?;
    let mut enter = Command::new("unshare");
    enter.args(["--mount", "--", "sh", "-c", ENTER, "sh"]);
    enter.arg(work.path()).arg(&base).arg(&sources).arg(script(command, &toolchain));
    enter.arg(build::cargo_home()?.join("bin"));
    enter.args(bound(&toolchain)?);
    let status = enter.stdin(std::process::Stdio::null()).status().context("start unshare")?;
    // The script is no use to a reader; what failed in it stands above.
    if !status.success() {
        bail!("the clean room: {status}");
    }
    Ok(())
}

/// Debian and nothing else, to be copied, and a folder for the copy.
pub(crate) fn system(repository: &Repository) -> Result<(PathBuf, TempDir)> {
    let cache = sh::cache_dir().join("clean-room");
    fs::create_dir_all(&cache).with_context(|| format!("make {}", cache.display()))?;
    let base = base(&cache, repository)?;
    let work = tempfile::Builder::new().prefix("run-").tempdir_in(&cache)?;
    Ok((base, work))
}

/// What the shell in there runs.
fn script(command: &[String], toolchain: &Path) -> String {
    let root = sh::root();
    let path = format!("{}/bin:{}/bin:/usr/sbin:/usr/bin:/sbin:/bin", toolchain.display(), GO);
    let mut lines = vec![
        format!("export PATH={path} HOME=/root DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8"),
        // cargo and go are not rustup's here, and nothing of the host's target folder is used.
        "unset RUSTUP_TOOLCHAIN CARGO CARGO_MANIFEST_DIR RUSTC; export CARGO_TARGET_DIR=/target".to_owned(),
        "export GANTRY_CACHE=/var/cache/gantry".to_owned(),
        "apt-get update -qq".to_owned(),
    ];
    let install = |list: &str| format!("apt-get install -y -qq --no-install-recommends {list} >/dev/null");
    if command.is_empty() {
        lines.push(install(&packages(NEEDS).join(" ")));
    } else {
        lines.push(install("gcc libc6-dev ca-certificates"));
    }
    lines.push(format!("cd {}", root.display()));
    if command.is_empty() {
        lines.extend(CHECKS.map(|task| format!("cargo xtask {task} --check --no-install")));
    } else {
        lines.push(command.join(" "));
    }
    lines.join("\n")
}

/// Where Go's own instructions put it.
const GO: &str = "/usr/local/go";

/// The toolchains, cargo's and Go's downloads, and this checkout.
fn bound(toolchain: &Path) -> Result<Vec<PathBuf>> {
    let root = sh::root();
    let mut folders = vec![toolchain.to_owned(), GO.into(), build::cargo_home()?];
    if let Some(shared) = root.parent().map(|parent| parent.join("shared")).filter(|path| path.is_dir()) {
        folders.push(shared);
    }
    folders.push(root);
    let downloads = sh::output(Command::new("go").args(["env", "GOMODCACHE"]))?;
    let downloads = PathBuf::from(String::from_utf8_lossy(&downloads).trim());
    folders.extend(Some(downloads).filter(|folder| folder.is_dir()));
    if let Some(absent) = folders.iter().find(|folder| !folder.is_dir()) {
        bail!("{} is no folder", absent.display());
    }
    Ok(folders)
}

/// Debian and nothing else, made once.
fn base(cache: &Path, repository: &Repository) -> Result<PathBuf> {
    let base = cache.join(format!("base-{}", repository.suite));
    if base.is_dir() {
        return Ok(base);
    }
    let fresh = cache.join("base-new");
    if fresh.exists() {
        fs::remove_dir_all(&fresh).with_context(|| format!("remove {}", fresh.display()))?;
    }
    println!("making a Debian {} system in {}", repository.suite, base.display());
    let mut debootstrap = Command::new("debootstrap");
    debootstrap.arg("--variant=minbase").arg(format!("--keyring={}", debian_repository::KEYRING));
    debootstrap.arg(&repository.suite).arg(&fresh).arg(&repository.uri);
    sh::run(&mut debootstrap)?;
    // Only a whole system gets the name that is looked for.
    fs::rename(&fresh, &base).with_context(|| format!("move to {}", base.display()))?;
    Ok(base)
}
