//! That the fake behaves as a real server in what the tests rely on.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::json;

use super::FakeApiServer;

const POD: &str = "/api/v1/namespaces/default/pods/web";

fn pods(server: &FakeApiServer) -> Api<Pod> {
    Api::namespaced(server.client(), "default")
}

fn code(error: &kube::Error) -> u16 {
    match error {
        kube::Error::Api(status) => status.code,
        other => panic!("{other}"),
    }
}

#[tokio::test(start_paused = true)]
async fn objects_are_created_once_and_guarded_by_uid_and_version() {
    let server = FakeApiServer::default();
    let pods = pods(&server);
    let pod: Pod =
        serde_json::from_value(json!({ "metadata": { "name": "web" }, "spec": { "containers": [] } }))
            .unwrap();
    let made = pods.create(&PostParams::default(), &pod).await.unwrap();
    assert_eq!(code(&pods.create(&PostParams::default(), &pod).await.unwrap_err()), 409);
    let stale = json!({ "metadata": { "uid": "other" }, "status": { "phase": "Running" } });
    let patch = Patch::Strategic(stale);
    assert_eq!(code(&pods.patch_status("web", &PatchParams::default(), &patch).await.unwrap_err()), 409);
    let mut options = DeleteParams::default().grace_period(0);
    options.preconditions = Some(Preconditions { uid: Some("other".into()), resource_version: None });
    assert_eq!(code(&pods.delete("web", &options).await.unwrap_err()), 409);
    options.preconditions = Some(Preconditions { uid: made.metadata.uid, resource_version: None });
    pods.delete("web", &options).await.unwrap();
    assert_eq!(server.get(POD), None);
}

#[tokio::test(start_paused = true)]
async fn a_pod_with_a_node_is_marked_first() {
    let server = FakeApiServer::default();
    server.put(POD, json!({ "spec": { "nodeName": "n", "terminationGracePeriodSeconds": 5 } }));
    pods(&server).delete("web", &DeleteParams::default()).await.unwrap();
    let pod = server.get(POD).unwrap();
    assert_eq!(pod["metadata"]["deletionGracePeriodSeconds"], 5);
    assert!(pod["metadata"]["deletionTimestamp"].is_string());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_down_answers_nobody() {
    let server = FakeApiServer::default();
    server.set_down(true);
    let error = pods(&server).get("web").await.unwrap_err();
    assert!(!matches!(error, kube::Error::Api(_)), "{error}");
    server.set_down(false);
    assert_eq!(code(&pods(&server).get("web").await.unwrap_err()), 404);
}
