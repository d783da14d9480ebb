//! Drivers at real sockets that are asked again and again, on paused time; the cluster is a fake API server.

use gantry_kube_client::fake_apiserver::FakeApiServer;
use gantry_model::clock::FakeClock;
use serde_json::{Value, json};
use tempfile::TempDir;
use tonic::Code;

use super::super::fake::{FakeDriver, Trouble};
use super::*;
use crate::api::cluster::Cluster;

const NODE: &str = "/api/v1/nodes/n1";
const CSI_NODE: &str = "/apis/storage.k8s.io/v1/csinodes/n1";

struct AskedDrivers {
    server: FakeApiServer,
    drivers: Drivers,
    cluster: NodeInfo,
    folder: TempDir,
    begun: Instant,
}

fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}

impl AskedDrivers {
    fn new() -> Self {
        let server = FakeApiServer::default();
        server.put(NODE, json!({ "metadata": { "uid": "node-uid" } }));
        let api = Arc::new(Cluster::new(server.client(), Arc::new(FakeClock::new(1_800_000_000))));
        let drivers = Drivers::new(Arc::default());
        let cluster = NodeInfo::new(server.client(), "n1");
        tokio::spawn(Allocatable::new(api, drivers.clone(), cluster.clone()).run());
        Self { server, drivers, cluster, folder: tempfile::tempdir().unwrap(), begun: Instant::now() }
    }

    /// With a CSIDriver that has that period.
    async fn register(&self, name: &str, period: Option<u64>) -> FakeDriver {
        self.want(name, period);
        let driver = FakeDriver::new(name);
        driver.says("i-1", 5, &[]);
        let socket = self.folder.path().join(name);
        drop(driver.serve(&socket));
        self.drivers.register(name, &socket, &["1.0.0".to_owned()], &self.cluster).await.unwrap();
        assert_eq!((self.told(name), driver.infos()), (json!(5), 1));
        driver.says("i-1", 8, &[]);
        driver
    }

    fn want(&self, name: &str, period: Option<u64>) {
        let spec = json!({ "attachRequired": true, "nodeAllocatableUpdatePeriodSeconds": period });
        let path = format!("/apis/storage.k8s.io/v1/csidrivers/{name}");
        self.server.put(&path, json!({ "metadata": { "name": name }, "spec": spec }));
    }

    async fn deregister(&self, name: &str) {
        self.drivers.deregister(name, &self.folder.path().join(name), &self.cluster).await;
    }

    /// What the CSINode says of the driver.
    fn told(&self, name: &str) -> Value {
        let object = self.server.get(CSI_NODE).unwrap();
        let drivers = object["spec"]["drivers"].as_array().unwrap();
        let entry = drivers.iter().find(|driver| driver["name"] == name);
        entry.map_or(Value::Null, |entry| entry["allocatable"]["count"].clone())
    }

    /// Until then, and a moment for what comes of it.
    async fn at(&self, seconds: u64) {
        tokio::time::sleep_until(self.begun + secs(seconds)).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_driver_is_asked_each_period_and_what_has_changed_is_told() {
    let bed = AskedDrivers::new();
    let driver = bed.register("a.example", Some(10)).await;
    bed.at(9).await;
    assert_eq!((bed.told("a.example"), driver.infos()), (json!(5), 1), "it was asked when it registered");
    bed.at(10).await;
    assert_eq!((bed.told("a.example"), driver.infos()), (json!(8), 2));
    let version = || bed.server.get(CSI_NODE).unwrap()["metadata"]["resourceVersion"].clone();
    let before = version();
    bed.at(20).await;
    assert_eq!((version(), driver.infos()), (before, 3), "what says the same is not written again");
    // It has no limit any more; the rest of the entry stays.
    driver.says("i-1", 0, &[]);
    bed.at(30).await;
    let drivers = bed.server.get(CSI_NODE).unwrap()["spec"]["drivers"].clone();
    assert_eq!(drivers, json!([{ "name": "a.example", "nodeID": "i-1", "topologyKeys": [] }]));
}

#[tokio::test(start_paused = true)]
async fn a_driver_without_a_period_is_asked_once() {
    let bed = AskedDrivers::new();
    let driver = bed.register("a.example", None).await;
    bed.at(3600).await;
    assert_eq!((bed.told("a.example"), driver.infos()), (json!(5), 1));
}

#[tokio::test(start_paused = true)]
async fn a_node_without_drivers_reads_no_driver_objects() {
    let bed = AskedDrivers::new();
    bed.want("a.example", Some(10));
    bed.at(60).await;
    assert_eq!(bed.server.requests().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_period_that_changes_counts_from_then_and_one_that_goes_ends_it() {
    let bed = AskedDrivers::new();
    let driver = bed.register("a.example", None).await;
    bed.at(100).await;
    bed.want("a.example", Some(30));
    bed.at(129).await;
    assert_eq!(driver.infos(), 1);
    bed.at(131).await;
    assert_eq!((bed.told("a.example"), driver.infos()), (json!(8), 2));
    bed.want("a.example", Some(600));
    bed.at(730).await;
    assert_eq!(driver.infos(), 2, "the new period has begun anew");
    bed.at(732).await;
    assert_eq!(driver.infos(), 3);
    // Something else of the object changes: it goes on as before.
    let path = "/apis/storage.k8s.io/v1/csidrivers/a.example";
    bed.at(1300).await;
    bed.server.edit(path, |object| object["metadata"]["labels"] = json!({ "x": "y" })).unwrap();
    bed.at(1332).await;
    assert_eq!(driver.infos(), 4);
    bed.want("a.example", None);
    bed.at(9000).await;
    assert_eq!(driver.infos(), 4);
    bed.want("a.example", Some(10));
    bed.at(9012).await;
    assert_eq!(driver.infos(), 5);
    bed.server.remove(path);
    bed.at(20_000).await;
    assert_eq!(driver.infos(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_goes_is_asked_no_more_and_one_that_comes_back_is() {
    let bed = AskedDrivers::new();
    let driver = bed.register("a.example", Some(10)).await;
    bed.deregister("a.example").await;
    bed.at(60).await;
    assert_eq!((bed.told("a.example"), driver.infos()), (Value::Null, 1));
    let socket = bed.folder.path().join("a.example");
    bed.drivers.register("a.example", &socket, &["1.0.0".to_owned()], &bed.cluster).await.unwrap();
    driver.says("i-1", 9, &[]);
    bed.at(72).await;
    assert_eq!((bed.told("a.example"), driver.infos()), (json!(9), 3));
}

/// Upstream writes such a one into the CSINode again, and pods come for it.
#[tokio::test(start_paused = true)]
async fn a_driver_that_goes_while_it_is_asked_is_not_told_again() {
    let bed = AskedDrivers::new();
    let driver = bed.register("a.example", None).await;
    let client = bed.drivers.get("a.example").unwrap();
    let facts = client.node_facts().await.unwrap();
    bed.deregister("a.example").await;
    bed.cluster.update("a.example", &facts, || bed.drivers.is_here(&client)).await.unwrap();
    assert_eq!((bed.told("a.example"), driver.infos()), (Value::Null, 2));
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_hangs_is_given_up_and_holds_up_nobody() {
    let bed = AskedDrivers::new();
    let hung = bed.register("a.example", Some(10)).await;
    let well = bed.register("b.example", Some(10)).await;
    hung.fails("info", Trouble::Hangs);
    bed.at(61).await;
    assert_eq!((bed.told("a.example"), hung.infos()), (json!(5), 2), "one call, and it has not ended");
    assert_eq!((bed.told("b.example"), well.infos()), (json!(8), 7));
    // After two minutes it is given up; what it says next is told.
    bed.at(135).await;
    assert_eq!((bed.told("a.example"), hung.infos()), (json!(8), 3));
}

#[tokio::test(start_paused = true)]
async fn a_driver_or_an_api_server_that_refuses_changes_nothing_and_is_asked_again() {
    let bed = AskedDrivers::new();
    let driver = bed.register("a.example", Some(10)).await;
    driver.fails("info", Trouble::Refused(Code::Internal));
    bed.at(11).await;
    assert_eq!((bed.told("a.example"), driver.infos()), (json!(5), 2));
    bed.server.set_down(true);
    bed.at(21).await;
    assert_eq!((bed.told("a.example"), driver.infos()), (json!(5), 3));
    bed.server.set_down(false);
    bed.at(31).await;
    assert_eq!((bed.told("a.example"), driver.infos()), (json!(8), 4));
}
