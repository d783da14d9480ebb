//! What a kubelet serves to those who come through the API server: its rights, its paths, and metrics that
//! a scraper can read.

use anyhow::{Context, Result, ensure};
use gantry_tests::prometheus::Scrape;
use serde_json::Value;

use crate::spec::Spec;

/// The node of the cluster.
const NODE: &str = "gantry-node";

fn get(spec: &Spec<'_>, path: &str) -> Result<String> {
    let path = format!("/api/v1/nodes/{NODE}/proxy/{path}");
    spec.any().run(&["get", "--raw", &path]).with_context(|| path.clone())
}

fn json(spec: &Spec<'_>, path: &str) -> Result<Value> {
    let text = get(spec, path)?;
    serde_json::from_str(&text).with_context(|| format!("{path}: {text}"))
}

fn scrape(spec: &Spec<'_>, path: &str) -> Result<Scrape> {
    Scrape::read(&get(spec, path)?).with_context(|| path.to_owned())
}

/// How many WebSockets for this subresource came to the kubelet as their clients sent them, and whether its node
/// promises that they may.
pub(crate) fn web_sockets(spec: &Spec<'_>, subresource: &str) -> Result<(f64, bool)> {
    let own = scrape(spec, "metrics")?;
    let counted = own.value("kubelet_websocket_streaming_requests_total", &[("subresource", subresource)]);
    let features = ["get", "node", NODE, "-o", "jsonpath={.status.declaredFeatures}"];
    let promised = spec.any().run(&features)?.contains("ExtendWebSocketsToKubelet");
    // Nothing is counted yet.
    Ok((counted.unwrap_or(0.0), promised))
}

/// Of a node with that pod of the namespace, which has a limit of processor time and is busy.
pub(crate) fn everything(spec: &Spec<'_>, pod: &str) -> Result<()> {
    ensure!(get(spec, "healthz")?.trim() == "ok");
    let config = json(spec, "configz")?;
    ensure!(config["kubeletconfig"]["port"].is_i64(), "{config}");
    let summary = json(spec, "stats/summary")?;
    ensure!(summary["node"]["nodeName"] == NODE, "{summary}");
    let namespace = spec.namespace.as_str();
    let is_it = |reference: &Value| reference["name"] == pod && reference["namespace"] == namespace;
    let of_pods = summary["pods"].as_array().context("no pods in the summary")?;
    ensure!(of_pods.iter().any(|of| is_it(&of["podRef"])), "{summary}");
    let list = json(spec, "pods")?;
    ensure!(list["kind"] == "PodList", "{list}");
    ensure!(list["items"].as_array().is_some_and(|items| items.iter().any(|item| is_it(&item["metadata"]))));
    let logs = get(spec, "logs/")?;
    ensure!(logs.contains("<a href=\"pods/\">pods/</a>"), "{logs}");
    metrics(spec, pod, namespace)
}

fn metrics(spec: &Spec<'_>, pod: &str, namespace: &str) -> Result<()> {
    let own = scrape(spec, "metrics")?;
    ensure!(own.value("kubelet_running_pods", &[])? >= 1.0);
    for state in ["actual_state_of_world", "desired_state_of_world"] {
        let of = [("plugin_name", "kubernetes.io/projected"), ("state", state)];
        // Each pod has its token.
        ensure!(own.value("volume_manager_total_volumes", &of)? >= 1.0, "{state}");
    }
    let mounts = [("operation_name", "volume_mount"), ("status", "success"), ("migrated", "false")];
    ensure!(own.value("storage_operation_duration_seconds_count", &mounts)? >= 1.0);
    ensure!(own.value("kubernetes_feature_enabled", &[("name", "EventedPLEG"), ("stage", "ALPHA")])? <= 1.0);
    ensure!(own.value("kubelet_node_name", &[("node", NODE)])? >= 1.0);

    let of_main = [("pod", pod), ("namespace", namespace), ("container", "main")];
    let cadvisor = scrape(spec, "metrics/cadvisor")?;
    for name in [
        "container_cpu_usage_seconds_total",
        "container_cpu_cfs_periods_total",
        "container_cpu_cfs_throttled_periods_total",
        "container_memory_working_set_bytes",
        "container_memory_cache",
        "container_spec_cpu_quota",
        "container_processes",
    ] {
        cadvisor.value(name, &of_main).with_context(|| name.to_owned())?;
    }
    // It wants a whole processor and may have a tenth.
    ensure!(cadvisor.value("container_cpu_cfs_throttled_periods_total", &of_main)? > 0.0);
    ensure!(cadvisor.value("cadvisor_version_info", &[])? >= 1.0);

    let resource = scrape(spec, "metrics/resource")?;
    ensure!(resource.value("container_cpu_usage_seconds_total", &of_main)? > 0.0);
    ensure!(resource.value("scrape_error", &[])? <= 0.0);
    // Of pods with probes; each endpoint has at least its own start.
    ensure!(scrape(spec, "metrics/probes")?.value("process_start_time_seconds", &[])? > 0.0);
    Ok(())
}
