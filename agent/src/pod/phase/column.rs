//! What `kubectl get pods` shows in its STATUS column. Pure: upstream's printer, over our status.
//! Called by [`super::status`].

use gantry_model::pod::Role;

use crate::pod::status::{Condition, ConditionKind, ContainerState, ContainerStatus, Phase};

/// Everything the column depends on.
#[derive(Clone, Copy)]
pub(super) struct ColumnInputs<'a> {
    pub(super) phase: Phase,
    pub(super) api_reason: &'a str,
    pub(super) killed: bool,
    pub(super) conditions: &'a [Condition],
    pub(super) init_containers: &'a [ContainerStatus],
    pub(super) containers: &'a [ContainerStatus],
}

impl ColumnInputs<'_> {
    fn holds(self, kind: ConditionKind) -> bool {
        self.conditions.iter().any(|condition| condition.kind == kind && condition.holds)
    }
}

pub(super) fn reason(row: ColumnInputs<'_>) -> String {
    if row.killed && !matches!(row.phase, Phase::Succeeded | Phase::Failed) {
        return "Terminating".to_owned();
    }
    let start = if row.api_reason.is_empty() { row.phase.as_str() } else { row.api_reason };
    match initializing(row.init_containers) {
        Some(reason) if !row.holds(ConditionKind::Initialized) => reason,
        _ => running(row, start),
    }
}

/// The first init container that is not done speaks for the pod.
fn initializing(list: &[ContainerStatus]) -> Option<String> {
    list.iter().enumerate().find_map(|(at, container)| match &container.state {
        ContainerState::Terminated(exit) if exit.initialized() => None,
        _ if container.role == Role::Sidecar && container.started => None,
        ContainerState::Terminated(exit) if exit.reason.is_empty() => {
            Some(format!("Init:ExitCode:{}", exit.code))
        }
        ContainerState::Terminated(exit) => Some(format!("Init:{}", exit.reason)),
        ContainerState::Waiting { reason, .. } if !reason.is_empty() && reason != "PodInitializing" => {
            Some(format!("Init:{reason}"))
        }
        ContainerState::Waiting { .. } | ContainerState::Running { .. } => {
            Some(format!("Init:{at}/{}", list.len()))
        }
    })
}

/// The first container with something to say wins.
fn running(row: ColumnInputs<'_>, start: &str) -> String {
    let mut reason = start.to_owned();
    let mut error = String::new();
    let mut any_runs = false;
    for container in row.containers.iter().rev() {
        match &container.state {
            ContainerState::Waiting { reason: why, .. } if !why.is_empty() => reason.clone_from(why),
            ContainerState::Terminated(exit) => {
                reason = match exit.reason.as_str() {
                    "" => format!("ExitCode:{}", exit.code),
                    why => why.to_owned(),
                };
                if exit.code != 0 {
                    error.clone_from(&reason);
                }
            }
            ContainerState::Running { .. } if container.ready => any_runs = true,
            ContainerState::Waiting { .. } | ContainerState::Running { .. } => {}
        }
    }
    match (reason == "Completed", any_runs) {
        (true, true) if row.holds(ConditionKind::Ready) => "Running".to_owned(),
        (true, _) if !error.is_empty() => error,
        (true, true) => "NotReady".to_owned(),
        _ => reason,
    }
}
