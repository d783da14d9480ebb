//! What is measured and what follows from it: `kubectl top`, an autoscaler. And a node that is emptied.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gantry_tests::poll::poll_every;
use serde_json::{Value, json};

use crate::served;
use crate::spec::{PATIENCE, Spec, pod};

/// Busy until it is told not to be.
const BUSY: &str = "until [ -e /tmp/idle ]; do :; done; trap 'exit 0' TERM; while :; do sleep 1; done";

/// Millicores and mebibytes of a row of `kubectl top`, whatever comes between.
fn measures(row: &str) -> Option<(u64, u64)> {
    let number = |unit: &str| row.split_whitespace().find_map(|word| word.strip_suffix(unit)?.parse().ok());
    Some((number("m")?, number("Mi")?))
}

pub(crate) fn top(spec: &Spec<'_>) -> Result<()> {
    let mut busy = pod("busy", BUSY);
    busy["spec"]["containers"][0]["resources"] = json!({ "limits": { "cpu": "100m", "memory": "32Mi" } });
    spec.start_pod(busy)?;
    let second = Duration::from_secs(1);
    let row = poll_every(second, "the pod's measures", PATIENCE, || {
        let said = spec.kubectl(&["top", "pod", "busy", "--no-headers"]);
        let said = said.map_err(|error| format!("{error:#}"))?;
        match measures(&said) {
            // It is held at 100m; a window may begin before it did.
            Some((cpu @ 50..=130, memory)) if memory <= 32 => Ok(format!("{cpu} {memory}")),
            _ => Err(said),
        }
    });
    row?;
    let containers = spec.kubectl(&["top", "pod", "busy", "--containers", "--no-headers"])?;
    ensure!(containers.split_whitespace().nth(1) == Some("main"), "{containers:?}");
    let node = spec.any().run(&["top", "node", "gantry-node", "--no-headers"])?;
    let (cpu, memory) = measures(&node).context(node.clone())?;
    ensure!(cpu >= 50 && memory > 100, "{node:?}");
    ensure!(node.matches('%').count() == 2, "{node:?}");
    // Who measures it, and what else a node serves.
    served::everything(spec, "busy")
}

pub(crate) fn autoscaler(spec: &Spec<'_>) -> Result<()> {
    spec.apply(deployment(
        "load",
        BUSY,
        &json!({ "requests": { "cpu": "50m" }, "limits": { "cpu": "100m" } }),
    ))?;
    spec.apply(json!({
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": { "name": "load" },
        "spec": {
            "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "load" },
            "minReplicas": 1,
            "maxReplicas": 2,
            "metrics": [{
                "type": "Resource",
                "resource": { "name": "cpu", "target": { "type": "Utilization", "averageUtilization": 60 } },
            }],
            "behavior": { "scaleDown": { "stabilizationWindowSeconds": 0 } },
        },
    }))?;
    spec.await_value(&["deployment/load"], "{.status.readyReplicas}", "2")?;
    spec.await_event("load", "SuccessfulRescale", "New size: 2; reason: cpu resource utilization")?;
    for name in spec.value(&["pods"], "{.items[*].metadata.name}")?.split(' ') {
        spec.shell(name, "touch /tmp/idle")?;
    }
    spec.await_value(&["deployment/load"], "{.spec.replicas}", "1")?;
    spec.await_event("load", "SuccessfulRescale", "New size: 1; reason: All metrics below target").map(drop)
}

fn deployment(name: &str, script: &str, resources: &Value) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": { "name": name },
        "spec": {
            "selector": { "matchLabels": { "app": name } },
            "template": {
                "metadata": { "labels": { "app": name } },
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "volumes": [{ "name": "scratch", "emptyDir": {} }],
                    "containers": [{
                        "name": "main",
                        "image": "busybox",
                        "command": ["sh", "-c", script],
                        "resources": resources,
                        "volumeMounts": [{ "name": "scratch", "mountPath": "/scratch" }],
                    }],
                },
            },
        },
    })
}

pub(crate) fn drain(spec: &Spec<'_>) -> Result<()> {
    let mut web = deployment("web", crate::spec::IDLE, &json!({}));
    web["spec"]["replicas"] = json!(2);
    spec.apply(web)?;
    spec.kubectl(&["rollout", "status", "deployment/web", "--timeout=120s"])?;
    let system = ["pods", "-n", "kube-system", "--selector=k8s-app=kube-proxy"];
    let proxy = || spec.any().value(&[&["get"], &system[..]].concat(), "{.items[*].metadata.uid}");
    let before = proxy()?;
    let uids = spec.value(&["pods"], "{.items[*].metadata.uid}")?;
    let outcome = drain_node(spec);
    // Whatever came of it: others want the node, too.
    spec.any().run(&["uncordon", "gantry-node"])?;
    outcome?;
    ensure!(proxy()? == before, "the DaemonSet's pod was evicted");
    spec.await_value(&["deployment/web"], "{.status.readyReplicas}", "3")?;
    let now = spec.value(&["pods"], "{.items[*].metadata.uid}")?;
    ensure!(uids.split(' ').all(|uid| !now.contains(uid)), "{now} has one of {uids}");
    // The system's are back as well; metrics-server takes its time to be ready.
    spec.any().run(&["rollout", "status", "deployment/coredns", "-n", "kube-system", "--timeout=120s"])?;
    let args = ["get", "pods", "-n", "kube-system", "--selector=k8s-app=metrics-server"];
    let running = |phases: &str| phases == "Running";
    spec.any().await_value(&args, "{.items[*].status.phase}", PATIENCE, running).map(drop)
}

fn drain_node(spec: &Spec<'_>) -> Result<()> {
    spec.any().run(&["cordon", "gantry-node"])?;
    let nodes = spec.any().run(&["get", "nodes"])?;
    ensure!(nodes.contains("Ready,SchedulingDisabled"), "{nodes}");
    // What runs stays, what is new waits.
    spec.kubectl(&["scale", "deployment/web", "--replicas=3"])?;
    spec.await_value(&["deployment/web"], "{.status.unavailableReplicas}", "1")?;
    let reason = r#"{.items[*].status.conditions[?(@.type=="PodScheduled")].reason}"#;
    spec.await_value(&["pods", "--field-selector=status.phase=Pending"], reason, "Unschedulable")?;
    ensure!(spec.value(&["deployment/web"], "{.status.readyReplicas}")? == "2");
    let drain = ["drain", "gantry-node", "--ignore-daemonsets"];
    let refused = spec.any().run(&drain).err().map(|error| format!("{error:#}")).unwrap_or_default();
    ensure!(refused.contains("--delete-emptydir-data"), "{refused:?}");
    let drained = spec.any().run(&[&drain[..], &["--delete-emptydir-data", "--timeout=120s"]].concat())?;
    ensure!(drained.contains("node/gantry-node drained"), "{drained}");
    let on =
        spec.value(&["pods", "--field-selector=spec.nodeName=gantry-node"], "{.items[*].metadata.name}")?;
    ensure!(on.is_empty(), "{on} are on a drained node");
    spec.await_value(&["deployment/web"], "{.status.unavailableReplicas}", "3").map(drop)
}
