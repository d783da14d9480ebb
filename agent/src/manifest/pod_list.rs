//! Pods as a URL of static pods gives them: one Pod, or a PodList, as YAML or JSON. Pure: owns what may stand there;
//! never fetches it. Called by [`crate::static_pods`].

use std::path::Path;

use gantry_model::pod::Pod;
use k8s_openapi::api::core::v1::Pod as Described;
use serde_json::Value;

use super::{Error, Object, Workloads, parse, read_documents, yaml};

/// One of them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PodOfList {
    pub pod: Pod,
    /// Whether the UID is the manifest's own, not derived from its content.
    pub uid_given: bool,
    /// In its own words.
    pub raw: Described,
}

/// All pods of a text, or what is wrong with it.
///
/// # Errors
/// When any of them is not as it should be, or there is something else.
pub(crate) fn parse_pods(text: &str) -> Result<Vec<PodOfList>, String> {
    // No file: errors are told without its name.
    let path = Path::new("");
    let documents =
        parse::documents(text).map_err(|error| yaml::YamlFault::new(&error, text).on_one_line())?;
    let mut documents = documents.into_iter();
    let (Some(document), None) = (documents.next(), documents.next()) else {
        return Err("there must be one document, a Pod or a PodList".to_owned());
    };
    let document = if is_pod_list(&document) { to_list(document) } else { document };
    let raw = words(&document)?;
    let read = read_documents(path, text, vec![document], Workloads::Refuse);
    let objects = read.map_err(|error| Error::within_file(&error))?.objects;
    let pods = objects.into_iter().zip(raw).map(|(object, raw)| match object {
        Object::Pod { pod, uid_given } => Ok(PodOfList { pod: *pod, uid_given, raw }),
        other => Err(not_a_pod(other.id().0)),
    });
    pods.collect()
}

fn not_a_pod(kind: &str) -> String {
    format!("{kind}: only a Pod or a PodList of apiVersion v1 may stand there")
}

fn is_pod_list(value: &Value) -> bool {
    let text = |key: &str| value.get(key).and_then(Value::as_str);
    (text("kind"), text("apiVersion")) == (Some("PodList"), Some("v1"))
}

/// Its items need not say that they are pods.
fn to_list(mut list: Value) -> Value {
    list["kind"] = "List".into();
    for item in list.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Value::Object(item) = item {
            item.entry("apiVersion").or_insert_with(|| "v1".into());
            item.entry("kind").or_insert_with(|| "Pod".into());
        }
    }
    list
}

/// The pods in their own words, in their order; all that is read besides is refused later.
fn words(document: &Value) -> Result<Vec<Described>, String> {
    match document.get("kind").and_then(Value::as_str) {
        Some("Pod") => Ok(vec![serde_json::from_value(document.clone()).unwrap_or_default()]),
        Some("List") => {
            let items = document.get("items").and_then(Value::as_array).into_iter().flatten();
            // One that is no pod is refused with its place by who reads it strictly.
            Ok(items.map(|item| serde_json::from_value(item.clone()).unwrap_or_default()).collect())
        }
        _ => Err(not_a_pod(&parse::render_value(document))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: &str = "spec: {containers: [{name: c, image: i}]}";

    fn names(text: &str) -> Result<Vec<String>, String> {
        Ok(parse_pods(text)?.into_iter().map(|found| found.pod.name).collect())
    }

    #[test]
    fn a_pod_or_a_list_of_them_in_yaml_or_json() {
        let pod = format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\n{SPEC}\n");
        assert_eq!(names(&pod).unwrap(), ["a"]);
        let item = |name: &str| {
            serde_json::json!({
                "metadata": { "name": name, "labels": { "x": name } },
                "spec": { "containers": [{ "name": "c", "image": "i" }] },
            })
        };
        let list =
            serde_json::json!({ "apiVersion": "v1", "kind": "PodList", "items": [item("a"), item("b")] });
        assert_eq!(names(&list.to_string()).unwrap(), ["a", "b"]);
        let found = parse_pods(&list.to_string()).unwrap();
        let labels = found.iter().map(|found| found.raw.metadata.labels.clone().unwrap()["x"].clone());
        assert_eq!(labels.collect::<Vec<_>>(), ["a", "b"], "each with its own words");
        assert!(found.iter().all(|found| !found.uid_given));
        let none = serde_json::json!({ "apiVersion": "v1", "kind": "PodList", "items": [] });
        assert_eq!(names(&none.to_string()).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn anything_else_is_refused_and_said() {
        let map = "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}";
        let pod =
            "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: c, image: i}]}}";
        for (text, why) in [
            ("", "there must be one document"),
            (&format!("{pod}\n---\n{pod}"), "there must be one document"),
            ("kind: [", "not valid YAML"),
            (map, "kind ConfigMap of apiVersion v1: only a Pod or a PodList"),
            (&format!("{{apiVersion: v1, kind: PodList, items: [{pod}, {map}]}}"), "ConfigMap: only a Pod"),
            ("{apiVersion: v1, kind: PodList, items: [{metadata: {name: a}}]}", "spec: Required value"),
            ("{apiVersion: v1, kind: Pod, metadata: {name: a}, sepc: {}}", "unknown field"),
        ] {
            let error = names(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
