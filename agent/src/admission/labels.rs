//! A pod's selector, affinity and tolerations against the node. Pure: owns the comparisons. Called by
//! [`super::admit`].

use std::collections::BTreeMap;

use gantry_model::pod::Pod;
use gantry_model::pod::placement::{Match, Operator, Term, Toleration};

use super::{Node, Taint};

const OS: &str = "kubernetes.io/os";

/// Upstream looks at the pod's own label, when it has one.
pub(super) fn runs_linux(pod: &Pod) -> bool {
    pod.labels.get(OS).is_none_or(|os| os == "linux")
}

/// nodeSelector and the required node affinity; both must fit.
pub(super) fn affine(pod: &Pod, node: &Node) -> bool {
    let selected = |(key, value): (&String, &String)| node.labels.get(key) == Some(value);
    let terms = pod.placement.affinity.as_ref();
    let fields = BTreeMap::from([("metadata.name".to_owned(), node.name.clone())]);
    pod.placement.node_selector.iter().all(selected)
        && terms.is_none_or(|terms| terms.iter().any(|term| fits(term, &node.labels, &fields)))
}

/// Whether one of the terms fits a node of these labels, whose name is not looked at.
pub(crate) fn any_fits(terms: &[Term], labels: &BTreeMap<String, String>) -> bool {
    terms.iter().any(|term| fits(term, labels, &BTreeMap::new()))
}

/// An empty term fits no node.
fn fits(term: &Term, labels: &BTreeMap<String, String>, fields: &BTreeMap<String, String>) -> bool {
    let empty = term.labels.is_empty() && term.fields.is_empty();
    !empty
        && term.labels.iter().all(|of| matches(of, labels))
        && term.fields.iter().all(|of| matches(of, fields))
}

fn matches(of: &Match, values: &BTreeMap<String, String>) -> bool {
    let value = values.get(&of.key);
    let compare = |ordering| {
        let number = |text: &String| text.parse::<i64>().ok();
        let (Some(own), [bound]) = (value.and_then(number), &of.values[..]) else { return false };
        number(bound).is_some_and(|bound| own.cmp(&bound) == ordering)
    };
    match of.operator {
        Operator::In => value.is_some_and(|value| of.values.contains(value)),
        Operator::NotIn => value.is_none_or(|value| !of.values.contains(value)),
        Operator::Exists => value.is_some(),
        Operator::DoesNotExist => value.is_none(),
        Operator::Gt => compare(std::cmp::Ordering::Greater),
        Operator::Lt => compare(std::cmp::Ordering::Less),
    }
}

/// A node looks at NoExecute only.
pub(super) fn has_untolerated_taint(pod: &Pod, node: &Node) -> bool {
    let strict = node.taints.iter().filter(|taint| taint.effect == "NoExecute");
    strict.into_iter().any(|taint| !tolerates(pod, taint))
}

/// Whether one of its tolerations bears the taint.
pub(super) fn tolerates(pod: &Pod, taint: &Taint) -> bool {
    pod.placement.tolerations.iter().any(|toleration| bears(toleration, taint))
}

fn bears(toleration: &Toleration, taint: &Taint) -> bool {
    let any_or = |wanted: &str, is: &str| wanted.is_empty() || wanted == is;
    any_or(&toleration.effect, &taint.effect)
        && any_or(&toleration.key, &taint.key)
        && (toleration.exists || toleration.value == taint.value)
}
