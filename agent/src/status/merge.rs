//! What is told of a pod, over what the API has of it. Pure: owns upstream's rules of whose field is
//! whose and of what a status may not take back; never sends anything. Called by [`super::patcher`].

use gantry_kube_client::strategic_merge;
use jiff::{Timestamp, Unit};
use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod, PodCondition, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::Value;

/// Conditions that only a kubelet writes; one that it no longer tells goes.
const OWN: [&str; 8] = [
    "PodScheduled",
    "Ready",
    "Initialized",
    "ContainersReady",
    "PodResizeInProgress",
    "PodResizePending",
    "PodReadyToStartContainers",
    "AllContainersRestarting",
];
/// Others write it, too; ours only comes with the end.
const SHARED: &str = "DisruptionTarget";
/// MaxPodTerminationMessageLogLength, divided among the containers.
const MOST_WORDS: usize = 12 << 10;

/// How far a pod's end has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PodEnd {
    /// Containers may run.
    Not,
    /// None runs, none will.
    Ended,
    /// And neither volumes nor a cgroup of it are left on the node.
    Gone,
}

/// `ours` as it shall stand in `pod`, the API's.
pub(super) fn merge(pod: &Pod, ours: PodStatus, end: PodEnd, now: Timestamp) -> PodStatus {
    let nothing = PodStatus::default();
    let old = pod.status.as_ref().unwrap_or(&nothing);
    let mut new = ours;
    if end == PodEnd::Gone && !terminal(&new) && !super::is_static(pod) {
        new.phase = Some("Failed".to_owned());
    }
    keep_phase(old, &mut new, end);
    keep_ends(pod, old, &mut new);
    keep_fields(old, &mut new, now);
    normalize(pod, &mut new);
    new.conditions = Some(conditions(old, &new, end, now)).filter(|all| !all.is_empty());
    if terminal(&new) {
        not_ready(old, &mut new, now);
    }
    new
}

/// Whether the phase is one that a pod never leaves.
pub(super) fn terminal(status: &PodStatus) -> bool {
    matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"))
}

/// A terminal phase stays, and none begins while a container may run (trap 3).
fn keep_phase(old: &PodStatus, new: &mut PodStatus, end: PodEnd) {
    if terminal(old) || (terminal(new) && end == PodEnd::Not) {
        new.phase.clone_from(&old.phase);
        new.reason.clone_from(&old.reason);
        new.message.clone_from(&old.message);
    }
}

/// A container that has ended and will not run again does not come back to waiting: its records may
/// be gone from the runtime, its exit code is not.
fn keep_ends(pod: &Pod, old: &PodStatus, new: &mut PodStatus) {
    let spec = pod.spec.as_ref();
    let always = spec.is_none_or(|spec| spec.restart_policy.as_deref().unwrap_or("Always") == "Always");
    let own_rules = |name: &str| {
        let containers =
            spec.into_iter().flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers));
        containers.filter(|c| c.name == name).any(|c| {
            c.restart_policy.is_some()
                || c.restart_policy_rules.as_ref().is_some_and(|rules| !rules.is_empty())
        })
    };
    let keep = |old: &Option<Vec<ContainerStatus>>, new: &mut Option<Vec<ContainerStatus>>| {
        for status in new.iter_mut().flatten() {
            let Some(before) = old.iter().flatten().find(|before| before.name == status.name) else {
                continue;
            };
            let ended = before.state.as_ref().and_then(|state| state.terminated.as_ref());
            let waits = status
                .state
                .as_ref()
                .is_none_or(|state| state.terminated.is_none() && state.running.is_none());
            let final_one = ended.is_some_and(|ended| {
                terminal_pod(pod)
                    || (!always && !own_rules(&status.name) && (never(pod) || ended.exit_code == 0))
            });
            if waits && final_one {
                *status = before.clone();
            }
        }
    };
    keep(&old.container_statuses, &mut new.container_statuses);
    keep(&old.init_container_statuses, &mut new.init_container_statuses);
}

fn terminal_pod(pod: &Pod) -> bool {
    pod.status.as_ref().is_some_and(terminal)
}

fn never(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref()) == Some("Never")
}

/// What stays once it is there, and what is not a kubelet's.
fn keep_fields(old: &PodStatus, new: &mut PodStatus, now: Timestamp) {
    new.start_time = old.start_time.clone().or(new.start_time.take()).or(Some(Time(now)));
    if new.pod_ips.as_ref().is_none_or(Vec::is_empty) && old.pod_ips.is_some() {
        new.pod_ip.clone_from(&old.pod_ip);
        new.pod_ips.clone_from(&old.pod_ips);
    }
    if new.host_ips.as_ref().is_none_or(Vec::is_empty) && old.host_ips.is_some() {
        new.host_ip.clone_from(&old.host_ip);
        new.host_ips.clone_from(&old.host_ips);
    }
    new.observed_generation = new.observed_generation.max(old.observed_generation);
    new.nominated_node_name.clone_from(&old.nominated_node_name);
    new.resource_claim_statuses.clone_from(&old.resource_claim_statuses);
    new.extended_resource_claim_status.clone_from(&old.extended_resource_claim_status);
    new.node_allocatable_resource_claim_statuses.clone_from(&old.node_allocatable_resource_claim_statuses);
}

/// Foreign ones first, as they are; then ours, with the time at which each began to hold.
fn conditions(old: &PodStatus, new: &PodStatus, end: PodEnd, now: Timestamp) -> Vec<PodCondition> {
    let foreign = |c: &&PodCondition| !OWN.contains(&c.type_.as_str());
    let mut all: Vec<PodCondition> = old.conditions.iter().flatten().filter(foreign).cloned().collect();
    let ending = !terminal(old) && terminal(new) && end != PodEnd::Not;
    for ours in new.conditions.iter().flatten() {
        let before = old.conditions.iter().flatten().find(|before| before.type_ == ours.type_);
        let ours = with_transition_time(ours, before, now);
        if OWN.contains(&ours.type_.as_str()) {
            all.push(ours);
        } else if ours.type_ == SHARED && ending {
            match all.iter_mut().find(|c| c.type_ == SHARED) {
                Some(there) => *there = ours,
                None => all.push(ours),
            }
        }
    }
    all
}

fn with_transition_time(ours: &PodCondition, before: Option<&PodCondition>, now: Timestamp) -> PodCondition {
    let mut ours = ours.clone();
    let same = before.filter(|before| before.status == ours.status);
    let then = before.and_then(|before| before.last_transition_time.clone());
    ours.last_transition_time = match same {
        Some(_) => then,
        // A worker knows since when it holds for itself; somebody else's gate may have come after.
        None => ours.last_transition_time.filter(|own| then.as_ref().is_none_or(|then| own.0 > then.0)),
    }
    .or(Some(Time(now)));
    if let Some(time) = &mut ours.last_transition_time {
        to_seconds(time);
    }
    ours.last_probe_time = before.and_then(|before| before.last_probe_time.clone());
    ours
}

/// No pod is both over and ready.
fn not_ready(old: &PodStatus, new: &mut PodStatus, now: Timestamp) {
    let reason = if new.phase.as_deref() == Some("Failed") { "PodFailed" } else { "PodCompleted" };
    for condition in new.conditions.iter_mut().flatten() {
        if matches!(condition.type_.as_str(), "Ready" | "ContainersReady") && condition.status == "True" {
            condition.status = "False".to_owned();
            condition.reason = Some(reason.to_owned());
            condition.message = None;
            let before = old.conditions.iter().flatten().find(|before| before.type_ == condition.type_);
            condition.last_transition_time = None;
            *condition = with_transition_time(condition, before, now);
        }
    }
}

/// As the API server stores it: times to the second, lists in an order of their own, last words cut.
/// Without this a status would differ from itself for ever (trap 5).
fn normalize(pod: &Pod, status: &mut PodStatus) {
    let spec = pod.spec.as_ref();
    let containers = spec.map_or(0, |spec| {
        spec.containers.len()
            + spec.init_containers.as_ref().map_or(0, Vec::len)
            + spec.ephemeral_containers.as_ref().map_or(0, Vec::len)
    });
    let words = MOST_WORDS / containers.max(1);
    if let Some(time) = &mut status.start_time {
        to_seconds(time);
    }
    let lists = [
        &mut status.container_statuses,
        &mut status.init_container_statuses,
        &mut status.ephemeral_container_statuses,
    ];
    for container in lists.into_iter().flatten().flatten() {
        container.state.iter_mut().chain(&mut container.last_state).for_each(|state| whole(state, words));
    }
    let by_name = |a: &ContainerStatus, b: &ContainerStatus| a.name.cmp(&b.name);
    status.container_statuses.iter_mut().for_each(|all| all.sort_by(by_name));
    status.ephemeral_container_statuses.iter_mut().for_each(|all| all.sort_by(by_name));
    let init = spec.and_then(|spec| spec.init_containers.as_deref()).unwrap_or_default();
    let place = |name: &str| init.iter().position(|c| c.name == name).unwrap_or(usize::MAX);
    status.init_container_statuses.iter_mut().for_each(|all| all.sort_by_key(|s| place(&s.name)));
}

fn whole(state: &mut ContainerState, words: usize) {
    if let Some(running) = &mut state.running
        && let Some(time) = &mut running.started_at
    {
        to_seconds(time);
    }
    if let Some(ended) = &mut state.terminated {
        ended.started_at.iter_mut().chain(&mut ended.finished_at).for_each(to_seconds);
        if let Some(message) = &mut ended.message
            && message.len() > words
        {
            message.truncate(message.floor_char_boundary(words));
        }
    }
}

fn to_seconds(time: &mut Time) {
    let rounding = jiff::TimestampRound::new().smallest(Unit::Second).mode(jiff::RoundMode::Floor);
    if let Ok(whole) = time.0.round(rounding) {
        time.0 = whole;
    }
}

/// Whether they say the same. Foreign conditions are the same by construction; a condition's times
/// and generation are no reason to write.
pub(super) fn equal(old: &Value, new: &Value) -> bool {
    significant(old) == significant(new)
}

fn significant(status: &Value) -> Value {
    let mut status = strategic_merge::without_empty(status);
    if let Some(Value::Array(conditions)) = status.get_mut("conditions") {
        for condition in conditions.iter_mut().filter_map(Value::as_object_mut) {
            for name in ["lastProbeTime", "lastTransitionTime", "observedGeneration"] {
                condition.remove(name);
            }
        }
        conditions
            .sort_by_key(|item| item.get("type").and_then(Value::as_str).unwrap_or_default().to_owned());
    }
    status
}

#[cfg(test)]
mod tests;
