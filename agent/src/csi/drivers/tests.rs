//! Drivers that come, go and lie, at real sockets; the cluster is a fake API server.

use std::time::Duration;

use gantry_kube_client::fake_apiserver::FakeApiServer;
use serde_json::{Value, json};
use tempfile::TempDir;
use tonic::Code;

use super::super::fake::{FakeDriver, Trouble};
use super::*;
use tokio::sync::watch;

const NODE: &str = "/api/v1/nodes/n1";
const CSI_NODE: &str = "/apis/storage.k8s.io/v1/csinodes/n1";
const IDS: &str = "csi.volume.kubernetes.io/nodeid";

struct Bed {
    server: FakeApiServer,
    drivers: Drivers,
    cluster: NodeInfo,
    folder: TempDir,
}

impl Bed {
    fn new() -> Self {
        let server = FakeApiServer::default();
        server.put(NODE, json!({ "metadata": { "uid": "node-uid", "labels": { "own": "x" } } }));
        let cluster = NodeInfo::new(server.client(), "n1");
        Self { server, drivers: Drivers::new(Arc::default()), cluster, folder: tempfile::tempdir().unwrap() }
    }

    async fn register(&self, name: &str, driver: &FakeDriver) -> Result<(), String> {
        let socket = self.folder.path().join(format!("{name}.sock"));
        if !socket.exists() {
            drop(driver.serve(&socket));
        }
        self.drivers.register(name, &socket, &["1.0.0".to_owned()], &self.cluster).await
    }

    fn told(&self) -> Value {
        self.server.get(CSI_NODE).unwrap()["spec"]["drivers"].clone()
    }

    fn ids(&self) -> Value {
        self.server.get(NODE).unwrap()["metadata"]["annotations"][IDS].clone()
    }
}

#[tokio::test]
async fn a_driver_that_registers_is_told_to_the_cluster_and_one_that_goes_is_not_any_more() {
    let bed = Bed::new();
    let (first, second) = (FakeDriver::new("a.example"), FakeDriver::new("b.example"));
    first.says("i-1", 8, &[("topology.a.example/zone", "z1")]);
    second.says("i-2", 0, &[]);
    bed.register("a.example", &first).await.unwrap();
    bed.register("b.example", &second).await.unwrap();
    let a = json!({ "name": "a.example", "nodeID": "i-1", "topologyKeys": ["topology.a.example/zone"],
        "allocatable": { "count": 8 } });
    let b = json!({ "name": "b.example", "nodeID": "i-2", "topologyKeys": [] });
    assert_eq!(bed.told(), json!([a, b]));
    assert_eq!(bed.ids(), json!(r#"{"a.example":"i-1","b.example":"i-2"}"#));
    let owner = &bed.server.get(CSI_NODE).unwrap()["metadata"]["ownerReferences"][0];
    assert_eq!(
        (&owner["kind"], &owner["name"], &owner["uid"]),
        (&json!("Node"), &json!("n1"), &json!("node-uid"))
    );
    let labels = bed.server.get(NODE).unwrap()["metadata"]["labels"].clone();
    assert_eq!(labels, json!({ "own": "x", "topology.a.example/zone": "z1" }));
    bed.drivers.deregister("a.example", &bed.folder.path().join("a.example.sock"), &bed.cluster).await;
    assert_eq!((bed.told(), bed.ids()), (json!([b]), json!(r#"{"b.example":"i-2"}"#)));
    assert!(bed.drivers.get("a.example").is_err() && bed.drivers.get("b.example").is_ok());
    bed.drivers.deregister("b.example", &bed.folder.path().join("b.example.sock"), &bed.cluster).await;
    assert_eq!((bed.told(), bed.ids()), (json!([]), Value::Null));
}

#[tokio::test]
async fn a_driver_that_lies_about_its_name_or_refuses_is_not_used() {
    let bed = Bed::new();
    let liar = FakeDriver::new("b.example");
    let why = bed.register("a.example", &liar).await.unwrap_err();
    assert!(why.ends_with("is registered as \"a.example\" and calls itself \"b.example\""), "{why}");
    let refuses = FakeDriver::new("c.example");
    refuses.fails("info", Trouble::Refused(Code::Internal));
    let why = bed.register("c.example", &refuses).await.unwrap_err();
    assert_eq!(why, "rpc error: code = Internal desc = info failed");
    let nameless = FakeDriver::new("d.example");
    nameless.says("", 0, &[]);
    let why = bed.register("d.example", &nameless).await.unwrap_err();
    assert_eq!(why, "error adding CSI driver node info: driverNodeID must not be empty");
    assert_eq!(bed.drivers.names(), BTreeSet::new());
    // It is asked again, and is well.
    bed.register("c.example", &refuses).await.unwrap();
    assert_eq!(bed.drivers.names(), BTreeSet::from(["c.example".to_owned()]));
}

#[tokio::test]
async fn a_label_of_topology_that_says_otherwise_is_not_written_over() {
    let bed = Bed::new();
    let driver = FakeDriver::new("a.example");
    driver.says("i-1", 0, &[("own", "y")]);
    let why = bed.register("a.example", &driver).await.unwrap_err();
    let collision = "detected topology value collision: driver reported \"own\":\"y\" but existing label is \"own\":\"x\"";
    assert!(why.ends_with(&format!("caused by: {collision}")), "{why}");
    assert_eq!((bed.ids(), bed.drivers.names()), (Value::Null, BTreeSet::new()));
}

#[test]
fn versions_and_names_are_judged_as_upstream_does() {
    let drivers = Drivers::new(Arc::default());
    let judge = |versions: &[&str]| {
        let versions: Vec<String> = versions.iter().map(|version| (*version).to_owned()).collect();
        drivers.validate("a.example", Path::new("/s"), &versions)
    };
    assert_eq!(judge(&["0.3.0", "1.0.0", "2.0.0", "x"]), Ok(()));
    for (versions, why) in [
        (&[][..], "Plugin returned an empty list for supported versions"),
        (&["0.3.0"], "highest supported version reported is 0.3.0, must be v1.x"),
        (&["2.0.0"], "could not find a highest supported version from versions ([2.0.0]) reported: <nil>"),
        (&["x"], "reported: could not parse \"x\" as version"),
    ] {
        let told = judge(versions).unwrap_err();
        assert!(told.starts_with("validation failed for CSI Driver a.example at endpoint /s: "), "{told}");
        assert!(told.ends_with(why), "{told}");
    }
    let known = RegisteredDriver { socket: PathBuf::from("/s"), version: vec![1, 1, 0] };
    drivers.insert("a.example", known);
    let why = judge(&["1.0.0"]).unwrap_err();
    assert!(why.ends_with("already registered with a higher supported version: \"1.1.0\""), "{why}");
    assert_eq!(judge(&["1.2.0"]), Ok(()));
    assert!(drivers.validate("../a", Path::new("/s"), &["1.0.0".to_owned()]).is_err());
}

/// Pods would be sent here and wait; the rest of the object stays.
#[tokio::test(start_paused = true)]
async fn a_driver_that_does_not_come_back_is_withdrawn_after_a_while() {
    let bed = Bed::new();
    let owner = json!({ "apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "node-uid" });
    let entries = ["gone", "here"].map(|name| json!({ "name": name, "nodeID": "i", "topologyKeys": [] }));
    let metadata = json!({ "annotations": { "m": "x" }, "ownerReferences": [owner] });
    bed.server.put(CSI_NODE, json!({ "metadata": metadata, "spec": { "drivers": entries } }));
    let ids = json!({ IDS: r#"{"gone":"i","here":"i"}"# });
    let node = bed.server.put(NODE, json!({ "metadata": { "uid": "node-uid", "annotations": ids } }));
    let here = RegisteredDriver { socket: PathBuf::from("/s"), version: vec![1, 0] };
    bed.drivers.insert("here", here);
    let (_sender, seen) = watch::channel(Some(Arc::new(serde_json::from_value(node).unwrap())));
    let begun = tokio::spawn(bed.cluster.clone().begin(bed.drivers.clone(), seen));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(bed.told(), json!(entries), "it may yet come");
    begun.await.unwrap();
    assert_eq!((bed.told(), bed.ids()), (json!([entries[1]]), json!(r#"{"here":"i"}"#)));
    // As upstream, which writes them sorted.
    let migrated = "kubernetes.io/aws-ebs,kubernetes.io/azure-disk,kubernetes.io/azure-file,kubernetes.io/cinder,kubernetes.io/gce-pd,kubernetes.io/portworx-volume,kubernetes.io/vsphere-volume";
    let annotations = json!({ "m": "x", "storage.alpha.kubernetes.io/migrated-plugins": migrated });
    assert_eq!(bed.server.get(CSI_NODE).unwrap()["metadata"]["annotations"], annotations);
}

/// A node that was deleted and made again has another UID.
#[tokio::test]
async fn a_csi_node_of_an_earlier_node_of_that_name_is_made_anew() {
    let bed = Bed::new();
    let owner = json!({ "apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "old" });
    let stale = json!({ "name": "stale", "nodeID": "i", "topologyKeys": [] });
    let metadata = json!({ "ownerReferences": [owner] });
    bed.server.put(CSI_NODE, json!({ "metadata": metadata, "spec": { "drivers": [stale] } }));
    bed.register("a.example", &FakeDriver::new("a.example")).await.unwrap();
    assert_eq!(bed.told(), json!([{ "name": "a.example", "nodeID": "i-1", "topologyKeys": [] }]));
}
