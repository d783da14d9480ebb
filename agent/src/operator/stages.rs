//! The stages of a pod's start, with what keeps it from being ready now. Pure: a status in, spans out;
//! never asks anybody. Called by the operator API for `gantry timeline`.

use gantry_model::pod::{Pod, Role};

use crate::pod::status::{ContainerState, ContainerStatus, PodStatus};
use crate::timeline::Span;

/// Why an image is not here, as a container's reason says it.
const PULL_FAILED: [&str; 5] = [
    "ErrImagePull",
    "ImagePullBackOff",
    "RegistryUnavailable",
    "SignatureValidationFailed",
    "ImageInspectError",
];

/// Those that were recorded; until the pod was ready, also those that do not come to an end: a failing
/// pull, the wait before a restart, a probe that has not succeeded. They are open, and the pod's time goes
/// on with them.
pub(super) fn of(pod: &Pod, status: &PodStatus) -> Vec<Span> {
    let mut spans = status.spans.to_vec();
    if status.is_over() || spans.iter().any(|span| span.name == "ready") {
        return spans;
    }
    let waits: Vec<Span> =
        status.all_containers().filter_map(|container| waiting(pod, status, container)).collect();
    spans.extend(waits);
    spans
}

fn waiting(pod: &Pod, status: &PodStatus, container: &ContainerStatus) -> Option<Span> {
    let open = |name: &str, start, detail: String| {
        let container = container.name.clone();
        Some(Span { name: name.to_owned(), container, start, end: 0, detail })
    };
    match &container.state {
        ContainerState::Waiting { reason, message } if PULL_FAILED.contains(&reason.as_str()) => {
            let tries = status.events.iter().filter(|event| event.note.container == container.name);
            let first = tries.filter(|event| event.note.reason == "Pulling").map(|event| event.first).min();
            open("image.failed", first.unwrap_or(status.started_at), format!("{reason}: {message}"))
        }
        ContainerState::Waiting { reason, message } if reason == "CrashLoopBackOff" => {
            let since = container.last_exit.as_ref().map(|exit| exit.finished_at);
            open("container.backoff", since.unwrap_or(status.started_at), message.clone())
        }
        ContainerState::Running { started_at } => {
            let probes = &pod.container(&container.name)?.probes;
            let name = match container.role {
                Role::Init => "container.run",
                _ if probes.startup.is_some() && !container.started => "probe.startup",
                _ if probes.readiness.is_some() && !container.ready => "probe.readiness",
                _ => return None,
            };
            open(name, *started_at, String::new())
        }
        ContainerState::Waiting { .. } | ContainerState::Terminated(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use gantry_model::pod::probe::{Handler, Probe};

    use super::*;
    use crate::events::{Event, Kind, Note};
    use crate::pod::tests::pod;
    use crate::runtime::Exit;
    use crate::timeline::chart::Chart;

    fn span(name: &str, start: i64, end: i64) -> Span {
        Span { name: name.into(), container: String::new(), start, end, detail: String::new() }
    }

    fn container(name: &str, state: ContainerState) -> ContainerStatus {
        ContainerStatus { name: name.into(), state, ..ContainerStatus::default() }
    }

    fn waits(reason: &str, message: &str) -> ContainerState {
        ContainerState::Waiting { reason: reason.into(), message: message.into() }
    }

    #[test]
    fn a_pull_that_fails_is_a_stage_until_now() {
        let note = Note::container(Kind::Normal, "Pulling", "web", "Pulling image \"r/web\"");
        let status = PodStatus {
            containers: vec![container("web", waits("ImagePullBackOff", "Back-off pulling image"))],
            spans: vec![span("sandbox", 10, 40)].into(),
            events: vec![Event { note, count: 2, first: 20, last: 300 }].into(),
            ..PodStatus::default()
        };
        let spans = of(&pod(), &status);
        let failed = spans.last().unwrap();
        assert_eq!((failed.name.as_str(), failed.start, failed.end), ("image.failed", 20, 0));
        assert_eq!(failed.detail, "ImagePullBackOff: Back-off pulling image");
        assert_eq!(Chart::new(&spans, 1010).total, 1000, "the pod is still waiting");
    }

    #[test]
    fn restarts_and_probes_that_are_waited_for_are_stages() {
        let exit =
            Exit { code: 1, reason: "Error".into(), message: String::new(), started_at: 1, finished_at: 7 };
        let crashed = ContainerStatus {
            last_exit: Some(exit),
            ..container("a", waits("CrashLoopBackOff", "back-off 10s"))
        };
        let probe = || Probe {
            handler: Handler::Exec { command: vec!["true".into()] },
            initial_delay: Duration::ZERO,
            timeout: Duration::from_secs(1),
            period: Duration::from_secs(10),
            success_threshold: 1,
            failure_threshold: 3,
            termination_grace: None,
        };
        let mut specs = ["a", "b", "c", "d", "i"].map(crate::pod::tests::container);
        specs[1].probes.startup = Some(probe());
        specs[2].probes.readiness = Some(probe());
        let pod = Pod { containers: specs.into(), ..pod() };
        let runs = || ContainerState::Running { started_at: 5 };
        let started = |name: &str| ContainerStatus { started: true, ..container(name, runs()) };
        let mut status = PodStatus {
            init_containers: vec![ContainerStatus { role: Role::Init, ..container("i", runs()) }],
            containers: vec![crashed, container("b", runs()), started("c"), started("d")],
            ..PodStatus::default()
        };
        let told = |status: &PodStatus| {
            let line = |span: Span| format!("{} {} {}", span.container, span.name, span.start);
            of(&pod, status).into_iter().map(line).collect::<Vec<_>>()
        };
        let want = ["i container.run 5", "a container.backoff 7", "b probe.startup 5", "c probe.readiness 5"];
        assert_eq!(told(&status), want);
        status.spans = vec![span("ready", 9, 9)].into();
        assert_eq!(told(&status), [" ready 9"], "it is the story of the start");
    }
}
