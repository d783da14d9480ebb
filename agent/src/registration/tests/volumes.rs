//! When the node tells which volumes are in use.

use super::*;

/// A pod waits for it, and a report may be minutes away.
#[tokio::test(start_paused = true)]
async fn a_volume_that_is_in_use_is_told_at_once() {
    let server = FakeApiServer::default();
    let bed = begin(&server, settings(), machine(), Some(well()));
    ready(&bed, "True").await;
    let begun = tokio::time::Instant::now();
    bed.in_use.send_modify(|in_use| in_use.sure.extend(["kubernetes.io/csi/d^v".to_owned()]));
    let told = json!(["kubernetes.io/csi/d^v"]);
    server
        .until("it is told", |server| (server.get(NODE)?["status"]["volumesInUse"] == told).then_some(()))
        .await;
    assert!(begun.elapsed() < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn volumes_in_use_go_once_an_earlier_kubelets_mounts_have_gone() {
    let server = FakeApiServer::default();
    let volumes = json!(["kubernetes.io/csi/d^v"]);
    server.put(NODE, json!({ "status": { "volumesInUse": volumes } }));
    let bed = begin(&server, settings(), machine(), Some(well()));
    ready(&bed, "True").await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(server.get(NODE).unwrap()["status"]["volumesInUse"], volumes);
    bed.volumes.set_foreign(false);
    let gone =
        |server: &FakeApiServer| server.get(NODE).filter(|node| node["status"].get("volumesInUse").is_none());
    server.until("volumesInUse has gone", gone).await;
}
