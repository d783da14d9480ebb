//! Init containers one by one, in order; sidecars among them stay. Pure: owns that order. Called
//! by [`super::plan`].
//!
//! Only what is in the current sandbox counts: a new sandbox runs all of them again, and once any
//! regular container was made in it none of them ever does (trap 9). Records may be missing, so the
//! last one that left any tells how far the pod is.

use gantry_model::pod::{Container, Role};

use super::{Draft, Op, PlanInputs, SandboxRef, containers, ended, sidecars, stop};
use crate::runtime::InstanceState;

/// Brings the next one up and keeps the sidecars running; whether the others may follow.
pub(super) fn plan(facts: PlanInputs<'_>, draft: &mut Draft, place: Option<&SandboxRef>) -> bool {
    let list = &facts.pod.init_containers;
    let Some(place) = place else {
        list.iter().for_each(|container| containers::fetch_ahead(facts, draft, container));
        return false;
    };
    let begun = |c: &Container| facts.record_in(c, &place.sandbox).is_some();
    if facts.pod.containers.iter().any(begun) {
        if !stop::winds_down(facts) {
            sidecars(facts.pod).for_each(|sidecar| containers::bring_up(facts, draft, sidecar, Some(place)));
        }
        return true;
    }
    let mut at = list.iter().rposition(begun).unwrap_or(0);
    while let Some(container) = list.get(at)
        && is_done(facts, container, place)
    {
        at += 1;
    }
    for (index, container) in list.iter().enumerate() {
        match index.cmp(&at) {
            // One that died meanwhile is started again, and nobody waits for it.
            std::cmp::Ordering::Less if container.role == Role::Sidecar => {
                containers::bring_up(facts, draft, container, Some(place));
            }
            std::cmp::Ordering::Less => {}
            std::cmp::Ordering::Equal => containers::bring_up(facts, draft, container, Some(place)),
            std::cmp::Ordering::Greater => containers::fetch_ahead(facts, draft, container),
        }
    }
    at >= list.len()
}

fn is_done(facts: PlanInputs<'_>, container: &Container, place: &SandboxRef) -> bool {
    let Some(instance) = facts.record_in(container, &place.sandbox) else { return false };
    match container.role {
        Role::Sidecar => facts.has_started(container, instance),
        Role::Init | Role::Regular | Role::Ephemeral => {
            // The news of its end may overtake the answer to its start; its story is told before the next one's.
            let begins = facts.history.flights.contains_key(&Op::Container(container.name.clone()));
            !begins
                && matches!(instance.state, InstanceState::Exited(_))
                && ended::failure(instance).is_none()
        }
    }
}
