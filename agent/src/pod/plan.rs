//! What to do next for one pod. Pure: (desired, observed, history, now) → actions; no
//! clock, no I/O. Called by the worker after each observation.

use std::time::Duration;

use super::history::History;
use super::restart::{crash_key, pull_key, restarts};
use super::spec::{Container, Pod, RestartPolicy};
use super::{Life, Orders, teardown};
use crate::runtime::{Instance, InstanceState, Observed, Sandbox};

/// One effect to carry out.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "each variant is one call of the runtime, each field an argument of it")]
pub enum Action {
    EnsureImage {
        container: String,
        attempt: u32,
    },
    RunSandbox {
        attempt: u32,
    },
    /// `ended`: when the attempt before it was seen to have ended, if there was one.
    CreateContainer {
        container: String,
        attempt: u32,
        sandbox: String,
        sandbox_attempt: u32,
        image_id: String,
        ended: Option<Duration>,
    },
    StartContainer {
        container: String,
        id: String,
    },
    StopContainer {
        id: String,
        deadline: Duration,
    },
    RemoveContainer {
        id: String,
    },
    StopSandbox {
        id: String,
    },
    RemoveSandbox {
        id: String,
    },
}

/// What an action is about: of one `Op` at most one is under way.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "named as the actions")]
pub enum Op {
    Image(String),
    Sandbox,
    Container(String),
    StopContainer(String),
    RemoveContainer(String),
    StopSandbox(String),
    RemoveSandbox(String),
}

impl Action {
    /// What it is about.
    #[must_use]
    pub fn op(&self) -> Op {
        match self {
            Self::EnsureImage { container, .. } => Op::Image(container.clone()),
            Self::RunSandbox { .. } => Op::Sandbox,
            Self::CreateContainer { container, .. } | Self::StartContainer { container, .. } => {
                Op::Container(container.clone())
            }
            Self::StopContainer { id, .. } => Op::StopContainer(id.clone()),
            Self::RemoveContainer { id } => Op::RemoveContainer(id.clone()),
            Self::StopSandbox { id } => Op::StopSandbox(id.clone()),
            Self::RemoveSandbox { id } => Op::RemoveSandbox(id.clone()),
        }
    }
}

/// What to do, and when to look again at the latest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Where the pod is.
    pub life: Life,
    /// To begin now, all at once.
    pub actions: Vec<Action>,
    /// When a back-off ends, if one is waited for.
    pub wake: Option<Duration>,
    /// All containers are done for good.
    pub finished: bool,
    /// Each container has run.
    pub started: bool,
}

/// Everything a plan is made from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Facts<'a> {
    pub(super) pod: &'a Pod,
    pub(super) orders: &'a Orders,
    pub(super) observed: &'a Observed,
    pub(super) history: &'a History,
    pub(super) now: Duration,
}

/// A plan in the making.
#[derive(Debug, Default)]
pub(super) struct Draft {
    pub(super) actions: Vec<Action>,
    pub(super) wake: Option<Duration>,
}

impl Draft {
    /// Adds an action unless it is under way or waits after a failure.
    pub(super) fn act(&mut self, facts: Facts<'_>, action: Action) {
        let op = action.op();
        if let Some(until) = facts.history.retry_at(&op, facts.now) {
            self.wake_at(until);
        } else if !facts.history.flights.contains_key(&op) {
            self.actions.push(action);
        }
    }

    fn wake_at(&mut self, at: Duration) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }
}

/// Decides.
#[must_use]
pub fn plan(pod: &Pod, orders: &Orders, observed: &Observed, history: &History, now: Duration) -> Plan {
    let facts = Facts { pod, orders, observed, history, now };
    let finished = history.finished || (orders.kill.is_none() && is_finished(facts));
    let started = history.started || pod.containers.iter().all(|c| has_run(facts, c));
    let mut draft = Draft::default();
    let life = if orders.kill.is_some() || finished {
        teardown::plan(facts, &mut draft)
    } else {
        bring_up(facts, &mut draft);
        if started { Life::Running } else { Life::Starting }
    };
    Plan { life, actions: draft.actions, wake: draft.wake, finished, started }
}

/// Terminal stays terminal: once each container is done for good, none is started again,
/// also when its record is removed later.
fn is_finished(facts: Facts<'_>) -> bool {
    let lost = sandbox_lost(facts);
    facts.pod.containers.iter().all(|container| {
        let busy = facts.history.flights.contains_key(&Op::Container(container.name.clone()));
        !busy
            && match record(facts, container).map(|instance| &instance.state) {
                Some(InstanceState::Exited(exit)) => !restarts(facts.pod.restart_policy, exit.code),
                Some(InstanceState::Unknown) => !restarts(facts.pod.restart_policy, UNKNOWN_CODE),
                Some(InstanceState::Created) | None => lost,
                Some(InstanceState::Running { .. }) => false,
            }
    })
}

/// The code of a container of which the runtime lost track.
pub(super) const UNKNOWN_CODE: i32 = 137;

/// A pod that is never restarted gets no second sandbox once anything was made in the
/// first.
fn sandbox_lost(facts: Facts<'_>) -> bool {
    facts.pod.restart_policy == RestartPolicy::Never
        && facts.observed.sandboxes.iter().all(|s| !s.ready)
        && !facts.observed.sandboxes.is_empty()
        && facts.pod.containers.iter().any(|c| facts.history.was_created(&c.name))
}

/// The newest record, from memory when the runtime has none any more.
fn record<'a>(facts: Facts<'a>, container: &Container) -> Option<&'a Instance> {
    facts.observed.newest(&container.name).or_else(|| facts.history.last.get(&container.name))
}

fn has_run(facts: Facts<'_>, container: &Container) -> bool {
    match record(facts, container).map(|instance| (&instance.state, instance.attempt)) {
        Some((InstanceState::Running { .. }, _)) => true,
        Some((InstanceState::Exited(exit), attempt)) => exit.started_at != 0 || attempt > 0,
        Some((InstanceState::Created, attempt)) => attempt > 0,
        Some((InstanceState::Unknown, _)) => true,
        None => false,
    }
}

/// Sandbox and images side by side, then each container as soon as its own are there.
fn bring_up(facts: Facts<'_>, draft: &mut Draft) {
    let ready = facts.observed.sandboxes.iter().filter(|s| s.ready);
    let current = ready.max_by_key(|s| (s.attempt, s.created_at));
    let leftovers = stop_leftovers(facts, draft, current);
    if current.is_none() && !leftovers {
        // Whatever held the old network and name is stopped: remove before add.
        draft.act(facts, Action::RunSandbox { attempt: facts.history.next_sandbox_attempt() });
    }
    for container in &facts.pod.containers {
        bring_up_container(facts, draft, container, current);
    }
    remove_old(facts, draft, current);
}

/// Stops each sandbox but the current one; whether any is not stopped yet.
fn stop_leftovers(facts: Facts<'_>, draft: &mut Draft, current: Option<&Sandbox>) -> bool {
    let mut any = false;
    for sandbox in &facts.observed.sandboxes {
        let is_current = current.is_some_and(|c| c.id == sandbox.id);
        if !is_current && (sandbox.ready || !facts.history.stopped_sandboxes.contains(&sandbox.id)) {
            any = true;
            draft.act(facts, Action::StopSandbox { id: sandbox.id.clone() });
        }
    }
    any
}

fn bring_up_container(facts: Facts<'_>, draft: &mut Draft, container: &Container, current: Option<&Sandbox>) {
    let name = &container.name;
    if facts.history.flights.contains_key(&Op::Container(name.clone())) {
        return;
    }
    let policy = facts.pod.restart_policy;
    let mut ended = None;
    if let Some(instance) = record(facts, container) {
        match &instance.state {
            InstanceState::Running { .. } => return,
            InstanceState::Created if current.is_some_and(|s| s.id == instance.sandbox) => {
                // Made by a call whose answer was lost, or by an agent that is gone.
                draft.act(facts, Action::StartContainer { container: name.clone(), id: instance.id.clone() });
                return;
            }
            InstanceState::Created => {}
            InstanceState::Exited(exit) if !restarts(policy, exit.code) => return,
            InstanceState::Unknown if !restarts(policy, UNKNOWN_CODE) => return,
            InstanceState::Exited(_) | InstanceState::Unknown => {
                let seen = facts.history.exits.get(&instance.id).copied().unwrap_or(facts.now);
                let key = crash_key(facts.pod, container);
                if let Some(until) = facts.history.crash.blocked_since_event(&key, seen, facts.now) {
                    draft.wake_at(until);
                    return;
                }
                ended = Some(seen);
            }
        }
    }
    let attempt = facts.history.next_attempt(name);
    let image_id = match facts.history.images.get(name) {
        Some((for_attempt, id)) if *for_attempt == attempt => id.clone(),
        _ => return ensure_image(facts, draft, container, attempt),
    };
    if let Some(sandbox) = current {
        draft.act(
            facts,
            Action::CreateContainer {
                container: name.clone(),
                attempt,
                sandbox: sandbox.id.clone(),
                sandbox_attempt: sandbox.attempt,
                image_id,
                ended,
            },
        );
    }
}

fn ensure_image(facts: Facts<'_>, draft: &mut Draft, container: &Container, attempt: u32) {
    match facts.history.pull.blocked(&pull_key(facts.pod, container), facts.now) {
        Some(until) => draft.wake_at(until),
        None => draft.act(facts, Action::EnsureImage { container: container.name.clone(), attempt }),
    }
}

/// Keeps the newest record of each container and the one before it, and the sandboxes
/// they are in.
fn remove_old(facts: Facts<'_>, draft: &mut Draft, current: Option<&Sandbox>) {
    for instance in &facts.observed.containers {
        let newer = facts.observed.containers.iter().filter(|other| {
            other.name == instance.name
                && (other.attempt, other.created_at) > (instance.attempt, instance.created_at)
        });
        let useless = match instance.state {
            InstanceState::Running { .. } => false,
            InstanceState::Exited(_) => newer.count() >= 2,
            InstanceState::Created => current.is_some_and(|s| s.id != instance.sandbox),
            InstanceState::Unknown => true,
        };
        if useless {
            draft.act(facts, Action::RemoveContainer { id: instance.id.clone() });
        }
    }
    let newest = facts.observed.newest_sandbox();
    for sandbox in &facts.observed.sandboxes {
        let empty = facts.observed.containers.iter().all(|c| c.sandbox != sandbox.id);
        let stopped = !sandbox.ready && facts.history.stopped_sandboxes.contains(&sandbox.id);
        if stopped && empty && newest.is_some_and(|n| n.id != sandbox.id) {
            draft.act(facts, Action::RemoveSandbox { id: sandbox.id.clone() });
        }
    }
}

#[cfg(test)]
mod tests;
