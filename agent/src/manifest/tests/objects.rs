//! ConfigMaps, Secrets and Lists in the same files.

use super::*;
use crate::api::Api;

fn loaded(text: &str) -> Result<Loaded, Error> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.yaml");
    std::fs::write(&path, text).unwrap();
    load(&[path])
}

const OBJECTS: &str = r#"
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: ConfigMap
  metadata: {name: c, namespace: other}
  data: {a: "1"}
  binaryData: {b: AAEC}
  immutable: true
- apiVersion: v1
  kind: Secret
  metadata: {name: s}
  data: {a: b2xk, b: Yg==}
  stringData: {a: new}
---
apiVersion: v1
kind: Pod
metadata: {name: p}
spec: {containers: [{name: c, image: i}]}
"#;

#[tokio::test]
async fn objects_are_found_by_namespace_and_name() {
    let loaded = loaded(OBJECTS).unwrap();
    assert_eq!(loaded.pods.len(), 1);
    let map = loaded.objects.config_map("other", "c").await.unwrap().unwrap();
    assert_eq!(map.data.get("a").map(String::as_str), Some("1"));
    assert_eq!(map.binary.get("b").map(Vec::as_slice), Some(&[0, 1, 2][..]));
    assert_eq!(loaded.objects.config_map("default", "c").await.unwrap(), None);
    let secret = loaded.objects.secret("default", "s").await.unwrap().unwrap();
    assert_eq!(secret.kind, "Opaque");
    assert_eq!(secret.data.get("a").map(Vec::as_slice), Some(&b"new"[..]));
    assert_eq!(secret.data.get("b").map(Vec::as_slice), Some(&b"b"[..]));
    assert!(!format!("{secret:?}").contains("110"), "{secret:?}");
}

#[test]
fn objects_are_checked_and_secrets_stay_secret() {
    let map = |rest: &str| format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\n{rest}\n");
    let secret = |rest: &str| format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: c}}\n{rest}\n");
    for (text, part) in [
        (map("data: {a/b: x}"), "data[a/b]: Invalid value: \"a/b\": a valid config key must"),
        (
            map("data: {a: x}\nbinaryData: {a: AA==}"),
            "data[a]: Invalid value: \"a\": duplicate of key present in binaryData",
        ),
        (map("binaryData: {a: '%'}"), "binaryData.a: wrong type"),
        (map("dat: {a: x}"), "dat: unknown field (did you mean \"data\"?)"),
        (
            secret("data: {a: not-base64}"),
            "data.a: Invalid value: \"<secret contents redacted>\": wrong type",
        ),
        (secret("type: kubernetes.io/tls"), "data[tls.crt]: Required value"),
        (
            secret("type: kubernetes.io/dockerconfigjson\nstringData: {.dockerconfigjson: 'x'}"),
            "data[.dockerconfigjson]: Invalid value: \"<secret contents redacted>\"",
        ),
        ("apiVersion: v1\nkind: List\nitems: 3\n".to_owned(), "items: Invalid value"),
    ] {
        let got = error(&text);
        assert!(got.contains(part), "got   {got}\nwants {part}");
        assert!(!got.contains("not-base64"), "{got}");
    }
    let big = map(&format!("data: {{a: {}}}", "x".repeat((1 << 20) + 1)));
    assert!(error(&big).contains("data: Too long: may not be more than 1048576 bytes"));
}

#[test]
fn objects_of_one_name_are_refused() {
    let twice = format!("{OBJECTS}---\napiVersion: v1\nkind: Secret\nmetadata: {{name: s}}\n");
    assert!(matches!(loaded(&twice), Err(Error::Twice { kind: "Secret", .. })));
}

#[test]
fn two_pods_that_want_one_port_are_refused_by_name() {
    let pod = |name: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: c, image: i, ports: [{{containerPort: 80, hostPort: 8080}}]}}]}}\n"
        )
    };
    let error = loaded(&format!("{}---\n{}", pod("a"), pod("b"))).unwrap_err().to_string();
    assert!(
        error.contains("pod default/b wants port 8080/TCP of the node, which pod default/a of"),
        "{error}"
    );
}

#[test]
fn lists_end_somewhere() {
    let mut text = "{apiVersion: v1, kind: List, items: []}".to_owned();
    for _ in 0..9 {
        text = format!("{{apiVersion: v1, kind: List, items: [{text}]}}");
    }
    assert!(error(&text).contains("a List within 8 Lists"));
}
