//! Whole lives of pods through `gantry run`: init container, sidecar, probes over the network.

use std::time::Duration;

use anyhow::{Context, Result};
use gantry_tests::leakcheck::{Scope, Snapshot};
use gantry_tests::node::Roots;
use gantry_tests::place;
use gantry_tests::poll::poll;
use gantry_tests::registry::Registry;
use gantry_tests::standalone::Standalone;
use serde_json::Value;

use crate::images::web_image;

/// The sidecar serves; web only waits, and is asked for what it does not serve.
fn manifest(image: &str) -> String {
    format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: lives}}
spec:
  terminationGracePeriodSeconds: 2
  initContainers:
  - {{name: prepare, image: "{image}", command: [/bin/busybox, sh, -c, "exit 0"]}}
  - name: proxy
    image: "{image}"
    restartPolicy: Always
    startupProbe: {{httpGet: {{port: 8080}}, periodSeconds: 1, failureThreshold: 60}}
    readinessProbe: {{tcpSocket: {{port: 8080}}, periodSeconds: 1}}
  containers:
  - name: web
    image: "{image}"
    command: [/bin/busybox, sleep, "1000"]
    readinessProbe: {{httpGet: {{path: /, port: 8080}}, periodSeconds: 1}}
    livenessProbe: {{tcpSocket: {{port: 9}}, initialDelaySeconds: 3, periodSeconds: 1, failureThreshold: 2}}
"#
    )
}

fn list(run: &Standalone) -> Result<Value> {
    Ok(run.pods()?.into())
}

fn web(list: &Value) -> Value {
    list.pointer("/0/containers/0").cloned().unwrap_or_default()
}

#[test]
fn init_container_sidecar_and_probes_carry_a_pod_through_its_life() -> Result<()> {
    place::require_own_namespaces()?;
    let registry = Registry::start()?;
    let image = registry.push("demo/web", "v1", &web_image()?.build()?)?;
    let roots = Roots::new()?;
    let scope = Scope { folders: Vec::new(), ..roots.scope() };
    let before = Snapshot::take(&scope)?;
    let mut run = Standalone::start(roots, &manifest(&image))?;
    poll("web to be ready", Duration::from_secs(60), || {
        let list = list(&run).map_err(|error| format!("{error:#}"))?;
        if web(&list)["ready"] == true { Ok(()) } else { Err(list.to_string()) }
    })?;
    // A stage begins when the one it needs has ended.
    let timeline: Value = serde_json::from_str(&run.gantry_ok("timeline", &["lives", "--json"])?)?;
    let spans = timeline.as_array().or_else(|| timeline["spans"].as_array()).context("no list of stages")?;
    let at = |name: &str, container: &str, end: &str| {
        let span = spans.iter().find(|s| s["name"] == name && s["container"] == container);
        span.and_then(|s| s[format!("{end}UnixNanos")].as_i64())
            .with_context(|| format!("{name} of {container} in {timeline}"))
    };
    assert!(at("container.start", "prepare", "end")? <= at("container.create", "proxy", "start")?);
    assert!(at("probe.startup", "proxy", "end")? <= at("container.create", "web", "start")?);
    assert!(at("container.start", "web", "end")? <= at("probe.readiness", "web", "end")?);
    // Nobody listens on port 9: the container is ended and comes back.
    poll("web to be restarted", Duration::from_secs(60), || {
        let list = list(&run).map_err(|error| format!("{error:#}"))?;
        let count = web(&list)["restart_count"].as_u64().or_else(|| web(&list)["restartCount"].as_u64());
        if count >= Some(1) { Ok(()) } else { Err(list.to_string()) }
    })?;
    run.interrupt()?;
    let status = run.await_end()?;
    assert!(status.success(), "{status}: {}", run.stderr());
    before.await_clean(&scope)
}
