//! Many pods at once on a real control plane: how long until all are ready, how long until all are gone, and what the
//! node asks of the API server for it. Owns the measuring and the numbers; prints nothing and keeps nothing. Called by
//! `cargo xtask bench pods`.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::usage::{NodeUsage, available_memory};
use crate::cluster::audit::{self, AuditedRequest};
use crate::cluster::kubectl::Kubectl;
use crate::cluster::lives::is_ready;
use crate::cluster::network::Outside;
use crate::cluster::{Cluster, ClusterOptions, Join, NODE, images, kubelet, runtime};

/// Pods are made by so many clients at once: one takes longer for all of them than a node that is fast.
const CLIENTS: usize = 4;
const DEADLINE: Duration = Duration::from_secs(300);
/// What is asked of the API server after the last pod is ready: events, and statuses that trail behind.
const TRAIL: Duration = Duration::from_secs(3);

/// What is measured.
#[derive(Debug, Clone)]
pub struct PodsAsked {
    /// How many at once, one round after the other.
    pub sizes: Vec<usize>,
    /// How often each.
    pub rounds: usize,
}

/// One node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeUnderTest {
    /// kubelet + containerd + runc
    Upstream,
    /// Both halves of ours
    Gantry,
    /// The same two in one process
    OneProcess,
}

impl NodeUnderTest {
    /// As it is called in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Upstream => "kubelet + containerd",
            Self::Gantry => "gantry",
            Self::OneProcess => "gantry node",
        }
    }
}

/// A round: so many pods made, ready, deleted, gone.
#[derive(Debug, Clone)]
pub struct PodRound {
    pub pods: usize,
    /// For each pod, from when the first was sent.
    pub ready: Vec<Duration>,
    /// From when the deletion was sent until the last one was gone.
    pub gone: Duration,
    /// Of the node for these pods, by verb and resource.
    pub requests: BTreeMap<String, usize>,
    /// Processor time of the API server.
    pub api_server: Duration,
    /// Processor time of the node, from the first pod's making to the last one's end.
    pub node: Duration,
    /// Memory of the node when all pods were ready, by program: proportional set size in kB.
    pub memory: BTreeMap<String, u64>,
    /// By so many kB `MemAvailable` was less then than before; it may be more.
    pub available: i64,
}

impl PodRound {
    /// When the last one was ready.
    #[must_use]
    pub fn all_ready(&self) -> Duration {
        self.ready.iter().copied().max().unwrap_or_default()
    }
}

/// All rounds on one node, which is alone on the machine for that time.
///
/// # Errors
/// When the cluster does not come up, or a pod is not ready, or not gone, in time.
pub fn pods(node: NodeUnderTest, asked: &PodsAsked) -> Result<Vec<PodRound>> {
    let folder = tempfile::Builder::new().prefix("gc-").tempdir()?;
    let (runtime, kubelet) = match node {
        NodeUnderTest::Upstream => (runtime::RuntimeKind::Containerd, kubelet::KubeletKind::Upstream),
        NodeUnderTest::Gantry => (runtime::RuntimeKind::Gantry, kubelet::KubeletKind::Gantry),
        NodeUnderTest::OneProcess => (runtime::RuntimeKind::Gantry, kubelet::KubeletKind::Node),
    };
    let mut cluster = Cluster::start(ClusterOptions {
        folder: folder.path().to_owned(),
        runtime,
        kubelet: Some(kubelet),
        addons: false,
        number: 0,
        outside: Outside::Closed,
        join: Join::Given,
    })?;
    let usage = NodeUsage::begin(&daemons(&mut cluster)?)?;
    let rounds = every_round(&mut cluster, &usage, asked);
    cluster.end().and(usage.end()).and(rounds)
}

/// The pids of runtime and kubelet.
fn daemons(cluster: &mut Cluster) -> Result<Vec<i32>> {
    let kubelet = cluster.kubelet()?;
    let mut pids = vec![kubelet.process().pid()?.as_raw_nonzero().get()];
    if kubelet.kind() != kubelet::KubeletKind::Node {
        pids.push(cluster.runtime().process().pid()?.as_raw_nonzero().get());
    }
    Ok(pids)
}

fn every_round(cluster: &mut Cluster, usage: &NodeUsage, asked: &PodsAsked) -> Result<Vec<PodRound>> {
    // The image, and what every first pod of a node pays for.
    round(cluster, usage, "warm", 1)?;
    let mut rounds = Vec::new();
    for turn in 0..asked.rounds {
        for pods in &asked.sizes {
            rounds.push(round(cluster, usage, &format!("r{turn}-{pods}"), *pods)?);
        }
    }
    Ok(rounds)
}

fn round(cluster: &mut Cluster, usage: &NodeUsage, namespace: &str, pods: usize) -> Result<PodRound> {
    let kubectl = cluster.kubectl().clone();
    kubectl.run(&["create", "namespace", namespace])?;
    let account = ["get", "serviceaccount", "default", "-n", namespace];
    kubectl.await_value(&account, "{.metadata.name}", DEADLINE, |name| name == "default")?;
    let log = cluster.audit_log();
    let (from, used) = (audit::end(&log)?, api_server_time(cluster)?);
    let (node, available) = (usage.processor_time()?, available_memory()?);
    let watch = Watch::start(&kubectl, namespace)?;
    let begun = Instant::now();
    create(&kubectl, namespace, pods)?;
    let ready = watch.until_all(pods, begun, "ready", |event| is_ready(&event["object"]))?;
    std::thread::sleep(TRAIL);
    let (memory, left) = (usage.memory()?, available_memory()?);
    let begun = Instant::now();
    let delete = ["delete", "pods", "--all", "-n", namespace, "--wait=false"];
    kubectl.run(&delete)?;
    let gone = watch.until_all(pods, begun, "gone", |event| event["type"] == "DELETED")?;
    std::thread::sleep(TRAIL);
    let asked = audit::requests(&log, from, &format!("system:node:{NODE}"))?;
    kubectl.run(&["delete", "namespace", namespace, "--wait=false"])?;
    Ok(PodRound {
        pods,
        ready,
        gone: gone.into_iter().max().unwrap_or_default(),
        requests: count(&asked, namespace),
        api_server: api_server_time(cluster)?.saturating_sub(used),
        node: usage.processor_time()?.saturating_sub(node),
        memory,
        available: available.cast_signed().saturating_sub(left.cast_signed()),
    })
}

fn count(asked: &[AuditedRequest], namespace: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for request in asked.iter().filter(|request| request.namespace == namespace) {
        *counts.entry(format!("{} {}", request.verb, request.resource)).or_default() += 1;
    }
    counts
}

/// Bound to the node: what a scheduler takes is no matter of a node.
fn create(kubectl: &Kubectl, namespace: &str, pods: usize) -> Result<()> {
    let pod = |number: usize| {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": format!("pod-{number}"), "namespace": namespace },
            "spec": {
                "nodeName": NODE,
                "terminationGracePeriodSeconds": 1,
                "containers": [{ "name": "pause", "image": images::PAUSE }],
            },
        })
    };
    let all: Vec<Value> = (0..pods).map(pod).collect();
    let args = ["create", "--validate=false", "-f", "-"];
    std::thread::scope(|scope| {
        let parts = all.chunks(pods.div_ceil(CLIENTS));
        let clients: Vec<_> = parts
            .map(|part| json!({ "apiVersion": "v1", "kind": "List", "items": part }))
            .map(|list| scope.spawn(move || kubectl.feed(&args, &list)))
            .collect();
        for client in clients {
            match client.join() {
                Ok(made) => drop(made?),
                Err(_) => bail!("a client ended early"),
            }
        }
        Ok(())
    })
}

fn api_server_time(cluster: &mut Cluster) -> Result<Duration> {
    let pid = cluster.control_plane("kube-apiserver")?.pid()?.as_raw_nonzero();
    processor_time(Path::new(&format!("/proc/{pid}/stat")))
}

/// User and system time of a process, in which a tick is a hundredth of a second (`proc_pid_stat(5)`, fields 14 and 15).
fn processor_time(stat: &Path) -> Result<Duration> {
    let text = std::fs::read_to_string(stat).with_context(|| stat.display().to_string())?;
    // The name before it may hold anything.
    let fields = text.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Ok(Duration::from_millis(ticks * 10))
}

/// A watch of a namespace's pods, with the time at which each line came.
struct Watch {
    child: Child,
    events: Receiver<(Instant, Value)>,
}

impl Watch {
    fn start(kubectl: &Kubectl, namespace: &str) -> Result<Self> {
        let path = format!(
            "/api/v1/namespaces/{namespace}/pods?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
        );
        let mut child = kubectl.command(&["get", "--raw", &path]).stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().context("kubectl's stdout")?;
        let (to, events) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let at = Instant::now();
                // Its end is told by the channel's.
                let Ok(event) = serde_json::from_str(&line) else { return };
                if to.send((at, event)).is_err() {
                    return;
                }
            }
        });
        let watch = Self { child, events };
        // It says so once it has told all that there was.
        let (_, first) = watch.next(Instant::now() + DEADLINE)?;
        ensure!(first["type"] == "BOOKMARK", "the watch began with {first}");
        Ok(watch)
    }

    fn next(&self, deadline: Instant) -> Result<(Instant, Value)> {
        match self.events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(event) => Ok(event),
            Err(RecvTimeoutError::Timeout) => bail!("the watch tells nothing any more"),
            Err(RecvTimeoutError::Disconnected) => bail!("the watch has ended"),
        }
    }

    /// When each pod was first so, from `begun` on, until so many were.
    fn until_all(
        &self,
        pods: usize,
        begun: Instant,
        what: &str,
        is_so: impl Fn(&Value) -> bool,
    ) -> Result<Vec<Duration>> {
        let mut found: BTreeMap<String, Duration> = BTreeMap::new();
        while found.len() < pods {
            let next = self.next(begun + DEADLINE);
            let (at, event) = next.with_context(|| format!("{} of {pods} pods are {what}", found.len()))?;
            if is_so(&event) {
                let name = event["object"]["metadata"]["name"].as_str().unwrap_or_default();
                found.entry(name.to_owned()).or_insert(at.saturating_duration_since(begun));
            }
        }
        Ok(found.into_values().collect())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processs_time_is_that_of_user_and_system() {
        let folder = tempfile::tempdir().unwrap();
        let stat = folder.path().join("stat");
        std::fs::write(&stat, "7 (a ) b) S 1 7 7 0 -1 4194560 1 2 3 4 150 25 9 9 20 0 1 0 5 6 7\n").unwrap();
        assert_eq!(processor_time(&stat).unwrap(), Duration::from_millis(1750));
    }
}
