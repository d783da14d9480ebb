//! Converts a pod's status to the API's type. Pure: owns the conversion, and what of the API's own version stays;
//! never decides how a pod goes (that is [`crate::pod::phase`]), never sends it. Called by whoever
//! tells the API server, and for the list of pods that the kubelet's own API gives.
//!
//! phase, addresses, times here · [`conditions`] · [`containers`] · [`amounts`] · [`devices`]

mod amounts;
mod conditions;
mod containers;
mod devices;

use std::net::IpAddr;

use gantry_model::pod::Pod;
use k8s_openapi::api::core::v1 as api;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use crate::pod::Life;
use crate::pod::status::{Phase, PodStatus};

/// `base` is what the API has: conditions of others, resource claims and the start's time stay; all of
/// it does until the runtime was looked at, or each restart of an agent would be a flip of Ready
/// (trap 6).
#[must_use]
pub(crate) fn status(pod: &Pod, status: &PodStatus, base: &api::PodStatus) -> api::PodStatus {
    if status.life == Life::Waiting {
        return base.clone();
    }
    let phase = phase(status, base);
    let same = base.phase.as_deref() == Some(phase);
    let kept = |own: &str, old: &Option<String>| match own {
        // What belongs to a phase stays as long as it does.
        "" if same => old.clone(),
        own => text(own),
    };
    let (pod_ips, host_ips) = (pod_ips(pod, status, base), status.host_ips.clone());
    let list = |statuses: Vec<api::ContainerStatus>| Some(statuses).filter(|list| !list.is_empty());
    let of = containers::Of { pod, status };
    let container_statuses = of.all(&status.containers, base.container_statuses.as_deref());
    let init_container_statuses = of.all(&status.init_containers, base.init_container_statuses.as_deref());
    let ephemeral = of.all(&status.ephemeral_containers, base.ephemeral_container_statuses.as_deref());
    let rejected = status.conditions.is_empty();
    let running = base.phase.as_deref() == Some("Running");
    api::PodStatus {
        observed_generation: Some(status.observed_generation).filter(|n| *n > 0),
        phase: Some(phase.to_owned()),
        reason: kept(&status.api_reason, &base.reason),
        message: kept(&status.api_message, &base.message),
        conditions: Some(conditions::all(pod, status, base)).filter(|list| !list.is_empty()),
        host_ip: host_ips.first().cloned(),
        host_ips: Some(host_ips.into_iter().map(|ip| api::HostIP { ip }).collect::<Vec<_>>())
            .filter(|list| !list.is_empty()),
        pod_ip: pod_ips.first().cloned(),
        pod_ips: Some(pod_ips.into_iter().map(|ip| api::PodIP { ip }).collect::<Vec<_>>())
            .filter(|list| !list.is_empty()),
        start_time: base.start_time.clone().or_else(|| time(status.started_at)),
        qos_class: Some(status.qos.to_string()),
        container_statuses: list(by_name(container_statuses)),
        init_container_statuses: list(init_container_statuses),
        ephemeral_container_statuses: list(by_name(ephemeral)),
        resources: (!rejected).then(|| amounts::of_pod(pod, running, status.cgroup.as_ref())),
        allocated_resources: (!rejected).then(|| amounts::requests(pod)).filter(|list| !list.is_empty()),
        ..base.clone()
    }
}

/// Where the gate `InPlacePodLevelResourcesVerticalScaling` is closed: nothing is told of the pod as a whole.
#[must_use]
pub(crate) fn status_without_pod_level(pod: &Pod, own: &PodStatus, base: &api::PodStatus) -> api::PodStatus {
    let told = status(pod, own, base);
    if own.life == Life::Waiting {
        return told;
    }
    api::PodStatus { resources: None, allocated_resources: None, ..told }
}

/// A terminal phase is never left (trap 3).
fn phase<'a>(status: &PodStatus, base: &'a api::PodStatus) -> &'a str {
    match (base.phase.as_deref(), status.phase) {
        (Some(end @ ("Succeeded" | "Failed")), _) => end,
        (_, Phase::Pending) => "Pending",
        (_, Phase::Running) => "Running",
        (_, Phase::Succeeded) => "Succeeded",
        (_, Phase::Failed) => "Failed",
    }
}

/// The first of the node's own family, then the first of the other. They outlive the sandbox; on the
/// host's network they never change.
fn pod_ips(pod: &Pod, status: &PodStatus, base: &api::PodStatus) -> Vec<String> {
    let before = || base.pod_ips.iter().flatten().map(|known| known.ip.clone()).collect::<Vec<_>>();
    let parsed = |text: &String| text.parse::<IpAddr>().ok();
    let node_is_v6 = status.host_ips.first().and_then(parsed).is_some_and(|ip| ip.is_ipv6());
    let ips: Vec<IpAddr> = status.ips.iter().filter_map(parsed).collect();
    let first = |v6: bool| ips.iter().find(|ip| ip.is_ipv6() == v6).map(ToString::to_string);
    let own: Vec<String> = first(node_is_v6).into_iter().chain(first(!node_is_v6)).collect();
    let known = before();
    match (own.is_empty(), pod.namespaces.host_network && !known.is_empty()) {
        (true, _) => known,
        // A second family may be added.
        (false, true) => known.into_iter().chain(own.into_iter().skip(1)).take(2).collect(),
        (false, false) => own,
    }
}

fn by_name(mut list: Vec<api::ContainerStatus>) -> Vec<api::ContainerStatus> {
    list.sort_by(|a, b| a.name.cmp(&b.name));
    list
}

/// None when empty.
fn text(text: &str) -> Option<String> {
    Some(text.to_owned()).filter(|text| !text.is_empty())
}

/// Whole seconds, as the API keeps them; none for 0.
fn time(nanos: i64) -> Option<Time> {
    if nanos == 0 { None } else { seconds(nanos) }
}

fn seconds(nanos: i64) -> Option<Time> {
    Timestamp::from_second(nanos.div_euclid(1_000_000_000)).ok().map(Time)
}

#[cfg(test)]
mod tests;
