//! A pod's conditions: others' as they are, then the kubelet's own. Pure. Called by [`super::status`].

use gantry_model::pod::Pod;
use k8s_openapi::api::core::v1 as api;

use super::{text, time};
use crate::pod::status::{Condition, ConditionKind, PodStatus};

const DISRUPTION: &str = "DisruptionTarget";
/// Nobody else writes these.
const OWN: [&str; 8] = [
    "PodReadyToStartContainers",
    "Initialized",
    "Ready",
    "ContainersReady",
    "PodScheduled",
    "AllContainersRestarting",
    "PodResizeInProgress",
    "PodResizePending",
];

pub(super) fn all(pod: &Pod, status: &PodStatus, base: &api::PodStatus) -> Vec<api::PodCondition> {
    let before = base.conditions.as_deref().unwrap_or_default();
    let mut all: Vec<api::PodCondition> =
        before.iter().filter(|condition| !OWN.contains(&condition.type_.as_str())).cloned().collect();
    if let Some(message) = &status.disrupted
        && all.iter().all(|condition| condition.type_ != DISRUPTION)
    {
        all.push(api::PodCondition {
            type_: DISRUPTION.to_owned(),
            status: "True".to_owned(),
            reason: Some("TerminationByKubelet".to_owned()),
            message: text(message),
            last_transition_time: time(status.conditions.iter().map(|c| c.since).max().unwrap_or(0)),
            observed_generation: generation(status),
            ..api::PodCondition::default()
        });
    }
    for condition in &status.conditions {
        let condition = match condition.kind {
            ConditionKind::Ready => apply_readiness_gates(pod, condition, before),
            _ => condition.clone(),
        };
        all.push(one(&condition, status, before));
    }
    all
}

fn one(condition: &Condition, status: &PodStatus, before: &[api::PodCondition]) -> api::PodCondition {
    let kind = condition.kind.as_str();
    let holds = if condition.holds { "True" } else { "False" };
    let same = |old: &&api::PodCondition| {
        let reason = old.reason.as_deref().unwrap_or_default();
        old.type_ == kind
            && old.status == holds
            && (reason == condition.reason || !condition.kind.counts_by_reason())
    };
    let old = before.iter().find(same);
    // The moment it changed, however often an agent begins anew.
    let since = old.and_then(|old| old.last_transition_time.clone());
    let own = Some(condition.generation).filter(|n| *n > 0);
    let of_all = condition.kind == ConditionKind::AllContainersRestarting;
    api::PodCondition {
        type_: kind.to_owned(),
        status: holds.to_owned(),
        reason: text(&condition.reason),
        message: text(&condition.message),
        last_transition_time: since.or_else(|| time(condition.since)),
        last_probe_time: None,
        // Upstream says none of this one.
        observed_generation: own.or_else(|| generation(status)).filter(|_| !of_all),
    }
}

fn generation(status: &PodStatus) -> Option<i64> {
    Some(status.observed_generation).filter(|n| *n > 0)
}

/// Containers that are ready are not enough when others have a say.
fn apply_readiness_gates(pod: &Pod, condition: &Condition, before: &[api::PodCondition]) -> Condition {
    let mut open = Vec::new();
    for gate in &pod.readiness_gates {
        match before.iter().find(|other| other.type_ == *gate) {
            None => {
                open.push(format!("corresponding condition of pod readiness gate {gate:?} does not exist."));
            }
            Some(other) if other.status != "True" => open.push(format!(
                "the status of pod readiness gate {gate:?} is not \"True\", but {}",
                other.status
            )),
            Some(_) => {}
        }
    }
    if !condition.holds || open.is_empty() {
        return condition.clone();
    }
    Condition {
        holds: false,
        reason: "ReadinessGatesNotReady".to_owned(),
        message: open.join(", "),
        ..condition.clone()
    }
}
