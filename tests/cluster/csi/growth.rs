//! A claim that is enlarged grows under its running pod, and the kubelet serves what the driver tells of the volume.

use std::time::Duration;

use anyhow::{Result, ensure};
use gantry_tests::poll::poll_every;
use serde_json::{Value, json};

use super::driver::InstalledDriver;
use super::start_keeper;
use crate::spec::Spec;

const MIB: u64 = 1 << 20;
/// Both kubelets look at volumes about once a minute.
const PATIENCE: Duration = Duration::from_secs(180);

pub(crate) fn growth(spec: &Spec<'_>) -> Result<()> {
    let driver = InstalledDriver::install(spec, "growth.gantry.test")?;
    start_keeper(spec, &driver.name)?;
    let container = spec.value(&["pod/keeper"], "{.status.containerStatuses[0].containerID}")?;
    spec.shell("keeper", "dd if=/dev/zero of=/data/much bs=1M count=3 && echo kept >/data/word && sync")?;
    await_measures(spec, 10 * MIB)?;
    let patch = json!({ "spec": { "resources": { "requests": { "storage": "20Mi" } } } }).to_string();
    spec.kubectl(&["patch", "pvc", "data", "-p", &patch])?;
    poll_every(Duration::from_millis(500), "the claim to have grown", PATIENCE, || {
        let path = "{.status.capacity.storage} {.status.conditions[*].type}";
        let told = spec.value(&["pvc/data"], path).map_err(|error| format!("{error:#}"))?;
        if told.trim() == "20Mi" { Ok(()) } else { Err(told) }
    })?;
    let volumes = driver.volumes()?;
    ensure!(volumes.iter().all(|volume| volume["capacity"] == 20 * MIB), "{volumes:?}");
    await_measures(spec, 20 * MIB)?;
    let now = spec.value(&["pod/keeper"], "{.status.containerStatuses[0].containerID}")?;
    ensure!(now == container, "the container was started again");
    ensure!(spec.shell("keeper", "cat /data/word")? == "kept\n", "the volume has lost what was written");
    spec.kubectl(&["delete", "pod", "keeper", "--timeout=120s"])?;
    driver.await_idle()?;
    spec.kubectl(&["delete", "pvc", "data", "--timeout=60s"])?;
    driver.await_empty()?;
    driver.remove()
}

/// Waits until the summary and the metrics have the volume with that capacity, of which three MiB are used.
fn await_measures(spec: &Spec<'_>, capacity: u64) -> Result<()> {
    let node = format!("/api/v1/nodes/{}/proxy", spec.node());
    let get = |path: &str| spec.any().run(&["get", "--raw", &format!("{node}{path}")]);
    let text = |error: anyhow::Error| format!("{error:#}");
    poll_every(Duration::from_secs(2), "the volume to be measured", PATIENCE, || {
        let summary = get("/stats/summary").map_err(text)?;
        let summary: Value = serde_json::from_str(&summary).map_err(|error| error.to_string())?;
        let pods = summary["pods"].as_array().into_iter().flatten();
        let own =
            |volume: &&Value| volume["pvcRef"] == json!({ "name": "data", "namespace": spec.namespace });
        let volume = pods.filter_map(|pod| pod["volume"].as_array()).flatten().find(own);
        let volume = volume.ok_or("the summary has no volume of the claim")?;
        let used = volume["usedBytes"].as_u64().unwrap_or_default();
        let good = volume["capacityBytes"] == capacity && (3 * MIB..4 * MIB).contains(&used);
        if good { Ok(()) } else { Err(volume.to_string()) }
    })?;
    let name = format!(
        "kubelet_volume_stats_capacity_bytes{{namespace=\"{}\",persistentvolumeclaim=\"data\"}} ",
        spec.namespace
    );
    poll_every(Duration::from_secs(2), "the metric", PATIENCE, || {
        let metrics = get("/metrics").map_err(text)?;
        let line = metrics.lines().find_map(|line| line.strip_prefix(&name));
        let told = line.and_then(|value| value.parse::<f64>().ok());
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let wanted = capacity as f64;
        match told {
            Some(told) if (told - wanted).abs() < 1.0 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
}
