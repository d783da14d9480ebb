//! Whether this node takes a pod in that was bound to it, in the kubelet's order and words. Pure: owns
//! the rules; never ends a pod or reads the node. Called by [`crate::pod_workers`] for each new pod and each resize, and
//! its types by [`crate::manifest::api`].
//!
//! shutdown ([`shutdown`]) → pressure ([`pressure`]) → sysctls ([`sysctls`]) → operating system → supplemental groups → resources ([`fit`]) → affinity,
//! taints ([`labels`]) → name → ports → AppArmor. What an API object asks for that this node does not
//! do at all is refused before, by [`crate::manifest::api`]. A resize is asked the same, and what [`resize`] says.

mod fit;
mod labels;
mod pressure;
mod resize;
mod shutdown;
mod sysctls;

use std::collections::BTreeMap;

use gantry_model::pod::placement::SYSTEM_CRITICAL;
use gantry_model::pod::security::AppArmor;
use gantry_model::pod::{Origin, Pod};

use crate::ports;
pub(crate) use fit::Shortage;
pub(crate) use fit::{is_extended, is_extended_resource};
pub(crate) use labels::any_fits;
pub(crate) use pressure::under;
pub(crate) use resize::{Infeasible, ResizeRules, feasible, may_swap};
pub(crate) use shutdown::{NODE_SHUTDOWN, while_up};
pub(crate) use sysctls::Allowed;
pub(crate) use sysctls::SAFE_SYSCTLS;

/// Why a pod is not run here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {message}")]
pub struct Rejection {
    /// Of the pod's status and of the event.
    pub reason: String,
    /// Of the event; the status says "Pod was rejected: " before it.
    pub message: String,
}

impl Rejection {
    /// With upstream's reason and message.
    #[must_use]
    pub fn new(reason: &str, message: impl Into<String>) -> Self {
        Self { reason: reason.to_owned(), message: message.into() }
    }
}

/// The node as far as pods must fit it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Node {
    /// Of the Node object.
    pub name: String,
    /// Of the Node object.
    pub labels: BTreeMap<String, String>,
    /// Of the Node object.
    pub taints: Vec<Taint>,
    /// cpu in thousandths, everything else in its own unit.
    pub allocatable: BTreeMap<String, i64>,
    /// The runtime can hold processes to the pod's own groups.
    pub strict_groups: bool,
    /// The kernel has AppArmor enabled.
    pub app_armor: bool,
    /// What pods may set.
    pub sysctls: Allowed,
    /// What stands in the way of resizes.
    pub resizes: ResizeRules,
}

/// As in the Node's spec.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Taint {
    pub key: String,
    pub value: String,
    pub effect: String,
}

/// What stands against a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Objection {
    /// Others could be ended for a pod that matters more.
    Resource(Shortage),
    /// Nothing could be done about it.
    Other(Rejection),
}

/// What makes room for a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Room<'a> {
    /// Who must go first; nobody, unless the pod is critical.
    pub victims: Vec<&'a Pod>,
    /// What there is too little of, the first of it; empty without victims.
    pub lacking: String,
}

/// Reasons that are labels of their own, as upstream: others could be any number.
const REASONS: [&str; 21] = [
    "AppArmor",
    "Evicted",
    "InitContainerRestartPolicyForbidden",
    "InvalidNodeInfo",
    "NodeShutdown",
    "OutOfcpu",
    "OutOfephemeral-storage",
    "OutOfmemory",
    "OutOfpods",
    "PodFeatureUnsupported",
    "PodLevelResourcesNotSupported",
    "PodOSNotSupported",
    "PodOSSelectorNodeLabelDoesNotMatch",
    "SupplementalGroupsPolicyNotSupported",
    "SysctlForbidden",
    "TopologyAffinityError",
    "UnexpectedAdmissionError",
    "UnexpectedPredicateFailureType",
    "UnknownReason",
    "VolumeAttachmentLimitExceeded",
    "node(s) had taints that the pod didn't tolerate",
];

/// The label of a rejection in the metrics.
#[must_use]
pub(crate) fn label(reason: &str) -> &str {
    match reason {
        known if REASONS.contains(&known) => known,
        other if other.starts_with("OutOf") => "OutOfExtendedResources",
        _ => "Other",
    }
}

/// Whether `pod` may run beside `others`, those that were admitted and are not over. Returns which of
/// these must go first: none, unless the pod is critical.
///
/// # Errors
/// The first thing that stands against it.
pub(crate) fn admit<'a>(pod: &Pod, others: &[&'a Pod], node: &Node) -> Result<Room<'a>, Rejection> {
    if !labels::runs_linux(pod) {
        let message = "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label";
        return Err(Rejection::new("PodOSSelectorNodeLabelDoesNotMatch", message));
    }
    if !matches!(pod.placement.os.as_str(), "" | "linux") {
        let message = "Failed to admit pod as the OS field doesn't match node OS";
        return Err(Rejection::new("PodOSNotSupported", message));
    }
    if pod.security.strict_groups && !node.strict_groups {
        return Err(no_strict_groups());
    }
    let room = general(pod, others, node)?;
    app_armor(pod, node.app_armor)?;
    Ok(room)
}

/// The scheduler's predicates, once more: pods may come without having met a scheduler.
fn general<'a>(pod: &Pod, others: &[&'a Pod], node: &Node) -> Result<Room<'a>, Rejection> {
    let predicate = |name: &str, why: &str| {
        Objection::Other(Rejection::new(name, format!("Predicate {name} failed: {why}")))
    };
    let mut objections: Vec<Objection> =
        fit::shortages(pod, others, node).into_iter().map(Objection::Resource).collect();
    if !labels::affine(pod, node) {
        objections.push(predicate("NodeAffinity", "node(s) didn't match Pod's node affinity/selector"));
    }
    if !pod.shown.node_name.is_empty() && pod.shown.node_name != node.name {
        objections.push(predicate("NodeName", "node(s) didn't match the requested node name"));
    }
    if others.iter().any(|other| ports::clash(pod, other).is_some()) {
        let why = "node(s) didn't have free ports for the requested pod ports";
        objections.push(predicate("NodePorts", why));
    }
    if pod.origin != Origin::Static && labels::has_untolerated_taint(pod, node) {
        objections.push(predicate("TaintToleration", "node(s) had taints that the pod didn't tolerate"));
    }
    if is_critical(pod) {
        return make_room(pod, others, objections);
    }
    match objections.into_iter().next() {
        None => Ok(Room::default()),
        Some(Objection::Resource(shortage)) => Err(shortage.rejection()),
        Some(Objection::Other(rejection)) => Err(rejection),
    }
}

/// A critical pod is only kept out by what ending others would not change.
fn make_room<'a>(pod: &Pod, others: &[&'a Pod], objections: Vec<Objection>) -> Result<Room<'a>, Rejection> {
    let mut missing = Vec::new();
    for objection in objections {
        match objection {
            Objection::Resource(shortage) => missing.push(shortage),
            Objection::Other(rejection) => return Err(rejection),
        }
    }
    let victims = fit::victims(pod, others, &missing).map_err(|why| {
        let message = format!("Unexpected error while attempting to recover from admission failure: {why}");
        Rejection::new("UnexpectedAdmissionError", message)
    })?;
    let lacking = missing.into_iter().next().map(|shortage| shortage.resource).unwrap_or_default();
    Ok(Room { victims, lacking })
}

/// The runtime cannot hold processes to the pod's own groups.
#[must_use]
pub(crate) fn no_strict_groups() -> Rejection {
    let message = "SupplementalGroupsPolicy=Strict is not supported in this node";
    Rejection::new("SupplementalGroupsPolicyNotSupported", message)
}

/// Of a pod that asks for something as a whole, where the gate `PodLevelResources` is closed.
///
/// # Errors
/// In upstream's words.
pub(crate) fn without_pod_level(pod: &Pod) -> Result<(), Rejection> {
    let asks = pod.resources.as_ref().is_some_and(|own| !own.requests.is_empty() || !own.limits.is_empty());
    let message = "PodLevelResources feature gate is disabled";
    if asks { Err(Rejection::new("PodLevelResourcesNotSupported", message)) } else { Ok(()) }
}

/// Static pods, and those of the system's priority classes.
#[must_use]
pub(crate) fn is_critical(pod: &Pod) -> bool {
    pod.origin == Origin::Static || pod.placement.priority.is_some_and(|p| p >= SYSTEM_CRITICAL)
}

/// The node must have it when anything of the pod asks for a profile, and a profile of the node has a name.
///
/// # Errors
/// The rejection.
pub(crate) fn app_armor(pod: &Pod, has: bool) -> Result<(), Rejection> {
    let profiles = || pod.every_container().filter_map(|c| c.security.app_armor.as_ref());
    let asks = pod.security.app_armor || profiles().any(|profile| *profile != AppArmor::Unconfined);
    if !asks {
        return Ok(());
    }
    let refuse = |why: &str| Err(Rejection::new("AppArmor", format!("Cannot enforce AppArmor: {why}")));
    if !has {
        return refuse("AppArmor is not enabled on the host");
    }
    match profiles().find(|profile| matches!(profile, AppArmor::Localhost(name) if name.trim().is_empty())) {
        Some(AppArmor::Localhost(name)) => {
            // As Go prints it.
            let shown = format!("&AppArmorProfile{{Type:Localhost,LocalhostProfile:*{name},}}");
            refuse(&format!("invalid empty AppArmor profile name: {shown:?}"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
