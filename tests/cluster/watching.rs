//! What a user looks at: a watch as a pod comes and goes, the description of a pod and of the node.

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::spec::{IDLE, Spec, pod};

/// READY and STATUS of a pod's rows, in order, each once.
fn rows(table: &str, name: &str) -> Vec<String> {
    let mut rows: Vec<String> = table
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            (words.next() == Some(name)).then(|| words.take(2).collect::<Vec<_>>().join(" "))
        })
        .collect();
    rows.dedup();
    rows
}

pub(crate) fn watch(spec: &Spec<'_>) -> Result<()> {
    // A pod that nobody schedules shows that the watch is there, before the other one begins.
    let mut gated = pod("gated", IDLE);
    gated["spec"]["schedulingGates"] = json!([{ "name": "example.com/never" }]);
    spec.apply(gated)?;
    let mut watch = spec.start(&["get", "pods", "-w"])?;
    watch.await_said("the first row", |said| said.contains("SchedulingGated").then_some(()))?;
    let mut seen = pod("seen", IDLE);
    seen["spec"]["containers"][0]["readinessProbe"] =
        json!({ "exec": { "command": ["cat", "/tmp/ready"] }, "periodSeconds": 1 });
    // A pod that starts at once is not told of before it runs.
    seen["spec"]["volumes"] = json!([{ "name": "late", "configMap": { "name": "late" } }]);
    seen["spec"]["containers"][0]["volumeMounts"] = json!([{ "name": "late", "mountPath": "/late" }]);
    spec.apply(seen)?;
    let has = |wanted: &'static str| {
        move |said: &str| rows(said, "seen").iter().any(|row| row == wanted).then_some(())
    };
    watch.await_said("a pod that waits for its volume", has("0/1 ContainerCreating"))?;
    spec.apply(json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "late" } }))?;
    watch.await_said("a pod that runs and isn't ready", has("0/1 Running"))?;
    spec.shell("seen", "touch /tmp/ready")?;
    watch.await_said("a pod that is ready", has("1/1 Running"))?;
    spec.kubectl(&["delete", "pod", "seen", "--timeout=60s"])?;
    watch.await_said("a pod that ends", has("1/1 Terminating"))?;
    let rows = rows(&watch.text(), "seen");
    let mut left = rows.iter();
    for step in ["0/1 Pending", "0/1 ContainerCreating", "0/1 Running", "1/1 Running", "1/1 Terminating"] {
        ensure!(left.any(|row| row == step), "no {step} in its place: {rows:?}");
    }
    Ok(())
}

/// Type, reason and message of the events that a description ends with.
fn events(described: &str) -> Result<Vec<[String; 3]>> {
    let (_, events) = described.split_once("\nEvents:").context("no events")?;
    let table = events.lines().skip_while(|line| !line.trim_start().starts_with("----")).skip(1);
    // Columns are apart by two spaces at least, the words of a message by one.
    let columns = |line: &str| {
        let words: Vec<_> = line.split("  ").map(str::trim).filter(|word| !word.is_empty()).collect();
        match words[..] {
            [kind, reason, _age, _from, message] => Ok([kind, reason, message].map(str::to_owned)),
            _ => Err(anyhow::anyhow!("an event of another shape: {line:?}")),
        }
    };
    table.filter(|line| !line.trim().is_empty()).map(columns).collect()
}

pub(crate) fn describe(spec: &Spec<'_>) -> Result<()> {
    spec.start_pod(pod("told", IDLE))?;
    let told = spec.kubectl(&["describe", "pod", "told"])?;
    let events = events(&told)?;
    let wanted = [
        ("Scheduled", "Successfully assigned"),
        ("Pulling", "Pulling image \"busybox\""),
        ("Pulled", "Successfully pulled image \"busybox\" in "),
        ("Created", "Container created"),
        ("Started", "Container started"),
    ];
    ensure!(events.len() == wanted.len(), "{told}");
    for ([kind, reason, message], (right, words)) in events.iter().zip(wanted) {
        let message = message.strip_prefix("spec.containers{main}: ").unwrap_or(message);
        ensure!(kind == "Normal" && reason == right && message.starts_with(words), "not {right}: {told}");
    }
    let lines: Vec<String> =
        told.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for line in
        ["Status: Running", "State: Running", "Ready: True", "Restart Count: 0", "QoS Class: BestEffort"]
    {
        ensure!(lines.iter().any(|one| one == line), "no {line:?} in {told}");
    }
    ensure!(lines.iter().any(|line| line.starts_with("Container ID: ") && line.contains("://")), "{told}");
    let node = spec.any().run(&["describe", "node", "gantry-node"])?;
    for words in
        ["KubeletHasSufficientMemory", "KubeletReady", "Allocated resources:", "Container Runtime Version:"]
    {
        ensure!(node.contains(words), "no {words:?} in {node}");
    }
    ensure!(node.lines().any(|line| line.contains(&spec.namespace) && line.contains("told")), "{node}");
    Ok(())
}
