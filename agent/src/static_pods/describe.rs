//! A static pod as the API shall show it: the file's own words with upstream's additions. Pure: owns
//! the additions; never runs a pod. Called by [`super::choice`].

use gantry_model::pod::Pod;
use k8s_openapi::api::core::v1::{Pod as Described, PodSpec, PodStatus, Toleration};

use super::rules;

/// `raw` is what the file says, `pod` what was made of it.
pub(super) fn describe(raw: &Described, pod: &Pod) -> Described {
    let mut described = raw.clone();
    let meta = &mut described.metadata;
    meta.name = Some(pod.name.clone());
    meta.namespace = Some(pod.namespace.clone());
    meta.uid = Some(pod.uid.to_string());
    meta.annotations = Some(pod.annotations.clone());
    meta.generate_name = None;
    meta.managed_fields = None;
    let spec = described.spec.get_or_insert_with(PodSpec::default);
    spec.node_name = Some(pod.shown.node_name.clone());
    // It runs where its file is, whatever the node is tainted with. Of a URL upstream says nothing.
    let all = Toleration {
        operator: Some("Exists".to_owned()),
        effect: Some("NoExecute".to_owned()),
        ..Toleration::default()
    };
    if rules::is_of_file(pod) && !spec.tolerations.iter().flatten().any(|one| *one == all) {
        spec.tolerations.get_or_insert_default().push(all);
    }
    described.status = Some(PodStatus { phase: Some("Pending".to_owned()), ..PodStatus::default() });
    described
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::pod;

    #[test]
    fn the_files_words_stay_and_the_nodes_are_added() {
        let raw: Described = serde_json::from_value(serde_json::json!({
            "metadata": { "name": "web", "generateName": "x", "labels": { "a": "b" } },
            "spec": { "containers": [{ "name": "web", "image": "i" }], "priority": 7 },
        }))
        .unwrap();
        let mut made = pod();
        made.name = "web-node1".into();
        made.shown.node_name = "node1".into();
        made.annotations.insert("kubernetes.io/config.hash".into(), "uid-1".into());
        made.annotations.insert("kubernetes.io/config.source".into(), "file".into());
        let described = describe(&raw, &made);
        assert_eq!(described.metadata.name.as_deref(), Some("web-node1"));
        assert_eq!(described.metadata.labels, raw.metadata.labels);
        let spec = described.spec.clone().unwrap();
        assert_eq!((spec.node_name.as_deref(), spec.priority), (Some("node1"), Some(7)));
        assert_eq!(spec.tolerations.unwrap().len(), 1);
        assert_eq!(describe(&described, &made), described, "again changes nothing");
        made.annotations.insert("kubernetes.io/config.source".into(), "http".into());
        assert_eq!(describe(&raw, &made).spec.unwrap().tolerations.unwrap_or_default(), []);
    }
}
