//! What drivers of an earlier kubelet told of the node.

use gantry_kube_client::fake_apiserver::FakeApiServer;
use serde_json::{Value, json};

use super::{begin, machine, settings, well};

#[tokio::test(start_paused = true)]
async fn what_an_earlier_kubelets_drivers_told_of_the_node_is_withdrawn_when_it_is_registered() {
    const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";
    let server = FakeApiServer::default();
    for (name, node) in [("a", "n1"), ("b", "n2"), ("c", "n1")] {
        server.put(&format!("{SLICES}/{name}"), json!({ "spec": { "driver": "d", "nodeName": node } }));
    }
    let _bed = begin(&server, settings(), machine(), Some(well()));
    let withdrawn = |server: &FakeApiServer| {
        let of: Vec<Value> =
            server.all(SLICES).iter().map(|slice| slice["spec"]["nodeName"].clone()).collect();
        (of == ["n2"]).then_some(())
    };
    server.until("what nobody serves is withdrawn", withdrawn).await;
}
