//! The pod's sandbox: which one counts, what becomes of the others and of old records. Pure.
//! Called by [`super::plan`].

use gantry_model::pod::Role;

use super::{Action, Draft, PlanInputs, stop};
use crate::runtime::{Instance, InstanceState, Sandbox};

/// The newest one that serves.
pub(super) fn current(facts: PlanInputs<'_>) -> Option<&Sandbox> {
    let host_network = facts.pod.namespaces.host_network;
    let serving = facts.observed.sandboxes.iter().filter(|s| s.serves(host_network));
    serving.max_by_key(|s| (s.attempt, s.created_at))
}

/// The claims of the next one, before each, as upstream; then itself.
pub(super) fn next_step(facts: PlanInputs<'_>, parent: &str) -> Action {
    match facts.pod.resource_claims.is_empty() || facts.history.claims_prepared {
        true => run(facts, parent),
        false => Action::PrepareClaims,
    }
}

/// The next one.
fn run(facts: PlanInputs<'_>, parent: &str) -> Action {
    Action::RunSandbox {
        attempt: facts.history.attempts.next_sandbox(),
        cgroup_parent: parent.to_owned(),
        replaces: !facts.observed.sandboxes.is_empty(),
    }
}

/// Stops each sandbox but the current one, after what still runs in it, which gets its grace;
/// whether any is not stopped yet.
pub(super) fn stop_leftovers(facts: PlanInputs<'_>, draft: &mut Draft, current: Option<&Sandbox>) -> bool {
    let mut any = false;
    for sandbox in &facts.observed.sandboxes {
        let is_current = current.is_some_and(|c| c.id == sandbox.id);
        if is_current || (!sandbox.ready && facts.history.sandboxes.stopped.contains(&sandbox.id)) {
            continue;
        }
        any = true;
        let running =
            |c: &&Instance| c.sandbox == sandbox.id && matches!(c.state, InstanceState::Running { .. });
        let deadline = facts.history.sandboxes.lost_at(&sandbox.id, facts.now) + facts.pod.grace;
        let mut quiet = true;
        for instance in facts.observed.containers.iter().filter(running) {
            quiet = false;
            let turn = stop::is_turn(facts, instance);
            stop::one(facts, draft, instance, stop::Order { deadline, why: None, turn });
        }
        if quiet {
            draft.act(facts, Action::StopSandbox { id: sandbox.id.clone() });
        }
    }
    any
}

/// Keeps the newest record of each container and the one before it, and the sandboxes
/// they are in. Of init containers only the newest, as upstream. None of one of which the runtime lost
/// track: only its removal ends it for sure.
pub(super) fn remove_old(facts: PlanInputs<'_>, draft: &mut Draft, current: Option<&Sandbox>) {
    for instance in &facts.observed.containers {
        let newer = facts.observed.containers.iter().filter(|other| {
            other.name == instance.name
                && (other.attempt, other.created_at) > (instance.attempt, instance.created_at)
        });
        let role = facts.pod.container(&instance.name).map(|container| container.role);
        let keep = if role == Some(Role::Init) { 1 } else { 2 };
        let useless = match instance.state {
            InstanceState::Running { .. } => false,
            InstanceState::Exited(_) => newer.count() >= keep,
            InstanceState::Created => current.is_some_and(|s| s.id != instance.sandbox),
            InstanceState::Unknown => stop::lost(facts, draft, instance),
        };
        // What it had to say is read first.
        if useless && (instance.exit().is_none() || facts.history.containers.words.contains_key(&instance.id))
        {
            draft.act(facts, Action::RemoveContainer { id: instance.id.clone() });
        }
    }
    let newest = facts.observed.newest_sandbox();
    for sandbox in &facts.observed.sandboxes {
        let empty = facts.observed.containers.iter().all(|c| c.sandbox != sandbox.id);
        let stopped = !sandbox.ready && facts.history.sandboxes.stopped.contains(&sandbox.id);
        if stopped && empty && newest.is_some_and(|n| n.id != sandbox.id) {
            draft.act(facts, Action::RemoveSandbox { id: sandbox.id.clone() });
        }
    }
}
