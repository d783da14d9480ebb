//! Debian's cloud kernel, unpacked. Owns its download into the cache; never installs it. Called by
//! `vm`.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::sh;

/// A kernel with its modules.
#[derive(Debug)]
pub(super) struct Kernel {
    pub(super) image: PathBuf,
    pub(super) modules: PathBuf,
}

/// The kernel from the cache, or downloaded into it.
pub(super) fn fetch() -> Result<Kernel> {
    let cache = sh::cache_dir().join("vm");
    let folder = cache.join("kernel");
    if !folder.join("boot").is_dir() {
        std::fs::create_dir_all(&cache).with_context(|| format!("make {}", cache.display()))?;
        // Machines that boot side by side fetch it once: the other one finds it here when it has its turn.
        let turn = cache.join("kernel.lock");
        let lock = File::create(&turn).with_context(|| turn.display().to_string())?;
        lock.lock().with_context(|| format!("lock {}", turn.display()))?;
        if !folder.join("boot").is_dir() {
            download(&cache, &folder).context("fetch linux-image-cloud-amd64")?;
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
        modules: folder.join("lib/modules").join(version),
    })
}

fn download(cache: &Path, folder: &Path) -> Result<()> {
    let depends = sh::output(Command::new("apt-cache").args(["depends", "linux-image-cloud-amd64"]))?;
    let depends = String::from_utf8_lossy(&depends).into_owned();
    let package = depends
        .split_whitespace()
        .find(|word| word.starts_with("linux-image-") && word.ends_with("-cloud-amd64") && word.len() > 26)
        .context("apt knows no linux-image-cloud-amd64: apt-get update")?;
    let scratch = tempfile::Builder::new().prefix("kernel-").tempdir_in(cache)?;
    sh::run(
        Command::new("apt-get")
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
    let version = package.trim_start_matches("linux-image-");
    sh::run(Command::new("depmod").arg("--basedir").arg(&tree).arg(version))?;
    // Only a whole kernel gets the name that is looked for.
    std::fs::rename(&tree, folder).with_context(|| format!("move to {}", folder.display()))
}
