//! Whole shutdowns on fakes and paused time: who goes when, what is told, how long the lock is held. Traps of upstream's
//! shutdown by the number of their issue.

mod fake;

use std::sync::Arc;
use std::time::Duration;

use gantry_kube_client::fake_apiserver::FakeApiServer;
use gantry_kube_client::identity::client::RequestPace;
use gantry_metrics::Metrics;
use gantry_model::clock::FakeClock;
use gantry_model::drain;
use gantry_model::shutdown::Shutdown;
use k8s_openapi::api::core::v1 as api;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use self::fake::FakeLogind;
use super::record;
use super::run::{ShutdownManager, ShutdownWorld};
use crate::config::shutdown::{ShutdownPeriod, ShutdownPolicy};
use crate::events::sink;
use crate::logs::dir::LogDir;
use crate::pod::run::Deps;
use crate::pod::tests::deps;
use crate::pod_workers::{PodWorkers, events};
use crate::runtime::fake::{FakeRuntime, Script};
use crate::static_pods::choice::StaticPods;
use crate::volumes::fake::FakeVolumes;
use crate::{pod_manager, pod_source, status};

const CRITICAL: i32 = 2_000_001_000;

fn path(name: &str) -> String {
    format!("/api/v1/namespaces/default/pods/{name}")
}

/// A node with an API server, which gives usual pods 20 s and critical ones 10.
struct ShutdownFixture {
    server: FakeApiServer,
    runtime: FakeRuntime,
    clock: Arc<FakeClock>,
    logind: Arc<FakeLogind>,
    volumes: Arc<FakeVolumes>,
    metrics: Arc<Metrics>,
    shutdown: watch::Sender<Shutdown>,
    folder: tempfile::TempDir,
}

impl ShutdownFixture {
    fn new() -> Self {
        Self {
            server: FakeApiServer::default(),
            runtime: FakeRuntime::new(&["reg/img:v1"]),
            clock: Arc::new(FakeClock::new(1_800_000_000)),
            logind: Arc::default(),
            volumes: Arc::default(),
            metrics: Arc::default(),
            shutdown: watch::channel(Shutdown::Not).0,
            folder: tempfile::tempdir().unwrap(),
        }
    }

    /// A kubelet's loops; dropping them is its death.
    fn kubelet(&self) -> JoinSet<()> {
        let logs = Arc::new(LogDir::new(self.folder.path().to_owned()));
        let deps = Deps {
            metrics: self.metrics.clone(),
            volumes: self.volumes.clone(),
            ..deps(&self.runtime, logs, self.clock.clone())
        };
        let (recorder, queue) = sink::queue(self.clock.clone());
        let mut agent = PodWorkers::start(Vec::new(), deps);
        agent.watch_shutdown(self.shutdown.subscribe());
        let pods = agent.watch_pods();
        let seen = pod_source::follow(self.server.client(), "n1");
        let (statics, statics_seen) = watch::channel(status::Statics::default());
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
        let world = ShutdownWorld {
            logind: self.logind.clone(),
            pods: pods.clone(),
            seen: Some(seen.clone()),
            shutdown: self.shutdown.clone(),
            // A report that takes no time.
            reported: self.shutdown.subscribe(),
            recorder,
            metrics: self.metrics.clone(),
            clock: self.clock.clone(),
            root: self.folder.path().to_owned(),
        };
        let period = |priority, seconds| ShutdownPeriod { priority, seconds };
        let policy =
            ShutdownPolicy { periods: vec![period(0, 20), period(2_000_000_000, 10)], recorded: true };
        let mut tasks = JoinSet::new();
        let (trigger, drain) = drain::token();
        tasks.spawn(ShutdownManager::new(policy, world).run(drain));
        let posting = events::run(Some(self.server.client()), "n1", queue, pods);
        let found = watch::channel(StaticPods { read: true, ..StaticPods::default() }).1;
        let sources = pod_manager::PodSources { seen: Some(seen), node, found: Some(found) };
        tasks.spawn(pod_manager::run(agent, sources, pod_manager::Listeners::of_test(statics)));
        tasks.spawn(async move {
            let _trigger = trigger;
            let _ended = tokio::join!(telling, posting);
        });
        tasks
    }

    /// Of its own container's name; it gets that long to end.
    async fn runs(&self, name: &str, priority: i32, grace: i64) {
        self.wants(name, priority, grace);
        self.phase(name, "Running").await;
    }

    fn wants(&self, name: &str, priority: i32, grace: i64) {
        self.put(name, priority, grace, "Always");
    }

    fn put(&self, name: &str, priority: i32, grace: i64, restart: &str) {
        let container = json!({ "name": name, "image": "reg/img:v1", "imagePullPolicy": "IfNotPresent" });
        let spec = json!({ "nodeName": "n1", "priority": priority, "terminationGracePeriodSeconds": grace,
            "containers": [container], "restartPolicy": restart });
        self.server.put(&path(name), json!({ "metadata": { "generation": 1 }, "spec": spec }));
    }

    async fn phase(&self, name: &str, phase: &str) -> Value {
        let of = |pod: &Value| pod["status"]["phase"] == phase;
        self.server.until(&format!("{name} {phase}"), |server| server.get(&path(name)).filter(of)).await
    }

    fn is(&self, name: &str) -> Value {
        self.server.get(&path(name)).unwrap()["status"]["phase"].clone()
    }

    async fn event(&self, message: &str) -> Value {
        let of = |server: &FakeApiServer| {
            server.all("/api/v1/events").into_iter().find(|event| event["message"] == message)
        };
        self.server.until(message, of).await
    }

    fn times(&self) -> [Option<f64>; 2] {
        [self.metrics.graceful_shutdown_start.get([]), self.metrics.graceful_shutdown_end.get([])]
    }
}

/// How long until the lock was released.
async fn released(node: &ShutdownFixture, since: Instant) -> Duration {
    while node.logind.holds() {
        assert!(since.elapsed() < Duration::from_secs(100), "the lock is never released");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    since.elapsed()
}

fn about(took: Duration, seconds: u64) -> bool {
    (Duration::from_secs(seconds)..Duration::from_secs(seconds + 2)).contains(&took)
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_usual_pods_then_for_critical_ones_and_says_why_in_upstreams_words() {
    let node = ShutdownFixture::new();
    node.runtime.script("stubborn", &[Script::Stubborn]);
    let _kubelet = node.kubelet();
    node.runs("stubborn", 0, 60).await;
    node.runs("critical", CRITICAL, 60).await;
    node.logind.until_held().await;
    let since = Instant::now();
    node.logind.announce(true);
    let event = node.event("Shutdown manager detected shutdown event").await;
    assert_eq!(
        (&event["reason"], &event["type"], &event["involvedObject"]["kind"]),
        (&json!("Shutdown"), &json!("Normal"), &json!("Node"))
    );
    assert_eq!(*node.shutdown.borrow(), Shutdown::Ending);
    let [begun, ended] = node.times();
    assert!(begun.unwrap() >= 1_800_000_000.0 && ended == Some(0.0), "{begun:?} {ended:?}");
    node.wants("late", CRITICAL, 1);
    let late = node.phase("late", "Failed").await;
    assert_eq!(late["status"]["reason"], "NodeShutdown");
    assert_eq!(late["status"]["message"], "Pod was rejected: Pod was rejected as the node is shutting down.");
    tokio::time::sleep_until(since + Duration::from_secs(18)).await;
    assert_eq!((node.is("stubborn"), node.is("critical")), (json!("Running"), json!("Running")));
    assert!(node.logind.holds());
    let pod = node.phase("critical", "Failed").await;
    let message = "Pod was terminated in response to imminent node shutdown.";
    assert_eq!(
        (&pod["status"]["reason"], &pod["status"]["message"]),
        (&json!("Terminated"), &json!(message))
    );
    let conditions = pod["status"]["conditions"].as_array().unwrap();
    let target = conditions.iter().find(|condition| condition["type"] == "DisruptionTarget").unwrap();
    assert_eq!(
        (&target["status"], &target["reason"], &target["message"]),
        (&json!("True"), &json!("TerminationByKubelet"), &json!(message))
    );
    let took = released(&node, since).await;
    assert!(about(took, 20), "{took:?}");
    assert_eq!(node.phase("stubborn", "Failed").await["status"]["reason"], "Terminated");
    assert_eq!(*node.shutdown.borrow(), Shutdown::Over);
    let [begun, ended] = node.times();
    assert!(ended > begun, "{begun:?} {ended:?}");
    assert!(node.folder.path().join(record::FILE).exists());
}

#[tokio::test(start_paused = true)]
async fn a_group_that_has_ended_holds_nobody_up() {
    let node = ShutdownFixture::new();
    node.runtime.script("slow", &[Script::Stubborn]);
    let _kubelet = node.kubelet();
    node.runs("quick", 0, 60).await;
    node.runs("slow", 100, 5).await;
    node.logind.until_held().await;
    let since = Instant::now();
    node.logind.announce(true);
    // The pod's own grace, and no time for critical pods, of which there are none.
    let took = released(&node, since).await;
    assert!(about(took, 5), "{took:?}");
    assert_eq!((node.is("quick"), node.is("slow")), (json!("Failed"), json!("Failed")));
}

#[tokio::test(start_paused = true)]
async fn issue_115148_critical_pods_stay_while_volumes_of_others_are_taken_back() {
    let node = ShutdownFixture::new();
    let _kubelet = node.kubelet();
    node.runs("data", 0, 1).await;
    node.runs("driver", CRITICAL, 1).await;
    node.logind.until_held().await;
    node.volumes.stick(true);
    let since = Instant::now();
    node.logind.announce(true);
    tokio::time::sleep(Duration::from_secs(12)).await;
    assert_eq!(node.is("driver"), "Running");
    node.volumes.stick(false);
    node.phase("driver", "Failed").await;
    let took = released(&node, since).await;
    assert!(about(took, 12), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn pull_139660_volumes_of_pods_that_have_just_ended_are_waited_for() {
    let node = ShutdownFixture::new();
    node.runtime.script("job", &[Script::Exit { after: Duration::from_secs(20), code: 0 }]);
    let _kubelet = node.kubelet();
    node.volumes.stick(true);
    node.put("job", 0, 1, "Never");
    node.phase("job", "Succeeded").await;
    node.runs("driver", CRITICAL, 1).await;
    node.logind.until_held().await;
    let since = Instant::now();
    node.logind.announce(true);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(node.is("driver"), "Running");
    node.volumes.stick(false);
    let took = released(&node, since).await;
    assert!(about(took, 5) && node.is("driver") == "Failed", "{took:?}");
    // What it was told of itself stays.
    assert_eq!(node.is("job"), "Succeeded");
}

#[tokio::test(start_paused = true)]
async fn issue_115148_a_volume_that_stays_holds_nobody_up_for_ever() {
    let node = ShutdownFixture::new();
    let _kubelet = node.kubelet();
    node.runs("data", 0, 1).await;
    node.logind.until_held().await;
    node.volumes.stick(true);
    let since = Instant::now();
    node.logind.announce(true);
    let took = released(&node, since).await;
    assert!(about(took, 20), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn issue_112443_the_lock_is_held_until_the_api_server_knows_of_the_end() {
    let node = ShutdownFixture::new();
    let _kubelet = node.kubelet();
    node.runs("web", 0, 1).await;
    node.logind.until_held().await;
    node.server.set_down(true);
    let since = Instant::now();
    node.logind.announce(true);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(node.logind.holds() && node.is("web") == "Running");
    node.server.set_down(false);
    let took = released(&node, since).await;
    assert!(took < Duration::from_secs(12), "{took:?}");
    assert_eq!(node.is("web"), "Failed");
}

#[tokio::test(start_paused = true)]
async fn issue_112443_an_api_server_that_stays_away_is_not_waited_for() {
    let node = ShutdownFixture::new();
    let _kubelet = node.kubelet();
    node.runs("web", 0, 1).await;
    node.logind.until_held().await;
    node.server.set_down(true);
    let since = Instant::now();
    node.logind.announce(true);
    let took = released(&node, since).await;
    assert!(about(took, 10), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn issue_107043_a_bus_that_comes_later_is_found() {
    let node = ShutdownFixture::new();
    node.logind.set_down(true);
    let _kubelet = node.kubelet();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!node.logind.holds());
    node.logind.set_down(false);
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(node.logind.holds());
}

#[tokio::test(start_paused = true)]
async fn a_bus_that_goes_away_is_found_again_and_the_lock_is_held_all_the_while() {
    let node = ShutdownFixture::new();
    let _kubelet = node.kubelet();
    node.runs("web", 0, 1).await;
    node.logind.until_held().await;
    node.logind.hang_up();
    for _ in 0..30 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(node.logind.holds());
    }
    assert_eq!((node.logind.connections(), node.logind.locks()), (2, 1));
    node.logind.announce(true);
    node.phase("web", "Failed").await;
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_that_is_cancelled_takes_pods_again_and_the_next_one_waits_again() {
    let node = ShutdownFixture::new();
    let _kubelet = node.kubelet();
    node.runs("web", 0, 1).await;
    node.logind.until_held().await;
    node.logind.announce(true);
    released(&node, Instant::now()).await;
    node.logind.announce(false);
    node.event("Shutdown manager detected shutdown cancellation").await;
    node.logind.until_held().await;
    assert_eq!(*node.shutdown.borrow(), Shutdown::Not);
    node.runs("after", 0, 1).await;
    node.logind.announce(true);
    released(&node, Instant::now()).await;
    assert_eq!(node.is("after"), "Failed");
}

#[tokio::test(start_paused = true)]
async fn logind_is_asked_for_more_time_and_may_take_a_moment_to_give_it() {
    let node = ShutdownFixture::new();
    node.logind.grants(Duration::from_secs(5), Some(3));
    node.runtime.script("stubborn", &[Script::Stubborn]);
    let _kubelet = node.kubelet();
    node.runs("stubborn", 0, 60).await;
    node.logind.until_held().await;
    assert_eq!(node.logind.asked(), [Duration::from_secs(30)]);
    let since = Instant::now();
    node.logind.announce(true);
    let took = released(&node, since).await;
    assert!(about(took, 20), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn issue_102818_what_logind_grants_is_shared_where_another_file_wins() {
    let node = ShutdownFixture::new();
    node.logind.grants(Duration::from_secs(15), None);
    node.runtime.script("stubborn", &[Script::Stubborn]);
    let _kubelet = node.kubelet();
    node.runs("stubborn", 0, 60).await;
    node.runs("critical", CRITICAL, 60).await;
    node.logind.until_held().await;
    let since = Instant::now();
    node.logind.announce(true);
    node.phase("critical", "Failed").await;
    let took = released(&node, since).await;
    assert!(about(took, 10), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_that_starts_while_the_machine_goes_down_ends_its_pods_without_a_lock() {
    let node = ShutdownFixture::new();
    node.logind.set_down(true);
    let _kubelet = node.kubelet();
    node.runs("web", 0, 1).await;
    node.logind.begin_unheard();
    node.logind.set_down(false);
    node.phase("web", "Failed").await;
    assert_eq!(*node.shutdown.borrow(), Shutdown::Over);
    assert_eq!(node.logind.locks(), 0);
}
