//! What the agent asks of a container runtime, in its own verbs. Owns the trait, what is
//! observed through it, and its errors; never names a protobuf type (only
//! [`cri`] does). Called by the pod workers.

pub mod about;
#[cfg(any(test, feature = "testing"))]
pub mod contract;
pub mod cri;
#[cfg(any(test, feature = "testing"))]
pub mod fake;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use gantry_model::failure::Failure;
use gantry_model::failure::UNKNOWN;
use gantry_model::mount::Mount;
use gantry_model::pod::env::EnvValue;
use gantry_model::pod::{Container, Pod, PodUid};
use gantry_numa::affinity::Affinity;

use crate::devices::DeviceOptions;
use crate::runtime_ext::pulls::progress::Progress;
use crate::timeline::Span;

/// The future of one effect.
pub type Effect<'a, T> = BoxFuture<'a, Result<T, Error>>;

/// A container runtime. Calls may be dropped at any point: the runtime then finishes or
/// undoes on its own, and the next observation tells which. Stopping and removing what is
/// not there succeeds.
pub trait Runtime: Send + Sync + fmt::Debug {
    /// Every sandbox and container of one pod, whatever its state.
    fn observe<'a>(&'a self, uid: &'a PodUid) -> Effect<'a, Observed>;
    /// Every pod that has a sandbox, whoever made it.
    fn pods(&self) -> Effect<'_, Vec<KnownPod>>;
    /// Of every pod what is in which state, by two lists and no status: equal for as long as nothing of a pod has
    /// changed that an event would tell.
    fn states(&self) -> Effect<'_, PodStates>;
    /// The image when the runtime has it.
    fn image<'a>(&'a self, image: &'a str) -> Effect<'a, Option<Image>>;
    /// Fetches the image; returns its ID.
    fn pull_image<'a>(&'a self, ask: PullImage<'a>) -> Effect<'a, String>;
    /// How far a pull of the image has come; None where there is none, and where the runtime does not say.
    fn pulling<'a>(&'a self, image: &'a str) -> Effect<'a, Option<Progress>>;
    /// Makes the pod's sandbox; returns its ID.
    fn run_sandbox<'a>(&'a self, new: NewSandbox<'a>) -> Effect<'a, String>;
    /// Ends whatever runs in the sandbox and gives its network back.
    fn stop_sandbox<'a>(&'a self, id: &'a str) -> Effect<'a, ()>;
    /// Forgets the sandbox and all containers in it.
    fn remove_sandbox<'a>(&'a self, id: &'a str) -> Effect<'a, ()>;
    /// Prepares a container; returns its ID. Nothing runs yet.
    fn create_container<'a>(&'a self, new: NewContainer<'a>) -> Effect<'a, String>;
    /// Runs a created container.
    fn start_container<'a>(&'a self, id: &'a str) -> Effect<'a, ()>;
    /// SIGTERM, then SIGKILL after `grace`; returns when the container has ended.
    fn stop_container<'a>(&'a self, id: &'a str, grace: Duration) -> Effect<'a, ()>;
    /// Forgets the container, ending it first if it runs.
    fn remove_container<'a>(&'a self, id: &'a str) -> Effect<'a, ()>;
    /// Holds a container to what `container` says from now on; its processes run on. What it says nothing of
    /// stays as it is.
    fn update_container_resources<'a>(
        &'a self,
        id: &'a str,
        pod: &'a Pod,
        container: &'a Container,
        affinity: &'a Affinity,
    ) -> Effect<'a, ()>;
    /// Lets the processes of a container run on these CPUs alone, a list for cpuset.cpus. All else stays as it is.
    fn update_container_cpus<'a>(&'a self, id: &'a str, cpus: &'a str) -> Effect<'a, ()>;
    /// Bytes of memory that a running container uses; none when nobody counts.
    fn memory_in_use<'a>(&'a self, id: &'a str) -> Effect<'a, Option<u64>>;
    /// Tells the sandbox what the pod may use as a whole. A runtime without this call succeeds: the pod's
    /// cgroup is the agent's.
    fn update_sandbox_resources<'a>(&'a self, id: &'a str, pod: &'a Pod) -> Effect<'a, ()>;
    /// Runs a command in a running container; its failure is a code, not an error. Past `timeout`
    /// the command is ended and the error is of kind TimedOut.
    fn exec_sync<'a>(
        &'a self,
        id: &'a str,
        command: &'a [String],
        timeout: Duration,
    ) -> Effect<'a, ExecOutput>;
    /// The end of a log, as it stands in for last words: 80 lines, 2 KiB. One that cannot be read is
    /// a text that says so, as upstream.
    fn log_end<'a>(&'a self, log_path: &'a str) -> Effect<'a, String>;
    /// Reports, as they happen, which pods have changed. Ends with an error, of kind Unsupported
    /// when the runtime has no such stream.
    fn changes(&self) -> Effect<'_, Changes>;
    /// The runtime's own stages of something it made; empty when it keeps none.
    fn timeline<'a>(&'a self, of: Subject<'a>) -> Effect<'a, Vec<Span>>;
}

/// Pods in which something has changed; `None` when it is not known which.
pub type Changes = BoxStream<'static, Result<Option<PodUid>, Error>>;

/// The sandboxes and containers of each pod by ID, with their states as CRI numbers them, sorted.
pub type PodStates = BTreeMap<PodUid, Vec<(String, i32)>>;

/// An image the runtime has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Image {
    /// The runtime's.
    pub id: String,
    /// Bytes, as the runtime counts them.
    pub size: u64,
    /// Whom its programs run as, when the image says a number.
    pub uid: Option<i64>,
    /// Whom its programs run as, when the image says a name; else empty.
    pub username: String,
}

/// An image to fetch.
#[derive(Debug, Clone, Copy)]
pub struct PullImage<'a> {
    /// With registry and tag or digest.
    pub image: &'a str,
    /// For whom.
    pub pod: &'a Pod,
    /// To show the registry; the runtime's own configuration when none.
    pub auth: Option<&'a RegistryAuth>,
}

/// Credentials for a registry, as in CRI's AuthConfig. Without a server's address: they were chosen for
/// the image, and a runtime that is given the address of a secret (`host:port`, `*.host`, or a mirror's
/// image) takes it for another server's, or for none.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct RegistryAuth {
    pub username: String,
    pub password: String,
    pub identity_token: String,
    pub registry_token: String,
}

impl fmt::Debug for RegistryAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegistryAuth").finish_non_exhaustive()
    }
}

/// Whose stages are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject<'a> {
    /// By name, as it was pulled.
    Image(&'a str),
    /// By ID.
    Sandbox(&'a str),
    /// By ID.
    Container(&'a str),
}

/// What a sandbox is made from.
#[derive(Debug, Clone, Copy)]
pub struct NewSandbox<'a> {
    /// Its pod.
    pub pod: &'a Pod,
    /// How often it was made before.
    pub attempt: u32,
    /// The pod's cgroup; the runtime chooses when empty.
    pub cgroup_parent: &'a str,
    /// Of the pod's RuntimeClass; the runtime's default when empty.
    pub handler: &'a str,
    /// The pod's user IDs on the node, when they are its own.
    pub users: Option<Users>,
}

/// A range of the node's user and group IDs: what is 0 inside is `first` outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Users {
    /// On the node.
    pub first: u32,
    /// How many.
    pub length: u32,
}

/// What a container is started with, after everything it refers to was looked up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Setup {
    /// Expanded.
    pub command: Vec<String>,
    /// Expanded.
    pub args: Vec<String>,
    /// Names unique. A value is whatever bytes a Secret holds.
    pub env: Vec<(String, Vec<u8>)>,
    /// In order.
    pub mounts: Vec<Mount>,
    /// Of plugins: their device files, CDI names and annotations.
    pub devices: DeviceOptions,
    /// Where it may run.
    pub affinity: Affinity,
}

impl Setup {
    /// The container exactly as written, without what would have to be looked up.
    #[must_use]
    pub fn as_written(container: &Container) -> Self {
        let env = container.env.iter().filter_map(|variable| match &variable.value {
            EnvValue::Literal(value) => Some((variable.name.clone(), value.clone().into_bytes())),
            _ => None,
        });
        Self {
            command: container.command.clone(),
            args: container.args.clone(),
            env: env.collect(),
            mounts: Vec::new(),
            devices: DeviceOptions::default(),
            affinity: Affinity::default(),
        }
    }
}

/// What a command run in a container said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExecOutput {
    /// 128+n for signal n.
    pub code: i32,
    /// At most 16 MiB.
    pub stdout: Vec<u8>,
    /// At most 16 MiB.
    pub stderr: Vec<u8>,
}

/// What a container is made from.
#[derive(Debug, Clone, Copy)]
pub struct NewContainer<'a> {
    /// Its pod.
    pub pod: &'a Pod,
    /// Which of the pod's.
    pub container: &'a Container,
    /// How often it was made before.
    pub attempt: u32,
    /// The sandbox it goes into.
    pub sandbox: &'a str,
    /// The sandbox's own attempt: the runtime is given its config again.
    pub sandbox_attempt: u32,
    /// The pod's cgroup, as the sandbox was given it.
    pub cgroup_parent: &'a str,
    /// As the sandbox was given them.
    pub users: Option<Users>,
    /// The ID of the container whose processes it is to see; empty for none.
    pub target: &'a str,
    /// What it is started with.
    pub setup: &'a Setup,
    /// The image's ID, so that a tag that moved meanwhile changes nothing.
    pub image_id: &'a str,
    /// Whom the image's programs run as, as the runtime tells it: an id, or else a name.
    pub image_user: (Option<i64>, &'a str),
}

/// A pod known from its sandbox only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownPod {
    /// By label.
    pub uid: PodUid,
    /// By metadata.
    pub namespace: String,
    /// By metadata.
    pub name: String,
    /// Whether it was made from a file, by this agent, an earlier one or another kubelet.
    pub from_file: bool,
}

/// One pod as the runtime has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observed {
    /// Any order.
    pub sandboxes: Vec<Sandbox>,
    /// Any order, all attempts.
    pub containers: Vec<Instance>,
}

/// One sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    /// The runtime's.
    pub id: String,
    /// From 0.
    pub attempt: u32,
    /// Whether its pause process and network are there.
    pub ready: bool,
    /// Unix nanoseconds.
    pub created_at: i64,
    /// Primary first; empty on the host's network.
    pub ips: Vec<String>,
}

impl Sandbox {
    /// Whether containers can be made in it. On a network of its own it has an address, or has lost it.
    #[must_use]
    pub fn serves(&self, host_network: bool) -> bool {
        self.ready && (host_network || !self.ips.is_empty())
    }
}

/// One container, one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// The runtime's.
    pub id: String,
    /// The container's name in the pod.
    pub name: String,
    /// From 0; the restart count.
    pub attempt: u32,
    /// Where it lives.
    pub sandbox: String,
    /// What it does.
    pub state: InstanceState,
    /// Its image, as the runtime names it: the description may name another by now.
    pub image: String,
    /// Digest of its image, as the runtime names it.
    pub image_id: String,
    /// Unix nanoseconds.
    pub created_at: i64,
    /// Full path of its log; empty when the runtime does not say.
    pub log_path: String,
    /// The node's file behind its terminationMessagePath, when the runtime says so.
    pub words: Option<PathBuf>,
    /// What it was made from, as [`Container::hash`]; empty when it was not noted.
    pub hash: String,
    /// When the runtime says so.
    pub user: Option<User>,
    /// When the runtime says so.
    pub actual: Option<Actual>,
}

/// Whom a container's first process runs as.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct User {
    pub uid: i64,
    pub gid: i64,
    pub groups: Vec<i64>,
}

/// What the runtime holds a container to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Actual {
    /// Thousandths of a core.
    pub cpu_request: Option<i64>,
    /// Thousandths of a core.
    pub cpu_limit: Option<i64>,
    /// Bytes.
    pub memory_limit: Option<i64>,
}

/// ```text
/// Created ──start──▶ Running ──exit──▶ Exited
///    └──────start failed───────────────▲        Unknown: the runtime lost track
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InstanceState {
    /// No process yet: start it.
    Created,
    /// Leave it.
    Running {
        /// Unix nanoseconds.
        started_at: i64,
    },
    /// Restart it or not.
    Exited(Exit),
    /// Remove it and start another.
    Unknown,
}

/// How a container ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// 128+n for signal n.
    pub code: i32,
    /// The runtime's word: Completed, Error, OOMKilled, StartError.
    pub reason: String,
    /// Details, may be empty.
    pub message: String,
    /// Unix nanoseconds; 0 when it never started.
    pub started_at: i64,
    /// Unix nanoseconds.
    pub finished_at: i64,
}

impl Exit {
    /// Whether an init container that ended so has done its work: one of which a part was killed for
    /// lack of memory has not, whatever its code.
    #[must_use]
    pub fn initialized(&self) -> bool {
        self.code == 0 && self.reason != "OOMKilled"
    }
}

impl Instance {
    /// How it ended, if it did.
    #[must_use]
    pub fn exit(&self) -> Option<&Exit> {
        match &self.state {
            InstanceState::Exited(exit) => Some(exit),
            InstanceState::Created | InstanceState::Running { .. } | InstanceState::Unknown => None,
        }
    }

    /// Whether a process may be there.
    #[must_use]
    pub fn may_run(&self) -> bool {
        matches!(self.state, InstanceState::Running { .. } | InstanceState::Unknown)
    }
}

impl Observed {
    /// The newest sandbox.
    #[must_use]
    pub fn newest_sandbox(&self) -> Option<&Sandbox> {
        self.sandboxes.iter().max_by_key(|s| (s.attempt, s.created_at))
    }

    /// The newest attempt of a container.
    #[must_use]
    pub fn newest(&self, name: &str) -> Option<&Instance> {
        self.containers.iter().filter(|c| c.name == name).max_by_key(|c| (c.attempt, c.created_at))
    }
}

/// Which call failed, on what.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("observe pod {uid}")]
    Observe {
        uid: String,
        #[source]
        source: Failure,
    },
    #[error("list pods")]
    Pods {
        #[source]
        source: Failure,
    },
    #[error("look for image {image:?}")]
    Image {
        image: String,
        #[source]
        source: Failure,
    },
    #[error("pull image {image:?}")]
    PullImage {
        image: String,
        #[source]
        source: Failure,
    },
    #[error("run a sandbox for pod {pod}")]
    RunSandbox {
        pod: String,
        #[source]
        source: Failure,
    },
    #[error("stop sandbox {id}")]
    StopSandbox {
        id: String,
        #[source]
        source: Failure,
    },
    #[error("remove sandbox {id}")]
    RemoveSandbox {
        id: String,
        #[source]
        source: Failure,
    },
    #[error("create container {name}")]
    CreateContainer {
        name: String,
        #[source]
        source: Failure,
    },
    #[error("start container {id}")]
    StartContainer {
        id: String,
        #[source]
        source: Failure,
    },
    #[error("update the resources of container {id}")]
    UpdateContainer {
        id: String,
        #[source]
        source: Failure,
    },
    #[error("ask what container {id} uses")]
    Stats {
        id: String,
        #[source]
        source: Failure,
    },
    #[error("update the resources of sandbox {id}")]
    UpdateSandbox {
        id: String,
        #[source]
        source: Failure,
    },
    #[error("run a command in container {id}")]
    ExecSync {
        id: String,
        #[source]
        source: Failure,
    },
    #[error("stop container {id}")]
    StopContainer {
        id: String,
        #[source]
        source: Failure,
    },
    #[error("remove container {id}")]
    RemoveContainer {
        id: String,
        #[source]
        source: Failure,
    },
    #[error("watch the runtime's events")]
    Changes {
        #[source]
        source: Failure,
    },
    #[error("ask the runtime what it can do")]
    Features {
        #[source]
        source: Failure,
    },
    #[error("read the stages of {of}")]
    Timeline {
        of: String,
        #[source]
        source: Failure,
    },
    /// Names the endpoint and the remedy.
    #[error("connect to the runtime at {endpoint}: check that it runs and that the address is right")]
    Connect {
        endpoint: String,
        #[source]
        source: Failure,
    },
    #[error("runtime endpoint {endpoint:?}: {reason}")]
    Endpoint { endpoint: String, reason: String },
}

impl Error {
    /// What the runtime said, for a status message.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Observe { source, .. }
            | Self::Pods { source }
            | Self::Image { source, .. }
            | Self::PullImage { source, .. }
            | Self::RunSandbox { source, .. }
            | Self::StopSandbox { source, .. }
            | Self::RemoveSandbox { source, .. }
            | Self::CreateContainer { source, .. }
            | Self::StartContainer { source, .. }
            | Self::UpdateContainer { source, .. }
            | Self::UpdateSandbox { source, .. }
            | Self::Stats { source, .. }
            | Self::ExecSync { source, .. }
            | Self::StopContainer { source, .. }
            | Self::RemoveContainer { source, .. }
            | Self::Changes { source }
            | Self::Features { source }
            | Self::Timeline { source, .. }
            | Self::Connect { source, .. } => Some(source),
            Self::Endpoint { .. } => None,
        }
    }

    /// The whole answer, as upstream puts it into events and messages where it does not take it apart:
    /// what becomes of sandboxes, of looking at an image, of commands and of stops.
    #[must_use]
    pub fn in_go(&self) -> String {
        self.failure().map_or_else(|| self.to_string(), Failure::in_go)
    }

    /// The same of a pull: upstream drops the code that says nothing.
    #[must_use]
    pub fn of_pull(&self) -> String {
        match self.failure() {
            Some(failure) if failure.code == UNKNOWN => failure.message.clone(),
            _ => self.in_go(),
        }
    }

    /// What the runtime said, or the error itself: upstream's words of containers that could not be
    /// made or started.
    #[must_use]
    pub fn detail(&self) -> String {
        self.failure().map_or_else(|| self.to_string(), |failure| failure.message.clone())
    }
}

#[cfg(test)]
mod tests;
