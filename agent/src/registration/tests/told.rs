//! What is told of a node that is short of something, goes down, or has volumes of an earlier kubelet.

use super::*;

#[tokio::test(start_paused = true)]
async fn pressure_is_told_at_once() {
    let bed = begin(&FakeApiServer::default(), settings(), machine(), Some(well()));
    ready(&bed, "True").await;
    bed.pressures.send_replace([gantry_model::signal::Pressure::Pid].into());
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(condition(&bed.server.get(NODE).unwrap(), "PIDPressure")["status"], "True");
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

#[tokio::test(start_paused = true)]
async fn a_node_that_goes_down_is_not_ready_at_once_and_says_why_until_that_is_cancelled() {
    let bed = begin(&FakeApiServer::default(), settings(), machine(), Some(well()));
    ready(&bed, "True").await;
    bed.shutdown.send_replace(Shutdown::Ending);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let told = condition(&bed.server.get(NODE).unwrap(), "Ready");
    assert_eq!(
        (&told["status"], &told["reason"], &told["message"]),
        (&json!("False"), &json!("KubeletNotReady"), &json!("node is shutting down"))
    );
    assert_eq!(*bed.reported.borrow(), Shutdown::Ending);
    bed.shutdown.send_replace(Shutdown::Not);
    ready(&bed, "True").await;
}

#[tokio::test(start_paused = true)]
async fn pull_139660_the_last_report_of_a_shutdown_gives_back_the_volumes_and_is_waited_for() {
    let server = FakeApiServer::default();
    server.put(NODE, json!({ "status": { "volumesInUse": ["kubernetes.io/csi/d^v"] } }));
    let mut bed = begin(&server, settings(), machine(), Some(well()));
    ready(&bed, "True").await;
    bed.shutdown.send_replace(Shutdown::Ending);
    bed.reported.wait_for(|stage| *stage == Shutdown::Ending).await.unwrap();
    // Its pods have ended, and so have their mounts.
    bed.volumes.set_foreign(false);
    bed.shutdown.send_replace(Shutdown::Over);
    bed.reported.wait_for(|stage| *stage == Shutdown::Over).await.unwrap();
    let node = server.get(NODE).unwrap();
    assert!(node["status"].get("volumesInUse").is_none(), "{node}");
    assert_eq!(condition(&node, "Ready")["status"], "False");
}

#[tokio::test(start_paused = true)]
async fn a_report_that_did_not_arrive_is_none() {
    let server = FakeApiServer::default();
    let bed = begin(&server, settings(), machine(), Some(well()));
    ready(&bed, "True").await;
    server.set_down(true);
    bed.shutdown.send_replace(Shutdown::Over);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(*bed.reported.borrow(), Shutdown::Not);
    server.set_down(false);
    bed.reported.clone().wait_for(|stage| *stage == Shutdown::Over).await.unwrap();
}
