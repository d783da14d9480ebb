//! Which probes are due, and what of their results must outlive the agent. Pure. Called by
//! [`super::plan`].

use super::{Action, Draft, Op, PlanInputs, address};
use crate::checkpoint::Marks;
use crate::pod::Life;
use crate::pod::probing::{KINDS, ProbeKind};
use crate::runtime::InstanceState;

/// Begins the tries that are due. A pod that ends is only asked whether it is still ready.
pub(super) fn plan(facts: PlanInputs<'_>, draft: &mut Draft, life: Life) {
    let kinds: &[ProbeKind] = match life {
        Life::Starting | Life::Running => &KINDS,
        Life::Stopping { .. } => &[ProbeKind::Readiness],
        Life::Waiting | Life::Stopped | Life::Gone => &[],
    };
    for container in facts.pod.all_containers() {
        let Some(instance) = facts.observed.newest(&container.name) else { continue };
        let runs = matches!(instance.state, InstanceState::Running { .. });
        if !runs || !facts.history.containers.hooks.is_done(&instance.id) {
            continue;
        }
        for kind in kinds {
            if facts.history.flights.contains_key(&Op::Probe(container.name.clone(), *kind)) {
                continue;
            }
            match facts.history.probing.due(container, *kind) {
                Some(at) if at <= facts.now => draft.actions.push(Action::Probe {
                    container: container.name.clone(),
                    id: instance.id.clone(),
                    kind: *kind,
                    address: address(facts),
                }),
                Some(at) => draft.wake_at(at),
                None => {}
            }
        }
    }
}

/// Writes down how far the running containers are, when that has changed.
pub(super) fn remember(facts: PlanInputs<'_>, draft: &mut Draft) {
    let running = facts.pod.all_containers().filter_map(|container| {
        let instance = facts.observed.newest(&container.name)?;
        matches!(instance.state, InstanceState::Running { .. }).then_some(())?;
        Some((instance.id.clone(), facts.history.probing.mark(container, &instance.id)?))
    });
    let marks: Marks = running.collect();
    if marks != facts.history.checkpoint.remembered {
        draft.act(facts, Action::Remember { marks });
    }
}

/// Whether the pod's last checkpoint is written: it must not outlive the pod.
pub(in crate::pod) fn is_forgotten(facts: PlanInputs<'_>) -> bool {
    facts.history.checkpoint.remembered.is_empty()
}
