//! How often a pod of the API is held in memory.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_pod_whose_status_is_told_is_the_apis_own_and_no_copy() {
    let server = FakeApiServer::default();
    let bed = StatusFixture::new(&server);
    let worker = bed.run("web").await;
    worker.says(Phase::Running, "hello");
    bed.phase(WEB, "Running").await;
    sleep(Duration::from_secs(60)).await;
    let seen = bed.seen.borrow();
    let (uid, of_api) = seen.pods.first_key_value().unwrap();
    assert!(Arc::ptr_eq(bed.told.borrow().get(uid).unwrap(), of_api));
    // The reflector, the list made of it, what is told and what was looked at last.
    assert!(Arc::strong_count(of_api) <= 5, "{} have it", Arc::strong_count(of_api));
}
