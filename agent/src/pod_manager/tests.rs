//! The way of a pod from the API to the runtime and of its status back, on fakes and paused time.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gantry_kube_client::fake_apiserver::FakeApiServer;
use gantry_kube_client::identity::client::RequestPace;
use gantry_metrics::Metrics;
use gantry_model::clock::FakeClock;
use gantry_model::pod::{Origin, Pod, PodUid};
use k8s_openapi::api::core::v1 as api;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{PodSources, run};
use crate::checkpoint::fake::Memory;
use crate::logs::dir::LogDir;
use crate::pod::run::Deps;
use crate::pod::tests::{deps, pod};
use crate::pod_workers::PodWorkers;
use crate::runtime::fake::FakeRuntime;
use crate::static_pods::choice::{Problem, StaticPods};
use crate::volumes::Volumes;
use crate::volumes::fake::FakeVolumes;
use crate::{pod_source, status};

const WEB: &str = "/api/v1/namespaces/default/pods/web";

/// A machine with its runtime; the agent on it can be started again.
struct ManagerFixture {
    server: FakeApiServer,
    runtime: FakeRuntime,
    clock: Arc<FakeClock>,
    folder: PathBuf,
    found: watch::Sender<StaticPods>,
    volumes: Arc<FakeVolumes>,
    checkpoints: Arc<Memory>,
    metrics: Arc<Metrics>,
    _guard: tempfile::TempDir,
}

impl ManagerFixture {
    fn new() -> Self {
        let guard = tempfile::tempdir().unwrap();
        Self {
            server: FakeApiServer::default(),
            runtime: FakeRuntime::new(&["reg/img:v1"]),
            clock: Arc::new(FakeClock::new(1_800_000_000)),
            folder: guard.path().to_owned(),
            found: watch::channel(StaticPods { read: true, ..StaticPods::default() }).0,
            volumes: Arc::default(),
            checkpoints: Arc::default(),
            metrics: Arc::default(),
            _guard: guard,
        }
    }

    /// A kubelet's loops; dropping them is its death.
    fn kubelet(&self) -> JoinSet<()> {
        let logs = Arc::new(LogDir::new(self.folder.clone()));
        let (volumes, metrics) = (self.volumes.clone(), self.metrics.clone());
        let checkpoints = self.checkpoints.clone();
        let deps = Deps { volumes, metrics, checkpoints, ..deps(&self.runtime, logs, self.clock.clone()) };
        let agent = PodWorkers::start(Vec::new(), deps);
        let seen = pod_source::follow(self.server.client(), "n1");
        let (statics, statics_seen) = watch::channel(crate::status::Statics::default());
        let node: api::Node = serde_json::from_value(json!({ "metadata": { "name": "n1" } })).unwrap();
        let (_, node) = watch::channel(Some(Arc::new(node)));
        let (_, telling) = status::publish(status::StatusSources {
            client: Some(self.server.client()),
            pace: RequestPace::default(),
            seen: seen.clone(),
            pods: agent.watch_pods(),
            statics: statics_seen,
            form: status::convert::status,
            metrics: Arc::default(),
        });
        let mut tasks = JoinSet::new();
        let sources = PodSources { seen: Some(seen), node, found: Some(self.found.subscribe()) };
        tasks.spawn(run(agent, sources, super::Listeners::of_test(statics)));
        tasks.spawn(async {
            // Ends with the agent's own.
            let _ = telling.await;
        });
        tasks
    }

    fn wants(&self, restart: &str) -> Value {
        let container = json!({ "name": "web", "image": "reg/img:v1", "imagePullPolicy": "IfNotPresent" });
        let spec = json!({ "nodeName": "n1", "restartPolicy": restart, "terminationGracePeriodSeconds": 5,
            "containers": [container] });
        self.server.put(WEB, json!({ "metadata": { "generation": 1 }, "spec": spec }))
    }

    async fn phase(&self, phase: &str) -> Value {
        let of = |pod: &Value| pod["status"]["phase"] == phase;
        self.server.until(phase, |server| server.get(WEB).filter(of)).await
    }

    async fn delete(&self, grace: Option<u32>) {
        let pods: kube::Api<api::Pod> = kube::Api::namespaced(self.server.client(), "default");
        let options =
            kube::api::DeleteParams { grace_period_seconds: grace, ..kube::api::DeleteParams::default() };
        pods.delete("web", &options).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_of_the_api_runs_is_told_and_is_deleted_when_nothing_is_left() {
    let machine = ManagerFixture::new();
    let _kubelet = machine.kubelet();
    machine.wants("Always");
    let pod = machine.phase("Running").await;
    assert_eq!(pod["status"]["containerStatuses"][0]["ready"], true);
    assert_eq!(pod["status"]["observedGeneration"], 1);
    machine.delete(None).await;
    machine.server.until("deleted", |server| server.get(WEB).is_none().then_some(())).await;
    assert_eq!(machine.runtime.count("stop "), 1);
    let asked = machine.server.requests();
    let ended = |asked: &&gantry_kube_client::fake_apiserver::RecordedRequest| {
        asked.method == "PATCH"
            && asked.body["status"]["containerStatuses"][0]["state"]["terminated"].is_object()
    };
    let told = asked.iter().position(|asked| ended(&asked)).unwrap();
    let deleted = asked.iter().position(|asked| asked.body["gracePeriodSeconds"] == 0).unwrap();
    assert!(told < deleted, "trap 4: exit codes are told before the pod goes");
}

#[tokio::test(start_paused = true)]
async fn a_pod_deleted_by_force_is_torn_down_all_the_same() {
    let machine = ManagerFixture::new();
    let _kubelet = machine.kubelet();
    machine.wants("Always");
    machine.phase("Running").await;
    machine.delete(Some(0)).await;
    assert_eq!(machine.server.get(WEB), None);
    machine.server.until("removed", |_| (machine.runtime.count("remove-sandbox") > 0).then_some(())).await;
}

#[tokio::test(start_paused = true)]
async fn trap_01_nothing_is_touched_while_the_server_is_away_but_static_pods_start() {
    let machine = ManagerFixture::new();
    let kubelet = machine.kubelet();
    machine.wants("Always");
    machine.phase("Running").await;
    drop(kubelet);
    machine.server.set_down(true);
    let _kubelet = machine.kubelet();
    let uid = PodUid::parse("static-1").unwrap();
    let own = Pod { name: "own-n1".into(), uid, origin: Origin::Static, ..pod() };
    machine.found.send_replace(StaticPods { pods: vec![own], ..StaticPods::default() });
    sleep(Duration::from_secs(180)).await;
    assert_eq!(machine.runtime.count("start"), 2, "the static one");
    assert_eq!(machine.runtime.count("stop") + machine.runtime.count("remove"), 0);
    machine.server.set_down(false);
    sleep(Duration::from_secs(120)).await;
    assert_eq!(machine.runtime.count("start"), 2, "the other was adopted");
    assert_eq!(machine.runtime.count("stop") + machine.runtime.count("remove"), 0);
    assert_eq!(machine.server.get(WEB).unwrap()["status"]["containerStatuses"][0]["restartCount"], 0);
}

#[tokio::test(start_paused = true)]
async fn trap_03_a_pod_that_has_ended_is_not_started_by_the_next_agent() {
    let machine = ManagerFixture::new();
    machine.wants("Never");
    machine.server.edit(WEB, |pod| {
        pod["status"] = json!({ "phase": "Succeeded", "startTime": "2020-01-01T00:00:00Z" });
    });
    let _kubelet = machine.kubelet();
    sleep(Duration::from_secs(120)).await;
    assert_eq!(machine.runtime.count("create"), 0);
    assert_eq!(machine.server.get(WEB).unwrap()["status"]["phase"], "Succeeded");
    machine.delete(None).await;
    machine.server.until("deleted", |server| server.get(WEB).is_none().then_some(())).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_deletion_came_while_no_agent_was_there_is_ended_and_deleted() {
    let machine = ManagerFixture::new();
    let kubelet = machine.kubelet();
    machine.wants("Always");
    machine.phase("Running").await;
    drop(kubelet);
    machine.delete(None).await;
    let _kubelet = machine.kubelet();
    machine.server.until("deleted", |server| server.get(WEB).is_none().then_some(())).await;
    assert_eq!(machine.runtime.count("start"), 1);
}

#[tokio::test(start_paused = true)]
async fn what_was_deleted_by_force_while_no_agent_was_there_is_swept() {
    let machine = ManagerFixture::new();
    let kubelet = machine.kubelet();
    machine.wants("Always");
    machine.phase("Running").await;
    drop(kubelet);
    machine.server.remove(WEB);
    let _kubelet = machine.kubelet();
    machine.server.until("swept", |_| (machine.runtime.count("remove-sandbox") > 0).then_some(())).await;
}

#[tokio::test(start_paused = true)]
async fn static_pods_outlive_an_agent_that_cannot_read_their_folder_or_file() {
    let machine = ManagerFixture::new();
    let kubelet = machine.kubelet();
    let uid = PodUid::parse("static-1").unwrap();
    let own = Pod { name: "own-n1".into(), uid, origin: Origin::Static, ..pod() };
    machine.found.send_replace(StaticPods { pods: vec![own], read: true, ..StaticPods::default() });
    machine.server.until("started", |_| (machine.runtime.count("start") == 1).then_some(())).await;
    drop(kubelet);
    let problems = vec![Problem { path: "/m/own.yaml".into(), message: "half written".into() }];
    for found in [StaticPods::default(), StaticPods { read: true, problems, ..StaticPods::default() }] {
        machine.found.send_replace(found);
        let _kubelet = machine.kubelet();
        sleep(Duration::from_secs(120)).await;
        assert_eq!(machine.runtime.count("stop"), 0);
    }
    machine.found.send_replace(StaticPods { read: true, ..StaticPods::default() });
    let _kubelet = machine.kubelet();
    machine.server.until("swept", |_| (machine.runtime.count("remove-sandbox") > 0).then_some(())).await;
}

/// Of several API servers one may lag behind.
#[tokio::test(start_paused = true)]
async fn trap_01_what_the_first_list_lacks_is_ended_only_if_nobody_names_it_soon() {
    let machine = ManagerFixture::new();
    let kubelet = machine.kubelet();
    machine.wants("Always");
    machine.phase("Running").await;
    drop(kubelet);
    let pod = machine.server.get(WEB).unwrap();
    machine.server.remove(WEB);
    let _kubelet = machine.kubelet();
    sleep(Duration::from_secs(2)).await;
    machine.server.put(WEB, pod);
    sleep(Duration::from_secs(60)).await;
    assert_eq!((machine.runtime.count("stop"), machine.runtime.count("start")), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn trap_01_what_pods_left_is_taken_back_once_every_source_has_been_heard() {
    let machine = ManagerFixture::new();
    machine.wants("Always");
    let orphan = Pod { uid: PodUid::parse("gone-1").unwrap(), ..pod() };
    machine.volumes.set_up(&orphan).await.unwrap();
    machine.server.set_down(true);
    let _kubelet = machine.kubelet();
    sleep(Duration::from_secs(120)).await;
    assert!(machine.volumes.has(&orphan.uid), "the API server may want it");
    machine.volumes.fail(Some("busy"));
    machine.server.set_down(false);
    let failed = |_: &FakeApiServer| {
        (machine.metrics.orphan_pod_cleaned_volumes_errors.get([]) == Some(1.0)).then_some(())
    };
    machine.server.until("a sweep that fails", failed).await;
    assert!(machine.volumes.has(&orphan.uid));
    machine.volumes.fail(None);
    let pod = machine.phase("Running").await;
    let swept = |_: &FakeApiServer| (!machine.volumes.has(&orphan.uid)).then_some(());
    machine.server.until("a sweep that works", swept).await;
    let wanted = PodUid::parse(pod["metadata"]["uid"].as_str().unwrap()).unwrap();
    assert!(machine.volumes.has(&wanted), "it runs");
    let counted = &machine.metrics;
    assert_eq!(counted.orphan_pod_cleaned_volumes.get([]), Some(1.0));
    assert_eq!(counted.orphan_pod_cleaned_volumes_errors.get([]), Some(0.0));
}

fn left(machine: &ManagerFixture, uid: &str) -> impl Future<Output = Pod> {
    let pod = Pod { uid: PodUid::parse(uid).unwrap(), ..pod() };
    let volumes = machine.volumes.clone();
    async move {
        volumes.set_up(&pod).await.unwrap();
        pod
    }
}

#[tokio::test(start_paused = true)]
async fn ten_orphans_whose_removal_hangs_hold_up_no_other_pod_and_are_begun_once() {
    let machine = ManagerFixture::new();
    let mut orphans = Vec::new();
    for number in 0..10 {
        orphans.push(left(&machine, &format!("gone-{number}")).await);
    }
    machine.volumes.hold(true);
    let _kubelet = machine.kubelet();
    let begun = || orphans.iter().map(|pod| machine.volumes.reclaims(&pod.uid)).sum::<usize>();
    machine.server.until("a sweep", |_| (begun() > 0).then_some(())).await;
    assert!(begun() <= 4, "no more at once");
    machine.wants("Always");
    machine.phase("Running").await;
    machine.delete(None).await;
    machine.server.until("deleted", |server| server.get(WEB).is_none().then_some(())).await;
    assert_eq!(machine.metrics.orphan_pod_cleaned_volumes_errors.get([]), Some(0.0), "the sweep goes on");
    // Several sweeps later.
    sleep(Duration::from_secs(600)).await;
    assert_eq!(machine.metrics.orphan_pod_cleaned_volumes_errors.get([]), Some(10.0));
    assert!(orphans.iter().all(|pod| machine.volumes.reclaims(&pod.uid) == 1), "none beside itself");
    machine.volumes.hold(false);
    let gone = |_: &FakeApiServer| orphans.iter().all(|pod| !machine.volumes.has(&pod.uid)).then_some(());
    machine.server.until("swept", gone).await;
}

/// A static pod has the same UID over and over.
#[tokio::test(start_paused = true)]
async fn a_pod_whose_uid_is_being_swept_waits_for_the_end_of_that_also_when_it_hangs() {
    let machine = ManagerFixture::new();
    let left = left(&machine, "static-1").await;
    machine.volumes.hold(true);
    let _kubelet = machine.kubelet();
    let begun = |_: &FakeApiServer| (machine.volumes.reclaims(&left.uid) > 0).then_some(());
    machine.server.until("a sweep", begun).await;
    let own = Pod { name: "own-n1".into(), origin: Origin::Static, ..left };
    machine.found.send_replace(StaticPods { pods: vec![own.clone()], read: true, ..StaticPods::default() });
    machine.wants("Always");
    machine.phase("Running").await;
    // The sweep has given up waiting.
    sleep(Duration::from_secs(300)).await;
    assert_eq!((machine.runtime.count("start"), machine.volumes.times(&own.uid)), (1, 1));
    machine.volumes.hold(false);
    machine.server.until("started", |_| (machine.runtime.count("start") == 2).then_some(())).await;
    sleep(Duration::from_secs(300)).await;
    assert!(machine.volumes.has(&own.uid), "its new volumes stay");
}

#[tokio::test(start_paused = true)]
async fn a_resize_that_comes_while_no_agent_runs_is_taken_up_by_the_next() {
    let machine = ManagerFixture::new();
    let sized = |cpu: &str, generation: i64| {
        machine.server.edit(WEB, |pod| {
            pod["metadata"]["generation"] = generation.into();
            pod["spec"]["containers"][0]["resources"] = json!({ "requests": { "cpu": cpu } });
        })
    };
    machine.wants("Always");
    sized("100m", 1);
    let kubelet = machine.kubelet();
    machine.phase("Running").await;
    drop(kubelet);
    sized("500m", 2);
    let _kubelet = machine.kubelet();
    let told = |generation: i64, cpu: &'static str| {
        move |server: &FakeApiServer| {
            let status = server.get(WEB)?["status"].clone();
            let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
            let resizes =
                conditions.iter().any(|one| one["type"].as_str().is_some_and(|of| of.contains("Resize")));
            let held = status["containerStatuses"][0]["allocatedResources"] == json!({ "cpu": cpu });
            (!resizes && held && status["observedGeneration"] == generation).then_some(status)
        }
    };
    // What came while no agent ran is taken up by the next one.
    let status = machine.server.until("the pod is resized", told(2, "500m")).await;
    assert_eq!(status["containerStatuses"][0]["resources"]["requests"], json!({ "cpu": "500m" }));
    sized("100m", 3);
    machine.server.until("and back", told(3, "100m")).await;
    assert_eq!((machine.runtime.count("start"), machine.runtime.count("update c")), (1, 2));
}

#[test]
fn a_pod_of_which_only_the_status_is_another_is_described_by_the_very_same() {
    let described = |message: &str, image: &str| -> Arc<api::Pod> {
        let container = json!({ "name": "web", "image": image });
        let object = json!({ "metadata": { "uid": "u-1", "name": "web" }, "spec": { "containers": [container] },
            "status": { "phase": "Running", "message": message } });
        Arc::new(serde_json::from_value(object).unwrap())
    };
    let mut known = super::ApiPodUpdates::default();
    let mut update = |pod: &Arc<api::Pod>| {
        let pods = std::collections::BTreeMap::from([(PodUid::parse("u-1").unwrap(), pod.clone())]);
        known.pod_updates(&pods).remove(0)
    };
    let first = described("", "a");
    let (one, same) = (update(&first), update(&first));
    assert!(Arc::ptr_eq(&one, &same), "nothing has changed");
    let told = update(&described("hello", "a"));
    assert!(!Arc::ptr_eq(&one, &told) && Arc::ptr_eq(&one.pod, &told.pod), "only its status");
    assert!(!Arc::ptr_eq(&one.pod, &update(&described("hello", "b")).pod));
}
