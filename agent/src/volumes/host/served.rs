//! Volumes whose files are not this machine's: exports of servers, and disks of targets. Mounted by mount(8), looked at, and
//! taken back. One that is dead holds up nobody but who has a volume of it: the mount table says what is mounted, and only
//! programs and threads of their own touch its files. Called by [`super::nfs`], [`super::iscsi`] and [`super`].

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::join_all;
use gantry_model::pod::usage::VolumeUsage;
use gantry_model::pod::volume::{Volume, VolumeSource};
use gantry_model::pod::{Pod, PodUid};

use super::super::claim::VolumeBacking;
use super::super::mount_program::MountProgram;
use super::super::own_thread::OwnThreads;
use super::{HostVolumes, blocking, make_folder, mounts};

/// For a look at files.
const PATIENCE: Duration = Duration::from_secs(120);

/// What such volumes need beside folders.
#[derive(Debug, Clone, Default)]
pub(super) struct ServedParts {
    pub(super) program: MountProgram,
    threads: OwnThreads,
}

impl ServedParts {
    pub(super) async fn look<T: Send + 'static>(
        &self,
        work: impl FnOnce(&MountProgram) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let program = self.program.clone();
        blocking(move || work(&program)).await
    }

    pub(super) async fn is_mounted(&self, target: &Path) -> Result<bool, String> {
        let target = target.to_owned();
        self.look(move |program| program.is_mounted(&target)).await
    }

    /// Runs mount(8) with a target that is its last argument. The folder is made, and goes again where that fails.
    pub(super) async fn mount(&self, arguments: &[String], target: &Path) -> Result<(), String> {
        let folder = target.to_owned();
        let made =
            move || make_folder(&folder).map_err(|error| format!("mkdir {}: {error}", folder.display()));
        blocking(made).await?;
        let mounted = self.program.mount(arguments).await;
        if mounted.is_err()
            && let Err(why) = self.clean(target).await
        {
            tracing::warn!(target = %target.display(), why, "what a mount that failed has left stays");
        }
        mounted
    }

    /// Nothing that a mount that failed has left.
    async fn clean(&self, target: &Path) -> Result<(), String> {
        if self.is_mounted(target).await? {
            self.program.unmount(target).await?;
        }
        let folder = target.to_owned();
        // Never what is in it.
        blocking(move || fs::remove_dir(&folder).map_err(|error| format!("rmdir: {error}"))).await
    }

    /// Takes off what is mounted in that folder of volumes: each volume beside the others, since one may take its time.
    async fn unmount_all(&self, folder: PathBuf) -> Result<(), String> {
        let below = folder.clone();
        let mut volumes: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
        for point in self.look(move |program| program.below(&below)).await? {
            let name = point.strip_prefix(&folder).ok().and_then(|rest| rest.iter().next());
            let name = name.unwrap_or_default().to_string_lossy().into_owned();
            volumes.entry(name).or_default().push(point);
        }
        let unmount = async |(name, points): (&String, &Vec<PathBuf>)| {
            for point in points {
                let done = self.program.unmount(point).await;
                done.map_err(|why| format!("UnmountVolume.TearDown failed for volume {name:?} : {why}"))?;
            }
            Ok::<(), String>(())
        };
        let done = join_all(volumes.iter().map(unmount)).await;
        let failures: Vec<String> = done.into_iter().filter_map(Result::err).collect();
        if failures.is_empty() { Ok(()) } else { Err(failures.join("; ")) }
    }
}

impl HostVolumes {
    /// Whether files of the pod's volumes are a server's, or on a target's disk.
    pub(super) fn has_served(&self, pod: &Pod) -> bool {
        let is_served = |volume: &Volume| match &volume.source {
            VolumeSource::Nfs(_) | VolumeSource::Iscsi(_) => true,
            _ => matches!(
                self.place_of(&pod.uid, &volume.name),
                Some(VolumeBacking::Nfs(_) | VolumeBacking::Iscsi(_))
            ),
        };
        pod.volumes.iter().any(is_served)
    }

    /// Does work on the files of the pod's volumes, which blocks.
    pub(super) async fn on_files<T: Send + 'static>(
        &self,
        pod: &Pod,
        work: impl FnOnce() -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        match self.has_served(pod) {
            true => self.served.threads.run(&self.pod(&pod.uid), PATIENCE, work).await,
            false => blocking(work).await,
        }
    }

    /// How full the file system of a server or of a target's disk is, as upstream; none of what is not mounted.
    pub(super) async fn usage_at(&self, target: PathBuf) -> Result<Option<VolumeUsage>, String> {
        if !self.served.is_mounted(&target).await? {
            return Ok(None);
        }
        let path = target.clone();
        let look =
            move || rustix::fs::statvfs(&path).map_err(|error| format!("statfs {}: {error}", path.display()));
        let found = self.served.threads.run(&target, PATIENCE, look).await?;
        let bytes = |blocks: u64| Some(blocks.saturating_mul(found.f_frsize));
        Ok(Some(VolumeUsage {
            driver: "statfs".to_owned(),
            available_bytes: bytes(found.f_bavail),
            capacity_bytes: bytes(found.f_blocks),
            used_bytes: bytes(found.f_blocks.saturating_sub(found.f_bfree)),
            inodes_free: Some(found.f_ffree),
            inodes: Some(found.f_files),
            inodes_used: Some(found.f_files.saturating_sub(found.f_ffree)),
        }))
    }

    /// Whether the pod has a folder for volumes of that plugin, whoever made it.
    pub(super) async fn has_folder(&self, uid: &PodUid, plugin: &str) -> Result<bool, String> {
        let folder = self.pod(uid).join("volumes").join(plugin);
        blocking(move || match folder.symlink_metadata() {
            Ok(found) => Ok(found.is_dir()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(format!("look for {}: {error}", folder.display())),
        })
        .await
    }

    /// Parts of exports, which keep them from being unmounted. The kernel asks the server for none of them: umount(8) would.
    pub(super) async fn unmount_parts(&self, parts: PathBuf) -> Result<(), String> {
        let folder = parts.clone();
        let work = move || {
            let points = mounts::exports_below(&folder);
            for point in points.map_err(|error| format!("read the mount table: {error}"))? {
                let done = mounts::detach(&point);
                done.map_err(|error| format!("unmount {}: {error}", point.display()))?;
            }
            Ok(())
        };
        self.served.threads.run(&parts, PATIENCE, work).await
    }

    /// By umount(8): a dead server, or a dead disk, keeps that waiting and nobody else.
    pub(super) async fn unmount_below(&self, uid: &PodUid, plugin: &str) -> Result<(), String> {
        self.served.unmount_all(self.pod(uid).join("volumes").join(plugin)).await
    }
}
