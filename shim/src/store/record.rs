//! What a sandbox and a container are on disk: one JSON file each, replaced whole or not at all,
//! without fsync (a start must not wait for a disk; the boot id tells stale from live). Owns the
//! format. An unknown version is refused, never skipped: the kubelet would start a twin beside
//! running processes (runtime-traps 7.3).

#![expect(clippy::disallowed_methods, reason = "written beside, then renamed over the old one")]

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use gantry_cni::CniResult;
use gantry_cni::chain::Conflist;
use gantry_failpoint::failpoint;
use gantry_proto::monitor::{IdMapping, UserMapping};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use gantry_base::timeline::unix_nanos;

/// File name inside an object's folder.
pub(crate) const FILE: &str = "record.json";
/// Version written by this program.
pub(crate) const VERSION: u32 = 1;

/// A record could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Reading failed.
    #[error("read record {path}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Not JSON of this format.
    #[error("record {path} does not parse", path = path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// Written by a newer or older program.
    #[error(
        "record {path} has version {found}, this gantry knows {VERSION}: run the version that wrote it, \
         or remove the pod with it first",
        path = path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// What it says.
        found: u64,
    },
    /// What it says of the container's limits can't be read.
    #[error("the record of container {id} is damaged: its resources do not decode; remove the container")]
    Resources {
        /// Of the container.
        id: String,
    },
    /// Writing or renaming failed.
    #[error("write record {path}", path = path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// A process for good: pids are used again, a pid with its start time in one boot is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Process {
    /// Pid in the runtime's pid namespace.
    pub pid: i32,
    /// Field 22 of /proc/PID/stat.
    pub start_time_ticks: u64,
}

/// PodSandboxMetadata of CRI.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PodName {
    pub name: String,
    pub namespace: String,
    pub uid: String,
    pub attempt: u32,
}

/// NamespaceMode numbers of CRI for the three namespaces a pod can choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NamespaceModes {
    pub network: i32,
    pub pid: i32,
    pub ipc: i32,
}

/// One line of a map of ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct IdLine {
    pub container_id: u32,
    pub host_id: u32,
    pub length: u32,
}

/// The maps of a pod's user namespace, or of the owners of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Users {
    pub uids: IdLine,
    pub gids: IdLine,
}

impl Users {
    /// None for the node's.
    #[must_use]
    pub(crate) fn new(of: &UserMapping) -> Option<Self> {
        let line =
            |of: IdMapping| IdLine { container_id: of.container_id, host_id: of.host_id, length: of.length };
        Some(Self { uids: line(of.uids?), gids: line(of.gids?) })
    }

    /// For the monitor.
    #[must_use]
    pub(crate) fn mapping(self) -> UserMapping {
        let line =
            |of: IdLine| IdMapping { container_id: of.container_id, host_id: of.host_id, length: of.length };
        UserMapping { uids: Some(line(self.uids)), gids: Some(line(self.gids)) }
    }
}

/// The pod network as it was made; what DEL needs is here, not in today's files (runtime-traps 7.2).
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct NetworkRecord {
    /// The bind-mounted namespace.
    pub netns: PathBuf,
    /// Conflist used for ADD.
    pub conflist: Conflist,
    /// CNI_ARGS.
    pub args: Vec<(String, String)>,
    /// Capability arguments, host ports among them.
    #[serde(default)]
    pub capabilities: BTreeMap<String, serde_json::Value>,
    /// Whether programs were run even for plugins that are built in.
    #[serde(default)]
    pub external: bool,
    /// Result of ADD; none while it is under way.
    pub result: Option<CniResult>,
}

/// A delegated scope of systemd.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Scope {
    /// Its name.
    pub unit: String,
    /// The slice that it is in.
    pub slice: String,
    /// Its cgroup.
    pub path: String,
    /// There was such a unit before: nothing in it is the sandbox's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_anothers: bool,
}

/// The OCI runtime that makes a sandbox's containers, whatever its handler's name stands for by now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OciProgram {
    /// Its path.
    pub program: PathBuf,
    /// Where it keeps what it knows.
    pub root: PathBuf,
}

/// A sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SandboxRecord {
    /// [`VERSION`].
    pub version: u32,
    /// 64 hex digits.
    pub id: String,
    /// Boot in which it was made.
    pub boot_id: String,
    /// Pod it belongs to.
    pub pod: PodName,
    /// From the request.
    pub labels: BTreeMap<String, String>,
    /// From the request.
    pub annotations: BTreeMap<String, String>,
    /// From the request.
    pub log_directory: String,
    /// From the request.
    pub hostname: String,
    /// From the request.
    pub runtime_handler: String,
    /// Who makes its containers; None for the monitor.
    #[serde(default)]
    pub oci: Option<OciProgram>,
    /// What its handler had in the place of `unset_seccomp_profile`.
    #[serde(default)]
    pub unset_seccomp_profile: Option<String>,
    /// Fingerprint of the request: the same asked for again gets this sandbox.
    #[serde(default)]
    pub request: String,
    /// From the request.
    pub namespaces: NamespaceModes,
    /// Its user namespace; None for the node's.
    #[serde(default)]
    pub users: Option<Users>,
    /// Whether privileged containers may be made in it.
    pub privileged: bool,
    /// SELinux' of pause, with the level that containers share; empty where SELinux is off.
    #[serde(default)]
    pub process_label: String,
    /// Cgroup that pause and the containers have theirs in.
    pub cgroup_parent: String,
    /// Whether `cgroup_parent` is ours to make and remove, or the caller's.
    pub owns_cgroup_parent: bool,
    /// The unit that its processes are in, when systemd makes cgroups.
    #[serde(default)]
    pub scope: Option<Scope>,
    /// Unix nanoseconds.
    pub created_at: i64,
    /// None with the host's network.
    pub network: Option<NetworkRecord>,
    /// Set once it runs.
    pub monitor: Option<Process>,
    /// Set once it runs.
    pub pause: Option<Process>,
    /// RunPodSandbox has answered: the caller knows the id.
    pub complete: bool,
    /// StopPodSandbox has finished.
    pub stopped: bool,
}

/// A mount of the request, for ContainerStatus.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct MountRecord {
    pub container_path: String,
    pub host_path: String,
    pub readonly: bool,
    pub propagation: i32,
    #[serde(default)]
    pub recursive_readonly: bool,
    /// Whose files they appear as.
    #[serde(default)]
    pub users: Option<Users>,
    /// What is mounted in place of a path of the host.
    #[serde(default)]
    pub image: Option<MountedImage>,
}

/// The image of a mount, as the request names it: the kubelet's image collector compares.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct MountedImage {
    pub image: String,
    pub user_specified_image: String,
    pub sub_path: String,
}

/// The container's process, from the moment its program runs.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Started {
    /// The first process.
    pub process: Process,
    /// Unix nanoseconds.
    pub at: i64,
}

impl Started {
    /// What a monitor tells of a process.
    #[must_use]
    pub(crate) fn of(told: &gantry_proto::monitor::Started) -> Self {
        let process = Process { pid: told.pid, start_time_ticks: told.start_time_ticks };
        // 0 from one that does not tell.
        let at = Some(told.started_at_unix_nanos).filter(|at| *at > 0).unwrap_or_else(unix_nanos);
        Self { process, at }
    }
}

/// A start that failed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct StartFailure {
    /// Unix nanoseconds.
    pub at: i64,
    /// The failing step and what the kernel said.
    pub message: String,
}

/// A container.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ContainerRecord {
    /// [`VERSION`].
    pub version: u32,
    /// 64 hex digits.
    pub id: String,
    /// Its sandbox.
    pub sandbox_id: String,
    /// Boot in which it was made.
    pub boot_id: String,
    /// ContainerMetadata.name.
    pub name: String,
    /// ContainerMetadata.attempt.
    pub attempt: u32,
    /// Image as the caller named it.
    pub image: String,
    /// ImageSpec of the request, as CRI's protobuf bytes in hexadecimal, for ListContainers.
    #[serde(default)]
    pub image_spec: String,
    /// A tag that the image had then; empty when it had none.
    #[serde(default)]
    pub image_name: String,
    /// `sha256:…` of the image's config.
    pub image_id: String,
    /// Repo digest, or the id when there is none.
    pub image_ref: String,
    /// Keys of the layers it needs, which stay until it is removed (`image::pins` reads them).
    #[serde(default)]
    pub layers: Vec<String>,
    /// From the request.
    pub labels: BTreeMap<String, String>,
    /// From the request.
    pub annotations: BTreeMap<String, String>,
    /// From the request.
    pub mounts: Vec<MountRecord>,
    /// Absolute; empty for a container without a log.
    pub log_path: String,
    /// Its cgroup.
    pub cgroup: String,
    /// SELinux'; empty where SELinux is off.
    #[serde(default)]
    pub process_label: String,
    /// Number of the signal that asks it to stop.
    pub stop_signal: i32,
    /// Unix nanoseconds.
    pub created_at: i64,
    /// Resolved.
    pub uid: u32,
    /// Resolved.
    pub gid: u32,
    /// Resolved.
    pub groups: Vec<u32>,
    /// LinuxContainerResources of the request, as CRI's protobuf bytes in hexadecimal.
    pub resources: String,
    /// Fingerprint of the request: the same asked for again gets this container.
    #[serde(default)]
    pub request: String,
    /// Set by StartContainer.
    pub started: Option<Started>,
    /// Set by a StartContainer that failed.
    pub start_failure: Option<StartFailure>,
}

/// Bytes for a JSON string.
#[must_use]
pub(crate) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// None where it is not what [`to_hex`] writes.
fn from_hex(text: &str) -> Option<Vec<u8>> {
    let is_whole = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let digit = |at: usize| text.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
    (0..text.len()).step_by(2).map(digit).collect::<Option<_>>().filter(|_| is_whole)
}

impl ContainerRecord {
    /// The request's resources.
    ///
    /// # Errors
    /// When they don't decode: no limits are not the limits that were asked for.
    pub(crate) fn linux_resources(&self) -> Result<gantry_proto::cri::LinuxContainerResources, Error> {
        let bytes = from_hex(&self.resources);
        let resources = bytes.and_then(|bytes| prost::Message::decode(bytes.as_slice()).ok());
        resources.ok_or_else(|| Error::Resources { id: self.id.clone() })
    }

    /// The image as the request has it; by its name alone where an older runtime wrote the record.
    #[must_use]
    pub(crate) fn requested_image(&self) -> gantry_proto::cri::ImageSpec {
        let named = || gantry_proto::cri::ImageSpec { image: self.image.clone(), ..Default::default() };
        let bytes = from_hex(&self.image_spec).filter(|bytes| !bytes.is_empty());
        bytes.and_then(|bytes| prost::Message::decode(bytes.as_slice()).ok()).unwrap_or_else(named)
    }
}

/// Writes whole or not at all.
///
/// # Errors
/// When the folder can't be written.
pub(crate) fn write<T: Serialize>(folder: &Path, record: &T) -> Result<(), Error> {
    let (path, temporary) = (folder.join(FILE), folder.join("record.json.new"));
    let wrap = |source| Error::Write { path: path.clone(), source };
    let bytes = serde_json::to_vec_pretty(record).map_err(|source| wrap(source.into()))?;
    fs::write(&temporary, bytes).map_err(wrap)?;
    failpoint!("record.written");
    fs::rename(&temporary, &path).map_err(wrap)
}

/// Reads the record of `folder`; None when there is none (a crash between folder and record).
///
/// # Errors
/// When it can't be read, or its version is not ours.
pub(crate) fn read<T: DeserializeOwned>(folder: &Path) -> Result<Option<T>, Error> {
    let path = folder.join(FILE);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(Error::Read { path, source }),
    };
    let wrap = |source| Error::Parse { path: path.clone(), source };
    let value: serde_json::Value = serde_json::from_slice(&bytes).map_err(wrap)?;
    let found = value.get("version").and_then(serde_json::Value::as_u64).unwrap_or(0);
    if found != u64::from(VERSION) {
        return Err(Error::Version { path: path.clone(), found });
    }
    serde_json::from_value(value).map(Some).map_err(wrap)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_hexadecimal() {
        assert_eq!(from_hex(&to_hex(&[0, 127, 255])), Some(vec![0, 127, 255]));
        assert_eq!(from_hex(""), Some(Vec::new()));
        for damaged in ["0", "0g", "+1", "007", "é"] {
            assert_eq!(from_hex(damaged), None, "{damaged}");
        }
    }

    #[test]
    fn a_record_of_an_older_runtime_tells_its_image_by_name() {
        let old = serde_json::json!({
            "version": VERSION, "id": "c", "sandbox_id": "s", "boot_id": "b", "name": "web", "attempt": 0,
            "image": "busybox", "image_id": "sha256:1", "image_ref": "r", "labels": {}, "annotations": {},
            "mounts": [], "log_path": "", "cgroup": "/c", "stop_signal": 15, "created_at": 1, "uid": 0, "gid": 0,
            "groups": [], "resources": "", "started": null, "start_failure": null,
        });
        let mut record: ContainerRecord = serde_json::from_value(old).unwrap();
        assert_eq!((record.requested_image().image.as_str(), record.image_name.as_str()), ("busybox", ""));
        let asked = gantry_proto::cri::ImageSpec {
            image: "sha256:1".into(),
            user_specified_image: "busybox".into(),
            ..Default::default()
        };
        record.image_spec = to_hex(&prost::Message::encode_to_vec(&asked));
        assert_eq!(record.requested_image(), asked);
        assert_eq!(record.linux_resources().unwrap(), Default::default(), "nothing was asked for");
        // Cut off, no hexadecimal, no such message.
        for damaged in ["08a0", "08a", "zz", "ffff"] {
            record.resources = damaged.to_owned();
            let refused = record.linux_resources().unwrap_err();
            assert!(matches!(&refused, Error::Resources { id } if id == "c"), "{damaged}: {refused}");
        }
    }

    #[test]
    fn rt_7_3_an_unknown_version_is_refused_by_number_and_a_missing_record_is_none() {
        let folder = tempfile::tempdir().unwrap();
        assert!(read::<ContainerRecord>(folder.path()).unwrap().is_none());
        fs::write(folder.path().join(FILE), r#"{"version": 7, "id": "x"}"#).unwrap();
        assert!(matches!(read::<ContainerRecord>(folder.path()), Err(Error::Version { found: 7, .. })));
    }
}
