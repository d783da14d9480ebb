//! What the agent asks of the place where pods come from: the objects that they refer to. Owns the
//! trait and its errors; never a pod. Called by [`crate::pod::configure`] and [`crate::volumes`].
//!
//! ```text
//! Api ── files    the documents beside the pods of `gantry run`
//!     ── cluster  the API server
//!     ── fake     tests
//! ```

pub mod cluster;
#[cfg(any(test, feature = "testing"))]
pub mod fake;
pub mod files;
pub(crate) mod node_selector;
pub mod references;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream, Stream};
use gantry_model::pod::placement::Term;
use gantry_model::pod::token::TokenOf;
use gantry_model::pod::volume::IscsiVolume;
use gantry_model::pod::{Pod, PodUid};
use tokio::sync::watch;

/// A ConfigMap's content. No key is in both.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigMap {
    /// What variables may use.
    pub data: BTreeMap<String, String>,
    /// Decoded; for files only.
    pub binary: BTreeMap<String, Vec<u8>>,
}

/// A Secret's content, decoded.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret {
    /// Such as `kubernetes.io/dockerconfigjson`.
    pub kind: String,
    /// By key.
    pub data: BTreeMap<String, Vec<u8>>,
    /// Of this very object; empty when it is not the API's.
    pub uid: String,
}

/// Only the keys: a secret does not belong into a log.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret").field("kind", &self.kind).field("keys", &self.data.keys()).finish()
    }
}

/// A service account, as far as those who vouch for it want to know.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceAccount {
    /// Of this very object.
    pub uid: String,
    /// All of them.
    pub annotations: BTreeMap<String, String>,
}

/// A claim and what it is bound to, as far as a node wants to know.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Claim {
    /// Of the PersistentVolume; empty when it is not bound.
    pub volume: String,
    /// `Bound`, or not yet.
    pub bound: bool,
    /// A block device instead of a folder.
    pub block: bool,
    /// It was asked to go: no new pod may use it.
    pub deleted: bool,
    /// Of the claim: a volume that is bound to another of this name is none of its.
    pub uid: String,
    /// Of the object that made it and looks after it; empty when a person did.
    pub controller: String,
    /// How large it is, and is to be.
    pub size: ClaimSize,
}

/// A claim to devices of DRA drivers, as far as a node wants to know.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResourceClaim {
    /// Of this very object.
    pub uid: String,
    /// Of the object that made it and looks after it; empty when a person did.
    pub controller: String,
    /// UIDs of the pods that may use it.
    pub reserved_for: Vec<String>,
    /// The drivers that devices were allocated from; none while nothing is.
    pub drivers: Option<BTreeSet<String>>,
}

/// How large a claim is, and how far its expansion. Amounts as the API writes them; empty when it says nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClaimSize {
    /// `metadata.resourceVersion`.
    pub version: String,
    /// What the claim asks for.
    pub requested: String,
    /// What a pod can use.
    pub capacity: String,
    /// What the expansion under way is to come to.
    pub allocated: String,
    /// Of the expansion: `NodeResizePending` and so on.
    pub status: String,
}

/// Where a PersistentVolume of this node is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PersistentSource {
    /// A path of the node, with the type that it must have.
    HostPath {
        /// Absolute.
        path: String,
        /// As in HostPathVolumeSource.type; may be empty.
        kind: String,
        /// Which nothing can use: a hostPath is no mount.
        mount_options: Vec<String>,
    },
    /// A folder or a disk of this node.
    Local {
        /// Absolute.
        path: String,
        /// Of the disk's file system; empty where nobody says.
        fs_type: String,
        /// For mount(8).
        mount_options: Vec<String>,
    },
    /// A volume of a CSI driver.
    Csi(Box<CsiSource>),
    /// A disk of an iSCSI target.
    Iscsi(Box<IscsiSource>),
    /// An export of an NFS server.
    Nfs(NfsSource),
    /// A kind that this node does not mount, by the API's name of its field.
    Other(String),
    /// Nobody can mount it; why, in upstream's words.
    Wrong(String),
}

/// What a volume of a CSI driver is made of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CsiSource {
    /// By its registered name.
    pub driver: String,
    /// What the driver calls the volume.
    pub handle: String,
    /// May be empty: the driver's choice.
    pub fs_type: String,
    /// For the driver.
    pub attributes: BTreeMap<String, String>,
    /// For whoever mounts.
    pub mount_options: Vec<String>,
    /// As the API spells them.
    pub access_modes: Vec<String>,
    /// Namespace and name of the Secret that the driver is shown when it stages.
    pub stage_secret: Option<(String, String)>,
    /// The same when it publishes.
    pub publish_secret: Option<(String, String)>,
    /// The same when it expands.
    pub expand_secret: Option<(String, String)>,
}

/// A PersistentVolume of an NFS server. Its `readOnly` is nobody's: the claim in the pod says it, as upstream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NfsSource {
    /// Its name or address.
    pub server: String,
    /// Of the export.
    pub path: String,
    /// Of the annotation, else of the PersistentVolume.
    pub mount_options: Vec<String>,
}

/// A PersistentVolume of an iSCSI target. Its `readOnly` is nobody's: the claim in the pod says it, as upstream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IscsiSource {
    /// As pods have such volumes of their own.
    pub volume: IscsiVolume,
    /// Of the annotation, else of the PersistentVolume.
    pub mount_options: Vec<String>,
}

/// A CSIDriver, as far as a node wants to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CsiDriver {
    /// Its volumes are attached by a controller first.
    pub attach_required: bool,
    /// It is told which pod a volume is for.
    pub pod_info: bool,
    /// `None`, `File` or `ReadWriteOnceWithFSType`.
    pub fs_group_policy: String,
    /// `Persistent`, `Ephemeral`.
    pub modes: Vec<String>,
    /// Tokens of the pod's service account that it wants: for whom, and for how many seconds.
    pub tokens: Vec<(String, i64)>,
    /// It gets these among the secrets, and not among the volume's attributes.
    pub tokens_in_secrets: bool,
    /// It is asked to publish again and again, since what it shows changes.
    pub republish: bool,
    /// It takes the mount option `context`.
    pub se_linux_mount: bool,
    /// How often it is asked how many volumes the node takes; none where it is asked when it registers, and not again.
    pub allocatable_period: Option<Duration>,
}

/// A token of a service account.
#[derive(Clone, PartialEq, Eq)]
pub struct AccountToken {
    /// The token itself.
    pub text: String,
    /// Unix nanoseconds.
    pub expires: i64,
}

impl fmt::Debug for AccountToken {
    /// Without the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccountToken").field("expires", &self.expires).finish_non_exhaustive()
    }
}

/// A VolumeAttachment, as far as a node wants to know.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attachment {
    /// The volume is there.
    pub attached: bool,
    /// It was asked to go.
    pub deleted: bool,
    /// Why it could not be attached.
    pub error: Option<String>,
    /// The same as a code of gRPC, of attachers that give one.
    pub error_code: Option<i32>,
    /// For the driver.
    pub metadata: BTreeMap<String, String>,
}

/// A PersistentVolume, as far as a node wants to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PersistentVolume {
    /// Of this very object.
    pub uid: String,
    /// Its kind.
    pub source: PersistentSource,
    /// UID of the claim that it is bound to; may be empty.
    pub claim_uid: String,
    /// ReadWriteOncePod is its only access mode.
    pub one_pod: bool,
    /// The widest of all, as metrics have it: `RWX`, `ROX`, `RWO`, `RWOP`.
    pub access_mode: &'static str,
    /// Any one of these must match the node's labels, when there are any required ones.
    pub affinity: Option<Vec<Term>>,
    /// As the API writes it; may be empty.
    pub capacity: String,
}

/// The widest of a volume's access modes, as metrics have it.
pub(crate) fn widest(modes: &[String]) -> &'static str {
    let all = [
        ("ReadWriteMany", "RWX"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteOnce", "RWO"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let has = |(mode, _): &&(&str, &str)| modes.iter().any(|known| known == mode);
    all.iter().find(has).map_or("", |(_, short)| short)
}

/// A Service, as far as environment variables tell of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Service {
    /// Its name.
    pub name: String,
    /// `None` or empty for those that have no variables.
    pub cluster_ip: String,
    /// In order.
    pub ports: Vec<ServicePort>,
}

/// One port of a [`Service`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServicePort {
    /// May be empty.
    pub name: String,
    /// Of the Service.
    pub port: i32,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
}

/// What asking for an object comes to; none when there is no such object.
pub type LookupFuture<'a, T> = BoxFuture<'a, Result<Option<Arc<T>>, Error>>;

/// A source of objects.
pub trait Api: Send + Sync + fmt::Debug {
    /// By namespace and name.
    fn config_map<'a>(&'a self, namespace: &'a str, name: &'a str) -> LookupFuture<'a, ConfigMap>;
    /// By namespace and name.
    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> LookupFuture<'a, Secret>;
    /// A token that is good for a while yet.
    fn token<'a>(&'a self, of: &'a TokenOf) -> BoxFuture<'a, Result<AccountToken, Error>>;
    /// By namespace and name.
    fn service_account<'a>(&'a self, namespace: &'a str, name: &'a str) -> LookupFuture<'a, ServiceAccount>;
    /// By namespace and name.
    fn claim<'a>(&'a self, namespace: &'a str, name: &'a str) -> LookupFuture<'a, Claim>;
    /// By name.
    fn persistent_volume<'a>(&'a self, name: &'a str) -> LookupFuture<'a, PersistentVolume>;
    /// By namespace and name.
    fn resource_claim<'a>(&'a self, namespace: &'a str, name: &'a str) -> LookupFuture<'a, ResourceClaim>;
    /// Changes the status of a claim, by a strategic merge patch.
    fn patch_claim_status<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
        patch: serde_json::Value,
    ) -> BoxFuture<'a, Result<(), Error>>;
    /// By name.
    fn csi_driver<'a>(&'a self, name: &'a str) -> LookupFuture<'a, CsiDriver>;
    /// The `allocatable_period` of every [`CsiDriver`] that has one, by name: as it is, and each time that one changes.
    fn allocatable_periods(&self) -> BoxStream<'static, BTreeMap<String, Duration>>;
    /// By name.
    fn attachment<'a>(&'a self, name: &'a str) -> LookupFuture<'a, Attachment>;
    /// All of a namespace. Fails until they are known.
    fn services<'a>(&'a self, namespace: &'a str) -> BoxFuture<'a, Result<Vec<Service>, Error>>;
    /// The handler of a RuntimeClass.
    fn runtime_handler<'a>(&'a self, class: &'a str) -> LookupFuture<'a, String>;
    /// From now on the objects that the pod refers to are kept at hand. The number that comes back
    /// rises when one of them changes, or a token is due: volumes are then to be set up again. Once for
    /// each pod; again when its references change.
    fn follow(&self, pod: &Pod) -> watch::Receiver<u64>;
    /// What [`Api::follow`] has given for the pod rises, though no object has changed.
    fn refresh(&self, uid: &PodUid);
    /// Nothing of the pod runs any more: its objects need not be kept, its tokens are forgotten.
    fn forget(&self, uid: &PodUid);
}

/// What `look` sees in `source`, at once and each time that it changes. Nothing while it sees nothing.
fn changes<T, U>(source: watch::Receiver<T>, look: impl Fn(&T) -> Option<U>) -> impl Stream<Item = U> {
    stream::unfold((source, look, true), async |(mut source, look, mut is_first)| {
        loop {
            if !std::mem::take(&mut is_first) {
                source.changed().await.ok()?;
            }
            let seen = look(&source.borrow_and_update());
            if let Some(seen) = seen {
                return Some((seen, (source, look, false)));
            }
        }
    })
}

/// An object could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// In the words that the pod's owner reads; names the object.
    pub message: String,
}

impl Error {
    /// For an object by kind, namespace and name.
    #[must_use]
    pub fn reading(kind: &str, namespace: &str, name: &str, why: &str) -> Self {
        Self { message: format!("read {kind} {namespace}/{name}: {why}") }
    }
}
