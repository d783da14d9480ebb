//! Many pods at once on a real control plane: how long until all are ready, how long until all are gone, and what the
//! node asks of the API server for it. Owns the rounds and the numbers; prints nothing and keeps nothing. What pods look
//! like, what is watched, and what is done to a node at rest, are in the files beside. Called by `cargo xtask bench pods`.

mod floor;
pub mod shape;
pub mod steady;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use self::floor::NullKubelet;
use self::shape::PodShape;
use self::steady::IdleNode;
use super::traffic::{Connections, Traffic};
use super::usage::{NodeUsage, available_memory, processor_time_of};
use super::watch::{DEADLINE, Watch};
use crate::cluster::audit::{self, AuditedRequest};
use crate::cluster::kubectl::Kubectl;
use crate::cluster::lives::is_ready;
use crate::cluster::network::Outside;
use crate::cluster::{Cluster, ClusterOptions, Join, NODE, kubelet, runtime};

/// Pods are made by so many clients at once: one takes longer for all of them than a node that is fast.
const CLIENTS: usize = 4;
/// What is asked of the API server after the last pod is ready: events, and statuses that trail behind.
pub(super) const TRAIL: Duration = Duration::from_secs(3);
/// Over so long what crashes is measured.
pub const STORM: Duration = Duration::from_secs(60);
/// More pods than a bench makes: a node takes 110 by itself.
const SPARE: usize = 20;
/// The namespace of a node's first pod, which is not counted.
const WARM: &str = "warm";

/// What is measured.
#[derive(Debug, Clone)]
pub struct PodsAsked {
    /// How many at once, one round after the other.
    pub sizes: Vec<usize>,
    /// How often each.
    pub rounds: usize,
    pub shape: PodShape,
    /// `kubeAPIQPS` and `kubeAPIBurst`; the kubelet's own without.
    pub qps: Option<u32>,
    /// For so long nothing happens once all are ready, and the node's use is measured.
    pub idle: Option<Duration>,
    /// Whether the kubelet is killed then and started again.
    pub kill: bool,
}

impl PodsAsked {
    fn settings(&self) -> serde_json::Map<String, Value> {
        let most = self.sizes.iter().max().copied().unwrap_or_default();
        let limits = self.qps.map(|qps| [("kubeAPIQPS", json!(qps)), ("kubeAPIBurst", json!(qps))]);
        let room = ("maxPods", json!((most + SPARE).max(110)));
        let all = limits.into_iter().flatten().chain([room]);
        all.map(|(field, value)| (field.to_owned(), value)).collect()
    }
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
    /// A client that tells what a pod's life needs, and runs nothing
    Null,
}

impl NodeUnderTest {
    /// As it is called in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Upstream => "kubelet + containerd",
            Self::Gantry => "gantry",
            Self::OneProcess => "gantry node",
            Self::Null => "null kubelet",
        }
    }
}

/// A round: so many pods made, ready, deleted, gone.
#[derive(Debug, Clone, Default)]
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
    /// While nothing happened; only where it was asked for.
    pub idle: Option<IdleNode>,
    /// Between the kubelet and the API server, from the first pod's making to the last one's end, all of an idle time with
    /// it.
    pub traffic: Traffic,
    /// From the kubelet's kill until the next one had all pods.
    pub adoption: Option<Duration>,
    /// Of containers, until measuring ended.
    pub restarts: u64,
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
        NodeUnderTest::Upstream => (runtime::RuntimeKind::Containerd, Some(kubelet::KubeletKind::Upstream)),
        NodeUnderTest::Gantry => (runtime::RuntimeKind::Gantry, Some(kubelet::KubeletKind::Gantry)),
        NodeUnderTest::OneProcess => (runtime::RuntimeKind::Gantry, Some(kubelet::KubeletKind::Node)),
        NodeUnderTest::Null => (runtime::RuntimeKind::Gantry, None),
    };
    let mut cluster = Cluster::start(ClusterOptions {
        folder: folder.path().to_owned(),
        runtime,
        kubelet,
        addons: false,
        number: 0,
        outside: Outside::Closed,
        join: Join::Given,
        settings: asked.settings(),
    })?;
    let pids: Vec<i32> = match node {
        NodeUnderTest::Null => Vec::new(),
        _ => daemons(&mut cluster)?.into_iter().map(|(_, pid)| pid).collect(),
    };
    let usage = NodeUsage::begin(&pids)?;
    let rounds = match node {
        NodeUnderTest::Null => at_least(&mut cluster, &usage, asked),
        _ => every_round(&mut cluster, &usage, asked),
    };
    cluster.end().and(usage.end()).and(rounds)
}

/// The rounds of the null kubelet: what no kubelet can do without.
fn at_least(cluster: &mut Cluster, usage: &NodeUsage, asked: &PodsAsked) -> Result<Vec<PodRound>> {
    let kubelet = NullKubelet::start(cluster.folder(), &cluster.server())?;
    let plain = PodsAsked { shape: PodShape::Plain, idle: None, kill: false, ..asked.clone() };
    let rounds = every_round(cluster, usage, &plain);
    kubelet.end().and(rounds)
}

/// Name and pid of each.
fn daemons(cluster: &mut Cluster) -> Result<Vec<(&'static str, i32)>> {
    let kubelet = cluster.kubelet()?;
    let pid = kubelet.process().pid()?.as_raw_nonzero().get();
    if kubelet.kind() == kubelet::KubeletKind::Node {
        return Ok(vec![("kubelet and runtime", pid)]);
    }
    let runtime = cluster.runtime().process().pid()?.as_raw_nonzero().get();
    Ok(vec![("kubelet", pid), ("runtime", runtime)])
}

fn every_round(cluster: &mut Cluster, usage: &NodeUsage, asked: &PodsAsked) -> Result<Vec<PodRound>> {
    // The image, and what every first pod of a node pays for.
    let warm = PodsAsked { idle: None, kill: false, ..asked.clone() };
    round(cluster, usage, WARM, 1, &warm)?;
    let mut rounds = Vec::new();
    for turn in 0..asked.rounds {
        for pods in &asked.sizes {
            rounds.push(round(cluster, usage, &format!("r{turn}-{pods}"), *pods, asked)?);
        }
    }
    Ok(rounds)
}

/// What counts on, from when a round begins.
struct Meter<'a> {
    usage: &'a NodeUsage,
    log: u64,
    api_server: Duration,
    node: Duration,
    connections: Connections,
}

impl<'a> Meter<'a> {
    fn begin(cluster: &mut Cluster, usage: &'a NodeUsage) -> Result<Self> {
        Ok(Self {
            usage,
            log: audit::end(&cluster.audit_log())?,
            api_server: api_server_time(cluster)?,
            node: usage.processor_time()?,
            connections: connections(cluster)?,
        })
    }

    fn read(&self, cluster: &mut Cluster, namespace: &str, round: &mut PodRound) -> Result<()> {
        let asked = audit::requests(&cluster.audit_log(), self.log, &format!("system:node:{NODE}"))?;
        round.requests = count(&asked, namespace);
        round.api_server = api_server_time(cluster)?.saturating_sub(self.api_server);
        round.node = self.usage.processor_time()?.saturating_sub(self.node);
        round.traffic = connections(cluster)?.since(&self.connections);
        Ok(())
    }
}

fn round(
    cluster: &mut Cluster,
    usage: &NodeUsage,
    namespace: &str,
    pods: usize,
    asked: &PodsAsked,
) -> Result<PodRound> {
    let kubectl = cluster.kubectl().clone();
    prepare(&kubectl, namespace, asked.shape)?;
    let mut round = PodRound { pods, ..PodRound::default() };
    let (meter, available) = (Meter::begin(cluster, usage)?, available_memory()?);
    let watch = Watch::start(&kubectl, namespace)?;
    let begun = Instant::now();
    let all: Vec<Value> = (0..pods).map(|number| asked.shape.pod(namespace, number, NODE)).collect();
    feed_at_once(&kubectl, &all)?;
    if asked.shape == PodShape::Crash {
        let storm = if namespace == WARM { TRAIL } else { STORM };
        std::thread::sleep(storm.saturating_sub(begun.elapsed()));
        meter.read(cluster, namespace, &mut round)?;
        round.restarts = restarts(&kubectl, namespace)?;
    } else {
        round.ready = watch.until_all(pods, begun, "ready", |event| is_ready(&event["object"]))?;
        std::thread::sleep(TRAIL);
    }
    round.memory = usage.memory()?;
    round.available = available.cast_signed().saturating_sub(available_memory()?.cast_signed());
    rest(cluster, usage, namespace, asked, &mut round)?;
    let begun = Instant::now();
    // One request, where kubectl's own limit would count.
    kubectl.run(&["delete", "--raw", &format!("/api/v1/namespaces/{namespace}/pods")])?;
    let gone = watch.until_all(pods, begun, "gone", |event| event["type"] == "DELETED")?;
    round.gone = gone.into_iter().max().unwrap_or_default();
    std::thread::sleep(TRAIL);
    if asked.shape != PodShape::Crash {
        meter.read(cluster, namespace, &mut round)?;
    }
    kubectl.run(&["delete", "namespace", namespace, "--wait=false"])?;
    Ok(round)
}

/// What is measured of a node whose pods all run.
fn rest(
    cluster: &mut Cluster,
    usage: &NodeUsage,
    namespace: &str,
    asked: &PodsAsked,
    round: &mut PodRound,
) -> Result<()> {
    if let Some(time) = asked.idle {
        round.idle = Some(steady::idle(cluster, usage, time)?);
    }
    if asked.kill {
        round.adoption = steady::adoption(cluster, usage, namespace, round.pods)?;
    }
    Ok(())
}

/// The namespace, and what pods refer to in it.
fn prepare(kubectl: &Kubectl, namespace: &str, shape: PodShape) -> Result<()> {
    kubectl.run(&["create", "namespace", namespace])?;
    let account = ["get", "serviceaccount", "default", "-n", namespace];
    kubectl.await_value(&account, "{.metadata.name}", DEADLINE, |name| name == "default")?;
    let objects = shape.objects(namespace);
    if !objects.is_null() {
        kubectl.apply(&objects)?;
    }
    Ok(())
}

fn restarts(kubectl: &Kubectl, namespace: &str) -> Result<u64> {
    let list = kubectl.json(&["get", "pods", "-n", namespace])?;
    let of = |pod: &Value| pod["status"]["containerStatuses"][0]["restartCount"].as_u64().unwrap_or_default();
    Ok(list["items"].as_array().into_iter().flatten().map(of).sum())
}

fn count(asked: &[AuditedRequest], namespace: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for request in asked.iter().filter(|request| request.namespace == namespace) {
        *counts.entry(format!("{} {}", request.verb, request.resource)).or_default() += 1;
    }
    counts
}

/// Makes objects by several clients.
pub(super) fn feed_at_once(kubectl: &Kubectl, all: &[Value]) -> Result<()> {
    let args = ["create", "--validate=false", "-f", "-"];
    std::thread::scope(|scope| {
        let parts = all.chunks(all.len().div_ceil(CLIENTS).max(1));
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

/// Of the kubelet to the API server. None of the null kubelet's.
fn connections(cluster: &mut Cluster) -> Result<Connections> {
    let server = cluster.server();
    let port = server.rsplit(':').next().and_then(|port| port.parse().ok());
    let port = port.with_context(|| format!("{server} has no port"))?;
    if cluster.kubelet().is_err() {
        return Ok(Connections::default());
    }
    let kubelet = daemons(cluster)?.first().map(|(_, pid)| Connections::read(*pid, port));
    kubelet.unwrap_or_else(|| Ok(Connections::default()))
}

/// Processor time of the API server until now.
pub(super) fn api_server_time(cluster: &mut Cluster) -> Result<Duration> {
    processor_time_of(cluster.control_plane("kube-apiserver")?.pid()?.as_raw_nonzero().get())
}
