//! The pod startup SLI: how long pods of the API server take to start, by what the watch shows: from creation until
//! the watch shows all their containers running. Owns which starts count: of pods that this node saw
//! before they began, and that no scheduler had refused. Never looks at a runtime. Started by the
//! kubelet's wiring.
//!
//! ```text
//! new ──startTime not set──▶ Waited for ──all containers run──▶ Reported
//!  └──unschedulable────────────────┴──────▶ Left out
//! ```

#![expect(clippy::disallowed_methods, reason = "the task lives as long as the kubelet")]

use std::collections::BTreeMap;
use std::sync::Arc;

use gantry_metrics::Metrics;
use gantry_model::clock::Clock;
use gantry_model::pod::PodUid;
use k8s_openapi::api::core::v1::{Pod, Volume};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::pod::worker::PodHandle;
use crate::pod_source::ApiPods;
use crate::timeline::Span;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    WaitedFor,
    Told,
    LeftOut,
}

/// Watches for as long as there is a watch.
#[must_use]
pub(crate) fn follow(
    mut seen: watch::Receiver<ApiPods>,
    pods: watch::Receiver<Arc<[PodHandle]>>,
    metrics: Arc<Metrics>,
    clock: Arc<dyn Clock>,
) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut starts = Starts { known: BTreeMap::new(), networked: false, metrics };
        loop {
            let handles = pods.borrow().clone();
            starts.look(&seen.borrow_and_update(), clock.wall_nanos(), |uid| {
                let handle = handles.iter().find(|handle| handle.pod.uid == *uid);
                handle.map(|handle| handle.status.borrow().spans.clone()).unwrap_or_default()
            });
            if seen.changed().await.is_err() {
                return;
            }
        }
    })
}

struct Starts {
    known: BTreeMap<PodUid, Start>,
    /// The first pod with a network was told.
    networked: bool,
    metrics: Arc<Metrics>,
}

impl Starts {
    fn look(&mut self, seen: &ApiPods, now: i64, spans: impl Fn(&PodUid) -> Arc<[Span]>) {
        self.known.retain(|uid, _| seen.pods.contains_key(uid));
        for (uid, pod) in &seen.pods {
            let Some(status) = pod.status.as_ref() else {
                self.known.entry(uid.clone()).or_insert(Start::WaitedFor);
                continue;
            };
            if matches!(status.phase.as_deref(), Some("Failed" | "Succeeded")) {
                self.known.insert(uid.clone(), Start::LeftOut);
                continue;
            }
            match self.known.get(uid) {
                Some(Start::Told | Start::LeftOut) => {}
                _ if unschedulable(pod) => {
                    self.known.insert(uid.clone(), Start::LeftOut);
                }
                None if status.start_time.is_none() => {
                    self.known.insert(uid.clone(), Start::WaitedFor);
                }
                // It was under way before this agent looked.
                None => {
                    self.known.insert(uid.clone(), Start::LeftOut);
                }
                Some(Start::WaitedFor) if running(pod) => {
                    self.known.insert(uid.clone(), Start::Told);
                    self.tell(pod, now, &spans(uid));
                }
                Some(Start::WaitedFor) => {}
            }
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "seconds of a start")]
    fn tell(&mut self, pod: &Pod, now: i64, spans: &[Span]) {
        let Some(created) = &pod.metadata.creation_timestamp else { return };
        let created = i64::try_from(created.0.as_nanosecond()).unwrap_or(i64::MAX);
        let all = now.saturating_sub(created);
        let own = all.saturating_sub(together(spans, "image")).saturating_sub(one_by_one(spans));
        let (all, own) = (all as f64 / 1e9, own as f64 / 1e9);
        self.metrics.pod_start_total_duration.observe([], all);
        if stateful(pod) {
            return;
        }
        self.metrics.pod_start_sli_duration.observe([], own);
        let host = pod.spec.as_ref().and_then(|spec| spec.host_network).unwrap_or(false);
        if !host && !self.networked {
            self.networked = true;
            self.metrics.first_network_pod_start_sli.set([], own);
        }
    }
}

/// Nanoseconds in which at least one stage of that name was under way.
fn together(spans: &[Span], name: &str) -> i64 {
    let mut stages: Vec<(i64, i64)> = spans
        .iter()
        .filter(|span| span.name == name && span.end > 0)
        .map(|span| (span.start, span.end))
        .collect();
    stages.sort_unstable();
    let (mut sum, mut until) = (0, i64::MIN);
    for (start, end) in stages {
        sum += end.saturating_sub(start.max(until)).max(0);
        until = until.max(end);
    }
    sum
}

/// Nanoseconds that init containers ran.
fn one_by_one(spans: &[Span]) -> i64 {
    spans.iter().filter(|span| span.name == "container.run").map(|span| (span.end - span.start).max(0)).sum()
}

fn running(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let containers = status.and_then(|status| status.container_statuses.as_deref()).unwrap_or_default();
    let runs = |state: &k8s_openapi::api::core::v1::ContainerState| {
        state.running.as_ref().is_some_and(|running| running.started_at.is_some())
    };
    !containers.is_empty() && containers.iter().all(|one| one.state.as_ref().is_some_and(runs))
}

fn unschedulable(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|condition| condition.type_ == "PodScheduled" && condition.status == "False")
}

/// It has a volume that outlives it: what that takes is no business of the node.
fn stateful(pod: &Pod) -> bool {
    let own = |volume: &Volume| {
        volume.secret.is_some()
            || volume.config_map.is_some()
            || volume.downward_api.is_some()
            || volume.empty_dir.is_some()
            || volume.projected.is_some()
    };
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
    !volumes.iter().all(own)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const SECOND: i64 = 1_000_000_000;

    fn starts() -> Starts {
        Starts { known: BTreeMap::new(), networked: false, metrics: Arc::default() }
    }

    fn seen(pods: &[(&str, Value)]) -> ApiPods {
        let pod = |(uid, rest): &(&str, Value)| {
            let mut pod = json!({ "metadata": { "uid": uid, "creationTimestamp": "1970-01-01T00:01:40Z" } });
            pod.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
            (PodUid::parse(uid).unwrap(), Arc::new(serde_json::from_value(pod).unwrap()))
        };
        ApiPods { synced: true, pods: pods.iter().map(pod).collect(), ..ApiPods::default() }
    }

    fn up(spec: &Value) -> Value {
        let state = json!({ "running": { "startedAt": "1970-01-01T00:02:00Z" } });
        let container = json!({ "name": "web", "image": "", "imageID": "", "ready": true, "restartCount": 0,
            "state": state });
        json!({ "spec": spec, "status": { "phase": "Running", "startTime": "1970-01-01T00:01:41Z",
            "containerStatuses": [container] } })
    }

    fn spans() -> Arc<[Span]> {
        let span = |name: &str, start: i64, end: i64| Span {
            name: name.into(),
            container: String::new(),
            start: start * SECOND,
            end: end * SECOND,
            detail: String::new(),
        };
        [
            span("image", 102, 105),
            span("image", 104, 106),
            span("container.run", 107, 109),
            span("image", 120, 0),
        ]
        .into()
    }

    fn told(starts: &Starts) -> (u64, u64) {
        (starts.metrics.pod_start_total_duration.count([]), starts.metrics.pod_start_sli_duration.count([]))
    }

    #[test]
    fn a_start_is_told_once_without_pulls_and_init_containers() {
        let mut starts = starts();
        let spec = json!({ "containers": [], "volumes": [{ "name": "a", "emptyDir": {} }] });
        starts.look(&seen(&[("a", json!({ "spec": spec }))]), 101 * SECOND, |_| spans());
        assert_eq!(told(&starts), (0, 0));
        for now in [120, 130] {
            starts.look(&seen(&[("a", up(&spec))]), now * SECOND, |_| spans());
        }
        assert_eq!(told(&starts), (1, 1));
        // Of 20 seconds 4 are pulls, whose times overlap, and 2 init containers.
        assert_eq!(starts.metrics.first_network_pod_start_sli.get([]), Some(14.0));
    }

    #[test]
    fn starts_that_say_nothing_of_the_node_are_left_out() {
        let mut starts = starts();
        let spec = json!({ "containers": [] });
        let claim = json!({ "containers": [],
            "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": "c" } }] });
        let waits = json!({ "spec": spec,
            "status": { "conditions": [{ "type": "PodScheduled", "status": "False" }] } });
        let new = |spec: &Value| json!({ "spec": spec, "status": { "phase": "Pending" } });
        starts.look(&seen(&[("ran", up(&spec)), ("waited", waits), ("claims", new(&claim))]), SECOND, |_| {
            spans()
        });
        let all = [("ran", up(&spec)), ("waited", up(&spec)), ("claims", up(&claim))];
        starts.look(&seen(&all), 120 * SECOND, |_| spans());
        assert_eq!(told(&starts), (1, 0), "one that was there before, one refused once, one with a claim");
        assert_eq!(starts.metrics.first_network_pod_start_sli.get([]), Some(0.0));
        starts.look(&seen(&[]), 121 * SECOND, |_| spans());
        assert!(starts.known.is_empty());
    }
}
