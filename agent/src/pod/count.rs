//! What a pod's life adds to the metrics: by which event each is counted, and by which label. Owns
//! that mapping; never decides anything by a number. Called by the worker, by what carries out its
//! actions, and by the server at a scrape.

use std::collections::BTreeMap;
use std::time::Duration;

use gantry_metrics::Metrics;
use gantry_model::pod::{Origin, Pod, Role};

use super::Life;
use super::plan::Action;
use super::probing::ProbeKind;
use super::run::Deps;
use super::status::{ContainerState, ContainerStatus, Phase, PodStatus};
use super::worker::PodHandle;
use super::worker_state::{Output, WaitReason};
use crate::probe::ProbeResult;
use crate::timeline::Span;
use crate::volumes::Count;

/// Upstream's `container_type`.
fn kind(role: Role) -> &'static str {
    match role {
        Role::Regular => "container",
        Role::Init | Role::Sidecar => "init_container",
        Role::Ephemeral => "ephemeral_container",
    }
}

fn yes(it: bool) -> &'static str {
    if it { "true" } else { "" }
}

/// Volumes, at a scrape; a state of none is no series, as upstream.
#[expect(clippy::cast_precision_loss, reason = "a number of volumes")]
pub fn volumes(metrics: &Metrics, counts: &BTreeMap<String, Count>) {
    let states = counts.iter().flat_map(|(plugin, count)| {
        let states = [("actual_state_of_world", count.there), ("desired_state_of_world", count.wanted)];
        states.map(|(state, count)| ([plugin.clone(), state.to_owned()], count as f64))
    });
    metrics.total_volumes.replace(states.filter(|(_, count)| *count > 0.0));
}

/// What a pull's time went into, as far as the runtime tells: `layer.3.unpack` is counted as `unpack`.
pub(super) fn record_stages(metrics: &Metrics, image: &Span, inner: &[Span]) {
    let is_of_it = |own: &&Span| own.start >= image.start && own.end <= image.end;
    for own in inner.iter().filter(|_| image.name == "image").filter(is_of_it) {
        let name = own.name.rsplit('.').next().unwrap_or_default();
        if name != "present" {
            let nanos = u64::try_from(own.end.saturating_sub(own.start)).unwrap_or_default();
            metrics.image_pull_stage.took([name], Duration::from_nanos(nanos));
        }
    }
}

/// An action begins.
pub(super) fn record_begin(deps: &Deps, pod: &Pod, action: &Action) {
    let metrics = &deps.metrics;
    match action {
        Action::RunSandbox { .. } => {
            metrics.started_pods.inc([]);
            if pod.namespaces.own_users {
                metrics.started_userns_pods.inc([]);
            }
        }
        Action::CreateContainer { container, .. } => record_start(metrics, pod, container),
        _ => {}
    }
}

fn record_start(metrics: &Metrics, pod: &Pod, container: &str) {
    if let Some(container) = pod.container(container) {
        metrics.started_containers.inc([kind(container.role)]);
    }
}

/// An action has come to its end, after so long.
pub(super) fn record_end(
    deps: &Deps,
    pod: &Pod,
    action: &Action,
    result: &Result<Output, WaitReason>,
    took: Duration,
) {
    let metrics = &deps.metrics;
    match (action, result) {
        (Action::SetUpCgroup { .. }, _) => metrics.cgroup_manager_duration.took(["create"], took),
        (Action::TearDownCgroup, _) => metrics.cgroup_manager_duration.took(["destroy"], took),
        (Action::RunSandbox { .. }, Err(_)) => {
            metrics.started_pods_errors.inc([]);
            if pod.namespaces.own_users {
                metrics.started_userns_pods_errors.inc([]);
            }
        }
        (Action::EnsureImage { container, .. }, Err(trouble)) => {
            // It came no further: its start is counted here, where others are with their creation.
            record_start(metrics, pod, container);
            record_failed_start(metrics, pod, container, trouble);
        }
        (
            Action::CreateContainer { container, .. }
            | Action::StartContainer { container, .. }
            | Action::PostStart { container, .. },
            Err(trouble),
        ) => record_failed_start(metrics, pod, container, trouble),
        (Action::Probe { container, kind, .. }, Ok(Output::ProbeResult(verdict))) => {
            record_probe(deps, pod, container, *kind, verdict, took);
        }
        _ => {}
    }
}

fn record_failed_start(metrics: &Metrics, pod: &Pod, container: &str, trouble: &WaitReason) {
    if let Some(container) = pod.container(container) {
        metrics.started_containers_errors.inc([kind(container.role), &trouble.reason]);
    }
}

/// One that could not even be asked says nothing, as upstream.
fn record_probe(
    deps: &Deps,
    pod: &Pod,
    container: &str,
    probe: ProbeKind,
    verdict: &ProbeResult,
    took: Duration,
) {
    let result = match verdict {
        ProbeResult::Success(_) | ProbeResult::Warning(_) => "successful",
        ProbeResult::Failure(_) => "failed",
        ProbeResult::Unknown(_) => return,
    };
    let (probe, name, namespace, uid) = (probe.as_str(), &pod.name, &pod.namespace, pod.uid.to_string());
    deps.probe_metrics.results.inc([probe, result, container, name, namespace, &uid]);
    if result == "successful" {
        deps.probe_metrics.duration.took([probe, container, name, namespace], took);
    }
}

/// The pod is gone, and so are its series.
pub(super) fn record_removal(deps: &Deps, pod: &Pod) {
    let uid = pod.uid.to_string();
    deps.probe_metrics.results.forget(|[.., of]| *of == uid);
    deps.probe_metrics
        .duration
        .forget(|[_, _, name, namespace]| *name == pod.name && *namespace == pod.namespace);
}

/// A status follows another; the pod was taken up so long ago.
pub(super) fn record_phase_change(metrics: &Metrics, last: &PodStatus, next: &PodStatus, since: Duration) {
    if (last.phase, next.phase) == (Phase::Pending, Phase::Running) {
        metrics.pod_start_duration.took([], since);
    }
    let (old, new) = (every(last), every(next));
    for status in new {
        let ContainerState::Terminated(exit) = &status.state else { continue };
        let before = old.iter().find(|old| old.name == status.name);
        if !before.is_some_and(|old| matches!(old.state, ContainerState::Terminated(_))) {
            let code = exit.code.to_string();
            metrics.terminated_containers.inc([kind(status.role), &code, &exit.reason]);
        }
    }
}

fn every(status: &PodStatus) -> Vec<&ContainerStatus> {
    status.all_containers().chain(&status.ephemeral_containers).collect()
}

/// All pods that have a worker now, and mirror pods.
#[expect(clippy::cast_precision_loss, reason = "a number of pods")]
pub fn census(metrics: &Metrics, pods: &[PodHandle], mirrors: usize) {
    metrics.mirror_pods.set([], mirrors as f64);
    let seen: Vec<_> = pods
        .iter()
        .filter(|handle| !handle.is_done())
        .map(|handle| (handle.pod.origin == Origin::Static, handle.is_leaving(), place(handle)))
        .collect();
    for is_static in [true, false] {
        let active = pods
            .iter()
            .filter(|handle| (handle.pod.origin == Origin::Static) == is_static && handle.is_active());
        metrics.active_pods.set([yes(is_static)], active.count() as f64);
    }
    for lifecycle in ["sync", "terminating", "terminated"] {
        for (config, leaving) in [("desired", false), ("orphan", true)] {
            for is_static in [true, false] {
                let count = seen.iter().filter(|one| **one == (is_static, leaving, lifecycle)).count();
                metrics.working_pods.set([lifecycle, config, yes(is_static)], count as f64);
            }
        }
    }
}

/// In upstream's words.
fn place(handle: &PodHandle) -> &'static str {
    match handle.status.borrow().life {
        Life::Waiting | Life::Starting | Life::Running => "sync",
        Life::Stopping { .. } => "terminating",
        Life::Stopped | Life::Gone => "terminated",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pulls_stages_are_counted_by_what_was_done_and_an_earlier_pulls_are_not() {
        let span = |name: &str, start, end| Span {
            name: name.to_owned(),
            container: String::new(),
            start,
            end,
            detail: String::new(),
        };
        let metrics = Metrics::default();
        let inner = [
            span("resolve", 1, 2),
            span("resolve", 10, 20),
            span("layer.0.download", 20, 30),
            span("layer.11.download", 20, 31),
            span("layer.1.present", 20, 20),
        ];
        record_stages(&metrics, &span("image", 10, 40), &inner);
        // Another stage of the pod has stages of other names within.
        record_stages(&metrics, &span("sandbox", 10, 40), &inner);
        let counts = ["resolve", "download", "present"].map(|name| metrics.image_pull_stage.count([name]));
        assert_eq!(counts, [1, 2, 0]);
    }
}
