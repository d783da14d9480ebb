//! What a pod asks of its node: affinity and tolerations. Pure: owns which parts a node looks at;
//! never compares them. Called by [`super::pod`].

use k8s_openapi::api::core::v1 as api;

use super::field::{Result, one_of};
use crate::pod::spec::placement::{Match, Operator, Term, Toleration};

const OPERATORS: [(&str, Operator); 6] = [
    ("In", Operator::In),
    ("NotIn", Operator::NotIn),
    ("Exists", Operator::Exists),
    ("DoesNotExist", Operator::DoesNotExist),
    ("Gt", Operator::Gt),
    ("Lt", Operator::Lt),
];

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
    terms(at, node_selector_terms).map(Some)
}

/// A pod's, or a PersistentVolume's.
pub(crate) fn terms(at: &str, list: Vec<api::NodeSelectorTerm>) -> Result<Vec<Term>> {
    let one = |(index, term): (usize, api::NodeSelectorTerm)| {
        let api::NodeSelectorTerm { match_expressions, match_fields } = term;
        let at = format!("{at}[{index}]");
        Ok(Term {
            labels: matches(&format!("{at}.matchExpressions"), match_expressions.unwrap_or_default())?,
            fields: matches(&format!("{at}.matchFields"), match_fields.unwrap_or_default())?,
        })
    };
    list.into_iter().enumerate().map(one).collect()
}

fn matches(at: &str, list: Vec<api::NodeSelectorRequirement>) -> Result<Vec<Match>> {
    let one = |(index, of): (usize, api::NodeSelectorRequirement)| {
        let api::NodeSelectorRequirement { key, operator, values } = of;
        let operator = one_of(format!("{at}[{index}].operator"), &operator, &OPERATORS)?;
        Ok(Match { key, operator, values: values.unwrap_or_default() })
    };
    list.into_iter().enumerate().map(one).collect()
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
