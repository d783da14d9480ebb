//! What to do next for one pod. Pure: (desired, observed, history, now) → actions; no
//! clock, no I/O. Owns the order of a start; the end is [`super::teardown`]'s. Called by the worker
//! after each observation.
//!
//! devices → cgroup → volumes → claims → sandbox (images side by side) → init containers one by one, sidecars among
//! them staying → all others at once ([`init`], [`containers`], [`sandbox`]); resizes ([`resize`]), probes, hooks and last
//! words beside that ([`probes`], [`stop`], [`termination_message`]).

pub mod action;
mod containers;
mod ended;
mod init;
pub(super) mod probes;
mod resize;
pub(super) mod restart_all;
mod sandbox;
pub(super) mod stop;
pub(super) mod termination_message;

use std::time::Duration;

pub use action::{Action, Op, SandboxRef};
use ended::decide;
pub use ended::{Ended, UNKNOWN_CODE, unknown_exit, vanished_exit};
use gantry_model::pod::{Container, Pod, Role};

use super::worker_state::{PodResources, WorkerState};
use super::{Life, Orders, teardown};
use crate::devices;
use crate::runtime::{Instance, InstanceState, Observed, Sandbox};
use resize::Resize;

/// What to do, and when to look again at the latest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Where the pod is.
    pub life: Life,
    /// To begin now, all at once.
    pub actions: Vec<Action>,
    /// Effects under way whose outcome nobody waits for any more.
    pub abandon: Vec<Op>,
    /// Containers that wait before they are tried again.
    pub waits: Vec<Wait>,
    /// When there is something to do again, if time alone brings it.
    pub wake: Option<Duration>,
    /// Why the pod ends by itself, if it does.
    pub ended: Option<Ended>,
    /// Each container has run.
    pub started: bool,
    /// All containers are being started anew: whether everything old is gone.
    pub reset: Option<bool>,
    /// Whether the pod is held to other resources than it was allocated; none while that is nobody's concern.
    pub resizing: Option<bool>,
    /// IDs of containers that end from now on, to start again with other resources.
    pub restarts: Vec<String>,
}

/// A container that is kept waiting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// Which.
    pub container: String,
    /// Its image could not be pulled; else it has crashed.
    pub image: bool,
    /// Until when.
    pub until: Duration,
}

/// Everything a plan is made from.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlanInputs<'a> {
    pub(super) pod: &'a Pod,
    pub(super) orders: &'a Orders,
    pub(super) observed: &'a Observed,
    pub(super) history: &'a WorkerState,
    pub(super) now: Duration,
}

impl<'a> PlanInputs<'a> {
    /// The newest record, from memory when the runtime has none any more.
    pub(super) fn record(self, container: &Container) -> Option<&'a Instance> {
        self.observed.newest(&container.name).or_else(|| self.history.containers.last.get(&container.name))
    }

    /// The newest record within one sandbox, from memory when the runtime has none any more.
    pub(super) fn record_in(self, container: &Container, sandbox: &str) -> Option<&'a Instance> {
        let here =
            self.observed.containers.iter().filter(|c| c.name == container.name && c.sandbox == sandbox);
        let remembered =
            self.history.containers.last.get(&container.name).filter(|last| last.sandbox == sandbox);
        here.max_by_key(|c| (c.attempt, c.created_at)).or(remembered)
    }

    /// Whether it has come as far as others wait for: runs, its hook is done, its startup probe has
    /// succeeded.
    pub(super) fn has_started(self, container: &Container, instance: &Instance) -> bool {
        matches!(instance.state, InstanceState::Running { .. })
            && self.history.containers.hooks.is_done(&instance.id)
            && self.history.probing.is_started(container, &instance.id)
    }
}

/// A plan in the making.
#[derive(Debug, Default)]
pub(super) struct Draft {
    pub(super) actions: Vec<Action>,
    pub(super) abandon: Vec<Op>,
    pub(super) waits: Vec<Wait>,
    pub(super) wake: Option<Duration>,
}

impl Draft {
    /// Adds an action unless it is under way or waits after a failure.
    pub(super) fn act(&mut self, facts: PlanInputs<'_>, action: Action) {
        let op = action.op();
        if let Some(until) = facts.history.backoffs.retry_at(&op, facts.now) {
            self.wake_at(until);
        } else if !facts.history.flights.contains_key(&op) && self.actions.iter().all(|a| a.op() != op) {
            self.actions.push(action);
        }
    }

    pub(super) fn wake_at(&mut self, at: Duration) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }
}

/// Decides.
#[must_use]
pub fn plan(pod: &Pod, orders: &Orders, observed: &Observed, history: &WorkerState, now: Duration) -> Plan {
    let facts = PlanInputs { pod, orders, observed, history, now };
    let mut draft = Draft::default();
    let resets = orders.kill.is_none() && history.stage.ended().is_none() && restart_all::due(facts);
    let own_end = || if orders.kill.is_none() { decide(facts, resets, &mut draft) } else { None };
    let ended = history.stage.ended().map(|(ended, _)| ended).or_else(own_end);
    let (mut reset, mut resizing, mut restarts) = (None, None, Vec::new());
    let started = history.stage.has_started() || pod.containers.iter().all(|c| has_run(facts, c));
    let life = if orders.kill.is_some() || ended.is_some() {
        teardown::plan(facts, &mut draft)
    } else if resets {
        reset = Some(restart_all::plan(facts, &mut draft));
        if started { Life::Running } else { Life::Starting }
    } else {
        let resize = bring_up(facts, &mut draft);
        (resizing, restarts) = (Some(resize.differs), resize.restarts);
        if started { Life::Running } else { Life::Starting }
    };
    probes::plan(facts, &mut draft, life);
    probes::remember(facts, &mut draft);
    let Draft { actions, abandon, waits, wake } = draft;
    Plan { life, actions, abandon, waits, wake, ended, started, reset, resizing, restarts }
}

fn has_run(facts: PlanInputs<'_>, container: &Container) -> bool {
    match facts.record(container).map(|instance| (&instance.state, instance.attempt)) {
        Some((InstanceState::Running { .. }, _)) => true,
        Some((InstanceState::Exited(exit), attempt)) => exit.started_at != 0 || attempt > 0,
        Some((InstanceState::Created, attempt)) => attempt > 0,
        Some((InstanceState::Unknown, _)) => true,
        None => false,
    }
}

/// Each step as soon as the one it needs is done; what needs nothing of another goes beside it.
fn bring_up(facts: PlanInputs<'_>, draft: &mut Draft) -> Resize {
    let parent = prepare(facts, draft);
    if awaits_devices(facts) {
        return Resize::default();
    }
    let current = sandbox::current(facts);
    let leftovers = sandbox::stop_leftovers(facts, draft, current);
    if let (None, false, Some(parent)) = (current, leftovers, parent) {
        // Whatever held the old network and name is stopped: remove before add.
        draft.act(facts, sandbox::next_step(facts, parent));
    }
    let resize = resize::plan(facts, draft, current.filter(|_| parent.is_some()));
    stop::kill_unhealthy(facts, draft);
    let place = current.zip(parent).map(|(sandbox, parent)| place(sandbox, parent));
    let initialized = init::plan(facts, draft, place.as_ref());
    let mut held = false;
    for container in &facts.pod.containers {
        match (&place, initialized && !held) {
            (Some(place), true) => containers::bring_up(facts, draft, container, Some(place)),
            _ => containers::fetch_ahead(facts, draft, container),
        }
        held |= containers::holds_the_next(facts, draft, container);
    }
    for container in &facts.pod.ephemeral_containers {
        // Whatever the others are at: people add them to see why.
        containers::bring_up(facts, draft, container, place.as_ref());
    }
    termination_message::read(facts, draft);
    sandbox::remove_old(facts, draft, current);
    resize
}

fn place(sandbox: &Sandbox, parent: &str) -> SandboxRef {
    SandboxRef {
        sandbox: sandbox.id.clone(),
        sandbox_attempt: sandbox.attempt,
        cgroup_parent: parent.to_owned(),
        ips: sandbox.ips.clone(),
        target: String::new(),
    }
}

/// Nothing is done for a pod that may be refused yet.
fn awaits_devices(facts: PlanInputs<'_>) -> bool {
    facts.history.resources == PodResources::Unknown && (facts.history.is_managed || devices::asks(facts.pod))
}

/// Devices, cgroup, then volumes; the cgroup's name once all are there.
fn prepare<'a>(facts: PlanInputs<'a>, draft: &mut Draft) -> Option<&'a str> {
    match &facts.history.resources {
        PodResources::Unknown if awaits_devices(facts) => {
            let runs = sandbox::current(facts).is_some();
            draft.act(facts, Action::AllocateDevices { runs });
        }
        PodResources::Unknown | PodResources::Devices => {
            // What an agent before this one has not come to is done in order, later.
            let actuated = facts.history.resizing.actuated.clone();
            draft.act(facts, Action::SetUpCgroup { actuated });
        }
        PodResources::Cgroup { .. } => draft.act(facts, Action::SetUpVolumes),
        PodResources::Ready { parent } => {
            if facts.history.volumes_stale {
                draft.act(facts, Action::RefreshVolumes);
            }
            return Some(parent);
        }
        // Only the end takes these away.
        PodResources::NoClaims | PodResources::NoVolumes | PodResources::Gone => {}
    }
    None
}

/// Where probes and hooks find the pod when they are not told a host.
fn address(facts: PlanInputs<'_>) -> String {
    let ips = facts.observed.newest_sandbox().map(|s| s.ips.as_slice()).unwrap_or_default();
    // A node without a network is reached on loopback, by what is on its network.
    ips.first().cloned().unwrap_or_else(|| "127.0.0.1".to_owned())
}

/// Init containers that stay, in order.
fn sidecars(pod: &Pod) -> impl DoubleEndedIterator<Item = &Container> {
    pod.init_containers.iter().filter(|c| c.role == Role::Sidecar)
}

#[cfg(test)]
mod tests;
