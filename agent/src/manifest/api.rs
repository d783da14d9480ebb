//! Pods of an API server to ours: leniently, for it has validated them, and without an error, for a
//! pod that cannot be run must still be told to be Failed. Pure: owns what is taken from metadata and
//! status besides the spec; never asks anybody. Called where pods come in.

use std::sync::Arc;
use std::time::Duration;

use gantry_model::pod::{Origin, Pod, PodUid};
use gantry_model::quantity;
use k8s_openapi::api::core::v1 as api;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::field::{FieldError, ManifestSource};
use crate::admission::{Allowed, Node, Rejection, ResizeRules, Taint};
use crate::pod::last::{Last, LastContainer, LastEnd};
use crate::pod::predecessor::shell;
use crate::pod::status::{ContainerState, Phase};
use crate::pod::update::PodUpdate;
use crate::runtime::{Exit, KnownPod};

const ALL_RESTARTING: &str = "AllContainersRestarting";

/// The pod to run.
///
/// # Errors
/// When it asks for what this node does not do; the reason is upstream's.
pub fn pod(pod: &api::Pod) -> Result<Pod, Rejection> {
    super::pod::pod(pod.clone(), ManifestSource::Api).map_err(|error| rejection(&error))
}

/// All that the API says of a pod; none when it has no UID, which no pod of an API server lacks.
#[must_use]
pub fn to_pod_update(described: &api::Pod) -> Option<PodUpdate> {
    let uid = PodUid::parse(described.metadata.uid.as_deref()?)?;
    let (pod, refused) = match pod(described) {
        Ok(pod) => (pod, None),
        Err(rejection) => (minimal_pod(described, uid), Some(rejection)),
    };
    let seconds = described.metadata.deletion_grace_period_seconds;
    let own = i64::try_from(pod.grace.as_secs()).unwrap_or(i64::MAX);
    // Never less than a second, as upstream.
    let grace = u64::try_from(seconds.unwrap_or(own)).unwrap_or(0).max(1);
    let ending = described.metadata.deletion_timestamp.as_ref().map(|_| Duration::from_secs(grace));
    let last = described.status.as_ref().map(last).unwrap_or_default();
    Some(PodUpdate { pod: Arc::new(pod), last, ending, refused })
}

/// Enough to tell it from others and to end it.
fn minimal_pod(described: &api::Pod, uid: PodUid) -> Pod {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let meta = &described.metadata;
    let known = KnownPod { uid, namespace: text(&meta.namespace), name: text(&meta.name), from_file: false };
    Pod {
        origin: Origin::Api,
        generation: meta.generation.unwrap_or(0),
        created_at: seconds(meta.creation_timestamp.as_ref()),
        labels: meta.labels.clone().unwrap_or_default(),
        annotations: meta.annotations.clone().unwrap_or_default(),
        ..shell(known)
    }
}

fn rejection(error: &FieldError) -> Rejection {
    let chain = match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    };
    match error {
        FieldError::Unsupported { field } | FieldError::UnsupportedBut { field, .. } => Rejection::new(
            "PodFeatureUnsupported",
            format!("Pod requires node features that are not available: {field}"),
        ),
        _ => Rejection::new("UnexpectedAdmissionError", chain),
    }
}

/// What the last status said.
fn last(status: &api::PodStatus) -> Last {
    let phase = match status.phase.as_deref() {
        Some("Succeeded") => Some(Phase::Succeeded),
        Some("Failed") => Some(Phase::Failed),
        _ => None,
    };
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let (reason, message) = (text(&status.reason), text(&status.message));
    let lists =
        [&status.init_container_statuses, &status.container_statuses, &status.ephemeral_container_statuses];
    let conditions = status.conditions.iter().flatten();
    Last {
        end: phase.map(|phase| LastEnd { phase, reason, message }),
        started_at: nanos(status.start_time.as_ref()),
        containers: lists.into_iter().flatten().flatten().map(container).collect(),
        restarting: conditions.into_iter().any(|c| c.type_ == ALL_RESTARTING && c.status == "True"),
    }
}

fn container(status: &api::ContainerStatus) -> (String, LastContainer) {
    let id = status.container_id.as_deref().unwrap_or_default();
    let exit =
        |state: &Option<api::ContainerState>| state.as_ref()?.terminated.as_ref().map(convert_terminated);
    let last = LastContainer {
        id: id.split_once("://").map_or(id, |(_, id)| id).to_owned(),
        image: status.image.clone(),
        image_id: status.image_id.clone(),
        state: state(status.state.as_ref()),
        last_exit: exit(&status.last_state),
        restart_count: u32::try_from(status.restart_count).unwrap_or(0),
        started: status.started == Some(true),
        ready: status.ready,
    };
    (status.name.clone(), last)
}

fn state(state: Option<&api::ContainerState>) -> ContainerState {
    if let Some(running) = state.and_then(|state| state.running.as_ref()) {
        return ContainerState::Running { started_at: nanos(running.started_at.as_ref()) };
    }
    if let Some(terminated) = state.and_then(|state| state.terminated.as_ref()) {
        return ContainerState::Terminated(convert_terminated(terminated));
    }
    let waiting = state.and_then(|state| state.waiting.clone()).unwrap_or_default();
    ContainerState::Waiting {
        reason: waiting.reason.unwrap_or_default(),
        message: waiting.message.unwrap_or_default(),
    }
}

fn convert_terminated(terminated: &api::ContainerStateTerminated) -> Exit {
    Exit {
        code: terminated.exit_code,
        reason: terminated.reason.clone().unwrap_or_default(),
        message: terminated.message.clone().unwrap_or_default(),
        started_at: nanos(terminated.started_at.as_ref()),
        finished_at: nanos(terminated.finished_at.as_ref()),
    }
}

fn seconds(time: Option<&Time>) -> i64 {
    time.map_or(0, |time| time.0.as_second())
}

fn nanos(time: Option<&Time>) -> i64 {
    time.map_or(0, |time| i64::try_from(time.0.as_nanosecond()).unwrap_or(0))
}

/// What of the node's own configuration admission looks at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeSettings {
    /// Whether the kernel has AppArmor enabled.
    pub app_armor: bool,
    /// What pods may set besides the safe ones.
    pub sysctls: Allowed,
    /// What stands in the way of resizes.
    pub resizes: ResizeRules,
}

/// The node's own object as admission sees it.
#[must_use]
pub fn node(node: &api::Node, settings: &NodeSettings) -> Node {
    let spec = node.spec.clone().unwrap_or_default();
    let status = node.status.clone().unwrap_or_default();
    let taint = |taint: api::Taint| {
        let api::Taint { effect, key, time_added: _, value } = taint;
        Taint { key, value: value.unwrap_or_default(), effect }
    };
    let amount = |(name, Quantity(text)): (String, Quantity)| {
        let cpu = name == "cpu";
        let parsed = if cpu { quantity::parse_milli(&text) } else { quantity::parse_units(&text) };
        Some((name, parsed.ok()?))
    };
    Node {
        name: node.metadata.name.clone().unwrap_or_default(),
        labels: node.metadata.labels.clone().unwrap_or_default(),
        taints: spec.taints.unwrap_or_default().into_iter().map(taint).collect(),
        allocatable: status.allocatable.unwrap_or_default().into_iter().filter_map(amount).collect(),
        strict_groups: status.features.and_then(|f| f.supplemental_groups_policy).unwrap_or(false),
        app_armor: settings.app_armor,
        sysctls: settings.sysctls.clone(),
        resizes: settings.resizes,
    }
}
