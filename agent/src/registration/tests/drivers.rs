//! What drivers of an earlier kubelet told of the node.

use gantry_kube_client::fake_apiserver::FakeApiServer;
use serde_json::{Value, json};

use super::{NODE, begin, machine, settings, well};

#[tokio::test(start_paused = true)]
async fn what_an_earlier_kubelets_drivers_told_of_the_node_is_withdrawn_when_it_is_registered() {
    const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";
    const CSI: &str = "/apis/storage.k8s.io/v1/csinodes/n1";
    let server = FakeApiServer::default();
    let ids = json!({ "csi.volume.kubernetes.io/nodeid": "{\"d\":\"i-1\"}", "own": "x" });
    server.put(NODE, json!({ "metadata": { "annotations": ids } }));
    let driver = json!({ "name": "d", "nodeID": "i-1", "topologyKeys": ["zone"] });
    server.put(CSI, json!({ "metadata": { "annotations": { "m": "x" } }, "spec": { "drivers": [driver] } }));
    for (name, node) in [("a", "n1"), ("b", "n2"), ("c", "n1")] {
        server.put(&format!("{SLICES}/{name}"), json!({ "spec": { "driver": "d", "nodeName": node } }));
    }
    let _bed = begin(&server, settings(), machine(), Some(well()));
    let withdrawn = |server: &FakeApiServer| {
        let of: Vec<Value> =
            server.all(SLICES).iter().map(|slice| slice["spec"]["nodeName"].clone()).collect();
        let csi = server.get(CSI)?;
        (of == ["n2"] && csi["spec"]["drivers"] == json!([])).then_some(csi)
    };
    let csi = server.until("what nobody serves is withdrawn", withdrawn).await;
    assert_eq!(csi["metadata"]["annotations"], json!({ "m": "x" }), "the rest of it stays");
    let ids_gone = |server: &FakeApiServer| {
        let annotations = server.get(NODE)?["metadata"]["annotations"].clone();
        (annotations["own"] == "x" && annotations.get("csi.volume.kubernetes.io/nodeid").is_none())
            .then_some(())
    };
    server.until("the drivers' ids are gone", ids_gone).await;
}
