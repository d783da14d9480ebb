//! Why a pod waits for its claims to devices, at its start or at its end. Pure: what is said of the pod in, findings out.
//! Called by [`super::decide`].

use gantry_model::pod::claim::ClaimObject;

use super::Finding;
use super::decide::{line, newest};
use super::look::ExplainInputs;
use crate::pod::{Life, StopStep};
use crate::timeline::render::millis;

/// What the kubelet says, and what to do about it.
const REMEDIES: [(&str, &str); 7] = [
    (
        "is not registered",
        "see whether the pod of the DRA driver runs on this node, and its log; the kubelet tries again by itself",
    ),
    (
        "code = Unavailable",
        "the driver has registered and does not listen: its log says why; the kubelet tries again by itself",
    ),
    (
        "DeadlineExceeded",
        "the driver does not answer: its log may say why, and a restart of its pod ends the call",
    ),
    (
        "not created yet",
        "see that the cluster's controllers run: they make a ResourceClaim from the template",
    ),
    ("not allocated", "the scheduler allocates claims: leave nodeName out, or see the events of the claim"),
    (
        "is not allowed to use",
        "the scheduler reserves claims for pods: leave nodeName out, or see status.reservedFor of the claim",
    ),
    (
        "still exists",
        "an earlier claim of that name is still prepared here: its driver takes it back once it answers, see its log",
    ),
];
const BY_THE_DRIVER: &str = "the driver's words are below; its log says more";

fn remedy(why: &str) -> String {
    let known = REMEDIES.iter().find(|(words, _)| why.contains(words));
    known.map_or(BY_THE_DRIVER, |(_, remedy)| remedy).to_owned()
}

/// Of a pod that has not begun, or that ends.
pub(super) fn explain(facts: &ExplainInputs<'_>) -> Option<Finding> {
    let status = facts.status;
    if let Life::Stopping { step: StopStep::Claims, .. } = status.life {
        return Some(Finding {
            container: String::new(),
            state: "Terminating".to_owned(),
            cause: "its DRA drivers have not taken back its devices yet".to_owned(),
            remedy: remedy(&status.message),
            evidence: Some(status.message.clone()).into_iter().filter(|why| !why.is_empty()).collect(),
        });
    }
    let has = |open: bool| status.spans.iter().find(|span| span.name == "claims" && (span.end == 0) == open);
    if has(false).is_some() {
        return None;
    }
    let failed = newest(facts, "FailedPrepareDynamicResources");
    let cause = match (failed, has(true)) {
        (Some(_), _) => "its claims to devices are not prepared".to_owned(),
        (None, Some(span)) => {
            let claims = facts.pod.resource_claims.listed.iter().filter_map(|claim| match &claim.object {
                ClaimObject::Named(name) | ClaimObject::Made(name) => Some(name.as_str()),
                ClaimObject::Needless | ClaimObject::NotMade | ClaimObject::Unset => None,
            });
            let claims: Vec<&str> = claims.collect();
            let so_far = millis(facts.now - span.start);
            format!("DRA drivers prepare its claims ({}), for {so_far} so far", claims.join(", "))
        }
        (None, None) => return None,
    };
    let evidence: Vec<String> = failed.map(line).into_iter().collect();
    let remedy = match failed {
        Some(event) => remedy(&event.note.message),
        None => {
            "wait; if it lasts, the log of the driver may say why, and a restart of its pod ends the call"
                .to_owned()
        }
    };
    let state = "ContainerCreating".to_owned();
    Some(Finding { container: String::new(), state, cause, remedy, evidence })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::*;
    use crate::dra::testing::claiming;
    use crate::events::{Event, Kind, Note};
    use crate::pod::status::PodStatus;
    use crate::timeline::Span;

    fn explained(status: &PodStatus) -> Option<Finding> {
        let pod = claiming("uid-1", &["one"]);
        explain(&ExplainInputs {
            pod: &pod,
            status,
            lines: BTreeMap::new(),
            listening: BTreeMap::new(),
            registries: BTreeMap::new(),
            pulls: BTreeMap::new(),
            waits: Vec::new(),
            now: 5_000_000_000,
        })
    }

    fn at(end: i64) -> PodStatus {
        let (name, container, detail) = ("claims".to_owned(), String::new(), String::new());
        let span = Span { name, container, start: 1_000_000_000, end, detail };
        PodStatus { spans: Arc::from([span]), ..PodStatus::default() }
    }

    #[test]
    fn a_pod_that_waits_for_its_claims_says_why_and_what_to_do() {
        let waits = explained(&at(0)).unwrap();
        assert!(waits.cause.starts_with("DRA drivers prepare its claims (one), for 4"), "{waits:?}");
        assert_eq!(explained(&at(2)), None, "they are prepared");
        assert_eq!(explained(&PodStatus::default()), None);
        let refused = |message: &str| {
            let note = Note::pod(Kind::Warning, "FailedPrepareDynamicResources", message);
            let events = Arc::from([Event { note, count: 1, first: 1, last: 2 }]);
            explained(&PodStatus { events, ..at(0) }).unwrap()
        };
        let found = refused("DRA driver d is not registered");
        assert!(found.remedy.contains("pod of the DRA driver runs"), "{found:?}");
        assert!(found.evidence[0].ends_with("DRA driver d is not registered"), "{found:?}");
        assert_eq!(refused("too hot").remedy, BY_THE_DRIVER);
    }

    #[test]
    fn a_pod_that_does_not_end_for_its_driver_says_so() {
        let life = Life::Stopping { deadline: None, step: StopStep::Claims };
        let message = "unprepare dynamic resources: DRA driver d is not registered".to_owned();
        let found = explained(&PodStatus { life, message: message.clone(), ..PodStatus::default() }).unwrap();
        assert_eq!((found.state.as_str(), found.evidence), ("Terminating", vec![message]));
        assert!(found.remedy.contains("pod of the DRA driver runs"));
    }
}
