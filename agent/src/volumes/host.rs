//! The volumes of this machine, in the kubelet's folders. Owns everything below `ROOT/pods`; never
//! what a hostPath or another mount leads to. Called by the workers through [`Volumes`].
//!
//! ```text
//! ROOT/pods/UID/volumes/PLUGIN/NAME            emptyDir, ConfigMap, Secret, projected, downward API
//! ROOT/pods/UID/volumes/kubernetes.io~local-volume/PV   a folder of the node, bound
//! ROOT/pods/UID/volumes/kubernetes.io~csi/PV/mount          mounted by a driver
//! ROOT/pods/UID/volumes/kubernetes.io~nfs/NAME              mounted by mount(8)
//! ROOT/pods/UID/volumes/kubernetes.io~iscsi/NAME            a disk of a target, bound
//! ROOT/pods/UID/volumeDevices/PLUGIN/PV        links to devices: `block`, and [`crate::csi`]
//! ROOT/pods/UID/plugins/kubernetes.io~empty-dir/NAME/ready
//! ROOT/pods/UID/volume-subpaths/NAME/CONTAINER/INDEX
//! ROOT/pods/UID/containers/CONTAINER/ATTEMPT   last words
//! ROOT/pods/UID/etc-hosts
//! ```

#![expect(clippy::disallowed_methods, reason = "a file of a pod, and a note of which only the name counts")]

mod block;
mod claims;
mod container_mounts;
mod csi;
mod failures;
mod iscsi;
mod local;
mod local_disk;
mod local_growth;
mod nfs;
mod served;
mod waits;
mod words;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use futures_util::future::{BoxFuture, join_all};
use gantry_metrics::Metrics;
use gantry_model::mount::Mount;
use gantry_model::pod::usage::VolumeUsage;
use gantry_model::pod::volume::{Volume, VolumeSource};
use gantry_model::pod::{Container, Pod, PodUid};

use super::atomic::Payload;
use super::claim::VolumeBacking;
use super::disk::{DiskFailure, DiskPrograms};
use super::iscsi::{FOLDER as ISCSI, IscsiDisk};
use super::labels::LabelPolicy;
use super::medium::{Ground, ground, sizes_differ};
use super::metrics::VolumeMetrics;
use super::nfs::{FOLDER as NFS, NfsMount};
use super::payload::payload;
use super::turns::Turns;
use super::{
    Count, Error, MappedDevice, MountsOf, VolumeWait, Volumes, WordsOf, atomic, env_file_source, host_path,
    mounts, orphans, ownership,
};
use crate::api::Api;
use crate::block::{BlockKernel, Kernel};
use crate::csi::files::{FOLDER as CSI, folder_name};
use crate::csi::owner::CsiVolumes;
use crate::events::{VolumeIdentity, VolumeNotes};
use crate::node::NodeInfo;
use crate::timeline::Span;
use claims::{Failed, Writers};
use failures::{MissingVolume, mismatch_note};
use iscsi::IscsiParts;
use local_disk::LocalDisks;
use local_growth::LocalGrowth;
use served::ServedParts;
use waits::Waits;
use words::{read_words, words_below, words_path};

const EMPTY_DIR: &str = "kubernetes.io~empty-dir";
const LOCAL: &str = "kubernetes.io~local-volume";
/// The access mode of a volume that is no claim's, as metrics have it; several pods may have such a one.
const INLINE: (&str, bool) = ("inline", false);

/// Volumes below a root folder.
#[derive(Debug, Clone)]
pub struct HostVolumes {
    /// `ROOT/pods`, as the table of mounts names it: it may be a link to another disk.
    pods: PathBuf,
    /// `ROOT/plugins`, likewise: where other kubelets mount devices.
    plugins: PathBuf,
    api: Arc<dyn Api>,
    node: Arc<NodeInfo>,
    /// Whether the runtime can make mounts read-only with all that is below them.
    recursive_read_only: bool,
    /// What claims led to when their pods were set up.
    claims: Arc<Mutex<Claims>>,
    writers: Writers,
    /// None without a cluster.
    csi: Option<CsiVolumes>,
    /// For volumes whose files are not this machine's.
    served: ServedParts,
    iscsi: IscsiParts,
    waits: Waits,
    tally: VolumeMetrics,
    blocks: Arc<dyn BlockKernel>,
    /// What happens to volumes.
    notes: VolumeNotes,
    /// Of folders of the node.
    turns: Turns,
    disk_programs: DiskPrograms,
    local_disks: LocalDisks,
    local_growth: LocalGrowth,
    /// None where the node has no SELinux.
    labels: Option<LabelPolicy>,
}

/// By pod and volume.
type Claims = BTreeMap<PodUid, BTreeMap<String, VolumeBacking>>;

/// What one volume comes to.
struct Ready<'a> {
    volume: &'a Volume,
    /// None when there is nothing to write.
    files: Option<Payload>,
    /// Of a claim.
    place: Option<VolumeBacking>,
}

impl HostVolumes {
    /// Volumes below `root`, with what `api` knows in them.
    #[must_use]
    pub fn new(root: &Path, api: Arc<dyn Api>, node: Arc<NodeInfo>, recursive_read_only: bool) -> Self {
        let real = |name: &str| {
            let path = root.join(name);
            path.canonicalize().unwrap_or(path)
        };
        let (pods, plugins, labels) = (real("pods"), real("plugins"), LabelPolicy::find());
        let (claims, writers, tally) = (Arc::default(), Writers::default(), VolumeMetrics::default());
        Self {
            pods,
            plugins,
            api,
            node,
            recursive_read_only,
            claims,
            writers,
            csi: None,
            served: ServedParts::default(),
            iscsi: IscsiParts::default(),
            waits: Waits::default(),
            tally,
            blocks: Arc::new(Kernel),
            notes: VolumeNotes::default(),
            turns: Turns::default(),
            disk_programs: DiskPrograms::default(),
            local_disks: LocalDisks::default(),
            local_growth: LocalGrowth::default(),
            labels,
        }
    }

    /// The same, and counted there.
    #[must_use]
    pub fn counted_in(self, metrics: Arc<Metrics>) -> Self {
        Self { tally: VolumeMetrics::new(metrics), ..self }
    }

    fn pod(&self, uid: &PodUid) -> PathBuf {
        self.pods.join(uid.as_str())
    }

    /// Looks up first, so that nothing is half made because an object is missing.
    async fn ready<'a>(&self, pod: &'a Pod, volume: &'a Volume) -> Result<Ready<'a>, Failed> {
        let (mut files, mut found) = (None, None);
        if !matches!(
            volume.source,
            VolumeSource::Claim { .. } | VolumeSource::Csi(_) | VolumeSource::Migrated(_)
        ) {
            // Nothing is mounted with it: labels that differ are counted.
            self.label(pod, volume, INLINE)?;
        }
        match &volume.source {
            VolumeSource::Projected { sources, default_mode, .. } => {
                files = Some(payload(self.api.as_ref(), &self.node, pod, sources, *default_mode).await?);
            }
            VolumeSource::Claim { claim, .. } => found = Some(self.claim(pod, volume, claim).await?),
            VolumeSource::Csi(of) => {
                let label = self.label(pod, volume, INLINE)?;
                found = Some(csi::own(pod, &volume.name, of, label));
            }
            VolumeSource::Migrated(of) => found = Some(self.migrated(pod, volume, of)?),
            VolumeSource::Nfs(of) => {
                found = Some(VolumeBacking::Nfs(Box::new(NfsMount::own(&volume.name, of))));
            }
            VolumeSource::Iscsi(of) => {
                found = Some(VolumeBacking::Iscsi(Box::new(IscsiDisk::own(&volume.name, of))));
            }
            VolumeSource::EmptyDir { .. } | VolumeSource::HostPath { .. } | VolumeSource::Image { .. } => {}
        }
        Ok(Ready { volume, files, place: found })
    }

    /// Where the claim behind a volume led to.
    fn place_of(&self, uid: &PodUid, volume: &str) -> Option<VolumeBacking> {
        let claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        claims.get(uid).and_then(|volumes| volumes.get(volume)).cloned()
    }

    /// Of the PersistentVolume that the pod is to have: its name, its UID.
    fn tell_mismatch(&self, pod: &PodUid, (name, uid): (&str, &str), failure: &DiskFailure) {
        if let Some(note) = mismatch_note(name, failure) {
            let of = VolumeIdentity { name: name.to_owned(), uid: uid.to_owned() };
            self.notes.add_of_volume(pod, of, note);
        }
    }

    async fn set_up_all(&self, pod: &Pod) -> Result<(), Error> {
        let folder = self.pod(&pod.uid);
        let made = make_folder(&folder.join("volumes"));
        made.map_err(|error| Error::new(format!("mkdir {}: {error}", folder.display())))?;
        // As the kubelet, which sets volumes up side by side: the others do not wait for a broken one.
        let mut failures = Vec::new();
        let mut mounting: Vec<BoxFuture<'_, Result<(), MissingVolume>>> = Vec::new();
        for volume in &pod.volumes {
            let begun = Instant::now();
            let ready = self.ready(pod, volume).await;
            self.tally.begins(pod, volume, self.place_of(&pod.uid, &volume.name).as_ref());
            let result = match ready {
                Ok(Ready { place: Some(VolumeBacking::Csi(wanted)), .. }) => {
                    mounting.push(Box::pin(self.mount_csi(pod, volume, wanted, begun)));
                    continue;
                }
                Ok(Ready { place: Some(VolumeBacking::Nfs(wanted)), .. }) => {
                    mounting.push(Box::pin(self.mount_nfs(pod, volume, wanted, begun)));
                    continue;
                }
                Ok(Ready { place: Some(VolumeBacking::Iscsi(wanted)), .. }) => {
                    mounting.push(Box::pin(self.mount_iscsi(pod, volume, wanted, begun)));
                    continue;
                }
                Ok(Ready { place: Some(VolumeBacking::LocalBlock(of)), .. }) => {
                    self.map_local(pod, &of).await
                }
                Ok(Ready { place: Some(VolumeBacking::Local(of)), .. }) => self.mount_local(pod, &of).await,
                Ok(ready) => self.apply(pod, &folder, ready).await.map_err(Failed::from),
                Err(error) => Err(error),
            };
            self.tally.record_mount(pod, volume, begun, result.is_ok());
            if let Err(error) = result {
                self.writers.give_back(&pod.uid);
                failures.push(MissingVolume::of(&volume.name, &error));
            }
        }
        failures.extend(join_all(mounting).await.into_iter().filter_map(Result::err));
        failures::told(failures)
    }

    async fn apply(&self, pod: &Pod, folder: &Path, ready: Ready<'_>) -> Result<(), String> {
        let path = path_of(folder, ready.volume, ready.place.as_ref())?;
        let note = folder.join("plugins").join(EMPTY_DIR).join(&ready.volume.name).join("ready");
        let fs_group = pod.security.fs_group.and_then(|group| u32::try_from(group).ok());
        let ground = ground(pod, &ready.volume.source, self.node.memory)?;
        let now = jiff::Timestamp::now().strftime("%Y_%m_%d_%H_%M_%S").to_string();
        let (source, files, place) = (ready.volume.source.clone(), ready.files, ready.place);
        blocking(move || match source {
            VolumeSource::Claim { .. } => match place {
                Some(VolumeBacking::HostPath { path, kind }) => host_path::check(&path, kind),
                Some(
                    VolumeBacking::Local(_)
                    | VolumeBacking::LocalBlock(_)
                    | VolumeBacking::Csi(_)
                    | VolumeBacking::Iscsi(_)
                    | VolumeBacking::Nfs(_),
                )
                | None => Err("the claim was not looked up".to_owned()),
            },
            VolumeSource::Csi(_) | VolumeSource::Migrated(_) => Err("its driver was not asked".to_owned()),
            VolumeSource::Nfs(_) | VolumeSource::Iscsi(_) => Err("its server was not asked".to_owned()),
            VolumeSource::HostPath { kind, .. } => host_path::check(&path, kind),
            // The runtime's: nothing of it is a folder of the pod.
            VolumeSource::Image { .. } => Ok(()),
            VolumeSource::EmptyDir { .. } => {
                if is_ready(&note, &path, ground)? {
                    return Ok(());
                }
                room(&path, ground)?;
                ownership::set_empty_dir(&path, fs_group)
                    .map_err(|e| format!("chmod {}: {e}", path.display()))?;
                set_ready(&note).map_err(|e| format!("write {}: {e}", note.display()))
            }
            VolumeSource::Projected { .. } => {
                room(&path, ground)?;
                atomic::write(&path, &files.unwrap_or_default(), fs_group, &now)
                    .map_err(|e| format!("write {}: {e}", path.display()))
            }
        })
        .await
    }
}

/// Where a volume's content is.
fn path_of(pod_folder: &Path, volume: &Volume, place: Option<&VolumeBacking>) -> Result<PathBuf, String> {
    let (plugin, name) = match (&volume.source, place) {
        (VolumeSource::HostPath { path, .. }, _) => return Ok(PathBuf::from(path)),
        (VolumeSource::Claim { .. }, Some(VolumeBacking::HostPath { path, .. })) => return Ok(path.clone()),
        (VolumeSource::Claim { .. }, Some(place)) if place.is_block() => {
            return Err(format!("volume {:?} is a block device", volume.name));
        }
        (VolumeSource::Claim { .. }, Some(VolumeBacking::Local(of) | VolumeBacking::LocalBlock(of))) => {
            (LOCAL, &of.name)
        }
        (VolumeSource::Claim { .. }, Some(VolumeBacking::Csi(wanted))) => {
            return Ok(pod_folder.join("volumes").join(CSI).join(&wanted.name).join("mount"));
        }
        (VolumeSource::Claim { .. }, Some(VolumeBacking::Nfs(wanted))) => (NFS, &wanted.name),
        (VolumeSource::Nfs(_), _) => (NFS, &volume.name),
        (VolumeSource::Claim { .. }, Some(VolumeBacking::Iscsi(disk))) => (ISCSI, &disk.name),
        (VolumeSource::Iscsi(_), _) => (ISCSI, &volume.name),
        (VolumeSource::Claim { .. }, None) => {
            return Err(format!("volume {:?} has not been set up", volume.name));
        }
        (VolumeSource::Csi(_), _) => {
            return Ok(pod_folder.join("volumes").join(CSI).join(&volume.name).join("mount"));
        }
        (VolumeSource::Migrated(of), _) => {
            let name = folder_name(&of.as_ref().map_err(Clone::clone)?.name);
            return Ok(pod_folder.join("volumes").join(CSI).join(name).join("mount"));
        }
        (VolumeSource::Image { .. }, _) => return Ok(PathBuf::new()),
        (VolumeSource::EmptyDir { .. }, _) => (EMPTY_DIR, &volume.name),
        (VolumeSource::Projected { plugin, .. }, _) => (*plugin, &volume.name),
    };
    Ok(pod_folder.join("volumes").join(plugin).join(name))
}

fn make_folder(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o750).create(path)
}

/// Whether an emptyDir was made before: then its mode and owner are the containers' to change. The
/// note outlives a reboot, a mount does not.
fn is_ready(note: &Path, volume: &Path, ground: Ground) -> Result<bool, String> {
    if !note.is_file() {
        return Ok(false);
    }
    if ground == Ground::Folder { Ok(volume.is_dir()) } else { is_mounted(volume, ground) }
}

/// Whether the file system that the folder is to have is there. Huge pages of another size are an error.
fn is_mounted(path: &Path, ground: Ground) -> Result<bool, String> {
    let failed = |error: io::Error| format!("stat {}: {error}", path.display());
    if !mounts::is_mount_point(path).map_err(failed)? {
        return Ok(false);
    }
    let Ground::HugePages(wanted) = ground else { return Ok(true) };
    match mounts::huge_page_size(path).map_err(failed)? {
        Some(found) if found != wanted => Err(sizes_differ(path, found, wanted)),
        found => Ok(found.is_some()),
    }
}

fn set_ready(note: &Path) -> io::Result<()> {
    if let Some(parent) = note.parent() {
        make_folder(parent)?;
    }
    fs::write(note, "")
}

/// The folder of a volume, with a file system on it if there is to be one.
fn room(path: &Path, ground: Ground) -> Result<(), String> {
    make_folder(path).map_err(|error| format!("mkdir {}: {error}", path.display()))?;
    let (kind, done) = match ground {
        _ if is_mounted(path, ground)? => ("", Ok(())),
        Ground::Folder => ("", Ok(())),
        Ground::Tmpfs(size) => ("tmpfs", mounts::tmpfs(path, size)),
        Ground::HugePages(size) => ("hugetlbfs", mounts::hugetlbfs(path, size)),
    };
    done.map_err(|error| format!("mount {kind} on {}: {error}", path.display()))?;
    let found = fs::symlink_metadata(path).map_err(|error| format!("stat {}: {error}", path.display()))?;
    let mode = found.permissions().mode() & 0o7777;
    // Whoever the container runs as looks into it. The set-group-ID bit of an fsGroup stays, and the
    // sticky bit that a tmpfs has of its own, as upstream.
    if mode & 0o777 == 0o777 {
        return Ok(());
    }
    let mode = fs::Permissions::from_mode(mode | 0o777);
    fs::set_permissions(path, mode).map_err(|error| format!("chmod {}: {error}", path.display()))
}

/// File systems may block; the workers' threads must not.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(format!("the work on a volume died: {error}")),
    }
}

impl Volumes for HostVolumes {
    fn set_up<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(self.set_up_all(pod))
    }

    fn mounts<'a>(&'a self, of: MountsOf<'a>) -> BoxFuture<'a, Result<Vec<Mount>, Error>> {
        let (this, pod, container) = (self.clone(), of.pod.clone(), of.container.clone());
        let (attempt, env, facts) = (of.attempt, of.env.to_vec(), of.facts.clone());
        let images = of.images.to_vec();
        Box::pin(async move {
            let work = move || {
                let of = MountsOf {
                    pod: &pod,
                    container: &container,
                    attempt,
                    env: &env,
                    facts: &facts,
                    images: &images,
                };
                this.mounts_of(of)
            };
            self.on_files(of.pod, work).await.map_err(Error::new)
        })
    }

    fn devices<'a>(
        &'a self,
        pod: &'a Pod,
        container: &'a Container,
    ) -> BoxFuture<'a, Result<Vec<MappedDevice>, Error>> {
        if container.devices.is_empty() {
            return Box::pin(std::future::ready(Ok(Vec::new())));
        }
        let (this, pod, container) = (self.clone(), pod.clone(), container.clone());
        let work = move || this.devices_of(&pod, &container);
        Box::pin(async move { blocking(work).await.map_err(Error::new) })
    }

    fn notes(&self) -> VolumeNotes {
        self.notes.clone()
    }

    fn last_words<'a>(&'a self, of: WordsOf<'a>) -> BoxFuture<'a, Result<Option<String>, Error>> {
        let folder = self.pod(of.uid);
        let ours = words_path(&folder, of.container, of.attempt);
        let said = of.file.map(Path::to_owned);
        let work = move || {
            let path = said.and_then(|said| words_below(&folder, &said)).unwrap_or(ours);
            // In the kubelet's words, which it shows in place of the message.
            read_words(&path)
                .map_err(|error| format!("Error on reading termination log {}: {error}", path.display()))
        };
        Box::pin(async move { blocking(work).await.map_err(Error::new) })
    }

    fn left_file<'a>(
        &'a self,
        uid: &'a PodUid,
        volume: &'a str,
        path: &'a str,
    ) -> BoxFuture<'a, Result<String, Error>> {
        let root = self.pod(uid).join("volumes").join(EMPTY_DIR).join(volume);
        let path = path.to_owned();
        let work = move || {
            let read = env_file_source::read(&root, &path);
            read.map_err(|error| {
                let path = root.join(&path);
                format!("failed to open environment variable file {path:?}: {error}")
            })
        };
        Box::pin(async move { blocking(work).await.map_err(Error::new) })
    }

    fn claim_name(&self, uid: &PodUid, volume: &str) -> Option<String> {
        match self.place_of(uid, volume)? {
            VolumeBacking::Local(of) => Some(of.name),
            // Its driver knows how full it is; a look at a server's file system may never end.
            VolumeBacking::HostPath { .. }
            | VolumeBacking::LocalBlock(_)
            | VolumeBacking::Csi(_)
            | VolumeBacking::Iscsi(_)
            | VolumeBacking::Nfs(_) => None,
        }
    }

    fn tear_down<'a>(&'a self, uid: &'a PodUid) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let begun = Instant::now();
            let taken = self.take_all(uid).await;
            self.tally.record_unmount(uid, begun, taken.is_ok());
            taken.map_err(Error::new)?;
            self.claims.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
            self.notes.take(uid);
            self.writers.give_back(uid);
            self.waits.forget(uid);
            self.api.forget(uid);
            Ok(())
        })
    }

    fn usage<'a>(
        &'a self,
        uid: &'a PodUid,
        volume: &'a str,
    ) -> BoxFuture<'a, Result<Option<VolumeUsage>, String>> {
        Box::pin(self.usage_of(uid, volume))
    }

    fn stages(&self, uid: &PodUid) -> Vec<Span> {
        self.csi.iter().flat_map(|csi| csi.stages(uid)).collect()
    }

    fn waits(&self, uid: &PodUid) -> Vec<VolumeWait> {
        self.csi_waits(uid).into_iter().chain(self.waits.of(uid)).collect()
    }

    fn counts(&self) -> BTreeMap<String, Count> {
        self.tally.counts()
    }

    fn foreign(&self) -> BoxFuture<'_, Result<bool, Error>> {
        let (pods, plugins, csi) = (self.pods.clone(), self.plugins.clone(), self.csi.is_some());
        let work = move || orphans::foreign(&pods, &plugins, &mounts::Table, csi);
        Box::pin(async move { blocking(work).await.map_err(Error::new) })
    }

    fn list_orphans(&self) -> BoxFuture<'_, Result<Vec<PodUid>, Error>> {
        let this = self.clone();
        let list = move || {
            let mut all = this.pods_with_maps()?;
            all.extend(orphans::pods(&this.pods)?);
            Ok(all.into_iter().collect())
        };
        Box::pin(async move { blocking(list).await.map_err(Error::new) })
    }

    fn reclaim<'a>(&'a self, uid: &'a PodUid) -> BoxFuture<'a, Result<(), Error>> {
        let (folder, csi) = (self.pod(uid), self.csi.is_some());
        Box::pin(async move {
            blocking(move || orphans::check(&folder, csi)).await.map_err(Error::new)?;
            self.tear_down(uid).await
        })
    }
}

#[cfg(test)]
mod tests;
