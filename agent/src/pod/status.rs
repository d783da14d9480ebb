//! What the agent says of a pod. Owns the types; never computes them (that is
//! [`super::phase`]). Read by the operator API and the command line. Pure.

use std::sync::Arc;

use gantry_model::cgroup::limits::Limits;
use gantry_model::pod::Role;
use gantry_model::pod::qos::Qos;

use super::Life;
use crate::devices::DeviceHealth;
use crate::events::Event;
use crate::runtime::{Actual, Exit, User};
use crate::timeline::Span;

/// As in PodStatus.phase.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Phase {
    /// Not each container has run yet.
    #[default]
    Pending,
    /// At least one runs, or will again.
    Running,
    /// All ended with 0, none will run again.
    Succeeded,
    /// One did not, none will run again.
    Failed,
}

impl Phase {
    /// As Kubernetes spells it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }
}

/// One pod, now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodStatus {
    /// Where it is.
    pub life: Life,
    /// As in PodStatus.phase.
    pub phase: Phase,
    /// What `kubectl get pods` shows in its STATUS column.
    pub reason: String,
    /// Why it is not going on; empty when it is.
    pub message: String,
    /// As in PodStatus.reason: DeadlineExceeded; mostly empty.
    pub api_reason: String,
    /// As in PodStatus.message; mostly empty.
    pub api_message: String,
    /// It was ended to make room for others: why, as its condition DisruptionTarget says.
    pub disrupted: Option<String>,
    /// Which version of the pod's spec this is about; 0 for files.
    pub observed_generation: i64,
    /// The runtime's name, which container IDs are told with.
    pub runtime: String,
    /// Whether the runtime makes recursive read-only mounts.
    pub recursive_read_only: bool,
    /// The first of `ips`.
    pub ip: String,
    /// Primary first; empty until there is a sandbox.
    pub ips: Vec<String>,
    /// Of the node; may be empty.
    pub host_ips: Vec<String>,
    /// As in PodStatus.qosClass.
    pub qos: Qos,
    /// What its cgroup holds it to, where that is known.
    pub cgroup: Option<Limits>,
    /// In upstream's order.
    pub conditions: Vec<Condition>,
    /// Unix nanoseconds; when the agent took it up.
    pub started_at: i64,
    /// Whether its end was asked for before it came by itself.
    pub killed: bool,
    /// In the pod's order.
    pub init_containers: Vec<ContainerStatus>,
    /// In the pod's order.
    pub containers: Vec<ContainerStatus>,
    /// In the pod's order.
    pub ephemeral_containers: Vec<ContainerStatus>,
    /// Containers that the runtime has of it, ended ones, too.
    pub held: usize,
    /// How the devices are that its containers have.
    pub devices: Arc<DeviceHealth>,
    /// Stages so far.
    pub spans: Arc<[Span]>,
    /// What happened, oldest first.
    pub events: Arc<[Event]>,
}

/// One of the pod's conditions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// Which.
    pub kind: ConditionKind,
    /// Whether it holds.
    pub holds: bool,
    /// Why not; may be empty.
    pub reason: String,
    /// Details; may be empty.
    pub message: String,
    /// Unix nanoseconds; when it began or ceased to hold.
    pub since: i64,
    /// The version of the spec that it is about; 0 when that is the status'.
    pub generation: i64,
}

/// The conditions a kubelet keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConditionKind {
    /// Its sandbox and network are there.
    PodReadyToStartContainers,
    /// Its init containers are done.
    Initialized,
    /// It may be used.
    Ready,
    /// Each of its containers may.
    ContainersReady,
    /// It has a node.
    PodScheduled,
    /// A rule of one of its containers starts them all anew.
    AllContainersRestarting,
    /// The API asks for other resources than it has.
    PodResizePending,
    /// It is held to other resources than it was allocated.
    PodResizeInProgress,
}

impl ConditionKind {
    /// A resize of another reason is another one, as upstream.
    #[must_use]
    pub fn counts_by_reason(self) -> bool {
        matches!(self, Self::PodResizePending | Self::PodResizeInProgress)
    }

    /// As Kubernetes spells it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PodReadyToStartContainers => "PodReadyToStartContainers",
            Self::Initialized => "Initialized",
            Self::Ready => "Ready",
            Self::ContainersReady => "ContainersReady",
            Self::PodScheduled => "PodScheduled",
            Self::AllContainersRestarting => "AllContainersRestarting",
            Self::PodResizePending => "PodResizePending",
            Self::PodResizeInProgress => "PodResizeInProgress",
        }
    }
}

impl PodStatus {
    /// Nothing of it will run again, and nothing of it runs.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.life, Life::Stopped | Life::Gone)
    }

    /// Init containers first.
    pub fn all_containers(&self) -> impl Iterator<Item = &ContainerStatus> {
        self.init_containers.iter().chain(&self.containers)
    }

    /// Whether the condition holds.
    #[must_use]
    pub fn holds(&self, kind: ConditionKind) -> bool {
        self.conditions.iter().any(|condition| condition.kind == kind && condition.holds)
    }
}

/// One container, now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContainerStatus {
    /// In its pod.
    pub name: String,
    /// Its part in the pod.
    pub role: Role,
    /// Of the newest attempt; empty before the first.
    pub id: String,
    /// As the user wrote it.
    pub image: String,
    /// By digest; empty before the first attempt.
    pub image_id: String,
    /// What it does.
    pub state: ContainerState,
    /// How the attempt before ended.
    pub last_exit: Option<Exit>,
    /// The ID of that attempt; may be empty.
    pub last_id: String,
    /// Whom its first process runs as, when the runtime says so.
    pub user: Option<User>,
    /// What the runtime holds it to while it runs, when the runtime says so.
    pub actual: Option<Actual>,
    /// The memory that it was made or updated to ask for, while it runs: as written, where that is known.
    pub memory_request: Option<String>,
    /// The newest attempt's number.
    pub restart_count: u32,
    /// It runs, its hook is done, its startup probe has succeeded.
    pub started: bool,
    /// It has started, and its readiness probe succeeds; of an init container: it has succeeded.
    pub ready: bool,
    /// Of the newest attempt that has one.
    pub log_path: String,
}

/// As in ContainerState.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContainerState {
    /// To be started.
    Waiting {
        /// ContainerCreating, ErrImagePull, CrashLoopBackOff and the like.
        reason: String,
        /// Details; may be empty.
        message: String,
    },
    /// Runs.
    Running {
        /// Unix nanoseconds.
        started_at: i64,
    },
    /// Has ended.
    Terminated(Exit),
}

impl Default for ContainerState {
    fn default() -> Self {
        Self::Waiting { reason: String::new(), message: String::new() }
    }
}
