//! Events on a fake API server: as kubectl reads them, counted, held back, and told after an outage.

use std::sync::Arc;
use std::time::Duration;

use gantry_kube_client::fake_apiserver::{FakeApiServer, InjectedFault, RecordedRequest, Wrong};
use gantry_model::clock::FakeClock;
use gantry_model::pod::{Pod, Role};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::sleep;

use super::{PodRef, Recorder, queue};
use crate::events::{ClaimIdentity, Journal, Kind, NodeNote, Note, VolumeIdentity};
use crate::pod::status::PodStatus as Word;
use crate::pod::tests::{in_role, pod};
use crate::pod::worker::PodHandle;
use crate::pod_workers::events::run;

struct SinkFixture {
    server: FakeApiServer,
    recorder: Recorder,
    journal: Journal,
    word: watch::Sender<Word>,
    _pods: watch::Sender<Arc<[PodHandle]>>,
    _task: tokio::task::JoinHandle<()>,
}

fn begin(server: &FakeApiServer) -> SinkFixture {
    let clock = Arc::new(FakeClock::new(1_700_000_000));
    let (recorder, waiting) = queue(clock.clone());
    let (word, status) = watch::channel(Word::default());
    let own = Pod { init_containers: vec![in_role("setup", Role::Init)], ..pod() };
    let handle = PodHandle::of_test(Arc::new(own), status, clock);
    let (pods, pods_seen) = watch::channel(Arc::from([handle]));
    let task = run(Some(server.client()), "n1", waiting, pods_seen);
    SinkFixture {
        server: server.clone(),
        recorder,
        journal: Journal::default(),
        word,
        _pods: pods,
        _task: task,
    }
}

impl SinkFixture {
    fn happens(&mut self, note: Note, second: i64) {
        self.journal.add(note, (1_700_000_000 + second) * 1_000_000_000);
        let events = Arc::from(self.journal.events());
        self.word.send_modify(|word| word.events = events);
    }

    async fn event(&self, reason: &str) -> Value {
        let of =
            |server: &FakeApiServer| server.all("/api/v1/events").into_iter().find(|e| e["reason"] == reason);
        self.server.until(reason, of).await
    }

    fn writes(&self) -> Vec<RecordedRequest> {
        self.server.requests().into_iter().filter(|asked| asked.method != "GET").collect()
    }
}

fn unhealthy(message: &str) -> Note {
    Note::container(Kind::Warning, "Unhealthy", "web", message)
}

#[tokio::test(start_paused = true)]
async fn an_event_says_whom_it_is_about_and_who_says_it() {
    let server = FakeApiServer::default();
    let mut bed = begin(&server);
    bed.happens(Note::container(Kind::Normal, "Pulled", "setup", "here"), 7);
    let event = bed.event("Pulled").await;
    assert_eq!(
        event["involvedObject"],
        json!({ "apiVersion": "v1", "kind": "Pod", "namespace": "default", "name": "web", "uid": "uid-1",
            "fieldPath": "spec.initContainers{setup}" })
    );
    assert_eq!(event["source"], json!({ "component": "kubelet", "host": "n1" }));
    assert_eq!(
        (&event["type"], &event["message"], &event["count"]),
        (&json!("Normal"), &json!("here"), &json!(1))
    );
    assert_eq!(
        (&event["firstTimestamp"], &event["lastTimestamp"]),
        (&json!("2023-11-14T22:13:27Z"), &json!("2023-11-14T22:13:27Z"))
    );
    assert!(event["metadata"]["name"].as_str().unwrap().starts_with("web."));
    bed.recorder.node(NodeNote {
        kind: Kind::Normal,
        reason: "Starting",
        message: "Starting kubelet.".into(),
    });
    let event = bed.event("Starting").await;
    assert_eq!(event["involvedObject"], json!({ "apiVersion": "v1", "kind": "Node", "name": "n1" }));
    assert_eq!(event["metadata"]["namespace"], "default");
    let of = PodRef { namespace: "other".into(), name: "p".into(), uid: "u".into() };
    bed.recorder.pod(of, Note::pod(Kind::Warning, "OutOfcpu", "Pod was rejected"));
    assert_eq!(bed.event("OutOfcpu").await["metadata"]["namespace"], "other");
    let of = ClaimIdentity { namespace: "other".into(), name: "c".into(), uid: "u".into() };
    bed.recorder.claim(of, Note::pod(Kind::Normal, "FileSystemResizeSuccessful", "it has grown"));
    let event = bed.event("FileSystemResizeSuccessful").await;
    assert_eq!(
        event["involvedObject"],
        json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "other", "name": "c", "uid": "u" })
    );
    assert!(event["metadata"]["name"].as_str().unwrap().starts_with("c."));
    assert_eq!(event["metadata"]["namespace"], "other");
    let of = VolumeIdentity { name: "pv".into(), uid: "u".into() };
    bed.recorder.volume(of, Note::pod(Kind::Warning, "FailedMountOnFilesystemMismatch", "no"));
    let event = bed.event("FailedMountOnFilesystemMismatch").await;
    let of = json!({ "apiVersion": "v1", "kind": "PersistentVolume", "name": "pv", "uid": "u" });
    assert_eq!((&event["involvedObject"], &event["metadata"]["namespace"]), (&of, &json!("default")));
}

#[tokio::test(start_paused = true)]
async fn repeats_count_one_event_up() {
    let server = FakeApiServer::default();
    let mut bed = begin(&server);
    bed.happens(unhealthy("no"), 0);
    bed.event("Unhealthy").await;
    for second in 1..5 {
        bed.happens(unhealthy("no"), second);
        sleep(Duration::from_secs(1)).await;
    }
    let event = bed.event("Unhealthy").await;
    assert_eq!((&event["count"], &event["lastTimestamp"]), (&json!(5), &json!("2023-11-14T22:13:24Z")));
    let methods: Vec<String> = bed.writes().into_iter().map(|asked| asked.method).collect();
    assert_eq!(methods, ["POST", "PATCH", "PATCH", "PATCH", "PATCH"]);
}

#[tokio::test(start_paused = true)]
async fn a_flood_is_combined_and_then_held_back() {
    let server = FakeApiServer::default();
    let mut bed = begin(&server);
    for n in 0..100 {
        bed.happens(unhealthy(&format!("code {n}")), n);
        sleep(Duration::from_millis(100)).await;
    }
    let all = server.all("/api/v1/events");
    assert_eq!(all.len(), 10, "nine of their own and one for the rest");
    assert!(
        all.iter().any(|e| e["message"].as_str().unwrap().starts_with("(combined from similar events): "))
    );
    assert_eq!(bed.writes().len(), 25);
    sleep(Duration::from_secs(301)).await;
    bed.happens(unhealthy("late"), 400);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(bed.writes().len(), 1, "one more each five minutes");
}

#[tokio::test(start_paused = true)]
async fn what_happens_while_the_server_is_away_is_told_afterwards() {
    let server = FakeApiServer::default();
    let mut bed = begin(&server);
    server.set_down(true);
    for second in 0..20 {
        bed.happens(unhealthy("no"), second);
        sleep(Duration::from_secs(1)).await;
    }
    server.set_down(false);
    let whole =
        |server: &FakeApiServer| server.all("/api/v1/events").into_iter().find(|event| event["count"] == 20);
    server.until("all of them", whole).await;
}

#[tokio::test(start_paused = true)]
async fn an_event_that_the_server_forgot_begins_anew_and_a_refused_one_is_dropped() {
    let server = FakeApiServer::default();
    let mut bed = begin(&server);
    bed.happens(unhealthy("no"), 0);
    let event = bed.event("Unhealthy").await;
    server.remove(&format!(
        "/api/v1/namespaces/default/events/{}",
        event["metadata"]["name"].as_str().unwrap()
    ));
    bed.happens(unhealthy("no"), 1);
    let again = bed.event("Unhealthy").await;
    assert_eq!(again["count"], 2);
    let _ = bed.writes();
    server.fault(InjectedFault {
        method: "POST".into(),
        path: "/events".into(),
        what: Wrong::Refused(403, "Forbidden"),
        times: 1,
    });
    bed.happens(unhealthy("refused"), 2);
    sleep(Duration::from_secs(300)).await;
    assert_eq!(bed.writes().len(), 1, "a refusal is not repeated");
    server.fault(InjectedFault {
        method: "POST".into(),
        path: "/events".into(),
        what: Wrong::Lost,
        times: 1,
    });
    bed.happens(unhealthy("lost"), 3);
    sleep(Duration::from_secs(60)).await;
    let lost: Vec<Value> =
        server.all("/api/v1/events").into_iter().filter(|e| e["message"] == "lost").collect();
    assert_eq!(lost.len(), 1, "one whose answer was lost is not doubled");
}
