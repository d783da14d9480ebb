//! A pod's conditions, with the kubelet's reasons and messages. Pure. Called by [`super::status`].

use gantry_model::pod::Role;

use super::container::View;
use crate::pod::status::{Condition, ConditionKind, ContainerState, ContainerStatus, Phase};

/// In the kubelet's order.
pub(super) fn all(
    view: &View<'_>,
    phase: Phase,
    init: &[ContainerStatus],
    containers: &[ContainerStatus],
) -> Vec<Condition> {
    let containers_ready = containers_ready(phase, init, containers);
    let mut all = vec![
        plain(ConditionKind::PodReadyToStartContainers, view.serving().is_some()),
        initialized_condition(view, phase, init, containers),
        Condition { kind: ConditionKind::Ready, ..containers_ready.clone() },
        containers_ready,
        plain(ConditionKind::PodScheduled, true),
    ];
    if crate::pod::plan::restart_all::may(view.pod) {
        all.push(all_restarting(view, phase));
    }
    if matches!(phase, Phase::Pending | Phase::Running) {
        all.extend(resizes(view));
    }
    all
}

/// Those that hold: a resize that waits, and one that goes on.
fn resizes(view: &View<'_>) -> impl Iterator<Item = Condition> {
    let pending = view.pod.resize_pending.as_ref().map(|why| Condition {
        generation: why.generation,
        ..because(ConditionKind::PodResizePending, true, why.reason(), why.message.clone())
    });
    let going_on = view.history.resizing.in_progress.as_ref().map(|now| {
        let reason = if now.error.is_empty() { "" } else { "Error" };
        Condition {
            generation: now.generation,
            ..because(ConditionKind::PodResizeInProgress, true, reason, now.error.clone())
        }
    });
    pending.into_iter().chain(going_on)
}

fn all_restarting(view: &View<'_>, phase: Phase) -> Condition {
    let kind = ConditionKind::AllContainersRestarting;
    match phase {
        Phase::Succeeded => because(kind, false, "PodCompleted", String::new()),
        Phase::Failed => because(kind, false, "PodFailed", String::new()),
        Phase::Pending | Phase::Running if view.history.stage.is_restarting_all() => {
            let message = "container exited with restart policy rule".to_owned();
            because(kind, true, "RestartAllContainersStarted", message)
        }
        Phase::Pending | Phase::Running => plain(kind, false),
    }
}

fn plain(kind: ConditionKind, holds: bool) -> Condition {
    Condition { kind, holds, reason: String::new(), message: String::new(), since: 0, generation: 0 }
}

fn because(kind: ConditionKind, holds: bool, reason: &str, message: String) -> Condition {
    Condition { reason: reason.to_owned(), message, ..plain(kind, holds) }
}

fn initialized_condition(
    view: &View<'_>,
    phase: Phase,
    init: &[ContainerStatus],
    containers: &[ContainerStatus],
) -> Condition {
    let kind = ConditionKind::Initialized;
    if phase == Phase::Succeeded {
        return because(kind, true, "PodCompleted", String::new());
    }
    // One that has started once shows that the pod was initialized.
    if containers.iter().any(|status| !matches!(status.state, ContainerState::Waiting { .. })) {
        return plain(kind, true);
    }
    let done = |status: &&ContainerStatus| match status.role {
        Role::Sidecar => status.started,
        Role::Init | Role::Regular | Role::Ephemeral => status.ready,
    };
    let incomplete = names(init.iter().filter(|status| !done(status)));
    // While all containers are started anew it stays what it was.
    if incomplete.is_empty() || (view.history.attempts.resets > 0 && view.history.stage.has_started()) {
        return plain(kind, true);
    }
    let message = format!("containers with incomplete status: [{}]", incomplete.join(" "));
    because(kind, false, "ContainersNotInitialized", message)
}

fn containers_ready(phase: Phase, init: &[ContainerStatus], containers: &[ContainerStatus]) -> Condition {
    let kind = ConditionKind::ContainersReady;
    match phase {
        Phase::Succeeded => return because(kind, false, "PodCompleted", String::new()),
        Phase::Failed => return because(kind, false, "PodFailed", String::new()),
        Phase::Pending | Phase::Running => {}
    }
    let staying = init.iter().filter(|status| status.role == Role::Sidecar).chain(containers);
    let unready = names(staying.filter(|status| !status.ready));
    if unready.is_empty() {
        return plain(kind, true);
    }
    let message = format!("containers with unready status: [{}]", unready.join(" "));
    because(kind, false, "ContainersNotReady", message)
}

fn names<'a>(statuses: impl Iterator<Item = &'a ContainerStatus>) -> Vec<&'a str> {
    statuses.map(|status| status.name.as_str()).collect()
}
