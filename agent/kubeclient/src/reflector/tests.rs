//! Lists and watches on a fake server: resume, 410, outages, and never in a hurry.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{Query, Reflected, reflect};
use crate::fake_apiserver::{FakeApiServer, InjectedFault, RecordedRequest, Wrong};

fn path(name: &str) -> String {
    format!("/api/v1/namespaces/default/pods/{name}")
}

fn on(node: &str) -> Value {
    json!({ "spec": { "nodeName": node, "containers": [] } })
}

fn follow(server: &FakeApiServer) -> watch::Receiver<Reflected<Pod>> {
    let query = Query { path: "/api/v1/pods".into(), field_selector: "spec.nodeName=n1".into() };
    reflect(server.client(), query)
}

async fn names(seen: &mut watch::Receiver<Reflected<Pod>>, wanted: &[&str]) {
    let all = |seen: &Reflected<Pod>| -> Vec<String> {
        let mut names: Vec<String> =
            seen.items.values().filter_map(|pod| pod.metadata.name.clone()).collect();
        names.sort();
        names
    };
    let waited = tokio::time::timeout(
        Duration::from_secs(300),
        seen.wait_for(|seen| seen.synced && all(seen) == wanted),
    );
    let found = waited.await.map(|found| found.is_ok());
    assert_eq!(found, Ok(true), "wanted {wanted:?}, have {:?}", all(&seen.borrow()));
}

fn lists(asked: &[RecordedRequest]) -> Vec<&RecordedRequest> {
    asked.iter().filter(|asked| !asked.query.contains("watch=true")).collect()
}

#[tokio::test(start_paused = true)]
async fn what_is_there_and_what_changes_is_seen() {
    let server = FakeApiServer::default();
    server.put(&path("a"), on("n1"));
    server.put(&path("b"), on("n2"));
    let mut seen = follow(&server);
    names(&mut seen, &["a"]).await;
    let first = server.requests();
    assert_eq!(
        first[0].query,
        "fieldSelector=spec.nodeName%3Dn1&resourceVersion=0&resourceVersionMatch=NotOlderThan"
    );
    server.put(&path("c"), on("n1"));
    names(&mut seen, &["a", "c"]).await;
    server.remove(&path("a"));
    names(&mut seen, &["c"]).await;
}

#[tokio::test(start_paused = true)]
async fn trap_01_nothing_is_synced_before_the_first_list() {
    let server = FakeApiServer::default();
    server.put(&path("a"), on("n1"));
    server.set_down(true);
    let mut seen = follow(&server);
    tokio::time::sleep(Duration::from_secs(180)).await;
    assert!(!seen.borrow().synced);
    server.set_down(false);
    names(&mut seen, &["a"]).await;
}

#[tokio::test(start_paused = true)]
async fn an_ended_watch_goes_on_where_it_was_without_a_list() {
    let server = FakeApiServer::default();
    server.put(&path("a"), on("n1"));
    let mut seen = follow(&server);
    names(&mut seen, &["a"]).await;
    server.put(&path("other"), on("n2"));
    server.bookmark();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let _ = server.requests();
    server.cut();
    server.put(&path("b"), on("n1"));
    names(&mut seen, &["a", "b"]).await;
    let asked = server.requests();
    assert_eq!(lists(&asked), Vec::<&RecordedRequest>::new());
    // From the bookmark, not from the last pod of this node.
    assert!(asked[0].query.contains("resourceVersion=3&"), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn a_version_that_is_too_old_is_listed_anew_and_what_went_meanwhile_is_gone() {
    let server = FakeApiServer::default();
    server.put(&path("a"), on("n1"));
    server.put(&path("b"), on("n1"));
    let mut seen = follow(&server);
    names(&mut seen, &["a", "b"]).await;
    let before = seen.borrow().items.values().next().cloned().unwrap();
    server.set_down(true);
    server.remove(&path("b"));
    server.put(&path("c"), on("n1"));
    server.compact();
    let _ = server.requests();
    server.set_down(false);
    names(&mut seen, &["a", "c"]).await;
    assert_eq!(lists(&server.requests()).len(), 1);
    let after = seen.borrow().items.values().next().cloned().unwrap();
    assert!(std::sync::Arc::ptr_eq(&before, &after), "an object that has not changed stays the same");
}

#[tokio::test(start_paused = true)]
async fn a_server_without_the_version_is_asked_for_the_newest_in_pages() {
    let server = FakeApiServer::default();
    for n in 0..600 {
        server.put(&path(&format!("p{n:03}")), on("n1"));
    }
    server.fault(InjectedFault {
        method: "GET".into(),
        path: "/pods".into(),
        what: Wrong::Refused(410, "Expired"),
        times: 1,
    });
    let mut seen = follow(&server);
    seen.wait_for(|seen| seen.synced).await.unwrap();
    assert_eq!(seen.borrow().items.len(), 600);
    let asked = server.requests();
    let queries: Vec<&str> = lists(&asked).iter().map(|asked| asked.query.as_str()).collect();
    assert_eq!(queries.len(), 3, "{queries:?}");
    assert!(queries[1].ends_with("&limit=500") && queries[2].contains("continue=500"), "{queries:?}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_refuses_is_asked_ever_more_rarely() {
    let server = FakeApiServer::default();
    server.fault(InjectedFault {
        method: "GET".into(),
        path: "/pods".into(),
        what: Wrong::Refused(403, "Forbidden"),
        times: 1000,
    });
    let _seen = follow(&server);
    tokio::time::sleep(Duration::from_secs(600)).await;
    let asked = server.requests().len();
    assert!((15..40).contains(&asked), "{asked} requests in ten minutes");
}

#[tokio::test(start_paused = true)]
async fn an_object_that_cannot_be_read_holds_up_no_other_in_watch_and_list() {
    let nonsense = json!({ "spec": { "nodeName": "n1", "containers": "none" } });
    let server = FakeApiServer::default();
    server.put(&path("known"), on("n1"));
    let mut seen = follow(&server);
    names(&mut seen, &["known"]).await;
    let before = seen.borrow().items.values().next().cloned().unwrap();
    // In the watch: one that was known, and one that was not.
    server.put(&path("known"), nonsense.clone());
    server.put(&path("new"), nonsense);
    server.put(&path("next"), on("n1"));
    names(&mut seen, &["known", "next"]).await;
    // In a list: what was known of it stays, since it is there.
    server.set_down(true);
    server.put(&path("last"), on("n1"));
    server.compact();
    server.set_down(false);
    names(&mut seen, &["known", "last", "next"]).await;
    let is_same = |pod: &std::sync::Arc<Pod>| std::sync::Arc::ptr_eq(pod, &before);
    assert!(seen.borrow().items.values().any(is_same));
    server.remove(&path("known"));
    names(&mut seen, &["last", "next"]).await;
}

#[tokio::test(start_paused = true)]
async fn trap_01_what_the_first_list_has_and_nobody_can_read_is_not_taken_for_gone() {
    let server = FakeApiServer::default();
    server.put(&path("a"), on("n1"));
    server.put(&path("odd"), json!({ "spec": { "nodeName": "n1", "containers": "none" } }));
    let mut seen = follow(&server);
    // The others are known, and one that comes later.
    server.put(&path("b"), on("n1"));
    seen.wait_for(|seen| seen.items.len() == 2).await.unwrap();
    assert!(!seen.borrow().synced);
    assert!(seen.borrow().failure.as_ref().unwrap().contains("default/odd"), "{:?}", seen.borrow().failure);
    // Read at last.
    server.put(&path("odd"), on("n1"));
    names(&mut seen, &["a", "b", "odd"]).await;
    assert_eq!(seen.borrow().failure, None);
}

#[tokio::test(start_paused = true)]
async fn null_is_an_absent_field_as_for_client_go() {
    let nulls = json!({ "spec": { "nodeName": "n1", "containers": null } });
    let server = FakeApiServer::default();
    server.put(&path("listed"), nulls.clone());
    let mut seen = follow(&server);
    names(&mut seen, &["listed"]).await;
    server.put(&path("watched"), nulls);
    names(&mut seen, &["listed", "watched"]).await;
}

#[tokio::test(start_paused = true)]
async fn watches_that_end_at_once_are_no_hot_loop() {
    let server = FakeApiServer::default();
    let mut seen = follow(&server);
    names(&mut seen, &[]).await;
    // Each watch is answered, and cut before it told anything.
    let cutter = server.clone();
    let cut = tokio::spawn(async move {
        loop {
            cutter.cut();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    let _ = server.requests();
    tokio::time::sleep(Duration::from_secs(300)).await;
    cut.abort();
    let asked = server.requests().len();
    assert!((5..40).contains(&asked), "{asked} requests in five minutes");
}

#[tokio::test(start_paused = true)]
async fn it_ends_with_its_last_listener() {
    let server = FakeApiServer::default();
    let mut seen = follow(&server);
    names(&mut seen, &[]).await;
    drop(seen);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let _ = server.requests();
    server.cut();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(server.requests(), Vec::<RecordedRequest>::new());
}

#[test]
fn a_line_of_a_watch_takes_few_instructions() {
    let container = |name: &str| {
        json!({ "name": name, "image": "registry/app:v1", "env": [{ "name": "A", "value": "b" }],
        "resources": { "limits": { "cpu": "1", "memory": "64Mi" } }, "ports": [{ "containerPort": 80 }] })
    };
    let object = json!({ "kind": "Pod", "apiVersion": "v1",
        "metadata": { "name": "web", "namespace": "default", "uid": "uid-1", "resourceVersion": "7",
            "labels": { "app": "web", "tier": "front" },
            "managedFields": [{ "manager": "kubectl", "operation": "Update", "fieldsV1": { "f:spec": {} } }] },
        "spec": { "nodeName": "n1", "containers": [container("a"), container("b")] } });
    let line = json!({ "type": "MODIFIED", "object": object }).to_string();
    let test = "reflector::tests::a_line_of_a_watch_takes_few_instructions";
    gantry_instructions::hold(test, 174_958, || {
        let read = super::parse::change::<Pod>(&line).unwrap();
        assert!(matches!(read, Some(super::parse::WatchLine::Event(_))), "{read:?}");
    });
}
