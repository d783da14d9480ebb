//! Volumes that the API feeds: a config map that changes, a token.

use anyhow::{Context, Result, ensure};
use gantry_tests::poll::poll_every;
use serde_json::json;

use crate::spec::{PATIENCE, Spec};

pub(crate) fn config_map(spec: &Spec<'_>) -> Result<()> {
    spec.kubectl(&["create", "configmap", "words", "--from-literal=word=first"])?;
    spec.apply(json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": "reads" },
        "spec": {
            "containers": [{
                "name": "main",
                "image": "registry.k8s.io/pause:3.10.2",
                "volumeMounts": [{ "name": "words", "mountPath": "/words" }],
            }, {
                "name": "shell",
                "image": "busybox",
                "command": ["sleep", "3600"],
                "volumeMounts": [{ "name": "words", "mountPath": "/words" }],
            }],
            "terminationGracePeriodSeconds": 1,
            "volumes": [{ "name": "words", "configMap": { "name": "words" } }],
        },
    }))?;
    spec.kubectl(&["wait", "--for=condition=Ready", "pod/reads", "--timeout=120s"])?;
    let read = || spec.kubectl(&["exec", "reads", "-c", "shell", "--", "cat", "/words/word"]);
    ensure!(read()? == "first");
    spec.kubectl(&["patch", "configmap", "words", "--type=merge", "-p", r#"{"data":{"word":"second"}}"#])?;
    poll_every(std::time::Duration::from_secs(1), "the change to arrive", PATIENCE, || match read() {
        Ok(word) if word == "second" => Ok(()),
        Ok(word) => Err(word),
        Err(error) => Err(format!("{error:#}")),
    })
}

pub(crate) fn token(spec: &Spec<'_>) -> Result<()> {
    let folder = "/var/run/secrets/kubernetes.io/serviceaccount";
    spec.apply(json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": "calls" },
        "spec": {
            "containers": [{ "name": "main", "image": "busybox", "command": ["sleep", "3600"] }],
            "terminationGracePeriodSeconds": 1,
        },
    }))?;
    spec.kubectl(&["wait", "--for=condition=Ready", "pod/calls", "--timeout=120s"])?;
    let file = |name: &str| spec.kubectl(&["exec", "calls", "--", "cat", &format!("{folder}/{name}")]);
    ensure!(file("namespace")? == spec.namespace);
    ensure!(file("ca.crt")?.starts_with("-----BEGIN CERTIFICATE-----"));
    let review = json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "metadata": {},
        "spec": { "token": file("token")? },
    });
    let review = spec.any().feed(&["create", "-f", "-", "-o", "json"], &review)?;
    let review: serde_json::Value = serde_json::from_str(&review).context("kubectl's JSON")?;
    let user = &review["status"]["user"]["username"];
    ensure!(*user == format!("system:serviceaccount:{}:default", spec.namespace), "{review}");
    // Bound to its pod, which ends with it.
    let extra = &review["status"]["user"]["extra"]["authentication.kubernetes.io/pod-name"][0];
    ensure!(*extra == "calls", "{review}");
    Ok(())
}
