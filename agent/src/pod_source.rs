//! The pod source of the API server: the pods bound to this node, by list and watch. Never decides what
//! becomes of one. Called by the kubelet's wiring; read by [`crate::pod_manager`] and [`crate::status`].

#![expect(clippy::disallowed_methods, reason = "the source ends with its last receiver")]

use std::collections::BTreeMap;
use std::sync::Arc;

use gantry_kube_client::reflector::{Query, Reflected, reflect};
use gantry_model::pod::PodUid;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use tokio::sync::watch;

/// Marks the API's image of a static pod; its value is the static pod's hash.
pub(crate) const MIRROR: &str = "kubernetes.io/config.mirror";

/// The pods of the API server that are bound to this node.
#[derive(Debug, Clone, Default)]
pub(crate) struct ApiPods {
    /// Whether the first full list is in: before, a pod that is not here may well be wanted (trap 1).
    pub synced: bool,
    /// To run, or to end. One that has not changed stays the same `Arc`.
    pub pods: BTreeMap<PodUid, Arc<Pod>>,
    /// Images of static pods: never to run.
    pub mirrors: BTreeMap<PodUid, Arc<Pod>>,
}

/// Begins to follow the pods of a node. It ends when nobody listens.
#[must_use]
pub(crate) fn follow(client: Client, node: &str) -> watch::Receiver<ApiPods> {
    let query = Query { path: "/api/v1/pods".to_owned(), field_selector: format!("spec.nodeName={node}") };
    let mut reflected = reflect::<Pod>(client, query);
    let (sender, receiver) = watch::channel(ApiPods::default());
    tokio::spawn(async move {
        loop {
            sender.send_replace(collect_pods(&reflected.borrow_and_update()));
            tokio::select! {
                // A change stays marked until it was looked at.
                changed = reflected.changed() => if changed.is_err() { return },
                () = sender.closed() => return,
            }
        }
    });
    receiver
}

fn collect_pods(reflected: &Reflected<Pod>) -> ApiPods {
    let mut seen = ApiPods { synced: reflected.synced, ..ApiPods::default() };
    for (uid, pod) in &reflected.items {
        let Some(uid) = PodUid::parse(uid) else {
            // The API server makes these; folders are named after them.
            tracing::error!(uid, name = pod.metadata.name, "ignoring a pod whose UID is not valid");
            continue;
        };
        let of = if is_mirror(pod) { &mut seen.mirrors } else { &mut seen.pods };
        of.insert(uid, pod.clone());
    }
    seen
}

/// Whether it is the image of a static pod.
#[must_use]
pub(crate) fn is_mirror(pod: &Pod) -> bool {
    pod.metadata.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(MIRROR))
}

/// Whether it was deleted without a grace and only its finalizers hold it: it goes with the last of
/// them, and to delete it again changes nothing.
#[must_use]
pub(crate) fn is_held(pod: &Pod) -> bool {
    let meta = &pod.metadata;
    meta.deletion_timestamp.is_some()
        && meta.deletion_grace_period_seconds == Some(0)
        && meta.finalizers.as_ref().is_some_and(|finalizers| !finalizers.is_empty())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use gantry_kube_client::fake_apiserver::FakeApiServer;
    use serde_json::json;

    use super::*;

    const WEB: &str = "/api/v1/namespaces/default/pods/web";

    #[tokio::test(start_paused = true)]
    async fn mirror_pods_are_kept_apart() {
        let server = FakeApiServer::default();
        let spec = json!({ "nodeName": "n1", "containers": [] });
        server.put(WEB, json!({ "spec": spec }));
        let mirror = json!({ "metadata": { "annotations": { MIRROR: "hash" } }, "spec": spec });
        server.put("/api/v1/namespaces/kube-system/pods/etcd-n1", mirror);
        let mut seen = follow(server.client(), "n1");
        let seen = seen.wait_for(|seen| seen.synced).await.unwrap().clone();
        let name =
            |pods: &BTreeMap<PodUid, Arc<Pod>>| pods.values().next().unwrap().metadata.name.clone().unwrap();
        assert_eq!((seen.pods.len(), seen.mirrors.len()), (1, 1));
        assert_eq!((name(&seen.pods), name(&seen.mirrors)), ("web".into(), "etcd-n1".into()));
    }

    #[tokio::test(start_paused = true)]
    async fn trap_02_a_new_pod_of_the_same_name_is_another_one() {
        let server = FakeApiServer::default();
        server.put(
            WEB,
            json!({ "metadata": { "uid": "old" }, "spec": { "nodeName": "n1", "containers": [] } }),
        );
        let mut seen = follow(server.client(), "n1");
        seen.wait_for(|seen| seen.pods.len() == 1).await.unwrap();
        server.remove(WEB);
        server.put(
            WEB,
            json!({ "metadata": { "uid": "new" }, "spec": { "nodeName": "n1", "containers": [] } }),
        );
        let new = PodUid::parse("new").unwrap();
        let waited = seen.wait_for(|seen| seen.pods.contains_key(&new));
        let seen = tokio::time::timeout(Duration::from_secs(10), waited).await.unwrap().unwrap().clone();
        assert_eq!(seen.pods.len(), 1);
    }
}
