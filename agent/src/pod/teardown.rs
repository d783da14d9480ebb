//! How a pod ends: containers (main ones, then sidecars in reverse), their last words, the sandbox,
//! claims, volumes, cgroup, then (when asked) the records. Pure: the part of [`super::plan`] for pods that
//! are killed or finished; resumable at any point because each step is read off what is observed.
//! Never starts anything.

use std::time::Duration;

use super::plan::{Action, Draft, Op, PlanInputs, probes, stop, termination_message};
use super::worker_state::PodResources;
use super::{Life, StopStep};
use crate::runtime::InstanceState;

/// The order is the contract (trap 4): containers stopped → exit codes and last words known →
/// network and sandbox gone → claims taken back → volumes and cgroup gone → records removed.
pub(super) fn plan(facts: PlanInputs<'_>, draft: &mut Draft) -> Life {
    stop::abandon(facts, draft);
    let deadline = deadline(facts);
    let stopping = |step| Life::Stopping { deadline: Some(deadline), step };
    if stop_containers(facts, draft, deadline) {
        return stopping(StopStep::Containers);
    }
    if termination_message::read(facts, draft) {
        return stopping(StopStep::Containers);
    }
    if stop_sandboxes(facts, draft) {
        return stopping(StopStep::Sandbox);
    }
    match facts.history.resources {
        PodResources::Unknown
        | PodResources::Devices
        | PodResources::Cgroup { .. }
        | PodResources::Ready { .. }
            if may_have_claims(facts) =>
        {
            draft.act(facts, Action::UnprepareClaims);
            return stopping(StopStep::Claims);
        }
        PodResources::Unknown
        | PodResources::Devices
        | PodResources::Cgroup { .. }
        | PodResources::Ready { .. }
        | PodResources::NoClaims => {
            draft.act(facts, Action::TearDownVolumes);
            return stopping(StopStep::Volumes);
        }
        PodResources::NoVolumes => {
            draft.act(facts, Action::TearDownCgroup);
            return stopping(StopStep::Cgroup);
        }
        PodResources::Gone => {}
    }
    if !facts.orders.remove {
        if facts.orders.free {
            remove_containers(facts, draft);
        }
        return Life::Stopped;
    }
    if remove(facts, draft) { Life::Stopped } else { Life::Gone }
}

/// Whether drivers are to be told of its end. Of a pod without containers nothing is known but its name: it may have had any.
fn may_have_claims(facts: PlanInputs<'_>) -> bool {
    !facts.pod.resource_claims.is_empty() || facts.pod.containers.is_empty()
}

/// When what still runs is killed: as ordered, or the pod's grace after its own end.
fn deadline(facts: PlanInputs<'_>) -> Duration {
    let own = facts.history.stage.ended().map_or(facts.now, |(_, since)| since) + facts.pod.grace;
    facts.orders.kill.as_ref().map_or(own, |kill| kill.deadline)
}

/// Whether any container still runs, or an effect under way may yet start one or fill a volume: what
/// was begun cannot be taken back, so its end is awaited.
fn stop_containers(facts: PlanInputs<'_>, draft: &mut Draft, deadline: Duration) -> bool {
    let mut waiting = facts.history.flights.keys().any(|op| {
        matches!(
            op,
            Op::Cgroup | Op::Volumes | Op::Refresh | Op::Sandbox | Op::Container(_) | Op::RemoveContainer(_)
        )
    });
    for instance in &facts.observed.containers {
        // One of which the runtime lost track is ended with its sandbox.
        if matches!(instance.state, InstanceState::Running { .. }) {
            waiting = true;
            let turn = stop::is_turn(facts, instance);
            stop::one(facts, draft, instance, stop::Order { deadline, why: None, turn });
        }
    }
    waiting
}

/// Whether any sandbox is not known to be stopped. One that is NotReady already is
/// stopped once more: that gives back a network that was left behind.
fn stop_sandboxes(facts: PlanInputs<'_>, draft: &mut Draft) -> bool {
    let mut waiting = false;
    for sandbox in &facts.observed.sandboxes {
        if sandbox.ready || !facts.history.sandboxes.stopped.contains(&sandbox.id) {
            waiting = true;
            draft.act(facts, Action::StopSandbox { id: sandbox.id.clone() });
        }
    }
    waiting
}

fn remove_containers(facts: PlanInputs<'_>, draft: &mut Draft) {
    for instance in &facts.observed.containers {
        draft.act(facts, Action::RemoveContainer { id: instance.id.clone() });
    }
}

/// Whether anything is left to forget.
fn remove(facts: PlanInputs<'_>, draft: &mut Draft) -> bool {
    remove_containers(facts, draft);
    if facts.observed.containers.is_empty() {
        for sandbox in &facts.observed.sandboxes {
            draft.act(facts, Action::RemoveSandbox { id: sandbox.id.clone() });
        }
    }
    let busy = facts.history.flights.keys().any(|op| !matches!(op, Op::Image(_)));
    let here = !facts.observed.containers.is_empty() || !facts.observed.sandboxes.is_empty();
    busy || here || !probes::is_forgotten(facts)
}
