//! The machine's two disks: `/var`, with the node's programs on it and no more room and inodes than pods can use up, and one
//! for logs that no pod reaches. Owns the files; made and read without a mount. Called by `guest`.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::tool;
use crate::sh;

/// Of `/var`.
const BYTES: u64 = 2 << 30;
const INODES: u32 = 40_000;
const LOG_BYTES: u64 = 512 << 20;

/// `/var` with what is in a folder.
pub(super) fn var(tree: &Path, folder: &Path) -> Result<PathBuf> {
    let path = folder.join("var.img");
    sparse(&path, BYTES)?;
    let mut mke2fs = tool("mke2fs");
    mke2fs.args(["-q", "-F", "-t", "ext4", "-N", &INODES.to_string(), "-d"]).arg(tree).arg(&path);
    sh::run(&mut mke2fs)?;
    Ok(path)
}

/// An empty one.
pub(super) fn logs(folder: &Path) -> Result<PathBuf> {
    let path = folder.join("logs.img");
    sparse(&path, LOG_BYTES)?;
    sh::run(tool("mke2fs").args(["-q", "-F", "-t", "ext4"]).arg(&path))?;
    Ok(path)
}

/// Copies all that is on a disk into a folder.
pub(super) fn read(disk: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to).with_context(|| format!("make {}", to.display()))?;
    let request = format!("rdump / {}", to.display());
    sh::run(tool("debugfs").args(["-R", &request]).arg(disk))
}

/// What qemu is told of a disk. Nothing on it outlives the run.
pub(super) fn words(name: &str, disk: &Path) -> [String; 4] {
    [
        "-drive".to_owned(),
        format!("file={},if=none,id={name},format=raw,cache=unsafe", disk.display()),
        "-device".to_owned(),
        format!("virtio-blk-pci,drive={name}"),
    ]
}

fn sparse(path: &Path, bytes: u64) -> Result<()> {
    let made = File::create(path).and_then(|file| file.set_len(bytes));
    made.with_context(|| format!("make {}", path.display()))
}
