//! LLVM's coverage tools of the version that rustc's own LLVM has: older ones refuse its profiles. Owns their
//! download into the cache, from Debian; never installs them. Called by `fuzz::coverage`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::sh;

/// `llvm-profdata` and `llvm-cov`.
#[derive(Debug)]
pub(super) struct Tools {
    programs: PathBuf,
    libraries: PathBuf,
}

impl Tools {
    pub(super) fn command(&self, name: &str) -> Command {
        let mut command = Command::new(self.programs.join(name));
        command.env("LD_LIBRARY_PATH", &self.libraries);
        command
    }
}

/// The tools from the cache, or downloaded into it.
pub(super) fn fetch() -> Result<Tools> {
    let version = version()?;
    let folder = sh::cache_dir().join(format!("llvm-{version}"));
    if !folder.is_dir() {
        std::fs::create_dir_all(sh::cache_dir())?;
        download(&version, &folder).with_context(|| format!("fetch llvm-{version}"))?;
    }
    let libraries = folder.join("usr/lib").join(format!("{}-linux-gnu", std::env::consts::ARCH));
    Ok(Tools { programs: folder.join(format!("usr/lib/llvm-{version}/bin")), libraries })
}

/// Of rustc's LLVM, the first number.
fn version() -> Result<String> {
    let text = sh::output(Command::new("rustc").arg("-vV"))?;
    let text = String::from_utf8_lossy(&text).into_owned();
    let version = text.lines().find_map(|line| line.strip_prefix("LLVM version: ")?.split('.').next());
    version.map(str::to_owned).context("rustc -vV names no LLVM version")
}

/// The programs and their library; what that library needs is part of every Debian with a compiler.
fn download(version: &str, folder: &Path) -> Result<()> {
    let scratch = tempfile::Builder::new().prefix("llvm-").tempdir_in(sh::cache_dir())?;
    let packages = [format!("llvm-{version}"), format!("libllvm{version}")];
    sh::run(
        Command::new("apt-get")
            // The scratch folder is root's alone, so apt's own user could not write there.
            .args(["--quiet", "--option", "APT::Sandbox::User=root", "download"])
            .args(&packages)
            .current_dir(scratch.path()),
    )
    .context("apt-get update first, if apt does not know them")?;
    let tree = scratch.path().join("tree");
    for entry in std::fs::read_dir(scratch.path())? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "deb") {
            sh::run(Command::new("dpkg-deb").arg("--extract").arg(&path).arg(&tree))?;
        }
    }
    // Only whole packages get the name that is looked for.
    std::fs::rename(&tree, folder).with_context(|| format!("move to {}", folder.display()))
}
