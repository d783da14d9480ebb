//! A pod as the agent understands it: every field here is honoured. Owns the domain types;
//! never knows YAML, Kubernetes' API types or CRI. Made by [`crate::manifest`], read by the
//! planner and the runtime client.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Identity of one incarnation of a pod. Only made of characters that are safe in a path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodUid(String);

impl PodUid {
    /// `None` when the text is not a UID.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        crate::manifest::names::is_uid(text).then(|| Self(text.to_owned()))
    }

    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PodUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// When a finished container is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartPolicy {
    /// Whatever its exit code.
    Always,
    /// Unless its exit code was 0.
    OnFailure,
    /// Not at all.
    Never,
}

/// When an image is asked of the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullPolicy {
    /// Before every start.
    Always,
    /// When the runtime does not have it.
    IfNotPresent,
    /// Not at all.
    Never,
}

/// Which namespaces of the node the pod lives in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Namespaces {
    /// No network namespace of its own.
    pub host_network: bool,
    /// Sees the node's processes.
    pub host_pid: bool,
    /// Shares System V IPC and POSIX queues with the node.
    pub host_ipc: bool,
    /// Its containers see each other's processes.
    pub share_process: bool,
}

/// One pod to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// DNS label.
    pub namespace: String,
    /// DNS subdomain.
    pub name: String,
    /// Given, or derived from the manifest's content.
    pub uid: PodUid,
    /// The manifest's labels.
    pub labels: BTreeMap<String, String>,
    /// The manifest's annotations.
    pub annotations: BTreeMap<String, String>,
    /// Host name inside; empty on the host's network.
    pub hostname: String,
    /// For all containers.
    pub restart_policy: RestartPolicy,
    /// From SIGTERM to SIGKILL when nothing shorter is asked for.
    pub grace: Duration,
    /// Sharing with the node.
    pub namespaces: Namespaces,
    /// At least one, names unique; none for a pod that is only known from the runtime and
    /// about to be stopped.
    pub containers: Vec<Container>,
}

impl Pod {
    /// `namespace/name`, for people.
    #[must_use]
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// `name_namespace(uid)`, as the kubelet's messages say it.
    #[must_use]
    pub fn formatted(&self) -> String {
        format!("{}_{}({})", self.name, self.namespace, self.uid)
    }

    /// Folder name below the pod logs' root.
    #[must_use]
    pub fn log_folder(&self) -> String {
        format!("{}_{}_{}", self.namespace, self.name, self.uid)
    }

    /// The container of that name.
    #[must_use]
    pub fn container(&self, name: &str) -> Option<&Container> {
        self.containers.iter().find(|c| c.name == name)
    }
}

/// One container to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// DNS label, unique in its pod.
    pub name: String,
    /// As written; may still be no valid reference, which is a state, not a manifest error.
    pub image: String,
    /// Explicit, or by tag.
    pub pull_policy: PullPolicy,
    /// Replaces the image's entrypoint when not empty; expanded.
    pub command: Vec<String>,
    /// Replaces the image's arguments when not empty; expanded.
    pub args: Vec<String>,
    /// The image's when empty.
    pub working_dir: String,
    /// In order, expanded.
    pub env: Vec<(String, String)>,
    /// For people and annotations only.
    pub ports: Vec<Port>,
    /// Requests and limits.
    pub resources: Resources,
    /// User, capabilities and the like.
    pub security: Security,
    /// Over everything written for this container.
    pub hash: String,
}

/// A port the container says it listens on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// May be empty.
    pub name: String,
    /// 1 to 65535.
    pub port: u16,
    /// TCP, UDP or SCTP.
    pub protocol: String,
}

/// Requests and limits; a request that is not written is its limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Resources {
    /// Thousandths of a core.
    pub cpu_request: Option<i64>,
    /// Thousandths of a core.
    pub cpu_limit: Option<i64>,
    /// Bytes.
    pub memory_request: Option<i64>,
    /// Bytes.
    pub memory_limit: Option<i64>,
}

/// A container's security context.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Security {
    /// The image's when not set.
    pub run_as_user: Option<i64>,
    /// The image's when not set.
    pub run_as_group: Option<i64>,
    /// Capabilities added to the runtime's default set.
    pub add_capabilities: Vec<String>,
    /// Capabilities taken from it.
    pub drop_capabilities: Vec<String>,
    /// All capabilities and devices.
    pub privileged: bool,
    /// No writes to the root file system.
    pub read_only_root: bool,
    /// Set-user-ID programs gain nothing.
    pub no_new_privileges: bool,
}
