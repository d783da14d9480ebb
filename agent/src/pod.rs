//! One pod's life. Owns the types that plan, run and publish share; never acts itself.
//! Called by [`crate::pod_workers`], which starts one worker for each pod.
//!
//! decide: [`plan`] (pure) · do: [`run`] · tell: [`publish`]; [`worker`] is the loop that
//! joins them.

pub mod configure;
pub mod count;
pub mod last;
pub mod phase;
pub mod plan;
pub mod predecessor;
pub mod probing;
pub mod publish;
pub mod resize;
pub mod restart;
pub mod run;
pub mod status;
pub mod sweeps;
pub mod teardown;
pub mod update;
pub mod worker;
pub mod worker_state;

use std::time::Duration;

/// Where a pod is in its life.
///
/// ```text
/// Waiting ──first observation──▶ Starting ──each container ran──▶ Running
///    │                              │                                │
///    └──────────────┬───────────────┴──────── kill, or all ended ────┘
///                   ▼
///               Stopping{deadline, step} ──▶ Stopped ──remove──▶ Gone
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Life {
    /// Nothing is known yet: nothing is done but observing.
    #[default]
    Waiting,
    /// Images, sandbox and containers are being brought up.
    Starting,
    /// Each container has run; those that end are restarted by policy.
    Running,
    /// Being ended, by order or because all containers are done.
    Stopping {
        /// When what still runs is killed.
        deadline: Option<Duration>,
        /// What is awaited.
        step: StopStep,
    },
    /// Nothing runs and the network is given back; records and logs are still there.
    Stopped,
    /// The runtime has forgotten it; the worker ends.
    Gone,
}

/// What a stopping pod waits for; observed anew each time, so a restart resumes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopStep {
    /// Containers to end.
    Containers,
    /// The sandbox to stop.
    Sandbox,
    /// DRA drivers to take back what they have prepared.
    Claims,
    /// The volumes to be taken back.
    Volumes,
    /// The cgroup to go.
    Cgroup,
}

/// What the pod's owner asked for. Latest wins, except that a kill is monotone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Orders {
    /// End it.
    pub kill: Option<Kill>,
    /// Forget it once it is stopped.
    pub remove: bool,
    /// Its containers give back what they hold once it is stopped, though it is not forgotten.
    pub free: bool,
    /// It is Failed for this, whatever its containers come to; the first reason stays.
    pub verdict: Option<PodFailure>,
}

/// Why a pod is Failed, other than by its containers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodFailure {
    /// Of its status.
    pub reason: String,
    /// Of its status.
    pub message: String,
    /// It made room for others: what its condition DisruptionTarget says.
    pub disrupted: Option<String>,
}

/// A request to end a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kill {
    /// On the monotonic clock; only ever moves closer.
    pub deadline: Duration,
    /// Of the first request.
    pub reason: String,
}

impl Orders {
    /// Asks for the end within `grace`. Asking again can only shorten it.
    pub fn kill(&mut self, grace: Duration, reason: &str, now: Duration) {
        let deadline = now.saturating_add(grace);
        match &mut self.kill {
            Some(kill) => kill.deadline = kill.deadline.min(deadline),
            None => self.kill = Some(Kill { deadline, reason: reason.to_owned() }),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
