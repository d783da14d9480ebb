//! What is said of a resize in place, in upstream's words. Pure: owns the texts of its events; never decides about one.
//! Called by the worker, by the effect that carries a resize out, and by [`crate::pod_workers`], which takes it up.

use std::collections::BTreeMap;

use gantry_model::go_json;
use gantry_model::pod::{Container, PendingResize, Pod};
use serde::Serialize;

use crate::events::{Kind, Note};

/// As upstream's events sum up what is asked for.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Summary<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    init_containers: Vec<Entry<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    containers: Vec<Entry<'a>>,
    generation: i64,
    #[serde(skip_serializing_if = "str::is_empty")]
    error: &'a str,
}

#[derive(Serialize)]
struct Entry<'a> {
    name: &'a str,
    resources: Lists<'a>,
}

#[derive(Serialize)]
struct Lists<'a> {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    limits: &'a BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    requests: &'a BTreeMap<String, String>,
}

/// It was allocated what it asks for.
#[must_use]
pub(crate) fn started(pod: &Pod) -> Note {
    let text = text(pod, pod.generation, "", "Pod resize started");
    Note::pod(Kind::Normal, "ResizeStarted", text)
}

/// It is held to what it was allocated.
#[must_use]
pub(crate) fn completed(pod: &Pod, generation: i64) -> Note {
    Note::pod(Kind::Normal, "ResizeCompleted", text(pod, generation, "", "Pod resize completed"))
}

/// It is not yet, for this reason.
#[must_use]
pub(crate) fn failed(pod: &Pod, generation: i64, error: &str) -> Note {
    Note::pod(Kind::Warning, "ResizeError", text(pod, generation, error, "Pod resize error"))
}

/// `wanted` asks for what it does not get.
#[must_use]
pub(crate) fn pending(wanted: &Pod, why: &PendingResize) -> Note {
    let reason = if why.infeasible { "ResizeInfeasible" } else { "ResizeDeferred" };
    let what = format!("Pod resize {}", why.reason());
    Note::pod(Kind::Warning, reason, text(wanted, why.generation, &why.message, &what))
}

fn text(pod: &Pod, generation: i64, error: &str, what: &str) -> String {
    let summary = Summary {
        init_containers: pod.init_containers.iter().map(entry).collect(),
        containers: pod.containers.iter().map(entry).collect(),
        generation,
        error,
    };
    match go_json::text(&summary) {
        Ok(summary) => format!("{what}: {summary}"),
        // As upstream.
        Err(_) => what.to_owned(),
    }
}

fn entry(container: &Container) -> Entry<'_> {
    let Container { name, written, .. } = container;
    Entry { name, resources: Lists { limits: &written.limits, requests: &written.requests } }
}

#[cfg(test)]
mod tests {
    use gantry_model::pod::Requirements;

    use super::*;
    use crate::pod::tests::{container, in_role, pod};
    use gantry_model::pod::Role;

    #[test]
    fn events_have_upstreams_words() {
        let requests = [("cpu".to_owned(), "100m".to_owned())].into();
        let written = Requirements { requests, ..Requirements::default() };
        let web = Container { written, ..container("web") };
        let init_containers = vec![in_role("init", Role::Init)];
        let pod = Pod { containers: vec![web], init_containers, generation: 3, ..pod() };
        let sizes = r#""initContainers":[{"name":"init","resources":{}}],"containers":[{"name":"web","resources":{"requests":{"cpu":"100m"}}}]"#;
        let note = started(&pod);
        assert_eq!((note.kind, &*note.reason), (Kind::Normal, "ResizeStarted"));
        assert_eq!(note.message, format!("Pod resize started: {{{sizes},\"generation\":3}}"));
        let note = completed(&pod, 2);
        assert_eq!((note.kind, &*note.reason), (Kind::Normal, "ResizeCompleted"));
        assert_eq!(note.message, format!("Pod resize completed: {{{sizes},\"generation\":2}}"));
        let note = failed(&pod, 3, "busy");
        assert_eq!((note.kind, &*note.reason), (Kind::Warning, "ResizeError"));
        assert_eq!(
            note.message,
            format!("Pod resize error: {{{sizes},\"generation\":3,\"error\":\"busy\"}}")
        );
        for (infeasible, reason, word) in
            [(true, "ResizeInfeasible", "Infeasible"), (false, "ResizeDeferred", "Deferred")]
        {
            let why = PendingResize { infeasible, message: "full".to_owned(), generation: 3 };
            let note = pending(&pod, &why);
            assert_eq!((note.kind, &*note.reason), (Kind::Warning, reason));
            let text = format!("Pod resize {word}: {{{sizes},\"generation\":3,\"error\":\"full\"}}");
            assert_eq!(note.message, text);
        }
    }
}
