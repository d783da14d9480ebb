//! What is told between two steps of a pod waits for the next one; what matters at once does not.

use std::time::Duration;

use gantry_kube_client::fake_apiserver::FakeApiServer;
use serde_json::json;
use tokio::time::sleep;

use super::{StatusFixture, WEB};
use crate::pod::status::Phase;
use crate::pod::{Life, StopStep};

#[tokio::test(start_paused = true)]
async fn a_pod_that_starts_within_a_moment_is_told_of_once() {
    let server = FakeApiServer::default();
    let bed = StatusFixture::new(&server);
    let worker = bed.run("web").await;
    worker.says(Phase::Pending, "its image is there");
    sleep(Duration::from_millis(60)).await;
    worker.says(Phase::Running, "it runs");
    worker.is(Life::Running);
    let began = tokio::time::Instant::now();
    bed.phase(WEB, "Running").await;
    assert!(began.elapsed() < Duration::from_millis(50), "{:?}", began.elapsed());
    sleep(Duration::from_secs(60)).await;
    assert_eq!(bed.writes().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_start_takes_long_is_told_of_meanwhile() {
    let server = FakeApiServer::default();
    let bed = StatusFixture::new(&server);
    let worker = bed.run("web").await;
    // Each word is another one: none may put the first one off.
    for n in 0..9 {
        worker.says(Phase::Pending, &format!("layer {n}"));
        sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(bed.writes().len(), 0);
    sleep(Duration::from_millis(100)).await;
    assert_eq!(bed.writes().len(), 1);
    worker.says(Phase::Running, "it runs");
    worker.is(Life::Running);
    bed.phase(WEB, "Running").await;
}

#[tokio::test(start_paused = true)]
async fn a_container_that_is_made_is_told_of_with_its_start() {
    let server = FakeApiServer::default();
    let bed = StatusFixture::new(&server);
    let worker = bed.run("web").await;
    bed.phase(WEB, "Pending").await;
    let _ = bed.writes();
    worker.says(Phase::Pending, "it is made");
    sleep(Duration::from_millis(60)).await;
    worker.says(Phase::Running, "it runs");
    worker.is(Life::Running);
    bed.phase(WEB, "Running").await;
    sleep(Duration::from_secs(60)).await;
    assert_eq!(bed.writes().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_pod_that_ends_within_a_moment_is_told_of_once() {
    let server = FakeApiServer::default();
    let bed = StatusFixture::new(&server);
    let worker = bed.run("web").await;
    worker.says(Phase::Running, "");
    worker.is(Life::Running);
    bed.phase(WEB, "Running").await;
    let _ = bed.writes();
    server.edit(WEB, |pod| {
        pod["metadata"]["deletionTimestamp"] = json!("2026-11-22T00:00:00Z");
        pod["metadata"]["deletionGracePeriodSeconds"] = json!(5);
    });
    // The clock stands still until the watch has told.
    sleep(Duration::from_millis(100)).await;
    let stopping = |step| Life::Stopping { deadline: None, step };
    worker.is(stopping(StopStep::Containers));
    worker.says(Phase::Running, "its container has ended");
    sleep(Duration::from_millis(100)).await;
    worker.is(stopping(StopStep::Sandbox));
    // How its containers ended is known; that it has no sandbox follows.
    worker.says(Phase::Succeeded, "it has ended");
    sleep(Duration::from_millis(100)).await;
    assert_eq!(bed.writes().len(), 0);
    worker.is(stopping(StopStep::Volumes));
    let began = tokio::time::Instant::now();
    bed.phase(WEB, "Succeeded").await;
    assert!(began.elapsed() < Duration::from_millis(50), "{:?}", began.elapsed());
    worker.is(Life::Stopped);
    server.until("deleted", |server| server.get(WEB).is_none().then_some(())).await;
    let methods: Vec<String> = bed.writes().into_iter().map(|asked| asked.method).collect();
    assert_eq!(methods, ["PATCH", "DELETE"]);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_pod_that_takes_its_time_is_told_of_meanwhile() {
    let server = FakeApiServer::default();
    let bed = StatusFixture::new(&server);
    let worker = bed.run("web").await;
    worker.says(Phase::Running, "");
    worker.is(Life::Running);
    bed.phase(WEB, "Running").await;
    server.edit(WEB, |pod| pod["metadata"]["deletionTimestamp"] = json!("2026-11-22T00:00:00Z"));
    sleep(Duration::from_millis(100)).await;
    worker.is(Life::Stopping { deadline: None, step: StopStep::Containers });
    worker.says(Phase::Running, "one of two has ended");
    bed.until("the word", WEB, |pod| pod["status"]["message"] == "one of two has ended").await;
}
