//! How a pod ends: containers, then the sandbox, then (when asked) the records. Pure: the
//! part of [`super::plan`] for pods that are killed or finished; resumable at any point
//! because each step is read off what is observed. Never starts anything.

use super::plan::{Action, Draft, Facts, Op};
use super::{Life, StopStep};
use crate::runtime::InstanceState;

/// The order is the contract: containers stopped → exit codes published → network and
/// sandbox gone → records removed.
pub(super) fn plan(facts: Facts<'_>, draft: &mut Draft) -> Life {
    let deadline = facts.orders.kill.as_ref().map(|kill| kill.deadline);
    if stop_containers(facts, draft) {
        return Life::Stopping { deadline, step: StopStep::Containers };
    }
    if stop_sandboxes(facts, draft) {
        return Life::Stopping { deadline, step: StopStep::Sandbox };
    }
    if !facts.orders.remove {
        return Life::Stopped;
    }
    if remove(facts, draft) { Life::Stopped } else { Life::Gone }
}

/// Whether any container still runs, or an effect under way may yet start one: what was
/// begun cannot be taken back, so its end is awaited.
fn stop_containers(facts: Facts<'_>, draft: &mut Draft) -> bool {
    let mut waiting = facts
        .history
        .flights
        .keys()
        .any(|op| matches!(op, Op::Sandbox | Op::Container(_) | Op::RemoveContainer(_)));
    for instance in &facts.observed.containers {
        // One of which the runtime lost track is ended with its sandbox.
        if !matches!(instance.state, InstanceState::Running { .. }) {
            continue;
        }
        waiting = true;
        let deadline = match &facts.orders.kill {
            Some(kill) => kill.deadline,
            None => facts.now + facts.pod.grace,
        };
        let action = Action::StopContainer { id: instance.id.clone(), deadline };
        match facts.history.flights.get(&action.op()) {
            // A shorter grace overtakes the stop under way.
            Some(Some(earlier)) if deadline < *earlier => draft.actions.push(action),
            Some(_) => {}
            None => draft.act(facts, action),
        }
    }
    waiting
}

/// Whether any sandbox is not known to be stopped. One that is NotReady already is
/// stopped once more: that gives back a network that was left behind.
fn stop_sandboxes(facts: Facts<'_>, draft: &mut Draft) -> bool {
    let mut waiting = false;
    for sandbox in &facts.observed.sandboxes {
        if sandbox.ready || !facts.history.stopped_sandboxes.contains(&sandbox.id) {
            waiting = true;
            draft.act(facts, Action::StopSandbox { id: sandbox.id.clone() });
        }
    }
    waiting
}

/// Whether anything is left to forget.
fn remove(facts: Facts<'_>, draft: &mut Draft) -> bool {
    for instance in &facts.observed.containers {
        draft.act(facts, Action::RemoveContainer { id: instance.id.clone() });
    }
    if facts.observed.containers.is_empty() {
        for sandbox in &facts.observed.sandboxes {
            draft.act(facts, Action::RemoveSandbox { id: sandbox.id.clone() });
        }
    }
    let busy = facts.history.flights.keys().any(|op| !matches!(op, Op::Image(_)));
    busy || !facts.observed.containers.is_empty() || !facts.observed.sandboxes.is_empty()
}
