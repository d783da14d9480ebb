//! Holds all pods together to what the node can give them. Owns when it is tried and the events about
//! it; never decides what one pod may use. Started by the kubelet's wiring, with or without an API
//! server.

#![expect(clippy::disallowed_methods, reason = "the reserved cgroups are held as long as the kubelet lives")]

use std::sync::Arc;
use std::time::Duration;

use gantry_metrics::Metrics;
use gantry_model::cgroup::Reserved;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::machine::MachineInfo;
use super::{Settings, compose};
use crate::cgroups::Cgroups;
use crate::events::sink::Recorder;
use crate::events::{Kind, NodeNote};

/// Pods may use more than they are to be held to from now on; some will end.
const AGAIN: Duration = Duration::from_secs(60);

/// What it takes.
#[derive(Debug)]
pub(crate) struct Holding {
    /// Where.
    pub cgroups: Arc<dyn Cgroups>,
    /// cgroupRoot: for the words of a failure.
    pub root: String,
    /// For events of the node.
    pub recorder: Recorder,
    /// Counts the writes.
    pub metrics: Arc<Metrics>,
}

/// A cgroup of daemons that is held to what is reserved for them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReservedCgroup {
    /// `system` or `kube`.
    pub whose: &'static str,
    /// As the configuration names it.
    pub name: String,
    /// Only what can be shared out when it is short.
    pub compressible: bool,
    /// To what; none where nothing at all is reserved.
    pub to: Option<Reserved>,
}

impl ReservedCgroup {
    fn failure(&self, error: &crate::cgroups::Error) -> String {
        let mut whose = self.whose.to_owned();
        whose.get_mut(..1).into_iter().for_each(str::make_ascii_uppercase);
        let kind = if self.compressible { "Reserved Compressible" } else { "Reserved" };
        format!("Failed to enforce {whose} {kind} Cgroup Limits on {:?}: {error}", self.name)
    }
}

/// Holds daemons to what is reserved for them, one cgroup after the other.
///
/// # Errors
/// The first that cannot be held, in upstream's words: the kubelet does not start then.
pub(crate) async fn reserve(all: &[ReservedCgroup], holding: &Holding) -> Result<(), String> {
    let Holding { cgroups, recorder, metrics, .. } = holding;
    for one in all {
        let begun = Instant::now();
        let held = cgroups.enforce(&one.name, one.to).await;
        metrics.cgroup_manager_duration.took(["update"], begun.elapsed());
        if let Err(error) = held {
            let message = one.failure(&error);
            let (kind, reason) = (Kind::Warning, "FailedNodeAllocatableEnforcement");
            recorder.node(NodeNote { kind, reason, message: message.clone() });
            return Err(message);
        }
        let message = format!("Updated limits on {} reserved cgroup {}", one.whose, one.name);
        recorder.node(NodeNote { kind: Kind::Normal, reason: "NodeAllocatableEnforced", message });
    }
    Ok(())
}

/// Until it has worked.
#[must_use]
pub(crate) fn start(settings: &Settings, machine: &MachineInfo, holding: Holding) -> JoinHandle<()> {
    let all = compose::reserved_resources(settings, machine);
    let Holding { cgroups, root, recorder, metrics } = holding;
    tokio::spawn(async move {
        loop {
            let begun = Instant::now();
            let held = cgroups.hold(&all).await;
            metrics.cgroup_manager_duration.took(["update"], begun.elapsed());
            let Err(error) = held else { break };
            let path: Vec<&str> =
                root.split('/').filter(|part| !part.is_empty()).chain(["kubepods"]).collect();
            let message = format!("Failed to update Node Allocatable Limits {}: {error}", in_go(&path));
            tracing::warn!(message);
            let (kind, reason) = (Kind::Warning, "FailedNodeAllocatableEnforcement");
            recorder.node(NodeNote { kind, reason, message });
            tokio::time::sleep(AGAIN).await;
        }
        let message = "Updated Node Allocatable limit across pods".to_owned();
        recorder.node(NodeNote { kind: Kind::Normal, reason: "NodeAllocatableEnforced", message });
    })
}

/// As Go prints a list of texts by %q.
fn in_go(path: &[&str]) -> String {
    let parts: Vec<String> = path.iter().map(|part| format!("{part:?}")).collect();
    format!("[{}]", parts.join(" "))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use gantry_kube_client::fake_apiserver::FakeApiServer;
    use gantry_model::cgroup::Together;
    use gantry_model::clock::FakeClock;
    use tokio::sync::watch;

    use super::super::tests::{machine, settings};
    use super::*;
    use crate::cgroups::fake::FakeCgroups;
    use crate::events::sink;

    #[test]
    fn pods_are_held_to_what_is_not_reserved_or_to_all_there_is() {
        let mut settings = settings();
        let of = |text: &[(&str, &str)]| -> BTreeMap<String, String> {
            text.iter().map(|(name, amount)| ((*name).to_owned(), (*amount).to_owned())).collect()
        };
        settings.kube_reserved = of(&[("cpu", "500m"), ("memory", "1Gi")]);
        settings.system_reserved = of(&[("memory", "1Gi"), ("pid", "100")]);
        let huge_pages = machine().huge_pages;
        settings.enforce = true;
        let held =
            Together { cpu: 1500, memory: Some(2 << 30), pids: Some(900), huge_pages: huge_pages.clone() };
        assert_eq!(compose::reserved_resources(&settings, &machine()), held);
        settings.enforce = false;
        let all = Together { cpu: 2000, memory: Some(4 << 30), pids: Some(1000), huge_pages };
        assert_eq!(compose::reserved_resources(&settings, &machine()), all);
    }

    #[tokio::test(start_paused = true)]
    async fn daemons_are_held_to_what_is_reserved_for_them_or_the_kubelet_does_not_start() {
        let server = FakeApiServer::default();
        let (recorder, queue) = sink::queue(Arc::new(FakeClock::new(1_700_000_000)));
        let (_pods, pods) = watch::channel(Arc::from([]));
        drop(crate::pod_workers::events::run(Some(server.client()), "n1", queue, pods));
        let cgroups = Arc::new(FakeCgroups::default());
        let metrics = Arc::new(Metrics::default());
        let holding = Holding { cgroups: cgroups.clone(), root: "/".to_owned(), recorder, metrics };
        let of = |whose, name: &str, compressible| ReservedCgroup {
            whose,
            name: name.to_owned(),
            compressible,
            to: Some(Reserved { cpu: Some(500), ..Reserved::default() }),
        };
        let all = [of("system", "/system.slice", false), of("kube", "/kube.slice", true)];
        reserve(&all, &holding).await.unwrap();
        let names: Vec<String> = cgroups.reserved().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["/system.slice", "/kube.slice"]);
        let told = |message: &'static str| {
            move |server: &FakeApiServer| {
                server.all("/api/v1/events").into_iter().find(|event| event["message"] == message)
            }
        };
        let done = server.until("told", told("Updated limits on kube reserved cgroup /kube.slice")).await;
        assert_eq!(done["reason"], "NodeAllocatableEnforced");
        cgroups.fail(Some("it is gone"));
        assert_eq!(
            reserve(&all, &holding).await.unwrap_err(),
            "Failed to enforce System Reserved Cgroup Limits on \"/system.slice\": it is gone"
        );
        assert_eq!(
            reserve(&all[1..], &holding).await.unwrap_err(),
            "Failed to enforce Kube Reserved Compressible Cgroup Limits on \"/kube.slice\": it is gone"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_tried_until_it_works_and_told_both_times() {
        let server = FakeApiServer::default();
        let (recorder, queue) = sink::queue(Arc::new(FakeClock::new(1_700_000_000)));
        let (_pods, pods) = watch::channel(Arc::from([]));
        drop(crate::pod_workers::events::run(Some(server.client()), "n1", queue, pods));
        let cgroups = Arc::new(FakeCgroups::default());
        cgroups.fail(Some("write \"7\" to memory.limit_in_bytes: busy"));
        let metrics = Arc::new(Metrics::default());
        let (root, metrics_in) = ("/node".to_owned(), metrics.clone());
        let holding = Holding { cgroups: cgroups.clone(), root, recorder, metrics: metrics_in };
        let task = start(&settings(), &machine(), holding);
        let told = |reason: &'static str| {
            move |server: &FakeApiServer| {
                server.all("/api/v1/events").into_iter().find(|event| event["reason"] == reason)
            }
        };
        let failed = server.until("a failure", told("FailedNodeAllocatableEnforcement")).await;
        assert_eq!(
            failed["message"],
            "Failed to update Node Allocatable Limits [\"node\" \"kubepods\"]: write \"7\" to memory.limit_in_bytes: busy"
        );
        assert_eq!((failed["type"].as_str(), cgroups.all()), (Some("Warning"), None));
        cgroups.fail(None);
        let done = server.until("success", told("NodeAllocatableEnforced")).await;
        assert_eq!(done["message"], "Updated Node Allocatable limit across pods");
        assert_eq!(cgroups.all(), Some(compose::reserved_resources(&settings(), &machine())));
        task.await.unwrap();
        assert_eq!(metrics.cgroup_manager_duration.count(["update"]), 2);
    }
}
