//! Words of workers on a fake API server: each change told once, none lost, no pod told for another.

mod held;
mod hold;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gantry_kube_client::fake_apiserver::{FakeApiServer, InjectedFault, RecordedRequest, Wrong};
use gantry_kube_client::identity::client::{Pace, RequestPace};
use gantry_metrics::Metrics;
use gantry_model::clock::FakeClock;
use gantry_model::pod::{Origin, Pod, PodUid};
use k8s_openapi::api::core::v1 as api;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::sleep;

use super::{Reported, Statics, StatusSources, publish};
use crate::pod::status::{Phase, PodStatus as Word};
use crate::pod::tests::pod;
use crate::pod::worker::PodHandle;
use crate::pod::{Life, StopStep};
use crate::pod_source::{self, ApiPods};

const WEB: &str = "/api/v1/namespaces/default/pods/web";
const GATE: &str = "example.com/gate";

/// Phase, message and nothing else.
fn form(_: &Pod, word: &Word, _: &api::PodStatus) -> api::PodStatus {
    let condition = api::PodCondition {
        type_: "Ready".into(),
        status: if word.phase == Phase::Running { "True" } else { "False" }.into(),
        ..api::PodCondition::default()
    };
    api::PodStatus {
        phase: Some(word.phase.as_str().into()),
        message: Some(word.api_message.clone()),
        conditions: Some(vec![condition]),
        ..api::PodStatus::default()
    }
}

/// A worker as far as others see it.
struct Worker {
    status: watch::Sender<Word>,
}

impl Worker {
    fn says(&self, phase: Phase, message: &str) {
        self.status.send_modify(|word| {
            word.phase = phase;
            word.api_message = message.into();
        });
    }

    fn is(&self, life: Life) {
        self.status.send_modify(|word| word.life = life);
    }
}

struct StatusFixture {
    server: FakeApiServer,
    pods: watch::Sender<Arc<[PodHandle]>>,
    statics: watch::Sender<Statics>,
    told: watch::Receiver<Reported>,
    seen: watch::Receiver<ApiPods>,
    metrics: Arc<Metrics>,
    _task: tokio::task::JoinHandle<()>,
}

impl StatusFixture {
    fn new(server: &FakeApiServer) -> Self {
        Self::with_pace(server, RequestPace::default())
    }

    fn with_pace(server: &FakeApiServer, pace: RequestPace) -> Self {
        let (pods, pods_seen) = watch::channel(Arc::from([]));
        let (statics, statics_seen) = watch::channel(Statics::default());
        let seen = pod_source::follow(server.client(), "n1");
        let metrics = Arc::new(Metrics::default());
        let (told, task) = publish(StatusSources {
            client: Some(server.client()),
            pace,
            seen: seen.clone(),
            pods: pods_seen,
            statics: statics_seen,
            form,
            metrics: metrics.clone(),
        });
        Self { server: server.clone(), pods, statics, told, seen, metrics, _task: task }
    }

    fn add(&self, pod: Pod) -> Worker {
        self.add_in(Life::Starting, pod)
    }

    fn add_in(&self, life: Life, pod: Pod) -> Worker {
        let first = Word { phase: Phase::Pending, life, ..Word::default() };
        let (status, receiver) = watch::channel(first);
        let handle = PodHandle::of_test(Arc::new(pod), receiver, Arc::new(FakeClock::new(0)));
        self.pods.send_modify(|pods| *pods = pods.iter().cloned().chain([handle]).collect());
        Worker { status }
    }

    /// A pod of the API with a worker.
    async fn run(&self, name: &str) -> Worker {
        let path = format!("/api/v1/namespaces/default/pods/{name}");
        let made = self.server.put(&path, on_node());
        self.worker_of(name, made["metadata"]["uid"].as_str().unwrap()).await
    }

    async fn worker_of(&self, name: &str, uid: &str) -> Worker {
        self.worker_in(Life::Starting, name, uid).await
    }

    /// The same of a pod with a claim to devices.
    async fn run_with_claim(&self, name: &str) -> Worker {
        let path = format!("/api/v1/namespaces/default/pods/{name}");
        let made = self.server.put(&path, on_node());
        let uid = PodUid::parse(made["metadata"]["uid"].as_str().unwrap()).unwrap();
        let mut seen = self.seen.clone();
        seen.wait_for(|seen| seen.pods.contains_key(&uid)).await.unwrap();
        let claiming = crate::dra::testing::claiming(uid.as_str(), &["one"]);
        self.add_in(Life::Starting, Pod { name: name.into(), origin: Origin::Api, ..claiming })
    }

    async fn worker_in(&self, life: Life, name: &str, uid: &str) -> Worker {
        let uid = PodUid::parse(uid).unwrap();
        let mut seen = self.seen.clone();
        seen.wait_for(|seen| seen.pods.contains_key(&uid)).await.unwrap();
        self.add_in(life, Pod { name: name.into(), uid, origin: Origin::Api, ..pod() })
    }

    async fn until(&self, what: &str, path: &str, test: impl Fn(&Value) -> bool) -> Value {
        self.server.until(what, |server| server.get(path).filter(|pod| test(pod))).await
    }

    async fn phase(&self, path: &str, phase: &str) -> Value {
        self.until(phase, path, |pod| pod["status"]["phase"] == phase).await
    }

    /// Writes since the last time.
    fn writes(&self) -> Vec<RecordedRequest> {
        self.server.requests().into_iter().filter(|asked| asked.method != "GET").collect()
    }
}

fn on_node() -> Value {
    json!({ "metadata": {}, "spec": { "nodeName": "n1", "containers": [{ "name": "web" }],
        "terminationGracePeriodSeconds": 5 } })
}

#[tokio::test(start_paused = true)]
async fn a_change_is_one_patch_with_the_uid_and_only_what_differs() {
    let server = FakeApiServer::default();
    let bed = StatusFixture::new(&server);
    let worker = bed.run("web").await;
    bed.phase(WEB, "Pending").await;
    server.edit(WEB, |pod| {
        let gate = json!({ "type": GATE, "status": "True" });
        pod["status"]["conditions"].as_array_mut().unwrap().push(gate);
    });
    sleep(Duration::from_secs(1)).await;
    let _ = bed.writes();
    worker.says(Phase::Running, "hello");
    let pod = bed.phase(WEB, "Running").await;
    sleep(Duration::from_secs(300)).await;
    let writes = bed.writes();
    assert_eq!(writes.len(), 1, "{writes:#?}");
    assert_eq!(bed.metrics.pod_status_sync_duration.count([]), 2, "each change that was told");
    assert_eq!(
        (writes[0].method.as_str(), writes[0].path.as_str()),
        ("PATCH", "/api/v1/namespaces/default/pods/web/status")
    );
    let body = &writes[0].body;
    assert_eq!(body["metadata"], json!({ "uid": pod["metadata"]["uid"] }));
    assert_eq!((&body["status"]["phase"], &body["status"]["message"]), (&json!("Running"), &json!("hello")));
    let conditions = body["status"]["conditions"].as_array().unwrap();
    assert_eq!((conditions.len(), &conditions[0]["type"]), (1, &json!("Ready")), "trap 5: {body}");
    let gates = pod["status"]["conditions"].as_array().unwrap().iter().filter(|c| c["type"] == GATE).count();
    assert_eq!(gates, 1);
}

#[tokio::test(start_paused = true)]
async fn trap_06_nothing_is_told_of_a_pod_that_was_not_looked_at_yet() {
    let server = FakeApiServer::default();
    let bed = StatusFixture::new(&server);
    let mut running = on_node();
    running["status"] = json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] });
    let made = server.put(WEB, running.clone());
    let uid = made["metadata"]["uid"].as_str().unwrap();
    let worker = bed.worker_in(Life::Waiting, "web", uid).await;
    worker.says(Phase::Pending, "");
    sleep(Duration::from_secs(60)).await;
    assert_eq!(bed.writes(), Vec::<RecordedRequest>::new());
    assert_eq!(server.get(WEB).unwrap()["status"], running["status"]);
    let shown = bed.told.borrow().values().next().cloned().unwrap();
    assert_eq!(shown.status.as_ref().unwrap().phase.as_deref(), Some("Running"));
    worker.is(Life::Running);
    worker.says(Phase::Running, "seen");
    bed.until("told", WEB, |pod| pod["status"]["message"] == "seen").await;
}

#[tokio::test(start_paused = true)]
async fn while_one_patch_is_under_way_only_the_latest_word_waits() {
    let server = FakeApiServer::default();
    let bed = StatusFixture::new(&server);
    let worker = bed.run("web").await;
    bed.phase(WEB, "Pending").await;
    let _ = bed.writes();
    // The first is never answered until its deadline.
    server.fault(InjectedFault {
        method: "PATCH".into(),
        path: "web/status".into(),
        what: Wrong::Hangs,
        times: 1,
    });
    for n in 0..20 {
        worker.says(Phase::Running, &n.to_string());
        sleep(Duration::from_millis(100)).await;
    }
    bed.until("the last word", WEB, |pod| pod["status"]["message"] == "19").await;
    assert_eq!(bed.writes().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_status_that_is_overtaken_while_it_waits_for_the_clients_limit_is_never_sent() {
    let server = FakeApiServer::default();
    let bed = StatusFixture::with_pace(&server, RequestPace::new(Pace { per_second: 0.1, burst: 1.0 }));
    let worker = bed.run("web").await;
    bed.phase(WEB, "Pending").await;
    let _ = bed.writes();
    for n in 0..5 {
        worker.says(Phase::Running, &n.to_string());
        sleep(Duration::from_secs(1)).await;
    }
    let told = bed.until("one of them", WEB, |pod| pod["status"]["phase"] == "Running").await;
    assert_eq!(told["status"]["message"], "4");
    assert_eq!(bed.writes().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_was_away_is_told_the_latest_when_it_is_back() {
    let server = FakeApiServer::default();
    let bed = StatusFixture::new(&server);
    let worker = bed.run("web").await;
    bed.phase(WEB, "Pending").await;
    server.set_down(true);
    for n in 0..180 {
        worker.says(Phase::Running, &n.to_string());
        sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(server.get(WEB).unwrap()["status"]["phase"], "Pending");
    server.set_down(false);
    let began = tokio::time::Instant::now();
    bed.until("the last word", WEB, |pod| pod["status"]["message"] == "179").await;
    assert!(began.elapsed() < Duration::from_secs(12), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn trap_02_a_status_of_the_old_pod_never_reaches_the_new_one() {
    let server = FakeApiServer::default();
    let bed = StatusFixture::new(&server);
    let worker = bed.run("web").await;
    bed.phase(WEB, "Pending").await;
    // The watch is late: the old one is still seen.
    server.fault(InjectedFault {
        method: "GET".into(),
        path: "/api/v1/pods".into(),
        what: Wrong::Hangs,
        times: 100,
    });
    server.cut();
    sleep(Duration::from_millis(50)).await;
    server.remove(WEB);
    let mut new = on_node();
    new["metadata"]["uid"] = json!("11111111-0000-0000-0000-000000000000");
    server.put(WEB, new);
    worker.says(Phase::Failed, "of the old one");
    worker.is(Life::Gone);
    sleep(Duration::from_secs(20)).await;
    assert_eq!(server.get(WEB).unwrap().get("status"), None);
    let writes = bed.writes();
    let tried = writes.iter().filter(|asked| asked.path.ends_with("web/status")).count();
    assert!((1..=4).contains(&tried), "{writes:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_conflict_is_read_anew_and_told_on_top() {
    let server = FakeApiServer::default();
    let bed = StatusFixture::new(&server);
    let worker = bed.run("web").await;
    bed.phase(WEB, "Pending").await;
    server.fault(InjectedFault {
        method: "PATCH".into(),
        path: "web".into(),
        what: Wrong::Refused(409, "Conflict"),
        times: 1,
    });
    let _ = server.requests();
    worker.says(Phase::Running, "x");
    bed.phase(WEB, "Running").await;
    let methods: Vec<String> = server.requests().into_iter().map(|asked| asked.method).collect();
    assert_eq!(methods, ["PATCH", "GET", "PATCH"]);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_was_lost_is_not_told_twice_for_long() {
    let server = FakeApiServer::default();
    let bed = StatusFixture::new(&server);
    let worker = bed.run("web").await;
    bed.phase(WEB, "Pending").await;
    let _ = bed.writes();
    server.fault(InjectedFault { method: "PATCH".into(), path: "web".into(), what: Wrong::Lost, times: 1 });
    worker.says(Phase::Running, "x");
    sleep(Duration::from_secs(60)).await;
    assert_eq!(server.get(WEB).unwrap()["status"]["message"], "x");
    assert!(bed.writes().len() <= 2);
}

#[tokio::test(start_paused = true)]
async fn what_the_server_refuses_is_not_repeated_in_a_loop_but_the_next_word_is_told() {
    let server = FakeApiServer::default();
    let bed = StatusFixture::new(&server);
    let worker = bed.run("web").await;
    bed.phase(WEB, "Pending").await;
    let _ = bed.writes();
    server.fault(InjectedFault {
        method: "PATCH".into(),
        path: "web".into(),
        what: Wrong::Refused(422, "Invalid"),
        times: 3,
    });
    worker.says(Phase::Running, "wrong");
    sleep(Duration::from_secs(110)).await;
    assert_eq!(bed.writes().len(), 2);
    worker.says(Phase::Running, "also wrong");
    sleep(Duration::from_secs(1)).await;
    worker.says(Phase::Running, "right");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(server.get(WEB).unwrap()["status"]["message"], "right");
}

#[tokio::test(start_paused = true)]
async fn trap_05_two_writers_do_not_write_for_ever() {
    let server = FakeApiServer::default();
    let bed = StatusFixture::new(&server);
    let worker = bed.run("web").await;
    worker.says(Phase::Running, "ours");
    bed.phase(WEB, "Running").await;
    let other = server.clone();
    let writer = tokio::spawn(async move {
        loop {
            sleep(Duration::from_millis(50)).await;
            other.edit(WEB, |pod| pod["status"]["message"] = json!("theirs"));
        }
    });
    let _ = bed.writes();
    sleep(Duration::from_secs(100)).await;
    writer.abort();
    let writes = bed.writes().len();
    assert!((10..=16).contains(&writes), "{writes} in 100 seconds");
    bed.until("ours in the end", WEB, |pod| pod["status"]["message"] == "ours").await;
}

#[tokio::test(start_paused = true)]
async fn what_others_change_now_and_then_is_set_right_at_once() {
    let server = FakeApiServer::default();
    let bed = StatusFixture::new(&server);
    let worker = bed.run("web").await;
    worker.says(Phase::Running, "ours");
    bed.phase(WEB, "Running").await;
    for _ in 0..3 {
        let began = tokio::time::Instant::now();
        server.edit(WEB, |pod| pod["status"]["message"] = json!("theirs"));
        bed.until("ours", WEB, |pod| pod["status"]["message"] == "ours").await;
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    }
}

/// Others may be given its devices as soon as its end is told: drivers have taken them back by then.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_pod_with_claims_is_told_once_they_are_unprepared() {
    let server = FakeApiServer::default();
    let bed = StatusFixture::new(&server);
    let worker = bed.run_with_claim("web").await;
    worker.says(Phase::Running, "");
    bed.phase(WEB, "Running").await;
    worker.says(Phase::Succeeded, "");
    for step in [StopStep::Sandbox, StopStep::Claims] {
        worker.is(Life::Stopping { deadline: None, step });
        sleep(Duration::from_secs(60)).await;
        assert_eq!(server.get(WEB).unwrap()["status"]["phase"], "Running", "{step:?}");
    }
    worker.is(Life::Stopping { deadline: None, step: StopStep::Volumes });
    bed.phase(WEB, "Succeeded").await;
}

#[tokio::test(start_paused = true)]
async fn trap_04_the_end_is_told_before_the_pod_is_deleted_and_only_when_nothing_is_left() {
    let server = FakeApiServer::default();
    let bed = StatusFixture::new(&server);
    let worker = bed.run("web").await;
    worker.says(Phase::Running, "");
    bed.phase(WEB, "Running").await;
    let options = kube::api::DeleteParams::default();
    let pods: kube::Api<api::Pod> = kube::Api::namespaced(server.client(), "default");
    pods.delete("web", &options).await.unwrap();
    let _ = bed.writes();
    // Containers have ended, volumes are still there.
    let step = StopStep::Volumes;
    worker.says(Phase::Failed, "exit code 3");
    worker.is(Life::Stopping { deadline: None, step });
    let pod = bed.phase(WEB, "Failed").await;
    sleep(Duration::from_secs(60)).await;
    assert!(server.get(WEB).is_some(), "volumes are still there");
    worker.is(Life::Stopped);
    server.until("deleted", |server| server.get(WEB).is_none().then_some(())).await;
    let writes = bed.writes();
    let methods: Vec<&str> = writes.iter().map(|asked| asked.method.as_str()).collect();
    assert_eq!(methods, ["PATCH", "DELETE"]);
    assert_eq!(
        writes[1].body,
        json!({ "gracePeriodSeconds": 0, "preconditions": { "uid": pod["metadata"]["uid"] } })
    );
}

#[tokio::test(start_paused = true)]
async fn nothing_is_told_of_a_pod_that_the_server_is_taking_away() {
    let server = FakeApiServer::default();
    let bed = StatusFixture::new(&server);
    let worker = bed.run("web").await;
    worker.says(Phase::Running, "");
    bed.phase(WEB, "Running").await;
    let _ = bed.writes();
    // A finished pod, or one that is deleted by force: marked, and gone a moment later.
    server.edit(WEB, |pod| {
        pod["metadata"]["deletionTimestamp"] = json!("2026-11-22T00:00:00Z");
        pod["metadata"]["deletionGracePeriodSeconds"] = json!(0);
    });
    // The clock stands still until the watch has told.
    sleep(Duration::from_millis(100)).await;
    worker.says(Phase::Failed, "killed");
    worker.is(Life::Stopped);
    sleep(Duration::from_millis(800)).await;
    assert_eq!(bed.writes().len(), 0);
    // The server has died in between: the end is ours.
    server.until("deleted", |server| server.get(WEB).is_none().then_some(())).await;
    let methods: Vec<String> = bed.writes().into_iter().map(|asked| asked.method).collect();
    assert_eq!(methods, ["PATCH", "DELETE"]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_finalizers_hold_is_deleted_once() {
    let server = FakeApiServer::default();
    let bed = StatusFixture::new(&server);
    let worker = bed.run("web").await;
    bed.phase(WEB, "Pending").await;
    server.edit(WEB, |pod| {
        pod["metadata"]["finalizers"] = json!(["example.com/keep"]);
        pod["metadata"]["deletionTimestamp"] = json!("2026-11-22T00:00:00Z");
        pod["metadata"]["deletionGracePeriodSeconds"] = json!(5);
    });
    worker.says(Phase::Succeeded, "");
    worker.is(Life::Gone);
    bed.until("deleted", WEB, |pod| pod["metadata"]["deletionGracePeriodSeconds"] == 0).await;
    sleep(Duration::from_secs(600)).await;
    let deletes = bed.writes().iter().filter(|asked| asked.method == "DELETE").count();
    assert_eq!(deletes, 1);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_has_ended_by_itself_stays_until_somebody_deletes_it() {
    let server = FakeApiServer::default();
    let bed = StatusFixture::new(&server);
    let worker = bed.run("web").await;
    worker.says(Phase::Succeeded, "");
    worker.is(Life::Stopped);
    bed.phase(WEB, "Succeeded").await;
    sleep(Duration::from_secs(300)).await;
    assert!(server.get(WEB).is_some());
    server.edit(WEB, |pod| pod["metadata"]["deletionTimestamp"] = json!("2030-01-01T00:00:00Z"));
    server.until("deleted", |server| server.get(WEB).is_none().then_some(())).await;
}

#[tokio::test(start_paused = true)]
async fn a_static_pod_is_told_through_its_mirror_alone_and_shown_without_one() {
    let server = FakeApiServer::default();
    let bed = StatusFixture::new(&server);
    let hash = "0123456789abcdef";
    let uid = PodUid::parse(hash).unwrap();
    let mut own = Pod { name: "web-n1".into(), uid: uid.clone(), origin: Origin::Static, ..pod() };
    own.annotations.insert("kubernetes.io/config.hash".into(), hash.into());
    let mut described = on_node();
    described["metadata"] = json!({ "name": "web-n1", "namespace": "default" });
    let described: api::Pod = serde_json::from_value(described).unwrap();
    let pods = Arc::new(BTreeMap::from([(uid.clone(), Arc::new(described))]));
    bed.statics.send_replace(Statics { pods, complete: true });
    let worker = bed.add(own);
    worker.says(Phase::Running, "x");
    let mut told = bed.told.clone();
    let running = |told: &Reported| {
        told.get(&uid).is_some_and(|pod| pod.status.as_ref().unwrap().phase.as_deref() == Some("Running"))
    };
    told.wait_for(running).await.unwrap();
    let mirror = |hash: &str| {
        let mut pod = on_node();
        pod["metadata"]["annotations"] = json!({ "kubernetes.io/config.mirror": hash });
        pod
    };
    let path = "/api/v1/namespaces/default/pods/web-n1";
    server.put(path, mirror("another"));
    sleep(Duration::from_secs(20)).await;
    assert_eq!(server.get(path).unwrap().get("status"), None, "it is not this pod's");
    server.put(path, mirror(hash));
    bed.phase(path, "Running").await;
}

#[tokio::test(start_paused = true)]
async fn a_hundred_pods_are_told_with_a_bounded_number_of_requests_at_once() {
    let server = FakeApiServer::default();
    let bed = StatusFixture::new(&server);
    let mut workers = Vec::new();
    for n in 0..100 {
        workers.push(bed.run(&format!("p{n}")).await);
    }
    server.fault(InjectedFault {
        method: "PATCH".into(),
        path: "/status".into(),
        what: Wrong::Hangs,
        times: usize::MAX,
    });
    let _ = bed.writes();
    workers.iter().for_each(|worker| worker.says(Phase::Running, "x"));
    sleep(Duration::from_secs(10)).await;
    assert_eq!(bed.writes().len(), super::AT_ONCE);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_gone_everywhere_is_forgotten() {
    let server = FakeApiServer::default();
    let bed = StatusFixture::new(&server);
    let worker = bed.run("web").await;
    bed.phase(WEB, "Pending").await;
    assert_eq!(bed.told.borrow().len(), 1);
    server.remove(WEB);
    worker.is(Life::Gone);
    drop(worker);
    bed.pods.send_replace(Arc::from([]));
    let mut told = bed.told.clone();
    let waited = tokio::time::timeout(Duration::from_secs(30), told.wait_for(Reported::is_empty)).await;
    assert!(waited.is_ok());
}
