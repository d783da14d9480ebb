//! Volumes and their mounts as written. Owns the types; never touches a file (that is
//! `volumes`). Pure.

use std::collections::BTreeMap;

use super::env::ResourceRef;
use super::token::TokenOf;
use super::{Pod, PullPolicy};

/// One volume of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    /// DNS label, unique in its pod.
    pub name: String,
    /// What it holds.
    pub source: VolumeSource,
}

/// `emptyDir.sizeLimit`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SizeLimit {
    /// More than 0.
    pub bytes: i64,
    /// As messages show it: the quantity as Go prints it.
    pub shown: String,
}

/// `emptyDir.medium`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// The node's disk.
    Disk,
    /// tmpfs.
    Memory,
    /// hugetlbfs, with pages of so many bytes; without, of the one size that the pod asks for.
    HugePages(Option<i64>),
}

/// Which claim a volume means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimRef {
    /// The one of this name.
    Named(String),
    /// A generic ephemeral volume's: a controller makes it for the pod, which owns it.
    Ephemeral,
}

impl ClaimRef {
    /// The claim's name (`POD-VOLUME` for an ephemeral one: KEP-1698).
    #[must_use]
    pub fn name(&self, pod: &str, volume: &str) -> String {
        match self {
            Self::Named(name) => name.clone(),
            Self::Ephemeral => format!("{pod}-{volume}"),
        }
    }
}

/// What a volume holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeSource {
    /// A folder that lives as long as the pod.
    EmptyDir {
        /// What it is on.
        medium: Medium,
        /// The pod is evicted above it.
        size_limit: Option<SizeLimit>,
    },
    /// A file or folder of the node.
    HostPath {
        /// Absolute.
        path: String,
        /// What must be there, or is made.
        kind: HostPathType,
    },
    /// What a PersistentVolumeClaim of the pod's namespace is bound to.
    Claim {
        /// Which one.
        claim: ClaimRef,
        /// Every mount of it is read-only.
        read_only: bool,
    },
    /// A volume of a CSI driver, made for the pod alone.
    Csi(CsiVolume),
    /// A disk or share of a kind that CSI drivers have taken over, or why none can have it.
    Migrated(Result<Box<MigratedVolume>, String>),
    /// A disk of an iSCSI target.
    Iscsi(IscsiVolume),
    /// An export of an NFS server.
    Nfs(NfsVolume),
    /// What is in an image; read-only.
    Image {
        /// As written.
        reference: String,
        /// As for a container's.
        pull_policy: PullPolicy,
    },
    /// Files from one or several sources; ConfigMap, Secret and downwardAPI volumes are
    /// projections of one source.
    Projected {
        /// In order; the later wins.
        sources: Vec<Projection>,
        /// Mode of files that have none of their own.
        default_mode: u32,
        /// Whether the content is held in memory (secrets).
        memory: bool,
        /// `kubernetes.io~configmap`, `~secret`, `~downward-api` or `~projected`: the folder's
        /// name below the pod's volumes.
        plugin: &'static str,
    },
}

/// A volume that a pod names by an older kind, as its CSI driver knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigratedVolume {
    /// As upstream calls the PersistentVolume that stands for it.
    pub name: String,
    /// By its registered name.
    pub driver: String,
    /// What the driver calls the volume.
    pub handle: String,
    /// May be empty: the driver's choice.
    pub fs_type: String,
    /// For the driver.
    pub attributes: BTreeMap<String, String>,
    /// As the API spells it.
    pub access_mode: &'static str,
    /// Namespace and name of the Secret that the driver is shown when it stages.
    pub secret: Option<(String, String)>,
}

/// As in CSIVolumeSource.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CsiVolume {
    /// By its registered name.
    pub driver: String,
    /// May be empty: the driver's choice.
    pub fs_type: String,
    /// No container may write to it.
    pub read_only: bool,
    /// For the driver.
    pub attributes: BTreeMap<String, String>,
    /// Name of the Secret, in the pod's namespace, that the driver is shown.
    pub secret: Option<String>,
}

/// As in ISCSIVolumeSource, and in ISCSIPersistentVolumeSource.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IscsiVolume {
    /// `ADDRESS:PORT`, or an address alone.
    pub target_portal: String,
    /// Others of the same target.
    pub portals: Vec<String>,
    /// The target's name.
    pub iqn: String,
    /// Of the disk, from 0 to 255.
    pub lun: i32,
    /// Of the initiator, as `iscsiadm` knows it.
    pub interface: String,
    /// The initiator's name, where it is to be another than the interface's own.
    pub initiator: Option<String>,
    /// Whether the target asks for CHAP before it says what it has.
    pub discovery_chap: bool,
    /// And before it lets anybody in.
    pub session_chap: bool,
    /// Of the Secret with the names and passwords of CHAP: its namespace, empty for the pod's own, and its name.
    pub secret: Option<(String, String)>,
    /// May be empty: ext4.
    pub fs_type: String,
    /// No container may write to it.
    pub read_only: bool,
}

/// As in NFSVolumeSource.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NfsVolume {
    /// Its name or address, as written.
    pub server: String,
    /// Of the export; absolute.
    pub path: String,
    /// No container may write to it.
    pub read_only: bool,
}

/// As in HostPathVolumeSource.type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostPathType {
    Unset,
    DirectoryOrCreate,
    Directory,
    FileOrCreate,
    File,
    Socket,
    CharDevice,
    BlockDevice,
}

impl HostPathType {
    /// As the API spells them.
    pub const NAMES: [(&'static str, Self); 8] = [
        ("", Self::Unset),
        ("DirectoryOrCreate", Self::DirectoryOrCreate),
        ("Directory", Self::Directory),
        ("FileOrCreate", Self::FileOrCreate),
        ("File", Self::File),
        ("Socket", Self::Socket),
        ("CharDevice", Self::CharDevice),
        ("BlockDevice", Self::BlockDevice),
    ];
}

/// One source of a projected volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Projection {
    /// Keys of a ConfigMap.
    ConfigMap(KeysOf),
    /// Keys of a Secret.
    Secret(KeysOf),
    /// Fields of the pod.
    Downward(Vec<DownwardFile>),
    /// A token of the pod's service account.
    Token(TokenFile),
}

/// As in ServiceAccountTokenProjection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenFile {
    /// Relative, without `..`.
    pub path: String,
    /// Whom it is for; the API server itself when empty.
    pub audience: String,
    /// Wanted life, in seconds.
    pub seconds: i64,
}

impl TokenFile {
    /// Which token that is.
    #[must_use]
    pub fn of(&self, pod: &Pod) -> TokenOf {
        TokenOf {
            namespace: pod.namespace.clone(),
            service_account: pod.shown.service_account.clone(),
            pod: pod.name.clone(),
            uid: pod.uid.clone(),
            audiences: Some(&self.audience)
                .filter(|audience| !audience.is_empty())
                .cloned()
                .into_iter()
                .collect(),
            seconds: self.seconds,
        }
    }
}

/// Which keys of an object become files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeysOf {
    /// Of the object.
    pub name: String,
    /// All keys under their own names when empty.
    pub items: Vec<KeyToPath>,
    /// Whether the object and the keys may be missing.
    pub optional: bool,
}

/// As in KeyToPath.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyToPath {
    /// In the object's data.
    pub key: String,
    /// Relative, without `..`.
    pub path: String,
    /// Permission bits.
    pub mode: Option<u32>,
}

/// One file of the downward API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DownwardFile {
    /// Relative, without `..`.
    pub path: String,
    /// What it says.
    pub value: DownwardValue,
    /// Permission bits.
    pub mode: Option<u32>,
}

/// What a file of the downward API says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DownwardValue {
    /// A field path.
    Field(String),
    /// A request or limit; names its container.
    Resource(ResourceRef),
}

/// One entry of a container's `volumeMounts`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeMount {
    /// The volume's.
    pub volume: String,
    /// Absolute, in the container.
    pub path: String,
    /// Which part of the volume.
    pub sub_path: SubPath,
    /// No writes.
    pub read_only: bool,
    /// No writes below it either; `IfPossible` and `Enabled`.
    pub recursive_read_only: RecursiveReadOnly,
    /// Whether later mounts cross.
    pub propagation: Propagation,
}

/// One entry of a container's `volumeDevices`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeDevice {
    /// The volume's, which is a claim's.
    pub volume: String,
    /// Where the container has the device.
    pub path: String,
}

/// Which part of a volume is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SubPath {
    /// All of it.
    Whole,
    /// As written.
    Plain(String),
    /// With `$(NAME)` of the container's environment.
    Expr(String),
}

/// As in VolumeMount.recursiveReadOnly.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RecursiveReadOnly {
    #[default]
    Disabled,
    IfPossible,
    Enabled,
}

/// As in VolumeMount.mountPropagation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Propagation {
    #[default]
    None,
    HostToContainer,
    Bidirectional,
}
