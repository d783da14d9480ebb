//! Why a pod does not have the resources that it is described with. Pure: owns the remedies; never decides about a
//! resize. Called by [`super::decide`].

use super::Finding;
use super::look::ExplainInputs;
use crate::pod::status::{Condition, ConditionKind};

/// Of a resize that waits, and of one that does not come about.
pub(super) fn all(facts: &ExplainInputs<'_>) -> Vec<Finding> {
    facts.status.conditions.iter().filter(|condition| condition.holds).filter_map(one).collect()
}

fn one(condition: &Condition) -> Option<Finding> {
    let Condition { kind, reason, message, .. } = condition;
    let (cause, remedy) = match (kind, reason.as_str()) {
        (ConditionKind::PodResizePending, "Infeasible") => (
            format!("it keeps the resources that it has, since this node never gives it others: {message}"),
            "take the change back, or delete the pod: a new one is made with them".to_owned(),
        ),
        (ConditionKind::PodResizePending, _) => (
            format!("it keeps the resources that it has, and waits for those that it asks for: {message}"),
            "end or shrink other pods of this node, or ask for less; it is tried again when one of them does, and each \
             3 minutes"
                .to_owned(),
        ),
        (ConditionKind::PodResizeInProgress, "Error") => (
            format!("it was given other resources, and cannot be held to them yet: {message}"),
            remedy_of(message),
        ),
        _ => return None,
    };
    let state = format!("{} ({reason})", kind.as_str());
    Some(Finding { container: String::new(), state, cause, remedy, evidence: Vec::new() })
}

fn remedy_of(message: &str) -> String {
    if message.contains("below current usage") {
        return "have the program free memory, or ask for more than it uses; it is tried again each 10 s"
            .to_owned();
    }
    "the log of the runtime says more; it is tried again each 10 s".to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::pod::status::PodStatus;
    use crate::pod::tests::pod;

    fn remedies(kind: ConditionKind, reason: &str, message: &str) -> Vec<(String, String)> {
        let (reason, message) = (reason.to_owned(), message.to_owned());
        let condition = Condition { kind, holds: true, reason, message, since: 0, generation: 1 };
        let status = PodStatus { conditions: vec![condition], ..PodStatus::default() };
        let pod = pod();
        let (lines, listening, registries, pulls) =
            (BTreeMap::new(), BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (waits, now) = (Vec::new(), 0);
        let facts =
            ExplainInputs { pod: &pod, status: &status, lines, listening, registries, pulls, waits, now };
        all(&facts).into_iter().map(|found| (found.state, found.remedy)).collect()
    }

    #[test]
    fn a_resize_that_does_not_come_about_has_a_remedy() {
        let pending = ConditionKind::PodResizePending;
        let words = "Node didn't have enough resource: cpu, requested: 2, used: 1, capacity: 2";
        let found = remedies(pending, "Deferred", words);
        assert_eq!(found[0].0, "PodResizePending (Deferred)");
        assert!(found[0].1.starts_with("end or shrink other pods"), "{found:?}");
        assert!(remedies(pending, "Infeasible", "swap")[0].1.starts_with("take the change back"));
        let going_on = ConditionKind::PodResizeInProgress;
        let used =
            "cannot decrease memory limits: attempting to set pod memory limit (1) below current usage (2)";
        assert!(remedies(going_on, "Error", used)[0].1.starts_with("have the program free memory"));
        assert!(remedies(going_on, "Error", "busy")[0].1.starts_with("the log of the runtime"));
        assert_eq!(remedies(going_on, "", ""), []);
        assert_eq!(remedies(ConditionKind::Ready, "", ""), []);
    }
}
