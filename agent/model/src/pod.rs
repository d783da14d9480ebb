//! A pod as the agent understands it: every field here is honoured. Owns the domain types;
//! never knows YAML, Kubernetes' API types or CRI. Made by `manifest`, read by the
//! planner and the runtime client. Pure.

pub mod claim;
pub mod env;
pub mod placement;
pub mod probe;
pub mod qos;
pub mod security;
pub mod token;
pub mod usage;
pub mod volume;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use claim::{ContainerClaim, ResourceClaims};
use env::{EnvFrom, EnvVar};
use placement::Placement;
use probe::{Lifecycle, Probes};
pub use security::{PodSecurity, Seccomp, Security};
use volume::{Volume, VolumeDevice, VolumeMount};

/// Identity of one incarnation of a pod. Only made of characters that are safe in a path. Much is kept by it: a copy shares
/// its text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodUid(Arc<str>);

impl PodUid {
    /// `None` when the text is not a UID.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        crate::names::is_uid(text).then(|| Self(text.into()))
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
    /// A user namespace of its own (hostUsers: false).
    pub own_users: bool,
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
    /// Where it was described.
    pub origin: Origin,
    /// Seconds from the pod's start until it is ended as DeadlineExceeded.
    pub active_deadline: Option<Duration>,
    /// Run before the others, in order; restartable ones (sidecars) run on beside them.
    pub init_containers: Vec<Container>,
    /// At least one, names unique (also among the init containers); none for a pod that is
    /// only known from the runtime and about to be stopped.
    pub containers: Vec<Container>,
    /// Names unique.
    pub volumes: Vec<Volume>,
    /// For all containers.
    pub security: PodSecurity,
    /// resolv.conf inside.
    pub dns: Dns,
    /// Added to /etc/hosts: address, names.
    pub host_aliases: Vec<(String, Vec<String>)>,
    /// With `hostname`, makes the FQDN `hostname.subdomain.namespace.svc.…`; may be empty.
    pub subdomain: String,
    /// The host name inside is the FQDN.
    pub fqdn: bool,
    /// Secrets with the credentials of registries, by name.
    pub pull_secrets: Vec<String>,
    /// Fields of the manifest that are shown, not acted on.
    pub shown: Shown,
    /// Version of its spec in the API; 0 for files.
    pub generation: i64,
    /// Unix seconds; 0 for files.
    pub created_at: i64,
    /// Added while it runs, for people who look into it; never restarted.
    pub ephemeral_containers: Vec<Container>,
    /// Conditions that others must set before it is Ready.
    pub readiness_gates: Vec<String>,
    /// What its node must have.
    pub placement: Placement,
    /// Of the pod as a whole.
    pub resources: Option<Requirements>,
    /// What its sandbox needs besides, by resource.
    pub overhead: BTreeMap<String, String>,
    /// To devices of DRA drivers.
    pub resource_claims: ResourceClaims,
    /// The RuntimeClass to run under; the runtime's default when empty.
    pub runtime_class: String,
    /// Variables for each service of its namespace.
    pub service_links: bool,
    /// It is described with other resources than those here, which it was allocated: why it does not get them.
    pub resize_pending: Option<PendingResize>,
    /// A file's object in its own words, as JSON: to be shown. None of pods that an API server describes.
    pub described: Option<Arc<str>>,
}

/// Where a pod was described.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Origin {
    /// A file of `gantry run`: keeps its name, may use ConfigMaps and Secrets of the files.
    #[default]
    Run,
    /// The manifest folder: upstream's rules for static pods.
    Static,
    /// The API server, which has validated it.
    Api,
}

/// What downward API and status show of a manifest without acting on it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shown {
    /// `default` when not given.
    pub service_account: String,
    /// As written.
    pub node_name: String,
    /// As written; it also decides whom the kernel kills last.
    pub priority_class: String,
}

/// resolv.conf of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dns {
    /// Where it starts from.
    pub policy: DnsPolicy,
    /// Added.
    pub nameservers: Vec<String>,
    /// Added.
    pub searches: Vec<String>,
    /// Added; replace those of the same name.
    pub options: Vec<(String, Option<String>)>,
}

/// As in PodSpec.dnsPolicy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DnsPolicy {
    /// The cluster's resolver; the node's where there is none, and on the host's network.
    #[default]
    ClusterFirst,
    /// The cluster's resolver, on the host's network, too.
    ClusterFirstWithHostNet,
    /// The node's.
    Default,
    /// Only what is added.
    None,
}

/// The part a container has in its pod.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Role {
    /// Runs beside the others.
    #[default]
    Regular,
    /// Must end well before the next one starts.
    Init,
    /// An init container with restartPolicy Always: must have started, runs to the pod's end.
    Sidecar,
    /// Added to a running pod: started once, and nothing waits for it or counts on it.
    Ephemeral,
}

impl Pod {
    /// Whether it asks for anything as a whole (`IsPodLevelResourcesSet`).
    #[must_use]
    pub fn has_own_amounts(&self) -> bool {
        self.resources.as_ref().is_some_and(|own| !(own.requests.is_empty() && own.limits.is_empty()))
    }

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

    /// What follows the host name in the pod's FQDN; none without a subdomain.
    #[must_use]
    pub fn domain(&self, cluster_domain: &str) -> Option<String> {
        (!self.subdomain.is_empty())
            .then(|| format!("{}.{}.svc.{cluster_domain}", self.subdomain, self.namespace))
    }

    /// Folder name below the pod logs' root.
    #[must_use]
    pub fn log_folder(&self) -> String {
        format!("{}_{}_{}", self.namespace, self.name, self.uid)
    }

    /// The container of that name, whatever its role.
    #[must_use]
    pub fn container(&self, name: &str) -> Option<&Container> {
        self.every_container().find(|c| c.name == name)
    }

    /// Whether a container mounts that volume.
    #[must_use]
    pub fn mounts_volume(&self, name: &str) -> bool {
        self.every_container().flat_map(|container| &container.mounts).any(|mount| mount.volume == name)
    }

    /// Whether a container has that volume as a device.
    #[must_use]
    pub fn has_device(&self, name: &str) -> bool {
        self.every_container().flat_map(|container| &container.devices).any(|device| device.volume == name)
    }

    /// Those of the pod itself, then those that were added to it.
    pub fn every_container(&self) -> impl Iterator<Item = &Container> {
        self.all_containers().chain(&self.ephemeral_containers)
    }

    /// Init containers first, each list in order; none that was added later.
    pub fn all_containers(&self) -> impl Iterator<Item = &Container> {
        self.init_containers.iter().chain(&self.containers)
    }
}

/// One container to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// DNS label, unique in its pod.
    pub name: String,
    /// Its part in the pod.
    pub role: Role,
    /// When it is started again; the pod's policy, or its own.
    pub restart_policy: RestartPolicy,
    /// In order; the first that matches its exit code wins over the policy.
    pub restart_rules: Vec<RestartRule>,
    /// As written; may still be no valid reference, which is a state, not a manifest error.
    pub image: String,
    /// Explicit, or by tag.
    pub pull_policy: PullPolicy,
    /// Replaces the image's entrypoint when not empty; `$(NAME)` is expanded at creation.
    pub command: Vec<String>,
    /// Replaces the image's arguments when not empty; `$(NAME)` is expanded at creation.
    pub args: Vec<String>,
    /// The image's when empty.
    pub working_dir: String,
    /// In order.
    pub env: Vec<EnvVar>,
    /// Before `env`, which wins.
    pub env_from: Vec<EnvFrom>,
    /// In order.
    pub mounts: Vec<VolumeMount>,
    /// Volumes that it has as raw block devices, in order.
    pub devices: Vec<VolumeDevice>,
    /// What is asked of it while it runs.
    pub probes: Probes,
    /// What is done at its start and end.
    pub lifecycle: Lifecycle,
    /// Where its last words stand.
    pub termination_message: TerminationMessage,
    /// Keeps its standard input open for attach.
    pub stdin: bool,
    /// Closes it after the first client.
    pub stdin_once: bool,
    /// Has a terminal.
    pub tty: bool,
    /// For people and annotations only.
    pub ports: Vec<Port>,
    /// Requests and limits.
    pub resources: Resources,
    /// User, capabilities and the like.
    pub security: Security,
    /// Requests and limits as written, those that are not acted on, too.
    pub written: Requirements,
    /// What it has of the pod's claims to devices.
    pub claims: Vec<ContainerClaim>,
    /// Whether it starts again when its resources change.
    pub resize: ResizePolicy,
    /// An ephemeral container sees the processes of this one; may be empty.
    pub target: String,
    /// Of what its restart hangs on: name and image, as the kubelet counts it.
    pub hash: String,
}

/// Requests and limits by resource, as written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requirements {
    /// At least.
    pub requests: BTreeMap<String, String>,
    /// At most.
    pub limits: BTreeMap<String, String>,
}

/// What a container's resizePolicy says of each resource: whether it starts again, by RestartContainer. NotRequired when
/// it is silent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResizePolicy {
    pub cpu_restarts: bool,
    pub memory_restarts: bool,
}

/// A resize that the node has not taken up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingResize {
    /// It never will; else it is tried again.
    pub infeasible: bool,
    /// Why.
    pub message: String,
    /// The version of the pod's spec that this is about; 0 for files.
    pub generation: i64,
}

impl PendingResize {
    /// As the condition PodResizePending has it.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        if self.infeasible { "Infeasible" } else { "Deferred" }
    }
}

/// As in ContainerRestartRule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestartRule {
    /// What happens.
    pub action: RestartAction,
    /// Whether `codes` are those it is about, or all but them.
    pub within: bool,
    /// Exit codes.
    pub codes: Vec<i32>,
}

/// What a rule does when it matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartAction {
    /// The container is started again.
    Restart,
    /// All containers of the pod are, from the first init container on, in the same sandbox.
    RestartAllContainers,
}

impl Container {
    /// The first rule that an exit code matches.
    #[must_use]
    pub fn rule_for(&self, code: i32) -> Option<RestartAction> {
        let rule = self.restart_rules.iter().find(|rule| rule.codes.contains(&code) == rule.within)?;
        Some(rule.action)
    }
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
    /// Port of the node; 0 when none.
    pub host_port: u16,
    /// Address of the node; every one when empty.
    pub host_ip: String,
}

/// Where a container leaves its last words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TerminationMessage {
    /// Absolute, in the container.
    pub path: String,
    /// Take the end of the log when the file is empty and the container failed.
    pub fallback_to_logs: bool,
}

impl Default for TerminationMessage {
    fn default() -> Self {
        Self { path: "/dev/termination-log".to_owned(), fallback_to_logs: false }
    }
}

/// Requests and limits; a request that is not written is its limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    /// Thousandths of a core.
    pub cpu_request: Option<i64>,
    /// Thousandths of a core.
    pub cpu_limit: Option<i64>,
    /// Bytes.
    pub memory_request: Option<i64>,
    /// Bytes.
    pub memory_limit: Option<i64>,
    /// Bytes on the node's disk.
    pub ephemeral_request: Option<i64>,
    /// Bytes on the node's disk; the pod is evicted above it.
    pub ephemeral_limit: Option<i64>,
}
