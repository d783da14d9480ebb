//! A pod as Kubernetes' object, for `gantry ps -o json` and `gantry wait`. Pure: owns what is shown of a pod beside its
//! file's words; the status' form is [`crate::status`]'s. Called by [`super::convert`].

use gantry_model::pod::{Container, Pod};
use k8s_openapi::api::core::v1::{self as api, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use crate::pod::status::PodStatus;
use crate::status;

/// As JSON.
pub(super) fn text(pod: &Pod, status: &PodStatus, node: &str) -> String {
    serde_json::to_string(&object(pod, status, node)).unwrap_or_default()
}

fn object(pod: &Pod, status: &PodStatus, node: &str) -> api::Pod {
    let described = pod.described.as_deref().and_then(|text| serde_json::from_str(text).ok());
    let mut object = described.unwrap_or_else(|| known(pod));
    let meta = &mut object.metadata;
    // A pod of a manifest folder has another name than its file says.
    meta.name = Some(pod.name.clone());
    meta.namespace = Some(pod.namespace.clone());
    meta.uid = Some(pod.uid.to_string());
    meta.labels = Some(pod.labels.clone()).filter(|labels| !labels.is_empty());
    meta.annotations = Some(pod.annotations.clone()).filter(|annotations| !annotations.is_empty());
    meta.creation_timestamp = Some(status.started_at)
        .filter(|nanos| *nanos > 0)
        .and_then(|nanos| Timestamp::from_second(nanos.div_euclid(1_000_000_000)).ok())
        .map(Time);
    object.spec.get_or_insert_default().node_name = Some(node.to_owned());
    let pending = api::PodStatus { phase: Some("Pending".to_owned()), ..api::PodStatus::default() };
    object.status = Some(status::convert::status(pod, status, &pending));
    object
}

/// What is known of one that no file describes.
fn known(pod: &Pod) -> api::Pod {
    let container = |container: &Container| api::Container {
        name: container.name.clone(),
        image: Some(container.image.clone()),
        ..api::Container::default()
    };
    let init_containers: Vec<api::Container> = pod.init_containers.iter().map(container).collect();
    let spec = PodSpec {
        containers: pod.containers.iter().map(container).collect(),
        init_containers: Some(init_containers).filter(|list| !list.is_empty()),
        ..PodSpec::default()
    };
    api::Pod { spec: Some(spec), ..api::Pod::default() }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::pod::tests::pod;

    #[test]
    fn a_files_words_stay_and_the_status_is_added() {
        let described = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": "web" },
            "spec": { "priority": 7, "containers": [{ "name": "web", "image": "i", "workingDir": "/w" }] },
        });
        let described = Some(described.to_string().into());
        let pod = Pod { described, name: "web-node1".into(), ..pod() };
        let status = PodStatus { started_at: 1_700_000_000_500_000_000, ..PodStatus::default() };
        let object: Value = serde_json::from_str(&text(&pod, &status, "node1")).unwrap();
        assert_eq!((&object["apiVersion"], &object["kind"]), (&json!("v1"), &json!("Pod")));
        assert_eq!(object["metadata"]["name"], "web-node1");
        assert_eq!(object["metadata"]["creationTimestamp"], "2023-11-14T22:13:20Z");
        assert_eq!((&object["spec"]["priority"], &object["spec"]["nodeName"]), (&json!(7), &json!("node1")));
        assert_eq!(object["spec"]["containers"][0]["workingDir"], "/w");
        assert_eq!(object["status"]["phase"], "Pending");
    }

    #[test]
    fn one_that_no_file_describes_has_what_is_known() {
        let object: Value = serde_json::from_str(&text(&pod(), &PodStatus::default(), "n")).unwrap();
        assert_eq!(object["spec"]["containers"][0]["name"], "web");
        assert_eq!(object["metadata"]["namespace"], "default");
    }
}
