//! A node on a fake API server and a fake runtime: registered, ready, told on change only, and alive
//! whatever else happens.

mod drivers;
mod swap;
mod told;
mod volumes;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gantry_kube_client::fake_apiserver::{FakeApiServer, InjectedFault, RecordedRequest, Wrong};
use gantry_metrics::Metrics;
use gantry_model::clock::FakeClock;
use gantry_model::failure::{Failure, FailureKind};
use gantry_model::shutdown::Shutdown;
use gantry_model::signal::Pressures;
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::devices::Devices;
use super::health;
use super::machine::{Addresses, MachineInfo};
use super::{Settings, World, start};
use crate::attachments::InUse;
use crate::config::eviction::Threshold;
use crate::events::sink;
use crate::runtime::about::{About, Condition, Features, Handler, Health, StoredImage, Version};
use crate::runtime::{Effect, Error};
use crate::volumes::fake::FakeVolumes;

const NODE: &str = "/api/v1/nodes/n1";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1";

#[derive(Debug, Clone)]
pub(super) struct FakeAddresses {
    pub(super) own: Vec<IpAddr>,
    pub(super) named: Vec<IpAddr>,
    pub(super) route: Option<IpAddr>,
}

impl Addresses for FakeAddresses {
    fn problem(&self, ip: IpAddr) -> Option<String> {
        (!self.own.contains(&ip)).then(|| format!("node IP: {ip} not found in the host's network interfaces"))
    }

    fn of_name(&self, _: &str) -> Vec<IpAddr> {
        self.named.clone()
    }

    fn default_route(&self, v6: bool) -> Option<IpAddr> {
        self.route.filter(|ip| ip.is_ipv6() == v6)
    }
}

pub(super) fn settings() -> Settings {
    Settings {
        node_name: "n1".into(),
        hostname: "n1".into(),
        register: true,
        labels: BTreeMap::new(),
        taints: vec![],
        provider_id: String::new(),
        external_cloud: false,
        node_ips: vec![],
        attach_detach: true,
        max_pods: 110,
        pods_per_core: 0,
        system_reserved: BTreeMap::new(),
        kube_reserved: BTreeMap::new(),
        enforce: true,
        evict_memory: Threshold::Bytes(100 << 20),
        evict_storage: Threshold::Share(0.1),
        local_storage: true,
        port: 10250,
        status_every: Duration::from_secs(10),
        report_every: Duration::from_secs(300),
        lease_seconds: 40,
        max_images: 50,
        kubelet_version: "v1.36.3+gantry.0.1.0".into(),
        declared_features: vec![],
        web_sockets: true,
    }
}

pub(super) fn machine() -> MachineInfo {
    MachineInfo {
        cores: 2,
        memory: 4 << 30,
        swap: 0,
        swaps_tmpfs: false,
        ephemeral: 1000,
        huge_pages: BTreeMap::from([(2048, 2 << 21)]),
        devices: Devices::Unknown,
        machine_id: "mid".into(),
        system_uuid: "uuid".into(),
        boot_id: "boot-1".into(),
        kernel: "6.18.0".into(),
        os_image: "Debian".into(),
        architecture: "amd64".into(),
        cgroup_v1: false,
        pids: Some(1000),
        booted_at: 1,
    }
}

/// A runtime that is as the test says; none is one that does not answer.
#[derive(Debug, Clone, Default)]
struct FakeAbout {
    health: Arc<Mutex<Option<Health>>>,
    cidrs: Arc<Mutex<Vec<String>>>,
    /// It takes calls and answers none.
    hangs: Arc<AtomicBool>,
}

impl FakeAbout {
    fn is(&self, health: Option<Health>) {
        *self.health.lock().unwrap_or_else(PoisonError::into_inner) = health;
    }
}

fn well() -> Health {
    let holds = |kind: &str| {
        Some(Condition { kind: kind.into(), holds: true, reason: String::new(), message: String::new() })
    };
    Health {
        runtime: holds("RuntimeReady"),
        network: holds("NetworkReady"),
        handlers: vec![
            Handler { name: "runc".into(), recursive_read_only: true, user_namespaces: true },
            Handler { name: String::new(), recursive_read_only: true, user_namespaces: true },
        ],
        features: Some(Features { supplemental_groups_policy: true, user_namespaces_host_network: false }),
    }
}

fn without_network() -> Health {
    let network = Some(Condition {
        kind: "NetworkReady".into(),
        holds: false,
        reason: "NetworkPluginNotReady".into(),
        message: "Network plugin returns error: cni plugin not initialized".into(),
    });
    Health { network, ..well() }
}

impl About for FakeAbout {
    fn version(&self) -> Effect<'_, Version> {
        Box::pin(async { Ok(Version { name: "containerd".into(), version: "v2.3.7".into() }) })
    }

    fn health(&self) -> Effect<'_, Health> {
        let health = self.health.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let down =
            || Error::Features { source: Failure::new(FailureKind::Unavailable, "connection refused") };
        let hangs = self.hangs.load(Ordering::Relaxed);
        Box::pin(async move {
            if hangs {
                std::future::pending::<()>().await;
            }
            health.ok_or_else(down)
        })
    }

    fn images(&self) -> Effect<'_, Vec<StoredImage>> {
        let image = |name: &str, size| StoredImage {
            digests: vec![format!("{name}@sha256:1")],
            tags: vec![format!("{name}:v1")],
            size,
        };
        let hangs = self.hangs.load(Ordering::Relaxed);
        Box::pin(async move {
            if hangs {
                std::future::pending::<()>().await;
            }
            Ok(vec![image("small", 1), image("large", 2)])
        })
    }

    fn set_pod_cidr<'a>(&'a self, cidr: &'a str) -> Effect<'a, ()> {
        self.cidrs.lock().unwrap_or_else(PoisonError::into_inner).push(cidr.to_owned());
        Box::pin(async { Ok(()) })
    }
}

struct Fixture {
    server: FakeApiServer,
    about: FakeAbout,
    troubles: watch::Sender<Vec<String>>,
    pressures: watch::Sender<Pressures>,
    shutdown: watch::Sender<Shutdown>,
    reported: watch::Receiver<Shutdown>,
    node: watch::Receiver<Option<Arc<Node>>>,
    metrics: Arc<Metrics>,
    volumes: Arc<FakeVolumes>,
    in_use: watch::Sender<InUse>,
    _pods: watch::Sender<Arc<[crate::pod::worker::PodHandle]>>,
}

fn begin(server: &FakeApiServer, settings: Settings, info: MachineInfo, health: Option<Health>) -> Fixture {
    let about = FakeAbout::default();
    about.is(health);
    let clock = Arc::new(FakeClock::new(1_000_000));
    let (recorder, queue) = sink::queue(clock.clone());
    let (pods, pods_seen) = watch::channel(Arc::from([]));
    drop(crate::pod_workers::events::run(Some(server.client()), "n1", queue, pods_seen));
    let (troubles, troubles_seen) = watch::channel(Vec::new());
    let (pressures, pressures_seen) = watch::channel(Pressures::new());
    let (shutdown, shutdown_seen) = watch::channel(Shutdown::Not);
    let (reported_in, reported) = watch::channel(Shutdown::Not);
    let metrics = Arc::new(Metrics::default());
    let volumes = Arc::new(FakeVolumes::default());
    let (in_use, volumes_in_use) = watch::channel(InUse::default());
    volumes.set_foreign(true);
    let world = World {
        client: server.client(),
        lease: server.client(),
        troubled: Arc::new(|| {}),
        about: Arc::new(about.clone()),
        pulse: health::follow(Arc::new(about.clone())),
        machine: info,
        addresses: addresses(),
        volumes: volumes.clone(),
        volumes_in_use,
        recorder,
        clock,
        troubles: troubles_seen,
        pressures: pressures_seen,
        shutdown: shutdown_seen,
        reported: reported_in,
        devices: watch::channel(BTreeMap::new()).1,
        metrics: metrics.clone(),
    };
    let node = start(settings, world);
    let server = server.clone();
    Fixture {
        server,
        about,
        troubles,
        pressures,
        shutdown,
        reported,
        node,
        metrics,
        volumes,
        in_use,
        _pods: pods,
    }
}

fn addresses() -> Arc<FakeAddresses> {
    let own = "10.0.0.5".parse().unwrap();
    Arc::new(FakeAddresses { own: vec![own], named: vec![], route: Some(own) })
}

fn condition(node: &Value, kind: &str) -> Value {
    let all = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
    all.into_iter().find(|condition| condition["type"] == kind).unwrap_or_default()
}

async fn ready(bed: &Fixture, wanted: &str) -> Value {
    bed.server
        .until(&format!("Ready {wanted}"), |server| {
            server.get(NODE).filter(|node| condition(node, "Ready")["status"] == wanted)
        })
        .await
}

fn reasons(server: &FakeApiServer) -> Vec<String> {
    let mut events = server.all("/api/v1/events");
    events
        .sort_by_key(|event| event["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap());
    events.iter().map(|event| event["reason"].as_str().unwrap().to_owned()).collect()
}

fn writes(asked: &[RecordedRequest], path: &str) -> usize {
    asked.iter().filter(|asked| asked.path.contains(path) && asked.method != "GET").count()
}

#[tokio::test(start_paused = true)]
async fn a_node_is_registered_whole_and_ready_at_once() {
    let server = FakeApiServer::default();
    let mut settings = settings();
    settings.labels = BTreeMap::from([("zone".into(), "a".into())]);
    settings.kube_reserved = BTreeMap::from([("cpu".into(), "500m".into()), ("memory".into(), "1Gi".into())]);
    let bed = begin(&server, settings, machine(), Some(well()));
    let node = ready(&bed, "True").await;
    assert_eq!(condition(&node, "Ready")["reason"], "KubeletReady");
    assert!(bed.metrics.node_startup_pre_kubelet.get([]).unwrap() > 0.0, "since the boot");
    assert!(bed.metrics.node_startup.get([]).unwrap() > 0.0, "until it was ready");
    assert_eq!(node["metadata"]["labels"]["kubernetes.io/hostname"], "n1");
    assert_eq!(node["metadata"]["labels"]["zone"], "a");
    assert_eq!(
        node["metadata"]["annotations"]["volumes.kubernetes.io/controller-managed-attach-detach"],
        "true"
    );
    let status = &node["status"];
    let memory = (4_i64 << 30) - (1 << 30) - (100 << 20) - (2 << 21);
    assert_eq!(
        status["capacity"],
        json!({ "cpu": "2", "memory": "4Gi", "pods": "110", "ephemeral-storage": "1k", "hugepages-2Mi": "4Mi" })
    );
    assert_eq!(
        status["allocatable"],
        json!({ "cpu": "1500m", "memory": format!("{}Mi", memory >> 20), "pods": "110",
            "ephemeral-storage": "900", "hugepages-2Mi": "4Mi" })
    );
    assert_eq!(
        status["addresses"],
        json!([{ "type": "InternalIP", "address": "10.0.0.5" }, { "type": "Hostname", "address": "n1" }])
    );
    assert_eq!(status["nodeInfo"]["containerRuntimeVersion"], "containerd://v2.3.7");
    assert_eq!(status["nodeInfo"]["kubeletVersion"], "v1.36.3+gantry.0.1.0");
    assert_eq!(status["nodeInfo"]["kubeProxyVersion"], "");
    assert_eq!(status["daemonEndpoints"]["kubeletEndpoint"]["Port"], 10250);
    assert_eq!(status["images"][0]["names"], json!(["large@sha256:1", "large:v1"]));
    assert_eq!(status["runtimeHandlers"][0]["name"], "", "sorted");
    assert_eq!(status["features"]["supplementalGroupsPolicy"], true);
    let kinds: Vec<&Value> = status["conditions"].as_array().unwrap().iter().map(|c| &c["type"]).collect();
    assert_eq!(kinds, ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"]);
    bed.server.until("events", |server| (reasons(server).len() >= 4).then_some(())).await;
    assert_eq!(
        reasons(&server),
        ["Starting", "NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"]
    );
    let mut seen = bed.node.clone();
    assert!(seen.wait_for(Option::is_some).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_runtime_without_network_is_told_in_upstreams_words_and_the_end_of_it_at_once() {
    let server = FakeApiServer::default();
    let bed = begin(&server, settings(), machine(), Some(without_network()));
    let node = ready(&bed, "False").await;
    assert_eq!(
        condition(&node, "Ready")["message"],
        "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady \
         message:Network plugin returns error: cni plugin not initialized"
    );
    let before = tokio::time::Instant::now();
    bed.about.is(Some(well()));
    ready(&bed, "True").await;
    assert!(before.elapsed() < Duration::from_secs(2), "the fast path: {:?}", before.elapsed());
    bed.server
        .until("NodeReady", |server| reasons(server).contains(&"NodeReady".to_owned()).then_some(()))
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_goes_down_makes_the_node_not_ready() {
    let server = FakeApiServer::default();
    let bed = begin(&server, settings(), machine(), Some(well()));
    let first = ready(&bed, "True").await;
    bed.about.is(None);
    let node = ready(&bed, "False").await;
    assert_eq!(condition(&node, "Ready")["message"], "container runtime is down");
    assert_ne!(condition(&node, "Ready")["lastHeartbeatTime"], Value::Null);
    assert_eq!(
        condition(&node, "MemoryPressure")["lastTransitionTime"],
        condition(&first, "MemoryPressure")["lastTransitionTime"]
    );
    bed.server
        .until("event", |server| reasons(server).contains(&"NodeNotReady".to_owned()).then_some(()))
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_hangs_makes_the_node_not_ready_too() {
    let server = FakeApiServer::default();
    let bed = begin(&server, settings(), machine(), Some(well()));
    ready(&bed, "True").await;
    bed.about.hangs.store(true, Ordering::Relaxed);
    let node = ready(&bed, "False").await;
    assert_eq!(condition(&node, "Ready")["message"], "container runtime is down");
    assert_eq!(node["status"]["images"].as_array().unwrap().len(), 2, "as they were known");
}

#[tokio::test(start_paused = true)]
async fn trap_14_what_stalls_elsewhere_makes_the_node_not_ready() {
    let server = FakeApiServer::default();
    let bed = begin(&server, settings(), machine(), Some(well()));
    ready(&bed, "True").await;
    let stalled = "PLEG is not healthy: pleg was last seen active 3m5s ago; threshold is 3m0s";
    bed.troubles.send_replace(vec![stalled.to_owned()]);
    let node = ready(&bed, "False").await;
    assert_eq!(condition(&node, "Ready")["message"], stalled);
}

#[tokio::test(start_paused = true)]
async fn a_status_that_does_not_change_is_told_every_report_period_only() {
    let server = FakeApiServer::default();
    let bed = begin(&server, settings(), machine(), Some(well()));
    ready(&bed, "True").await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let _ = server.requests();
    tokio::time::sleep(Duration::from_secs(1500)).await;
    let asked = server.requests();
    let patches = writes(&asked, "/nodes/n1");
    assert!((4..=6).contains(&patches), "{patches} patches in five report periods");
    let reads = asked.iter().filter(|asked| asked.path == NODE && asked.method == "GET").count();
    assert_eq!(reads, 0, "the watch tells what the node is");
}

#[tokio::test(start_paused = true)]
async fn what_others_change_of_labels_and_conditions_is_set_right_and_theirs_stays() {
    let server = FakeApiServer::default();
    let bed = begin(&server, settings(), machine(), Some(well()));
    ready(&bed, "True").await;
    server.edit(NODE, |node| {
        node["metadata"]["labels"]["kubernetes.io/os"] = json!("dummyOS");
        node["metadata"]["labels"]["mine"] = json!("stays");
        node["status"]["capacity"]["example.com/dongle"] = json!("4");
        let foreign = json!({ "type": "NetworkUnavailable", "status": "False" });
        node["status"]["conditions"].as_array_mut().unwrap().push(foreign);
    });
    let node = bed
        .server
        .until("the label", |server| {
            server.get(NODE).filter(|node| node["metadata"]["labels"]["kubernetes.io/os"] == "linux")
        })
        .await;
    assert_eq!(node["metadata"]["labels"]["mine"], "stays");
    assert_eq!(condition(&node, "NetworkUnavailable")["status"], "False");
    assert_eq!(node["status"]["allocatable"]["example.com/dongle"], "4");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_there_already_is_taken_up_and_a_reboot_is_told_once() {
    let server = FakeApiServer::default();
    server.put(
        NODE,
        json!({
            "metadata": { "labels": { "kubernetes.io/hostname": "old", "mine": "x" }, "annotations": {} },
            "spec": { "taints": [{ "key": "k", "effect": "NoSchedule" }], "podCIDRs": ["10.1.0.0/24"] },
            "status": { "capacity": { "hugepages-1Gi": "1Gi", "cpu": "9", "example.com/gpu": "2" },
                "allocatable": { "hugepages-1Gi": "1Gi", "example.com/gpu": "2" },
                "nodeInfo": { "bootID": "boot-0", "architecture": "", "containerRuntimeVersion": "", "kernelVersion": "",
                    "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "", "operatingSystem": "", "osImage": "",
                    "systemUUID": "" } },
        }),
    );
    let bed = begin(&server, settings(), machine(), Some(well()));
    let node = ready(&bed, "True").await;
    assert_eq!(node["metadata"]["labels"]["kubernetes.io/hostname"], "n1");
    assert_eq!(node["metadata"]["labels"]["mine"], "x");
    assert_eq!(bed.metrics.node_startup.get([]), Some(0.0), "it is no new node");
    assert_eq!(node["spec"]["taints"][0]["key"], "k", "the spec is not a kubelet's");
    assert_eq!(node["status"]["capacity"].get("hugepages-1Gi"), None);
    assert_eq!(node["status"]["capacity"]["example.com/gpu"], "0");
    assert_eq!(node["status"]["allocatable"]["example.com/gpu"], "0");
    assert_eq!(node["status"]["nodeInfo"]["bootID"], "boot-1");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(reasons(&server).iter().filter(|reason| *reason == "Rebooted").count(), 1);
    assert_eq!(*bed.about.cidrs.lock().unwrap(), ["10.1.0.0/24"]);
}

#[tokio::test(start_paused = true)]
async fn registration_goes_on_until_the_server_is_there() {
    let server = FakeApiServer::default();
    server.set_down(true);
    let bed = begin(&server, settings(), machine(), Some(well()));
    tokio::time::sleep(Duration::from_secs(120)).await;
    server.set_down(false);
    let before = tokio::time::Instant::now();
    ready(&bed, "True").await;
    bed.server.until("the lease", |server| server.get(LEASE)).await;
    assert!(before.elapsed() < Duration::from_secs(15), "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_not_to_be_registered_is_not_made() {
    let server = FakeApiServer::default();
    let bed = begin(&server, Settings { register: false, ..settings() }, machine(), Some(well()));
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(server.get(NODE), None);
    // Whoever makes it has its status told.
    server.put(NODE, json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n1" } }));
    ready(&bed, "True").await;
}

#[tokio::test(start_paused = true)]
async fn a_change_is_told_within_the_update_period() {
    for period in [10, 40] {
        let server = FakeApiServer::default();
        let status_every = Duration::from_secs(period);
        let bed = begin(&server, Settings { status_every, ..settings() }, machine(), Some(well()));
        ready(&bed, "True").await;
        // Past what a new node tells at once.
        tokio::time::sleep(Duration::from_secs(300)).await;
        let begun = tokio::time::Instant::now();
        for _ in 0..5 {
            server.edit(NODE, |node| node["status"]["nodeInfo"]["kubeletVersion"] = json!("v0"));
            let set_right = |server: &FakeApiServer| {
                let node = server.get(NODE)?;
                (node["status"]["nodeInfo"]["kubeletVersion"] != "v0").then_some(())
            };
            bed.server.until("the version", set_right).await;
        }
        let took = begun.elapsed();
        assert!(took > status_every * 4 && took < status_every * 6, "five periods of {period} s: {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn trap_14_a_node_deleted_under_us_is_not_made_again() {
    let server = FakeApiServer::default();
    let bed = begin(&server, settings(), machine(), Some(well()));
    ready(&bed, "True").await;
    server.remove(NODE);
    let _ = server.requests();
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(server.get(NODE), None);
    let asked = server.requests();
    assert_eq!(
        asked.iter().filter(|asked| asked.method == "POST" && asked.path == "/api/v1/nodes").count(),
        0
    );
    assert!(asked.len() < 400, "no hot loop: {} requests", asked.len());
}

#[tokio::test(start_paused = true)]
async fn the_lease_belongs_to_the_node_and_is_renewed_every_quarter() {
    let server = FakeApiServer::default();
    let bed = begin(&server, settings(), machine(), Some(well()));
    ready(&bed, "True").await;
    let lease = bed.server.until("the lease", |server| server.get(LEASE)).await;
    assert_eq!(lease["spec"]["holderIdentity"], "n1");
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 40);
    let owner = &lease["metadata"]["ownerReferences"][0];
    assert_eq!(
        (&owner["kind"], &owner["uid"]),
        (&json!("Node"), &server.get(NODE).unwrap()["metadata"]["uid"])
    );
    let _ = server.requests();
    tokio::time::sleep(Duration::from_secs(120)).await;
    let asked = server.requests();
    let renewals = writes(&asked, "leases");
    assert!((11..=13).contains(&renewals), "{renewals} in two minutes");
    let reads = asked.iter().filter(|asked| asked.path.contains("leases") && asked.method == "GET").count();
    assert_eq!(reads, 0, "a renewal is one request");
}

#[tokio::test(start_paused = true)]
async fn trap_14_a_status_that_hangs_does_not_delay_the_lease() {
    let server = FakeApiServer::default();
    let bed = begin(&server, settings(), machine(), Some(well()));
    ready(&bed, "True").await;
    bed.server.until("the lease", |server| server.get(LEASE)).await;
    let (method, path) = ("PATCH".into(), "/nodes/n1".into());
    server.fault(InjectedFault { method, path, what: Wrong::Hangs, times: 1000 });
    bed.about.is(None);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let _ = server.requests();
    tokio::time::sleep(Duration::from_secs(120)).await;
    let renewals = writes(&server.requests(), "leases");
    assert!((11..=13).contains(&renewals), "{renewals} in two minutes");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_others_wrote_or_deleted_is_renewed_all_the_same() {
    let server = FakeApiServer::default();
    let bed = begin(&server, settings(), machine(), Some(well()));
    ready(&bed, "True").await;
    bed.server.until("the lease", |server| server.get(LEASE)).await;
    server.edit(LEASE, |lease| lease["spec"]["renewTime"] = json!("2020-01-01T00:00:00.000000Z"));
    let renewed = |server: &FakeApiServer| {
        server.get(LEASE).filter(|lease| !lease["spec"]["renewTime"].as_str().unwrap().starts_with("2020"))
    };
    bed.server.until("renewed", renewed).await;
    server.remove(LEASE);
    bed.server.until("made again", |server| server.get(LEASE)).await;
}
