//! Why a pod has no device, waits for one, or has one that is not well. Pure: what is said of the pod in, findings out.
//! Called by [`super::decide`].

use gantry_model::pod::Pod;

use super::Finding;
use crate::devices::{self, DeviceCondition, DeviceHealthWord as Word};
use crate::pod::status::PodStatus;
use crate::timeline::render::millis;

/// What a pod's status gives as the reason when a plugin gave it nothing.
pub(super) const REASON: &str = "UnexpectedAdmissionError";

/// What the kubelet says, and what to do about it.
const REMEDIES: [(&str, &str); 8] = [
    (
        "cannot allocate unregistered device",
        "see whether the pod of the resource's device plugin runs on this node, and its log; then make this pod again",
    ),
    (
        "no healthy devices present",
        "see whether the pod of the resource's device plugin runs on this node, and its log; then make this pod again",
    ),
    (
        "previously allocated devices are no longer healthy",
        "the log of the device plugin says why; made again, this pod gets other devices",
    ),
    (
        "requested number of devices unavailable",
        "ask for fewer, or stop a pod that has some; the scheduler picks a node that has enough unless nodeName is set",
    ),
    (
        "not enough cpus available to satisfy request",
        "ask for fewer whole CPUs, or stop a Guaranteed pod that has some; CPUs that are reserved are given to nobody",
    ),
    (
        "[memorymanager]",
        "ask for less memory, or stop a Guaranteed pod that has some of the NUMA nodes; memory_manager_state in the kubelet's folder has the account of each node",
    ),
    ("changed request for resource", "make the pod again: what a pod asks of devices cannot change"),
    (
        "failed to write checkpoint file",
        "make room on the disk of the kubelet's folder: who has which device is written down there",
    ),
];
/// Reasons of their own.
const ALIGNMENT: [(&str, &str); 2] = [
    (
        "TopologyAffinityError",
        "no NUMA nodes have all that the pod asks for, as topologyManagerPolicy wants it: ask for less, stop a pod that has some, or run it on another node; the scheduler does not know of NUMA nodes",
    ),
    (
        "SMTAlignmentError",
        "full-pcpus-only gives whole cores alone: ask for a multiple of the threads of a core, or for fewer",
    ),
];
const BY_THE_PLUGIN: &str =
    "the device plugin refused or could not be reached: its log says why; then make this pod again";

/// It was refused, late as it was.
pub(super) fn explain_refusal(status: &PodStatus, evidence: Vec<String>) -> Option<Finding> {
    let message = &status.api_message;
    if let Some((_, remedy)) = ALIGNMENT.iter().find(|(reason, _)| *reason == status.api_reason) {
        return Some(Finding {
            container: String::new(),
            state: status.api_reason.clone(),
            cause: message.clone(),
            remedy: (*remedy).to_owned(),
            evidence,
        });
    }
    if status.api_reason != REASON || !message.contains("Allocate failed due to") {
        return None;
    }
    let known = REMEDIES.iter().find(|(words, _)| message.contains(words));
    Some(Finding {
        container: String::new(),
        state: REASON.to_owned(),
        cause: message.clone(),
        remedy: known.map_or(BY_THE_PLUGIN, |(_, remedy)| remedy).to_owned(),
        evidence,
    })
}

/// It waits for its devices.
pub(super) fn explain_wait(pod: &Pod, status: &PodStatus, now: i64) -> Option<Finding> {
    let span = status.spans.iter().find(|span| span.end == 0 && span.name == "devices")?;
    let resources: Vec<&str> = devices::wanted(pod).into_iter().collect();
    if resources.is_empty() {
        return None;
    }
    Some(Finding {
        container: String::new(),
        state: "ContainerCreating".to_owned(),
        cause: format!(
            "it waits for the device plugin of {}, for {} so far",
            resources.join(", "),
            millis(now - span.start)
        ),
        remedy: "the plugin is asked for one pod after the other; if it hangs, its log may say why, and a restart of its pod ends the wait".to_owned(),
        evidence: Vec::new(),
    })
}

/// Devices that their plugin calls unhealthy, one finding for each container and resource.
pub(super) fn explain_health(status: &PodStatus) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (container, resources) in status.devices.iter() {
        for (resource, health) in resources {
            let is_ill = |(_, condition): &(&String, &DeviceCondition)| condition.word == Word::Unhealthy;
            let ill: Vec<&str> = health.iter().filter(is_ill).map(|(id, _)| id.as_str()).collect();
            if ill.is_empty() {
                continue;
            }
            findings.push(Finding {
                container: container.clone(),
                state: "unhealthy device".to_owned(),
                cause: format!("the device plugin of {resource} says that {} is unhealthy", ill.join(", ")),
                remedy: "the log of the device plugin says why; the pod keeps its devices, and gets others when it is made again".to_owned(),
                evidence: Vec::new(),
            });
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gantry_model::pod::{Container, Requirements};

    use super::*;
    use crate::pod::tests::{container, pod};
    use crate::timeline::Span;

    #[test]
    fn a_refusal_names_what_to_do_about_it() {
        let refused = |why: &str| {
            let api_message = format!("Pod was rejected: Allocate failed due to {why}, which is unexpected");
            let status = PodStatus { api_reason: REASON.to_owned(), api_message, ..PodStatus::default() };
            explain_refusal(&status, vec!["event".to_owned()]).unwrap()
        };
        let found = refused("no healthy devices present; cannot allocate unhealthy devices vendor.com/gpu");
        assert!(
            found.cause.contains("vendor.com/gpu") && found.remedy.contains("device plugin runs"),
            "{found:?}"
        );
        assert_eq!(found.evidence, ["event"]);
        let few = "requested number of devices unavailable for vendor.com/gpu. Requested: 2, Available: 1";
        assert!(refused(few).remedy.starts_with("ask for fewer"));
        assert_eq!(refused("rpc error: code = Internal desc = burnt").remedy, BY_THE_PLUGIN);
        let few = "not enough cpus available to satisfy request: requested=2, available=1";
        assert!(refused(few).remedy.contains("whole CPUs"));
        let apart = PodStatus {
            api_reason: "TopologyAffinityError".to_owned(),
            api_message: "Pod was rejected: Resources cannot be allocated with Topology locality".to_owned(),
            ..PodStatus::default()
        };
        let found = explain_refusal(&apart, Vec::new()).unwrap();
        assert!(found.remedy.contains("topologyManagerPolicy"), "{found:?}");
        // Other reasons are others' to explain.
        let status = PodStatus { api_reason: REASON.to_owned(), ..PodStatus::default() };
        assert_eq!(explain_refusal(&status, Vec::new()), None);
    }

    #[test]
    fn a_pod_that_waits_names_its_resources_and_how_long() {
        let limits =
            [("vendor.com/gpu".to_owned(), "1".to_owned()), ("cpu".to_owned(), "1".to_owned())].into();
        let main =
            Container { written: Requirements { limits, ..Requirements::default() }, ..container("web") };
        let pod = Pod { containers: vec![main], ..pod() };
        let span = |end| Span {
            name: "devices".into(),
            container: String::new(),
            start: 1_000_000_000,
            end,
            detail: String::new(),
        };
        let waits = |end| {
            let status = PodStatus { spans: Arc::from([span(end)]), ..PodStatus::default() };
            explain_wait(&pod, &status, 5_000_000_000)
        };
        let cause = waits(0).unwrap().cause;
        assert!(cause.starts_with("it waits for the device plugin of vendor.com/gpu, for 4"), "{cause}");
        assert_eq!(waits(2_000_000_000), None);
    }

    #[test]
    fn an_unhealthy_device_is_named() {
        let health = [("a".to_owned(), true.into()), ("b".to_owned(), false.into())].into();
        let devices = [("web".to_owned(), [("vendor.com/gpu".to_owned(), health)].into())].into();
        let found = explain_health(&PodStatus { devices: Arc::new(devices), ..PodStatus::default() });
        let [found] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(found.container, "web");
        assert_eq!(found.cause, "the device plugin of vendor.com/gpu says that b is unhealthy");
        assert_eq!(explain_health(&PodStatus::default()), []);
    }
}
