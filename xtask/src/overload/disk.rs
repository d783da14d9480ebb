//! The machine's two disks: `/var`, with the node's programs on it and no more room and inodes than pods can use up, and one
//! for logs that no pod reaches. Owns their sizes; how a disk is made is `vm`'s. Called by `guest`.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::vm::disk;

/// Of `/var`.
const BYTES: u64 = 2 << 30;
const INODES: u32 = 40_000;
const LOG_BYTES: u64 = 512 << 20;

/// `/var` with what is in a folder.
pub(super) fn var(tree: &Path, folder: &Path) -> Result<PathBuf> {
    let path = folder.join("var.img");
    disk::ext4_with(tree, &path, BYTES, &["-N", &INODES.to_string()])?;
    Ok(path)
}

/// An empty one.
pub(super) fn logs(folder: &Path) -> Result<PathBuf> {
    let path = folder.join("logs.img");
    disk::ext4(&path, LOG_BYTES, &[])?;
    Ok(path)
}
