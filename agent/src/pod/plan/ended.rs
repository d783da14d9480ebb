//! Whether a pod comes to its end by itself. Pure: owns the rules of restart policies over the whole
//! pod, and of activeDeadlineSeconds. Called by [`super::plan`]; what it decides is sticky.

use gantry_model::pod::{Container, RestartPolicy, Role};

use super::{Draft, PlanInputs};
use crate::pod::plan::Op;
use crate::pod::restart::starts_again;
use crate::pod::status::ContainerState;
use crate::runtime::{Exit, Instance, InstanceState};

/// Why a pod ends without being asked to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// No container will run again.
    Finished,
    /// activeDeadlineSeconds are over.
    DeadlineExceeded,
    /// The API has it as ended: it is never started again (trap 3).
    Before,
    /// The node does not take it in.
    Refused,
}

/// The code of a container of which the runtime lost track.
pub const UNKNOWN_CODE: i32 = 137;

/// The end of one that ran and is nowhere to be found, as the kubelet tells it.
pub fn vanished_exit(started_at: i64) -> Exit {
    let message =
        "The container could not be located when the pod was deleted.  The container used to be Running";
    Exit { message: message.to_owned(), started_at, ..unknown_exit() }
}

/// An end of which nobody knows anything.
pub fn unknown_exit() -> Exit {
    Exit {
        code: UNKNOWN_CODE,
        reason: "ContainerStatusUnknown".to_owned(),
        message: "The container could not be located when the pod was terminated".to_owned(),
        started_at: 0,
        finished_at: 0,
    }
}

/// `resets`: all its containers are being started anew.
pub(super) fn decide(facts: PlanInputs<'_>, resets: bool, draft: &mut Draft) -> Option<Ended> {
    if let Some(limit) = facts.pod.active_deadline {
        let left = limit.saturating_sub(facts.history.active.until(facts.now));
        if left.is_zero() {
            return Some(Ended::DeadlineExceeded);
        }
        draft.wake_at(facts.now + left);
    }
    (!resets && is_finished(facts)).then_some(Ended::Finished)
}

fn is_finished(facts: PlanInputs<'_>) -> bool {
    has_init_failed(facts) || {
        let lost = sandbox_lost(facts);
        // One of which nothing but its name is known has nothing to finish.
        let mut containers = facts.pod.containers.iter().peekable();
        containers.peek().is_some() && containers.all(|container| is_done(facts, container, lost))
    }
}

/// Whether the container has ended for good. One that is being made is not, whatever its record.
fn is_done(facts: PlanInputs<'_>, container: &Container, lost: bool) -> bool {
    let busy = facts.history.flights.contains_key(&Op::Container(container.name.clone()));
    !busy
        && !facts
            .history
            .containers
            .last
            .get(&container.name)
            .is_some_and(|last| facts.history.makes_anew(&last.id))
        && match facts.record(container).map(|instance| &instance.state) {
            Some(InstanceState::Exited(exit)) => !starts_again(container, exit.code),
            Some(InstanceState::Unknown) => !starts_again(container, UNKNOWN_CODE),
            Some(InstanceState::Created) => lost,
            None => lost || forgotten(facts, container),
            Some(InstanceState::Running { .. }) => false,
        }
}

/// Whether the API knows how it ended, or that it ran, and nobody else knows of it any more: what is
/// to run once is not run again.
fn forgotten(facts: PlanInputs<'_>, container: &Container) -> bool {
    if facts.history.containers.last.contains_key(&container.name) {
        return false;
    }
    match facts.history.api.last.containers.get(&container.name).map(|api| &api.state) {
        Some(ContainerState::Terminated(exit)) => !starts_again(container, exit.code),
        Some(ContainerState::Running { .. }) => !starts_again(container, UNKNOWN_CODE),
        Some(ContainerState::Waiting { .. }) | None => false,
    }
}

/// A pod that is never restarted gets no second sandbox once anything was made in the
/// first.
fn sandbox_lost(facts: PlanInputs<'_>) -> bool {
    facts.pod.restart_policy == RestartPolicy::Never
        && facts.observed.sandboxes.iter().all(|s| !s.serves(facts.pod.namespaces.host_network))
        && !facts.observed.sandboxes.is_empty()
        && facts.pod.all_containers().any(|c| facts.history.attempts.was_created(&c.name))
}

/// An init container that failed and is not tried again takes the pod along.
fn has_init_failed(facts: PlanInputs<'_>) -> bool {
    let Some(newest) = facts.observed.newest_sandbox() else { return false };
    let begun = facts.pod.containers.iter().any(|c| facts.record_in(c, &newest.id).is_some());
    !begun
        && facts.pod.init_containers.iter().filter(|c| c.role == Role::Init).any(|container| {
            let busy = facts.history.flights.contains_key(&Op::Container(container.name.clone()));
            let failed = facts.record_in(container, &newest.id).and_then(failure);
            !busy && failed.is_some_and(|code| !starts_again(container, code))
        })
}

/// The code of an init container that did not succeed, never 0.
pub(super) fn failure(instance: &Instance) -> Option<i32> {
    match &instance.state {
        InstanceState::Exited(exit) if exit.code != 0 => Some(exit.code),
        InstanceState::Exited(exit) if !exit.initialized() => Some(UNKNOWN_CODE),
        InstanceState::Unknown => Some(UNKNOWN_CODE),
        InstanceState::Exited(_) | InstanceState::Created | InstanceState::Running { .. } => None,
    }
}
