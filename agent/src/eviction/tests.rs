//! Whole evictions on fakes and paused time: who goes, what is told, what is waited for. Traps of upstream's eviction
//! by the number of their issue.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use gantry_kube_client::fake_apiserver::FakeApiServer;
use gantry_kube_client::identity::client::RequestPace;
use gantry_metrics::Metrics;
use gantry_model::clock::FakeClock;
use gantry_model::pod::PodUid;
use gantry_model::signal::{Pressure, Pressures, Signal};
use k8s_openapi::api::core::v1 as api;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::observe::Gauge;
use super::run::{EVERY, Evictor, World};
use crate::config::eviction::{self, policy};
use crate::config::fields::KubeletConfiguration;
use crate::config::{self, Host, Order};
use crate::events::sink;
use crate::gc::StoredImage;
use crate::gc::fake::FakeKeeper;
use crate::gc::images::{self, Collector};
use crate::logs::dir::LogDir;
use crate::pod::run::Deps;
use crate::pod::tests::deps;
use crate::pod_workers::{PodWorkers, events};
use crate::runtime::fake::{FakeRuntime, Script};
use crate::static_pods::choice::StaticPods;
use crate::{pod_manager, pod_source, status};
use gantry_model::drain;
use gantry_model::observation::{ContainerUse, Observation, PodUse, Reading, Usage, Used};

const MIB: i64 = 1 << 20;

/// A machine whose use the test decides; what it says may follow from what was done.
#[derive(Debug, Default)]
struct Scale {
    look: Mutex<Observation>,
    usage: Mutex<Usage>,
    looks: Mutex<usize>,
    keeper: Arc<FakeKeeper>,
    /// Room of the disk once an image was removed.
    freed: Mutex<Option<i64>>,
    /// Inodes once a container was removed.
    emptied: Mutex<Option<(FakeRuntime, i64)>>,
    /// Of what there is enough again, once so many pods were to go.
    relief: Mutex<Option<(Signal, usize)>>,
    victims: Mutex<usize>,
}

impl Scale {
    fn left(&self, signal: Signal, available: i64, capacity: i64) {
        let reading = Reading { available, capacity, at: 0 };
        self.look.lock().unwrap().readings.insert(signal, reading);
    }

    /// Too little, until so many pods have gone.
    fn short(&self, signal: Signal, victims: usize) {
        self.left(signal, 50 * MIB, 2000 * MIB);
        *self.relief.lock().unwrap() = Some((signal, victims));
    }

    fn uses(&self, pod: &Value, memory: i64) {
        let memory = u64::try_from(memory).unwrap();
        let container = ContainerUse { name: "web".into(), memory: Some(memory), ..ContainerUse::default() };
        let used = PodUse { memory, containers: vec![container], ..PodUse::default() };
        self.usage.lock().unwrap().insert(uid(pod), used);
    }

    fn fills(&self, pod: &Value, bytes: u64) {
        let logs = Some(Used { bytes, inodes: 1 });
        let layer = Some(Used::default());
        let container = ContainerUse { name: "web".into(), logs, layer, ..ContainerUse::default() };
        let used = PodUse { containers: vec![container], ..PodUse::default() };
        self.usage.lock().unwrap().insert(uid(pod), used);
    }

    fn fills_inodes(&self, pod: &Value, inodes: u64) {
        let layer = Some(Used { bytes: 4096, inodes });
        let logs = Some(Used::default());
        let container = ContainerUse { name: "web".into(), logs, layer, ..ContainerUse::default() };
        let used = PodUse { containers: vec![container], ..PodUse::default() };
        self.usage.lock().unwrap().insert(uid(pod), used);
    }

    fn fills_volume(&self, pod: &Value, name: &str, bytes: u64) {
        let volumes = [(name.to_owned(), Used { bytes, inodes: 1 })].into();
        self.usage.lock().unwrap().insert(uid(pod), PodUse { volumes, ..PodUse::default() });
    }
}

impl Gauge for Scale {
    fn look(&self) -> BoxFuture<'_, Result<Observation, String>> {
        *self.looks.lock().unwrap() += 1;
        if let Some((signal, victims)) = *self.relief.lock().unwrap()
            && *self.victims.lock().unwrap() >= victims
        {
            self.left(signal, 1000 * MIB, 2000 * MIB);
        }
        if let Some(freed) = *self.freed.lock().unwrap()
            && !self.keeper.removed().is_empty()
        {
            self.left(Signal::NodeFs, freed, 2000 * MIB);
        }
        if let Some((runtime, inodes)) = &*self.emptied.lock().unwrap()
            && runtime.count("remove ") > 0
        {
            self.left(Signal::NodeFsInodes, *inodes, 40_000);
        }
        std::future::ready(Ok(self.look.lock().unwrap().clone())).boxed()
    }

    fn usage(&self) -> BoxFuture<'_, Result<Usage, String>> {
        *self.victims.lock().unwrap() += 1;
        std::future::ready(Ok(self.usage.lock().unwrap().clone())).boxed()
    }
}

fn uid(pod: &Value) -> PodUid {
    PodUid::parse(pod["metadata"]["uid"].as_str().unwrap()).unwrap()
}

fn path(name: &str) -> String {
    format!("/api/v1/namespaces/default/pods/{name}")
}

/// A node with an API server.
struct EvictionFixture {
    server: FakeApiServer,
    runtime: FakeRuntime,
    clock: Arc<FakeClock>,
    scale: Arc<Scale>,
    metrics: Arc<Metrics>,
    pressures: watch::Sender<Pressures>,
    found: watch::Sender<StaticPods>,
    folder: tempfile::TempDir,
}

impl EvictionFixture {
    fn new() -> Self {
        let image = |id: &str| StoredImage { id: id.into(), ..StoredImage::default() };
        let keeper = Arc::new(FakeKeeper::storing(vec![image("unused")]));
        let scale = Arc::new(Scale { keeper, ..Scale::default() });
        scale.left(Signal::Memory, 1000 * MIB, 2000 * MIB);
        scale.left(Signal::NodeFs, 1000 * MIB, 2000 * MIB);
        Self {
            server: FakeApiServer::default(),
            runtime: FakeRuntime::new(&["reg/img:v1"]),
            clock: Arc::new(FakeClock::new(1_800_000_000)),
            scale,
            metrics: Arc::default(),
            pressures: watch::channel(Pressures::new()).0,
            found: watch::channel(StaticPods { read: true, ..StaticPods::default() }).0,
            folder: tempfile::tempdir().unwrap(),
        }
    }

    /// A kubelet's loops; dropping them is its death.
    fn kubelet(&self, config: &KubeletConfiguration) -> JoinSet<()> {
        let logs = Arc::new(LogDir::new(self.folder.path().to_owned()));
        let deps = Deps { metrics: self.metrics.clone(), ..deps(&self.runtime, logs, self.clock.clone()) };
        let (recorder, queue) = sink::queue(self.clock.clone());
        let mut agent = PodWorkers::start(Vec::new(), deps);
        agent.watch_pressures(self.pressures.subscribe());
        let pods = agent.watch_pods();
        let seen = pod_source::follow(self.server.client(), "n1");
        let (statics, statics_seen) = watch::channel(crate::status::Statics::default());
        let node: api::Node = serde_json::from_value(json!({ "metadata": { "name": "n1" } })).unwrap();
        let (_, node) = watch::channel(Some(Arc::new(node)));
        let (_, telling) = status::publish(status::StatusSources {
            client: Some(self.server.client()),
            pace: RequestPace::default(),
            seen: seen.clone(),
            pods: pods.clone(),
            statics: statics_seen,
            form: status::convert::status,
            metrics: Arc::default(),
        });
        let settings = images::Settings {
            high_percent: 100,
            low_percent: 80,
            min_age: Duration::ZERO,
            max_age: Duration::ZERO,
        };
        let collector = Collector::new(settings, self.scale.keeper.clone(), self.clock.clone());
        let world = World {
            gauge: self.scale.clone(),
            pods: pods.clone(),
            images: collector.reclaimer(),
            recorder,
            metrics: self.metrics.clone(),
            clock: self.clock.clone(),
            pressures: self.pressures.clone(),
        };
        let evictor = Evictor::new(policy(config).unwrap(), world);
        let mut tasks = JoinSet::new();
        let (trigger, drain) = drain::token();
        tasks.spawn(collector.run(drain.clone(), drop));
        tasks.spawn(evictor.run(drain));
        let posting = events::run(Some(self.server.client()), "n1", queue, pods);
        let sources = pod_manager::PodSources { seen: Some(seen), node, found: Some(self.found.subscribe()) };
        tasks.spawn(pod_manager::run(agent, sources, pod_manager::Listeners::of_test(statics)));
        tasks.spawn(async move {
            let _trigger = trigger;
            let _ended = tokio::join!(telling, posting);
        });
        tasks
    }

    fn wants(&self, name: &str, priority: i32) -> Value {
        self.wants_with(name, priority, &json!({ "requests": { "memory": "100Mi" } }), &json!([]))
    }

    fn wants_with(&self, name: &str, priority: i32, resources: &Value, volumes: &Value) -> Value {
        let container = json!({ "name": "web", "image": "reg/img:v1", "imagePullPolicy": "IfNotPresent",
            "resources": resources });
        let spec = json!({ "nodeName": "n1", "priority": priority, "terminationGracePeriodSeconds": 60,
            "containers": [container], "volumes": volumes });
        self.server.put(&path(name), json!({ "metadata": { "generation": 1 }, "spec": spec }))
    }

    async fn phase(&self, name: &str, phase: &str) -> Value {
        let of = |pod: &Value| pod["status"]["phase"] == phase;
        self.server.until(&format!("{name} {phase}"), |server| server.get(&path(name)).filter(of)).await
    }

    fn is(&self, name: &str) -> Value {
        self.server.get(&path(name)).unwrap()["status"]["phase"].clone()
    }

    async fn event(&self, reason: &str) -> Value {
        let of =
            |server: &FakeApiServer| server.all("/api/v1/events").into_iter().find(|e| e["reason"] == reason);
        self.server.until(reason, of).await
    }
}

fn hard(hard: &str) -> KubeletConfiguration {
    let pair = |pair: &str| pair.split_once('<').map(|(k, v)| (k.to_owned(), v.to_owned()));
    KubeletConfiguration {
        eviction_hard: hard.split(',').filter_map(pair).collect(),
        eviction_pressure_transition_period: gantry_model::go_duration::Span::seconds(60),
        ..KubeletConfiguration::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_short_of_memory_ends_one_pod_and_says_why_in_upstreams_words() {
    let machine = EvictionFixture::new();
    let _kubelet = machine.kubelet(&hard("memory.available<100Mi"));
    let (quiet, greedy) = (machine.wants("quiet", 0), machine.wants("greedy", 0));
    machine.scale.uses(&quiet, 90 * MIB);
    machine.scale.uses(&greedy, 300 * MIB);
    for name in ["quiet", "greedy"] {
        machine.phase(name, "Running").await;
    }
    machine.scale.short(Signal::Memory, 1);
    let ended = machine.phase("greedy", "Failed").await;
    let message = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. Container web was \
                   using 300Mi, request is 100Mi, has larger consumption of memory. ";
    assert_eq!(
        (&ended["status"]["reason"], &ended["status"]["message"]),
        (&json!("Evicted"), &json!(message))
    );
    let conditions = ended["status"]["conditions"].as_array().unwrap();
    let target = conditions.iter().find(|condition| condition["type"] == "DisruptionTarget").unwrap();
    assert_eq!((&target["reason"], &target["message"]), (&json!("TerminationByKubelet"), &json!(message)));
    let event = machine.event("Evicted").await;
    assert_eq!((&event["type"], &event["message"]), (&json!("Warning"), &json!(message)));
    assert_eq!(
        event["metadata"]["annotations"],
        json!({ "offending_containers": "web", "offending_containers_usage": "300Mi", "starved_resource": "memory" })
    );
    let met = machine.event("EvictionThresholdMet").await;
    assert_eq!(met["involvedObject"]["kind"], "Node");
    assert_eq!(met["message"], "Attempting to reclaim memory");
    assert_eq!(machine.metrics.evictions.get(["memory.available"]), Some(1.0));
    tokio::time::sleep(EVERY * 3).await;
    assert_eq!(machine.is("quiet"), "Running");
    // The condition outlives its cause.
    assert_eq!(*machine.pressures.borrow(), Pressures::from([Pressure::Memory]));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(*machine.pressures.borrow(), Pressures::new());
}

#[tokio::test(start_paused = true)]
async fn a_soft_threshold_waits_for_its_grace_and_gives_the_pod_its_own() {
    let machine = EvictionFixture::new();
    machine.runtime.script("web", &[Script::Stubborn]);
    let of = |value: &str| [("memory.available".to_owned(), value.to_owned())].into();
    let _kubelet = machine.kubelet(&KubeletConfiguration {
        eviction_soft: of("200Mi"),
        eviction_soft_grace_period: of("1m"),
        eviction_max_pod_grace_period: 20,
        ..hard("")
    });
    let greedy = machine.wants("greedy", 0);
    machine.scale.uses(&greedy, 300 * MIB);
    machine.phase("greedy", "Running").await;
    machine.scale.short(Signal::Memory, 1);
    tokio::time::sleep(Duration::from_secs(55)).await;
    assert_eq!(*machine.pressures.borrow(), Pressures::from([Pressure::Memory]));
    assert!(machine.server.all("/api/v1/events").iter().all(|event| event["reason"] != "Evicted"));
    machine.event("Evicted").await;
    let (asked, looks) = (tokio::time::Instant::now(), *machine.scale.looks.lock().unwrap());
    machine.phase("greedy", "Failed").await;
    // Less than the pod's own minute: evictionMaxPodGracePeriod.
    let took = asked.elapsed();
    assert!((15..30).contains(&took.as_secs()), "{took:?}");
    // #43590: nobody looked for another one before this one was gone.
    assert!(*machine.scale.looks.lock().unwrap() <= looks + 1);
}

#[tokio::test(start_paused = true)]
async fn issue_43590_one_at_a_time_and_the_next_look_comes_after_its_end() {
    let machine = EvictionFixture::new();
    let _kubelet = machine.kubelet(&hard("memory.available<100Mi"));
    for (name, memory) in [("a", 300), ("b", 200), ("c", 150)] {
        let pod = machine.wants(name, 0);
        machine.scale.uses(&pod, memory * MIB);
        machine.phase(name, "Running").await;
    }
    machine.scale.short(Signal::Memory, 2);
    machine.phase("a", "Failed").await;
    machine.phase("b", "Failed").await;
    tokio::time::sleep(EVERY * 3).await;
    assert_eq!(machine.is("c"), "Running");
    assert_eq!(machine.metrics.evictions.get(["memory.available"]), Some(2.0));
}

#[tokio::test(start_paused = true)]
async fn issue_41032_what_images_gave_back_ends_nobody() {
    let machine = EvictionFixture::new();
    *machine.scale.freed.lock().unwrap() = Some(900 * MIB);
    let _kubelet = machine.kubelet(&hard("nodefs.available<10%"));
    let web = machine.wants("web", 0);
    machine.scale.fills(&web, 500 << 20);
    machine.phase("web", "Running").await;
    machine.scale.left(Signal::NodeFs, 50 * MIB, 2000 * MIB);
    machine.event("EvictionThresholdMet").await;
    tokio::time::sleep(EVERY * 3).await;
    assert_eq!(machine.scale.keeper.removed(), ["unused"]);
    assert_eq!(machine.is("web"), "Running");
    assert_eq!(*machine.pressures.borrow(), Pressures::from([Pressure::Disk]));
    assert_eq!(machine.metrics.evictions.get(["nodefs.available"]), None);
}

/// Seen with `cargo xtask overload`: the layer of an evicted pod held all inodes, and thirty pods went one by one, those that
/// are Guaranteed, too.
#[tokio::test(start_paused = true)]
async fn what_an_evicted_pod_has_written_goes_before_an_innocent_does() {
    let machine = EvictionFixture::new();
    let _kubelet = machine.kubelet(&hard("nodefs.inodesFree<5%"));
    for (name, inodes) in [("small", 1), ("hog", 38_000)] {
        let pod = machine.wants(name, 0);
        machine.scale.fills_inodes(&pod, inodes);
        machine.phase(name, "Running").await;
    }
    *machine.scale.emptied.lock().unwrap() = Some((machine.runtime.clone(), 30_000));
    // Images do not help.
    machine.scale.left(Signal::NodeFsInodes, 100, 40_000);
    machine.phase("hog", "Failed").await;
    tokio::time::sleep(EVERY * 6).await;
    assert_eq!(machine.is("small"), "Running");
    assert_eq!(machine.metrics.evictions.get(["nodefs.inodesFree"]), Some(1.0));
    // Its status tells of its container all the same.
    let hog = machine.server.get(&path("hog")).unwrap();
    assert!(hog["status"]["containerStatuses"][0]["state"]["terminated"].is_object(), "{hog}");
    assert!(machine.runtime.count("remove ") == 1, "{:?}", machine.runtime.log());
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_ends_who_fills_it_when_images_do_not_help() {
    let machine = EvictionFixture::new();
    let _kubelet = machine.kubelet(&hard("nodefs.available<10%"));
    for (name, bytes) in [("small", 1), ("big", 500)] {
        let pod = machine.wants(name, 0);
        machine.scale.fills(&pod, bytes << 20);
        machine.phase(name, "Running").await;
    }
    machine.scale.short(Signal::NodeFs, 1);
    let ended = machine.phase("big", "Failed").await;
    let message = ended["status"]["message"].as_str().unwrap();
    assert!(
        message.starts_with(
            "The node was low on resource: ephemeral-storage. Threshold quantity: 209715203, available: 50Mi. "
        ),
        "{message}"
    );
    tokio::time::sleep(EVERY * 3).await;
    assert_eq!(machine.is("small"), "Running");
}

#[tokio::test(start_paused = true)]
async fn a_critical_pod_is_never_ended_for_pressure() {
    let machine = EvictionFixture::new();
    let _kubelet = machine.kubelet(&hard("memory.available<100Mi"));
    let (critical, quiet) = (machine.wants("critical", 2_000_000_000), machine.wants("quiet", 100));
    machine.scale.uses(&critical, 900 * MIB);
    machine.scale.uses(&quiet, MIB);
    for name in ["critical", "quiet"] {
        machine.phase(name, "Running").await;
    }
    machine.scale.short(Signal::Memory, 99);
    machine.phase("quiet", "Failed").await;
    tokio::time::sleep(EVERY * 6).await;
    assert_eq!(machine.is("critical"), "Running");
}

#[tokio::test(start_paused = true)]
async fn issue_105358_an_evicted_pod_stays_failed_whatever_its_containers_say_and_over_a_restart() {
    let machine = EvictionFixture::new();
    machine.runtime.script("web", &[Script::Polite]);
    let kubelet = machine.kubelet(&hard("memory.available<100Mi"));
    let greedy = machine.wants("greedy", 0);
    machine.scale.uses(&greedy, 300 * MIB);
    machine.phase("greedy", "Running").await;
    machine.scale.short(Signal::Memory, 1);
    let ended = machine.phase("greedy", "Failed").await;
    tokio::time::sleep(EVERY * 3).await;
    let started = machine.runtime.count("create");
    drop(kubelet);
    let _kubelet = machine.kubelet(&hard("memory.available<100Mi"));
    tokio::time::sleep(EVERY * 3).await;
    let now = machine.server.get(&path("greedy")).unwrap();
    for field in ["phase", "reason", "message"] {
        assert_eq!(now["status"][field], ended["status"][field], "{field}");
    }
    let target = |pod: &Value| {
        let all = pod["status"]["conditions"].as_array().unwrap();
        all.iter().any(|condition| condition["type"] == "DisruptionTarget" && condition["status"] == "True")
    };
    assert!(target(&ended) && target(&now));
    assert_eq!(machine.runtime.count("create"), started);
}

#[tokio::test(start_paused = true)]
async fn a_node_under_pressure_takes_no_new_pod_in_and_keeps_what_runs() {
    let machine = EvictionFixture::new();
    let _kubelet = machine.kubelet(&hard("pid.available<100"));
    let old = machine.wants("old", 2_000_000_000);
    machine.scale.uses(&old, MIB);
    machine.phase("old", "Running").await;
    machine.scale.left(Signal::Pids, 50, 1000);
    machine.pressures.subscribe().wait_for(|now| !now.is_empty()).await.unwrap();
    machine.wants("new", 0);
    let refused = machine.phase("new", "Failed").await;
    assert_eq!(refused["status"]["reason"], "Evicted");
    assert_eq!(refused["status"]["message"], "Pod was rejected: The node had condition: [PIDPressure]. ");
    assert_eq!(machine.metrics.admission_rejections.get(["Evicted"]), Some(1.0));
    assert_eq!(machine.is("old"), "Running");
}

/// As a kubelet reads this file.
fn loaded(text: &str, flag: &str) -> (KubeletConfiguration, bool) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yaml");
    let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
    std::fs::write(&file, format!("{head}{text}\n")).unwrap();
    let mut arguments = vec![format!("--config={}", file.display())];
    arguments.extend((!flag.is_empty()).then(|| flag.to_owned()));
    match config::load(&arguments, Host { unified: true }, |_| {}).unwrap() {
        Order::Run(loaded) => (loaded.config, loaded.flags.allocatable_ignore_eviction),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn default_thresholds_that_are_merged_make_pressure_and_those_that_are_not_do_not() {
    let own = "evictionHard: {memory.available: 1Mi}\nmergeDefaultEvictionSettings: ";
    for (merged, short) in [("true", Pressures::from([Pressure::Disk])), ("false", Pressures::new())] {
        let machine = EvictionFixture::new();
        let _kubelet = machine.kubelet(&loaded(&format!("{own}{merged}"), "").0);
        // nodefs.available<10% is a default.
        machine.scale.left(Signal::NodeFs, 50 * MIB, 2000 * MIB);
        tokio::time::sleep(EVERY * 3).await;
        assert_eq!(*machine.pressures.borrow(), short, "{merged}");
    }
}

#[tokio::test(start_paused = true)]
async fn thresholds_that_allocatable_ignores_end_pods_all_the_same() {
    let flag = "--experimental-allocatable-ignore-eviction=true";
    let (config, ignored) = loaded("evictionHard: {memory.available: 100Mi}", flag);
    assert_eq!(eviction::parse(&config, ignored).unwrap(), eviction::HardReserved::default());
    assert_ne!(eviction::parse(&config, false).unwrap(), eviction::HardReserved::default());
    let machine = EvictionFixture::new();
    let _kubelet = machine.kubelet(&config);
    let greedy = machine.wants("greedy", 0);
    machine.scale.uses(&greedy, 300 * MIB);
    machine.phase("greedy", "Running").await;
    machine.scale.short(Signal::Memory, 1);
    machine.phase("greedy", "Failed").await;
}

#[tokio::test(start_paused = true)]
async fn pods_above_limits_of_local_storage_end_and_no_others() {
    let machine = EvictionFixture::new();
    // Without any threshold.
    let _kubelet = machine.kubelet(&hard(""));
    let limit = json!({ "limits": { "ephemeral-storage": "1M" } });
    let scratch = json!([{ "name": "scratch", "emptyDir": { "sizeLimit": "1Mi" } }]);
    let volume = machine.wants_with("volume", 0, &json!({}), &scratch);
    let layer = machine.wants_with("layer", 0, &limit, &json!([]));
    let critical = machine.wants_with("critical", 2_000_000_000, &limit, &json!([]));
    let within = machine.wants_with("within", 0, &limit, &scratch);
    let free = machine.wants("free", 0);
    machine.scale.fills_volume(&volume, "scratch", 1 << 20);
    machine.scale.fills_volume(&within, "scratch", 1_000_000);
    machine.scale.fills(&free, 1 << 40);
    for name in ["volume", "layer", "critical", "within", "free"] {
        machine.phase(name, "Running").await;
    }
    tokio::time::sleep(EVERY * 3).await;
    assert_eq!(machine.is("volume"), "Running", "it fills its limit and no more");
    machine.scale.fills_volume(&volume, "scratch", (1 << 20) + 1);
    machine.scale.fills(&layer, 1_000_001);
    machine.scale.fills(&critical, 1_000_001);
    let ended = machine.phase("volume", "Failed").await;
    let message = "Usage of EmptyDir volume \"scratch\" exceeds the limit \"1Mi\". ";
    assert_eq!(
        (&ended["status"]["reason"], &ended["status"]["message"]),
        (&json!("Evicted"), &json!(message))
    );
    let conditions = ended["status"]["conditions"].as_array().unwrap();
    assert!(conditions.iter().all(|condition| condition["type"] != "DisruptionTarget"), "{conditions:?}");
    let ended = machine.phase("layer", "Failed").await;
    let message = "Pod ephemeral local storage usage exceeds the total limit of containers 1M. ";
    assert_eq!(ended["status"]["message"], message);
    assert_eq!(machine.event("Evicted").await["type"], "Warning");
    tokio::time::sleep(EVERY * 3).await;
    for name in ["critical", "within", "free"] {
        assert_eq!(machine.is(name), "Running", "{name}");
    }
    assert_eq!(machine.metrics.evictions.get(["emptydirfs.limit"]), Some(1.0));
    assert_eq!(machine.metrics.evictions.get(["ephemeralpodfs.limit"]), Some(1.0));
}

#[tokio::test(start_paused = true)]
async fn limits_of_local_storage_hold_nobody_where_it_is_not_isolated() {
    let machine = EvictionFixture::new();
    let _kubelet = machine.kubelet(&loaded("localStorageCapacityIsolation: false", "").0);
    let limit = json!({ "limits": { "ephemeral-storage": "1M" } });
    let layer = machine.wants_with("layer", 0, &limit, &json!([]));
    machine.scale.fills(&layer, 1 << 30);
    machine.phase("layer", "Running").await;
    tokio::time::sleep(EVERY * 3).await;
    assert_eq!(machine.is("layer"), "Running");
}
