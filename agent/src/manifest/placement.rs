//! What a pod asks of its node: affinity and tolerations. Pure: owns which parts a node looks at;
//! never compares them. Called by [`super::pod`].

use gantry_model::pod::placement::{Operator, Term, Toleration};
use k8s_openapi::api::core::v1 as api;

use super::field::{Result, one_of};
use crate::api::node_selector::terms;

/// Only what is required of the node itself counts here; the rest is the scheduler's.
pub(super) fn affinity(affinity: Option<api::Affinity>) -> Result<Option<Vec<Term>>> {
    let Some(api::Affinity { node_affinity, pod_affinity: _, pod_anti_affinity: _ }) = affinity else {
        return Ok(None);
    };
    let Some(api::NodeAffinity {
        required_during_scheduling_ignored_during_execution: required,
        preferred_during_scheduling_ignored_during_execution: _,
    }) = node_affinity
    else {
        return Ok(None);
    };
    let Some(api::NodeSelector { node_selector_terms }) = required else { return Ok(None) };
    let at = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
    let operator = |field: String, name: &str| one_of(field, name, &Operator::ALL);
    terms(at, node_selector_terms, &operator).map(Some)
}

/// For how long a taint is borne is the controller's to count.
pub(super) fn tolerations(list: Vec<api::Toleration>) -> Vec<Toleration> {
    let one = |api::Toleration { effect, key, operator, toleration_seconds: _, value }: api::Toleration| {
        Toleration {
            key: key.unwrap_or_default(),
            exists: operator.as_deref() == Some("Exists"),
            value: value.unwrap_or_default(),
            effect: effect.unwrap_or_default(),
        }
    };
    list.into_iter().map(one).collect()
}
