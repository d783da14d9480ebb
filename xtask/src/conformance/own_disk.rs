//! A file system that only a suite's node writes to: specs of eviction measure what is left of the disk while others build
//! on it. Owns the mount and its file, in a mount namespace that goes with the suite. Called by [`super::call`].

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::sh;
use crate::vm::disk;

/// Mounted; unmounted by [`OwnDisk::end`], or on drop.
#[derive(Debug)]
pub(super) struct OwnDisk {
    at: Option<PathBuf>,
    _file: tempfile::TempDir,
}

impl OwnDisk {
    /// Mounts one of so many GiB on a folder.
    ///
    /// # Errors
    /// When a program is missing, or the kernel has no loop device left.
    pub(super) fn mount(gib: u64, at: &Path) -> Result<Self> {
        let file = tempfile::Builder::new().prefix("gd-").tempdir()?;
        let image = file.path().join("disk");
        disk::ext4(&image, gib << 30, &[])?;
        sh::run(Command::new("mount").args(["-o", "loop"]).args([&image, at]))?;
        Ok(Self { at: Some(at.to_owned()), _file: file })
    }

    /// Unmounts it.
    ///
    /// # Errors
    /// When something is still open on it.
    pub(super) fn end(mut self) -> Result<()> {
        self.at.take().map_or(Ok(()), |at| unmount(&at))
    }
}

fn unmount(at: &Path) -> Result<()> {
    sh::run(Command::new("umount").arg(at))
}

impl Drop for OwnDisk {
    fn drop(&mut self) {
        if let Some(at) = self.at.take() {
            // The mount namespace takes it along.
            let _ = unmount(&at);
        }
    }
}
