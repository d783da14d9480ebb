//! How one running container is ended: its preStop hook, its turn, then the stop. Pure: owns that
//! order and the reasons to end a container while its pod lives. Called by [`super::plan`] and by
//! [`crate::pod::teardown`].
//!
//! The deadline covers all three; the stop itself never gets less than two seconds (the effect sees
//! to that). Everything is read off history, so that a shorter deadline overtakes what is under way.

use std::time::Duration;

use gantry_model::pod::{Container, RestartPolicy, Role};

use super::{Action, Draft, Op, PlanInputs, address, sidecars};
use crate::pod::probing::ProbeKind;
use crate::pod::restart::starts_again;
use crate::runtime::{Instance, InstanceState};

/// How to end it.
#[derive(Debug)]
pub(in crate::pod) struct Order {
    /// When it is killed.
    pub(in crate::pod) deadline: Duration,
    /// What the event says; the usual words when none.
    pub(in crate::pod) why: Option<String>,
    /// Whether those that must end before it have.
    pub(in crate::pod) turn: bool,
}

/// The next step towards the end of a running container.
pub(in crate::pod) fn one(facts: PlanInputs<'_>, draft: &mut Draft, instance: &Instance, order: Order) {
    let Order { deadline, why, turn } = order;
    let (container, id) = (instance.name.clone(), instance.id.clone());
    let spec = facts.pod.container(&container);
    let untold = !facts.history.containers.killing.contains(&id);
    let why = untold.then(|| why.unwrap_or_else(|| format!("Stopping container {container}")));
    let in_time = facts.now < deadline;
    if in_time
        && spec.is_some_and(|c| c.lifecycle.pre_stop.is_some())
        && !facts.history.containers.hooks.has_stopped(&id)
    {
        draft.wake_at(deadline);
        return draft.act(facts, Action::PreStop { container, id, address: address(facts), deadline, why });
    }
    if in_time && !turn {
        return draft.wake_at(deadline);
    }
    let action = Action::StopContainer { container, id, deadline, why };
    match facts.history.flights.get(&action.op()) {
        // A shorter grace overtakes the stop under way.
        Some(Some(earlier)) if deadline < *earlier => draft.actions.push(action),
        Some(_) => {}
        None => draft.act(facts, action),
    }
}

/// One of which the runtime lost track may still run: it is asked to stop within its grace. Whether that
/// was done, and it may be removed, which ends it for sure.
pub(super) fn lost(facts: PlanInputs<'_>, draft: &mut Draft, instance: &Instance) -> bool {
    let (container, id) = (instance.name.clone(), instance.id.clone());
    let why = "Container is in \"unknown\" state, try killing it before restart".to_owned();
    let deadline = facts.now + facts.pod.grace;
    let asked = facts.history.containers.killing.contains(&id);
    let action = Action::StopContainer { container, id, deadline, why: Some(why) };
    let op = action.op();
    if !asked {
        draft.act(facts, action);
    } else if let Some(until) = facts.history.backoffs.retry_at(&op, facts.now) {
        draft.wake_at(until);
    } else {
        return !facts.history.flights.contains_key(&op);
    }
    false
}

/// Main containers at once; a sidecar when they and the sidecars after it have ended.
pub(in crate::pod) fn is_turn(facts: PlanInputs<'_>, instance: &Instance) -> bool {
    let runs = |container: &Container| {
        let here = facts.observed.containers.iter().filter(|c| c.name == container.name);
        here.into_iter().any(|c| matches!(c.state, InstanceState::Running { .. }))
    };
    let Some(own) = sidecars(facts.pod).position(|c| c.name == instance.name) else { return true };
    !facts.pod.containers.iter().any(runs) && !sidecars(facts.pod).skip(own + 1).any(runs)
}

/// Ends the containers that a probe or their own hook has found bad.
pub(super) fn kill_unhealthy(facts: PlanInputs<'_>, draft: &mut Draft) {
    let winds_down = winds_down(facts);
    for container in facts.pod.all_containers() {
        if winds_down && container.role == Role::Sidecar {
            continue;
        }
        let Some(instance) = facts.observed.newest(&container.name) else { continue };
        if !matches!(instance.state, InstanceState::Running { .. }) {
            continue;
        }
        if let Some((since, grace, why)) = verdict(facts, container, instance) {
            one(facts, draft, instance, Order { deadline: since + grace, why: Some(why), turn: true });
        }
    }
}

/// Whether no regular container will run again once those that are being ended have: then sidecars
/// are neither started nor ended for their probes any more, as upstream, which ends the pod from here.
pub(super) fn winds_down(facts: PlanInputs<'_>) -> bool {
    let for_good = |container: &Container| {
        let Some(instance) = facts.observed.newest(&container.name) else { return false };
        if facts.history.makes_anew(&instance.id) {
            return false;
        }
        match &instance.state {
            InstanceState::Running { .. } => {
                container.restart_policy == RestartPolicy::Never
                    && verdict(facts, container, instance).is_some()
            }
            InstanceState::Exited(exit) => !starts_again(container, exit.code),
            InstanceState::Created | InstanceState::Unknown => false,
        }
    };
    facts.pod.containers.iter().all(for_good)
}

/// Since when it is to be ended, within which grace, and why.
fn verdict(
    facts: PlanInputs<'_>,
    container: &Container,
    instance: &Instance,
) -> Option<(Duration, Duration, String)> {
    if let Some(since) = facts.history.containers.redefined.get(&instance.id) {
        let name = &container.name;
        let why = match container.role {
            Role::Regular => format!("Container {name} definition changed, will be restarted"),
            Role::Init | Role::Sidecar | Role::Ephemeral => {
                format!("Init container {name} definition changed")
            }
        };
        return Some((*since, facts.pod.grace, why));
    }
    if let Some(since) = facts.history.resizing.restarts.get(&instance.id) {
        let why = format!("Container {} resize requires restart", container.name);
        return Some((*since, facts.pod.grace, why));
    }
    if let Some(since) = facts.history.containers.hooks.failed(&instance.id) {
        return Some((since, facts.pod.grace, "FailedPostStartHook".to_owned()));
    }
    for kind in [ProbeKind::Liveness, ProbeKind::Startup] {
        if let Some(since) = facts.history.probing.bad(container, kind, &instance.id) {
            let own = kind.of(container).and_then(|probe| probe.termination_grace);
            return Some((since, own.unwrap_or(facts.pod.grace), failed_probe(container, kind)));
        }
    }
    None
}

fn failed_probe(container: &Container, kind: ProbeKind) -> String {
    let name = &container.name;
    let what = kind.as_str().to_lowercase();
    match container.role {
        Role::Init | Role::Sidecar => format!("Init container {name} failed {what} probe"),
        Role::Regular if container.restart_policy == RestartPolicy::Never => {
            format!("Container {name} failed {what} probe")
        }
        Role::Regular => format!("Container {name} failed {what} probe, will be restarted"),
        Role::Ephemeral => format!("Ephemeral container {name} failed {what} probe"),
    }
}

/// Hooks of containers that do not run any more, and plugins asked, pulls and post-start hooks of a pod that ends:
/// nobody waits for them.
pub(in crate::pod) fn abandon(facts: PlanInputs<'_>, draft: &mut Draft) {
    let runs = |id: &String| {
        let found = facts.observed.containers.iter().find(|c| c.id == *id);
        found.is_some_and(|c| matches!(c.state, InstanceState::Running { .. }))
    };
    let useless = facts.history.flights.keys().filter(|op| match op {
        Op::Devices | Op::Claims | Op::Image(_) | Op::PostStart(_) => true,
        Op::PreStop(id) => !runs(id),
        Op::Probe(_, kind) => *kind != ProbeKind::Readiness,
        _ => false,
    });
    draft.abandon.extend(useless.cloned());
}
