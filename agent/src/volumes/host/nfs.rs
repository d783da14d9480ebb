//! A pod's volumes of NFS servers: mounted by mount(8) in upstream's folder, looked at, and taken back. Owns the order, and
//! what is known of those that are not there yet. A server that is dead holds up nobody but who has a volume of it: the
//! mount table says what is mounted, and only programs and threads of their own touch its files. Called by [`super`].

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use gantry_model::pod::usage::VolumeUsage;
use gantry_model::pod::volume::{Volume, VolumeSource};
use gantry_model::pod::{Pod, PodUid};

use super::super::claim::VolumeBacking;
use super::super::mount_program::MountProgram;
use super::super::nfs::{FOLDER, NfsMount, SET_UP};
use super::super::own_thread::OwnThreads;
use super::super::{Error, VolumeOrigin, VolumeWait};
use super::claims::Failed;
use super::{HostVolumes, blocking, make_folder, mounts};

/// For a look at a server's files.
const PATIENCE: Duration = Duration::from_secs(120);

/// What volumes of servers need beside folders.
#[derive(Debug, Clone, Default)]
pub(super) struct NfsParts {
    pub(super) program: MountProgram,
    threads: OwnThreads,
    waits: Waits,
}

/// Volumes that are not mounted yet, by pod and name.
#[derive(Debug, Clone, Default)]
struct Waits(Arc<Mutex<BTreeMap<PodUid, BTreeMap<String, NfsWait>>>>);

/// One of them.
#[derive(Debug)]
struct NfsWait {
    source: String,
    why: String,
    since: Instant,
}

impl Waits {
    fn all(&self) -> MutexGuard<'_, BTreeMap<PodUid, BTreeMap<String, NfsWait>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, uid: &PodUid, wanted: &NfsMount) {
        let why = "mount has not ended yet".to_owned();
        let wait = NfsWait { source: wanted.source(), why, since: Instant::now() };
        self.all().entry(uid.clone()).or_default().entry(wanted.name.clone()).or_insert(wait);
    }

    fn end(&self, uid: &PodUid, name: &str, result: &Result<(), String>) {
        let mut all = self.all();
        let Some(of_pod) = all.get_mut(uid) else { return };
        match (result, of_pod.get_mut(name)) {
            (Ok(()), _) => drop(of_pod.remove(name)),
            (Err(why), Some(wait)) => wait.why.clone_from(why),
            (Err(_), None) => {}
        }
    }

    fn forget(&self, uid: &PodUid) {
        self.all().remove(uid);
    }

    fn of(&self, uid: &PodUid) -> Vec<VolumeWait> {
        let all = self.all();
        let told = |(name, wait): (&String, &NfsWait)| VolumeWait {
            volume: name.clone(),
            from: VolumeOrigin::Export(wait.source.clone()),
            step: SET_UP,
            why: wait.why.clone(),
            since: wait.since.elapsed(),
        };
        all.get(uid).into_iter().flatten().map(told).collect()
    }
}

impl NfsParts {
    async fn look<T: Send + 'static>(
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

    /// Mounts it, unless something is mounted there: an earlier kubelet may have done it.
    async fn mount(&self, wanted: &NfsMount, target: &Path) -> Result<(), String> {
        if self.is_mounted(target).await? {
            return Ok(());
        }
        let arguments = wanted.arguments(target)?;
        let folder = target.to_owned();
        let made =
            move || make_folder(&folder).map_err(|error| format!("mkdir {}: {error}", folder.display()));
        blocking(made).await?;
        let mounted = self.program.mount(&arguments).await;
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
    pub(super) fn nfs_target(&self, uid: &PodUid, name: &str) -> PathBuf {
        self.pod(uid).join("volumes").join(FOLDER).join(name)
    }

    pub(super) async fn mount_nfs(
        &self,
        pod: &Pod,
        volume: &Volume,
        wanted: Box<NfsMount>,
        begun: Instant,
    ) -> Result<(), Error> {
        self.nfs.waits.begin(&pod.uid, &wanted);
        let mounted = self.nfs.mount(&wanted, &self.nfs_target(&pod.uid, &wanted.name)).await;
        self.nfs.waits.end(&pod.uid, &wanted.name, &mounted);
        self.tally.record_mount(pod, volume, begun, mounted.is_ok());
        let told = |why| Failed::Of { step: SET_UP, volume: wanted.name.clone(), why }.told(&volume.name);
        mounted.map_err(|why| Error::new(told(why)))
    }

    /// What a dead server keeps from being there.
    pub(super) fn nfs_waits(&self, uid: &PodUid) -> Vec<VolumeWait> {
        self.nfs.waits.of(uid)
    }

    /// Whether files of the pod's volumes are a server's.
    pub(super) fn has_exports(&self, pod: &Pod) -> bool {
        let is_export = |volume: &Volume| match &volume.source {
            VolumeSource::Nfs(_) => true,
            _ => matches!(self.place_of(&pod.uid, &volume.name), Some(VolumeBacking::Nfs(_))),
        };
        pod.volumes.iter().any(is_export)
    }

    /// Does work on the files of the pod's volumes, which blocks.
    pub(super) async fn on_files<T: Send + 'static>(
        &self,
        pod: &Pod,
        work: impl FnOnce() -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        match self.has_exports(pod) {
            true => self.nfs.threads.run(&self.pod(&pod.uid), PATIENCE, work).await,
            false => blocking(work).await,
        }
    }

    /// How full a server's file system is, as upstream; none of what is not mounted.
    pub(super) async fn nfs_usage(&self, uid: &PodUid, name: &str) -> Result<Option<VolumeUsage>, String> {
        let target = self.nfs_target(uid, name);
        if !self.nfs.is_mounted(&target).await? {
            return Ok(None);
        }
        let path = target.clone();
        let look =
            move || rustix::fs::statvfs(&path).map_err(|error| format!("statfs {}: {error}", path.display()));
        let found = self.nfs.threads.run(&target, PATIENCE, look).await?;
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

    /// Whether the pod has a folder for volumes of servers, whoever made it.
    pub(super) async fn has_nfs_folder(&self, uid: &PodUid) -> Result<bool, String> {
        let folder = self.pod(uid).join("volumes").join(FOLDER);
        blocking(move || match folder.symlink_metadata() {
            Ok(found) => Ok(found.is_dir()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(format!("look for {}: {error}", folder.display())),
        })
        .await
    }

    /// Parts of exports, which keep them from being unmounted. The kernel asks the server for none of them: umount(8) would.
    pub(super) async fn unmount_nfs_parts(&self, parts: PathBuf) -> Result<(), String> {
        let folder = parts.clone();
        let work = move || {
            let points = mounts::exports_below(&folder);
            for point in points.map_err(|error| format!("read the mount table: {error}"))? {
                let done = mounts::detach(&point);
                done.map_err(|error| format!("unmount {}: {error}", point.display()))?;
            }
            Ok(())
        };
        self.nfs.threads.run(&parts, PATIENCE, work).await
    }

    pub(super) async fn unmount_nfs(&self, uid: &PodUid) -> Result<(), String> {
        self.nfs.unmount_all(self.pod(uid).join("volumes").join(FOLDER)).await
    }

    /// It has no volumes any more.
    pub(super) fn forget_nfs(&self, uid: &PodUid) {
        self.nfs.waits.forget(uid);
    }
}
