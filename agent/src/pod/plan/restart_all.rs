//! RestartAllContainers: all containers of a pod are started anew in the same sandbox, because a rule of one of them says so.
//! Pure: owns when that begins and its order; what follows is an ordinary
//! start. Called by [`super::plan`].
//!
//! ```text
//! a container exits, its rule matches ──▶ resetting: all others killed ──▶ termination messages read
//!   ──▶ records removed, that of the first one last ──▶ init containers run again
//! ```
//! The record of the one that has exited goes last, so that an agent that begins anew in between sees
//! what was going on.

use gantry_model::pod::{Pod, RestartAction};

use super::{Action, Draft, Op, PlanInputs, stop, termination_message};
use crate::runtime::{Instance, InstanceState};

/// Reason of containers that wait for it, and of the end of those that it has ended.
pub(in crate::pod) const RESTARTING_ALL: &str = "RestartingAllContainers";
/// Message of both.
pub(in crate::pod) const REMOVED: &str = "The container is removed because RestartAllContainers in place";

/// Whether it can ever happen to this pod.
#[must_use]
pub(in crate::pod) fn may(pod: &Pod) -> bool {
    let all = |c: &gantry_model::pod::Container| {
        c.restart_rules.iter().any(|rule| rule.action == RestartAction::RestartAllContainers)
    };
    pod.all_containers().any(all)
}

/// Whether it is going on.
pub(super) fn due(facts: PlanInputs<'_>) -> bool {
    may(facts.pod)
        && (facts.history.stage.is_restarting_all()
            || facts.observed.containers.iter().any(|i| is_source(facts, i)))
}

/// Whether this is why: it has ended, and its rule says so.
pub(in crate::pod) fn is_source_of(pod: &Pod, instance: &Instance) -> bool {
    let Some(exit) = instance.exit() else { return false };
    let own = pod.all_containers().find(|c| c.name == instance.name);
    own.and_then(|own| own.rule_for(exit.code)) == Some(RestartAction::RestartAllContainers)
}

fn is_source(facts: PlanInputs<'_>, instance: &Instance) -> bool {
    is_source_of(facts.pod, instance)
}

/// The next steps; whether all of it is done.
pub(super) fn plan(facts: PlanInputs<'_>, draft: &mut Draft) -> bool {
    let own = |i: &&Instance| facts.pod.all_containers().any(|c| c.name == i.name);
    let all: Vec<&Instance> = facts.observed.containers.iter().filter(own).collect();
    let starting = facts.history.flights.keys().any(|op| matches!(op, Op::Container(_)));
    if all.is_empty() {
        return !starting;
    }
    let mut quiet = !starting;
    for instance in &all {
        if matches!(instance.state, InstanceState::Running { .. }) {
            quiet = false;
            // Without grace, as upstream.
            let order = stop::Order { deadline: facts.now, why: Some("killing".to_owned()), turn: true };
            stop::one(facts, draft, instance, order);
        }
    }
    if termination_message::read(facts, draft) || !quiet {
        return false;
    }
    let (sources, targets): (Vec<&Instance>, Vec<&Instance>) =
        all.into_iter().partition(|instance| is_source(facts, instance));
    for instance in if targets.is_empty() { sources } else { targets } {
        draft.act(facts, Action::RemoveContainer { id: instance.id.clone() });
    }
    false
}
