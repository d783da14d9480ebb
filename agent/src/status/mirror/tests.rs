//! Mirror pods on a fake API server: made, made anew, taken away, and nothing else touched.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gantry_kube_client::fake_apiserver::{FakeApiServer, InjectedFault, Wrong};
use gantry_model::clock::FakeClock;
use gantry_model::pod::{Origin, Pod, PodUid};
use k8s_openapi::api::core::v1 as api;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::sleep;

use super::{Mirrors, keep};
use crate::pod::status::PodStatus as Word;
use crate::pod::tests::pod;
use crate::pod::worker::PodHandle;
use crate::pod_source;
use crate::status::Statics;

const ETCD: &str = "/api/v1/namespaces/kube-system/pods/etcd-n1";
const MIRROR: &str = "/metadata/annotations/kubernetes.io~1config.mirror";

struct MirrorFixture {
    server: FakeApiServer,
    statics: watch::Sender<Statics>,
    pods: watch::Sender<Arc<[PodHandle]>>,
    node: watch::Sender<Option<Arc<api::Node>>>,
    _task: tokio::task::JoinHandle<()>,
}

fn node() -> Arc<api::Node> {
    Arc::new(serde_json::from_value(json!({ "metadata": { "name": "n1", "uid": "node-uid" } })).unwrap())
}

fn begin(server: &FakeApiServer) -> MirrorFixture {
    let (statics, statics_seen) = watch::channel(Statics::default());
    let (pods, pods_seen) = watch::channel(Arc::from([]));
    let (node, node_seen) = watch::channel(Some(node()));
    let seen = pod_source::follow(server.client(), "n1");
    let task = keep(Mirrors {
        client: server.client(),
        node: node_seen,
        seen,
        pods: pods_seen,
        statics: statics_seen,
    });
    MirrorFixture { server: server.clone(), statics, pods, node, _task: task }
}

impl MirrorFixture {
    fn files(&self, hashes: &[&str]) {
        self.known(hashes, true);
    }

    /// `complete` says whether all sources have been read.
    fn known(&self, hashes: &[&str], complete: bool) {
        let described = hashes.iter().map(|hash| {
            let pod: api::Pod = serde_json::from_value(json!({
                "metadata": { "name": "etcd-n1", "namespace": "kube-system", "uid": hash,
                    "annotations": { "kubernetes.io/config.hash": hash, "kubernetes.io/config.source": "file" } },
                "spec": { "nodeName": "n1", "containers": [{ "name": "etcd" }] },
            }))
            .unwrap();
            (PodUid::parse(hash).unwrap(), Arc::new(pod))
        });
        let pods = Arc::new(described.collect::<BTreeMap<_, _>>());
        self.statics.send_replace(Statics { pods, complete });
    }

    async fn mirror(&self, hash: &str) -> Value {
        let of = |pod: &Value| pod.pointer(MIRROR) == Some(&json!(hash));
        self.server.until(&format!("mirror {hash}"), |server| server.get(ETCD).filter(of)).await
    }

    async fn gone(&self) {
        self.server.until("no mirror", |server| server.get(ETCD).is_none().then_some(())).await;
    }

    fn creates(&self) -> usize {
        self.server.requests().iter().filter(|asked| asked.method == "POST").count()
    }
}

#[tokio::test(start_paused = true)]
async fn a_static_pod_gets_an_image_that_the_node_owns() {
    let bed = begin(&FakeApiServer::default());
    bed.files(&["hash-1"]);
    let mirror = bed.mirror("hash-1").await;
    assert_eq!(
        mirror["metadata"]["ownerReferences"],
        json!([{ "apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "node-uid", "controller": true }])
    );
    assert_eq!(mirror["metadata"]["annotations"]["kubernetes.io/config.source"], "file");
    assert_ne!(mirror["metadata"]["uid"], "hash-1", "the API server chooses it");
    sleep(Duration::from_secs(300)).await;
    assert_eq!(bed.creates(), 1);
}

#[tokio::test(start_paused = true)]
async fn images_of_pods_that_are_not_known_yet_stay_and_others_are_made() {
    let bed = begin(&FakeApiServer::default());
    bed.files(&["hash-1"]);
    bed.mirror("hash-1").await;
    // As after a restart, while a URL does not answer.
    bed.known(&[], false);
    sleep(Duration::from_secs(300)).await;
    assert!(bed.server.get(ETCD).is_some());
    bed.server.remove(ETCD);
    bed.known(&["hash-2"], false);
    bed.mirror("hash-2").await;
    bed.files(&[]);
    bed.gone().await;
}

#[tokio::test(start_paused = true)]
async fn trap_10_an_image_that_the_user_deletes_comes_back() {
    let bed = begin(&FakeApiServer::default());
    bed.files(&["hash-1"]);
    let first = bed.mirror("hash-1").await;
    bed.server.remove(ETCD);
    let second = bed.mirror("hash-1").await;
    assert_ne!(first["metadata"]["uid"], second["metadata"]["uid"]);
    // Gracefully deleted ones are finished first.
    bed.server.edit(ETCD, |pod| pod["metadata"]["deletionTimestamp"] = json!("2030-01-01T00:00:00Z"));
    let uid = second["metadata"]["uid"].clone();
    let anew = |pod: &Value| pod["metadata"]["uid"] != uid;
    bed.server.until("a third", |server| server.get(ETCD).filter(anew)).await;
}

#[tokio::test(start_paused = true)]
async fn trap_10_a_changed_file_is_a_new_image() {
    let bed = begin(&FakeApiServer::default());
    bed.files(&["hash-1"]);
    bed.mirror("hash-1").await;
    let _ = bed.server.requests();
    bed.files(&["hash-2"]);
    bed.mirror("hash-2").await;
    let writes: Vec<String> = bed
        .server
        .requests()
        .into_iter()
        .map(|asked| asked.method)
        .filter(|method| method != "GET")
        .collect();
    assert_eq!(writes, ["DELETE", "POST"]);
}

#[tokio::test(start_paused = true)]
async fn an_image_stays_until_its_pod_is_over() {
    let bed = begin(&FakeApiServer::default());
    bed.files(&["hash-1"]);
    bed.mirror("hash-1").await;
    let own = Pod {
        name: "etcd-n1".into(),
        namespace: "kube-system".into(),
        uid: PodUid::parse("hash-1").unwrap(),
        origin: Origin::Static,
        ..pod()
    };
    let own = Pod { annotations: [("kubernetes.io/config.hash".into(), "hash-1".into())].into(), ..own };
    let (worker, word) = watch::channel(Word::default());
    bed.pods.send_replace(Arc::from([PodHandle::of_test(Arc::new(own), word, Arc::new(FakeClock::new(0)))]));
    // Gone, or changed: what is shown is what runs.
    for files in [&[][..], &["hash-2"]] {
        bed.files(files);
        sleep(Duration::from_secs(120)).await;
        assert_eq!(bed.server.get(ETCD).unwrap().pointer(MIRROR), Some(&json!("hash-1")));
    }
    drop(worker);
    bed.pods.send_replace(Arc::from([]));
    bed.mirror("hash-2").await;
    bed.files(&[]);
    bed.gone().await;
}

#[tokio::test(start_paused = true)]
async fn an_image_that_finalizers_hold_is_deleted_once() {
    let bed = begin(&FakeApiServer::default());
    bed.files(&["hash-1"]);
    bed.mirror("hash-1").await;
    bed.server.edit(ETCD, |pod| pod["metadata"]["finalizers"] = json!(["example.com/keep"]));
    bed.files(&[]);
    let marked = |pod: &Value| pod["metadata"]["deletionGracePeriodSeconds"] == 0;
    bed.server.until("marked", |server| server.get(ETCD).filter(marked)).await;
    sleep(Duration::from_secs(300)).await;
    assert_eq!(bed.server.requests().iter().filter(|asked| asked.method == "DELETE").count(), 1);
}

#[tokio::test(start_paused = true)]
async fn trap_01_no_image_is_deleted_before_the_folder_was_read() {
    let server = FakeApiServer::default();
    let mut pod = json!({ "metadata": { "annotations": { "kubernetes.io/config.mirror": "hash-1" } } });
    pod["spec"] = json!({ "nodeName": "n1", "containers": [] });
    server.put(ETCD, pod);
    let bed = begin(&server);
    sleep(Duration::from_secs(120)).await;
    assert!(server.get(ETCD).is_some());
    bed.files(&[]);
    bed.gone().await;
}

#[tokio::test(start_paused = true)]
async fn no_image_is_made_for_a_node_that_is_not_there_or_over_another_pod() {
    let server = FakeApiServer::default();
    let bed = begin(&server);
    bed.node.send_replace(None);
    bed.files(&["hash-1"]);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(bed.creates(), 0);
    server.put(ETCD, json!({ "spec": { "nodeName": "n1", "containers": [] } }));
    sleep(Duration::from_secs(1)).await;
    bed.node.send_replace(Some(node()));
    sleep(Duration::from_secs(60)).await;
    assert_eq!(bed.creates(), 0);
    assert!(
        server.get(ETCD).unwrap().pointer(MIRROR).is_none(),
        "a pod that is no mirror is nobody's to delete"
    );
}

#[tokio::test(start_paused = true)]
async fn a_refused_image_is_tried_ever_more_rarely() {
    let server = FakeApiServer::default();
    server.fault(InjectedFault {
        method: "POST".into(),
        path: "/pods".into(),
        what: Wrong::Refused(403, "Forbidden"),
        times: 1000,
    });
    let bed = begin(&server);
    bed.files(&["hash-1"]);
    sleep(Duration::from_secs(600)).await;
    let tried = bed.creates();
    assert!((8..25).contains(&tried), "{tried} in ten minutes");
}
