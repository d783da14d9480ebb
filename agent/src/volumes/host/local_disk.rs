//! Disks of the node as `local` volumes with a file system: mounted once for all pods, and taken off when the last pod that
//! has one has ended. The mount table says who has it, whichever kubelet mounted it. Owns which disks are being taken off.
//! Called by [`super::local`] and [`super`].
//!
//! ```text
//! set up ───▶ turn of the disk ──▶ mount ──▶ bind (super::local) ──▶ the pod has it
//! tear down ▶ unbind ──▶ turn of the disk ──▶ (no pod has it) ──▶ unmount, beside everything else
//! ```

#![expect(clippy::disallowed_methods, reason = "a disk that no pod has is taken off, whoever stops waiting")]

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::super::claim::LocalVolume;
use super::super::disk::{DiskFailure, DiskMount};
use super::{HostVolumes, blocking, make_folder};
use crate::csi::owner::Retry;

/// Where upstream mounts them, below the plugins' folder.
const DISKS: &str = "kubernetes.io/local-volume/mounts";

/// Those that somebody is about to take off, by their places.
#[derive(Debug, Clone, Default)]
pub(super) struct LocalDisks(Arc<Mutex<BTreeSet<PathBuf>>>);

impl LocalDisks {
    /// False where somebody is about to already.
    fn mark(&self, place: &Path) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(place.to_owned())
    }

    fn unmark(&self, place: &Path) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(place);
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}

impl HostVolumes {
    /// Where the disk is for all pods.
    pub(super) fn disk_place(&self, name: &str) -> PathBuf {
        self.plugins.join(DISKS).join(name)
    }

    /// Within the turn of its place. One that is mounted stays as it is.
    pub(super) async fn mount_local_disk(&self, of: &LocalVolume, place: &Path) -> Result<(), DiskFailure> {
        if self.served.is_mounted(place).await? {
            return Ok(());
        }
        let folder = place.to_owned();
        let made =
            move || make_folder(&folder).map_err(|error| format!("mkdir {}: {error}", folder.display()));
        blocking(made).await?;
        let ro = of.read_only.then(|| "ro".to_owned());
        let options: BTreeSet<String> = of.options.iter().cloned().chain(ro).collect();
        let options = options.into_iter().filter(|option| !option.is_empty()).collect();
        let mount = DiskMount { device: &of.path, target: place, fs_type: &of.fs_type, options };
        let mounted = self.disk_programs.mount(&self.served.program, &mount).await;
        if mounted.is_err()
            && let Err(why) = self.remove_place(place).await
        {
            tracing::warn!(disk = %place.display(), why, "the place of a disk that could not be mounted stays");
        }
        let kind = mount.kind();
        mounted.map_err(|DiskFailure { why, mismatch }| {
            let (device, place) = (of.path.display(), place.display());
            let why =
                format!("local: failed to mount device {device} at {place} (fstype: {kind}), error {why}");
            DiskFailure { why, mismatch }
        })
    }

    /// Never what is in it: that would be the disk's.
    async fn remove_place(&self, place: &Path) -> Result<(), String> {
        let folder = place.to_owned();
        blocking(move || match fs::remove_dir(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(format!("rmdir {}: {error}", folder.display()))
            }
            _ => Ok(()),
        })
        .await
    }

    /// Places of disks, whoever mounted them. Blocks.
    pub(super) fn list_local_disks(&self) -> Result<Vec<PathBuf>, String> {
        let folder = self.plugins.join(DISKS);
        let failed = |error: io::Error| format!("list {}: {error}", folder.display());
        match fs::read_dir(&folder) {
            Ok(entries) => entries.map(|entry| entry.map(|entry| entry.path()).map_err(failed)).collect(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(failed(error)),
        }
    }

    /// Takes off those that no pod has, beside everything else.
    pub(super) fn leave_local_disks(&self, places: Vec<PathBuf>) {
        places.into_iter().for_each(|place| self.take_off_later(place));
    }

    /// Unless a pod has it. Until that has worked, as upstream: no pod's end waits for it.
    fn take_off_later(&self, place: PathBuf) {
        if !self.local_disks.mark(&place) {
            return;
        }
        let this = self.clone();
        tokio::spawn(async move {
            let mut retry = Retry::default();
            while let Err(why) = this.take_off(&place).await {
                tracing::warn!(disk = %place.display(), why, "UnmountDevice failed; it is tried again");
                // Whoever came for it meanwhile goes on.
                if !this.local_disks.mark(&place) {
                    return;
                }
                tokio::time::sleep(retry.next()).await;
            }
        });
    }

    async fn take_off(&self, place: &Path) -> Result<(), String> {
        let turn = self.turns.of(place);
        let _turn = turn.lock().await;
        // A pod that ends from here on comes with a look of its own.
        self.local_disks.unmark(place);
        if !self.holders(place).await?.is_empty() {
            return Ok(());
        }
        if self.served.is_mounted(place).await? {
            self.served.program.unmount(place).await?;
        }
        self.remove_place(place).await
    }
}
