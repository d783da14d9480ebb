//! A pod's volumes: made before its sandbox, handed to its containers as mounts, taken back after
//! its end. Owns the trait; never decides when. Called by [`crate::pod::run`].

mod atomic;
mod claim;
#[cfg(any(test, feature = "testing"))]
pub mod contract;
mod disk;
pub mod downward;
mod env_file_source;
#[cfg(any(test, feature = "testing"))]
pub mod fake;
pub mod host;
mod host_path;
mod host_program;
mod hosts_file;
mod iscsi;
mod labels;
mod medium;
mod metrics;
mod mount_program;
mod mounts;
mod nfs;
mod orphans;
mod own_thread;
mod ownership;
mod ownership_progress;
mod payload;
mod removal;
mod sub_path;
mod turns;

pub(crate) use iscsi::NO_ISCSIADM;
pub use mounts::{keeps_out_of_swap, share};
pub(crate) use nfs::NO_HELPER as NO_NFS_HELPER;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use futures_util::future::BoxFuture;
use gantry_model::mount::Mount;
use gantry_model::pod::usage::VolumeUsage;
use gantry_model::pod::{Container, Pod, PodUid};

pub use crate::events::VolumeNotes;
use crate::timeline::Span;

/// Of a pod that is rejected because its volume finds no room on the node.
pub const VOLUME_LIMIT: &str = "VolumeAttachmentLimitExceeded";
const FAILED_MOUNT: &str = "FailedMount";

/// A device of a container: its path there, its path on the node, and cgroup permissions (`mrw`).
pub type MappedDevice = (String, String, String);

/// Volumes of pods on this node. All calls are idempotent.
pub trait Volumes: Send + Sync + fmt::Debug {
    /// Makes every volume of the pod; called again, brings changed content up to date.
    fn set_up<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<(), Error>>;
    /// All mounts of one container: its volumes (sub-paths made), /etc/hosts and the file of its
    /// last words.
    fn mounts<'a>(&'a self, of: MountsOf<'a>) -> BoxFuture<'a, Result<Vec<Mount>, Error>>;
    /// The raw block devices of one container.
    fn devices<'a>(
        &'a self,
        pod: &'a Pod,
        container: &'a Container,
    ) -> BoxFuture<'a, Result<Vec<MappedDevice>, Error>>;
    /// What happens to volumes of pods, also while they are set up.
    fn notes(&self) -> VolumeNotes;
    /// What the container wrote to its terminationMessagePath, at most its last 4096 bytes; none
    /// when it has no such file.
    fn last_words<'a>(&'a self, of: WordsOf<'a>) -> BoxFuture<'a, Result<Option<String>, Error>>;
    /// The text of a file that a container of the pod has left in one of its emptyDirs.
    fn left_file<'a>(
        &'a self,
        uid: &'a PodUid,
        volume: &'a str,
        path: &'a str,
    ) -> BoxFuture<'a, Result<String, Error>>;
    /// The PersistentVolume behind a volume of a pod, when a folder of it is mounted.
    fn claim_name(&self, uid: &PodUid, volume: &str) -> Option<String>;
    /// How full a volume of a pod is that a driver has made; none where it does not tell.
    fn usage<'a>(&'a self, _: &'a PodUid, _: &'a str) -> BoxFuture<'a, Result<Option<VolumeUsage>, String>> {
        Box::pin(std::future::ready(Ok(None)))
    }
    /// How many there are, by plugin; nobody counts those of a fake.
    fn counts(&self) -> BTreeMap<String, Count> {
        BTreeMap::new()
    }
    /// Volumes of drivers and servers that the pod waits for.
    fn waits(&self, _: &PodUid) -> Vec<VolumeWait> {
        Vec::new()
    }
    /// Steps of drivers for the pod's volumes, within the stage `volumes`.
    fn stages(&self, _: &PodUid) -> Vec<Span> {
        Vec::new()
    }
    /// Unmounts and removes everything of the pod but never what a mount leads to; succeeds when
    /// nothing is there.
    fn tear_down<'a>(&'a self, uid: &'a PodUid) -> BoxFuture<'a, Result<(), Error>>;
    /// Whether volumes that an earlier kubelet mounted, and that this one does not do, are mounted yet.
    /// Nobody but a kubelet's node asks.
    fn foreign(&self) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(std::future::ready(Ok(false)))
    }
    /// Every pod of which something is there, whoever made it.
    fn list_orphans(&self) -> BoxFuture<'_, Result<Vec<PodUid>, Error>>;
    /// The same as [`Volumes::tear_down`] of a pod that nobody remembers: what its folders say is all
    /// there is to know. A volume that would have to be taken back elsewhere, too, keeps all of them.
    fn reclaim<'a>(&'a self, uid: &'a PodUid) -> BoxFuture<'a, Result<(), Error>>;
}

/// Volumes of one plugin.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// That pods should have.
    pub wanted: usize,
    /// And have.
    pub there: usize,
}

/// A volume that a pod waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeWait {
    /// Of the PersistentVolume, or the pod's own.
    pub volume: String,
    /// Whose it is.
    pub from: VolumeOrigin,
    /// By upstream's name.
    pub step: &'static str,
    /// What came of it last.
    pub why: String,
    /// How long it has been so.
    pub since: Duration,
}

/// Whose a volume is that others make or keep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeOrigin {
    /// A CSI driver, by its name.
    Driver(String),
    /// An NFS server: `SERVER:PATH`.
    Export(String),
    /// An iSCSI target: `PORTAL IQN`.
    Target(String),
}

/// Whose mounts are asked for.
#[derive(Debug, Clone, Copy)]
pub struct MountsOf<'a> {
    /// Of the container.
    pub pod: &'a Pod,
    /// Of the mounts.
    pub container: &'a Container,
    /// Which start of it.
    pub attempt: u32,
    /// Expands subPathExpr.
    pub env: &'a [(String, String)],
    /// For /etc/hosts.
    pub facts: &'a PodFacts,
    /// IDs of images by the volume that they are.
    pub images: &'a [(String, String)],
}

/// Whose last words are asked for.
#[derive(Debug, Clone, Copy)]
pub struct WordsOf<'a> {
    /// Of the pod.
    pub uid: &'a PodUid,
    /// Its name.
    pub container: &'a str,
    /// Which start of it.
    pub attempt: u32,
    /// Where the runtime says that they are: a container that another kubelet has made wrote them
    /// into a file of another name.
    pub file: Option<&'a Path>,
}

/// What is known of a pod only once it runs; the downward API shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodFacts {
    /// Primary first; empty before the sandbox is there.
    pub ips: Vec<String>,
}

/// Why a volume is not ready; the message is what the kubelet says, too.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// Names the volume and the cause.
    pub message: String,
    /// Of the event that tells it.
    pub reason: &'static str,
    /// It is no event: others are waited for, or it was told before.
    pub quiet: bool,
    /// The node takes no more volumes of that kind: the pod cannot run here.
    pub rejects: bool,
}

impl Error {
    /// One that is told.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), reason: FAILED_MOUNT, quiet: false, rejects: false }
    }
}
