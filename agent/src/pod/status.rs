//! What the agent says of a pod. Owns the types; never computes them (that is
//! [`super::phase`]). Read by the operator API and the command line.

use std::sync::Arc;

use super::Life;
use crate::runtime::Exit;
use crate::timeline::Span;

/// As in PodStatus.phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Not each container has run yet.
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodStatus {
    /// Where it is.
    pub life: Life,
    /// As in PodStatus.phase.
    pub phase: Phase,
    /// What `kubectl get pods` shows in its STATUS column.
    pub reason: String,
    /// Why it is not going on; empty when it is.
    pub message: String,
    /// Empty until there is a sandbox, and on the host's network.
    pub ip: String,
    /// Unix nanoseconds; when the agent took it up.
    pub started_at: i64,
    /// Whether its end was asked for before it came by itself.
    pub killed: bool,
    /// In the pod's order.
    pub containers: Vec<ContainerStatus>,
    /// Stages so far.
    pub spans: Arc<[Span]>,
}

impl PodStatus {
    /// Nothing of it will run again, and nothing of it runs.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.life, Life::Stopped | Life::Gone)
    }
}

/// One container, now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerStatus {
    /// In its pod.
    pub name: String,
    /// Of the newest attempt; empty before the first.
    pub id: String,
    /// As the user wrote it.
    pub image: String,
    /// What it does.
    pub state: ContainerState,
    /// How the attempt before ended.
    pub last_exit: Option<Exit>,
    /// The newest attempt's number.
    pub restart_count: u32,
    /// Without probes: it runs.
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
