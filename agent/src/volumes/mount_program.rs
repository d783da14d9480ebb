//! mount(8) and umount(8) of this machine, which know the helpers of network file systems. Owns how long each may take;
//! what they are told and what is said of them is [`super::nfs`]'s. Called by [`super::host`] and [`super::disk`].

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::host_program::{HostProgram, ProgramFailure};
use super::{mounts, nfs};

/// mount.nfs gives up by itself after about two minutes. Upstream waits without end.
const MOUNT: Duration = Duration::from_secs(300);
/// `unMountTimeout`: then it is forced.
const UNMOUNT: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct MountProgram {
    pub(super) mount: HostProgram,
    pub(super) umount: HostProgram,
    pub(super) force: HostProgram,
    /// Every mount point at or below a folder, the deepest first; asks no file system.
    pub(super) table: fn(&Path) -> io::Result<Vec<PathBuf>>,
    /// Where else the folder is mounted, as upstream's GetMountRefs finds it.
    pub(super) copies: fn(&Path) -> io::Result<Vec<PathBuf>>,
}

impl Default for MountProgram {
    fn default() -> Self {
        Self {
            mount: HostProgram::new(&["mount"], MOUNT),
            umount: HostProgram::new(&["umount"], UNMOUNT),
            force: HostProgram::new(&["umount", "-f"], UNMOUNT),
            table: mounts::below,
            copies: mounts::list_copies,
        }
    }
}

impl MountProgram {
    /// What is mounted at or below the folder, the deepest first.
    ///
    /// # Errors
    /// The table cannot be read.
    pub(super) fn below(&self, folder: &Path) -> Result<Vec<PathBuf>, String> {
        (self.table)(folder).map_err(|error| format!("read the mount table: {error}"))
    }

    /// Whether something is mounted exactly there.
    ///
    /// # Errors
    /// The table cannot be read.
    pub(super) fn is_mounted(&self, target: &Path) -> Result<bool, String> {
        Ok(self.below(target)?.iter().any(|point| point == target))
    }

    /// Runs mount(8).
    ///
    /// # Errors
    /// In upstream's words.
    pub(super) async fn mount(&self, arguments: &[String]) -> Result<(), String> {
        let Err(ProgramFailure { late, why, mut output, .. }) = self.mount.run("mount", arguments).await
        else {
            return Ok(());
        };
        if late {
            output.push_str(": its server does not answer");
        }
        Err(nfs::mount_failed(&why, arguments, &output))
    }

    /// Takes a mount off; by force when its server keeps that waiting.
    ///
    /// # Errors
    /// In upstream's words.
    pub(super) async fn unmount(&self, point: &Path) -> Result<(), String> {
        let shown = [point.to_string_lossy().into_owned()];
        let mut end = self.umount.run("umount", &shown).await;
        if matches!(&end, Err(failure) if failure.late) {
            tracing::warn!(point = %point.display(), "umount did not end in time: it is forced");
            end = self.force.run("umount", &shown).await;
        }
        let Err(ProgramFailure { late, why, mut output, .. }) = end else { return Ok(()) };
        if late {
            output = format!("umount -f did not end within {} s either", self.force.patience.as_secs());
        }
        // Somebody else was faster.
        if !self.is_mounted(point)? {
            return Ok(());
        }
        Err(nfs::unmount_failed(&why, point, &output))
    }
}
