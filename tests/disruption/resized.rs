//! One kubelet is stopped and the other started under pods that were resized and evicted, there and back; each resizes and
//! evicts some itself. No container starts again, allocations stay, and who was evicted stays so.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gantry_tests::cluster::kubelet::KubeletKind;
use gantry_tests::cluster::watched::Watched;
use serde_json::{Value, json};

use crate::fixture::{ClusterFixture, Containers, NAMESPACE};
use crate::pods::{IDLE, pod};
use crate::seconds;
use crate::swap::{AGE, assert_undisturbed};

/// Limits equal requests.
const GUARANTEED: &str = "guaranteed";
/// They do not.
const BURSTABLE: &str = "burstable";
/// Asks for all that the node has, of which others use some: what it was allocated at first stays.
const WAITS: &str = "waits";
/// Each fills its volume above the limit, under the first kubelet and under the second one.
const EVICTED: [&str; 2] = ["evicted-first", "evicted-second"];
/// Memory limits in MiB: at first, by the first kubelet, by the second one.
const MEMORY: [u64; 3] = [48, 64, 96];
/// Ends with another code than 0 when it is asked to: with 0, upstream calls an evicted pod Succeeded.
const HELD: &str = "trap 'exit 1' TERM; while :; do sleep 1; done";
const LABEL: (&str, &str) = ("set", "changed");

pub(crate) fn run(fixture: &mut ClusterFixture) -> Result<()> {
    let time = seconds("GANTRY_SWAP_SECONDS", 60)?;
    let pods = objects();
    let count = pods.len();
    fixture.apply(pods)?;
    fixture.await_ready(&format!("{}={}", LABEL.0, LABEL.1), count)?;
    let mut watched = Watched::start(fixture.any(), NAMESPACE, count)?;
    let node = fixture.cluster.node();
    let whole = fixture.any().value(&["get", "node", &node], "{.status.allocatable.cpu}")?;
    resize(fixture, WAITS, &json!({ "requests": { "cpu": whole } }))?;
    await_condition(fixture, WAITS, "PodResizePending=Deferred")?;
    for (turn, next) in [fixture.chosen, KubeletKind::Upstream].into_iter().enumerate() {
        change(fixture, turn)?;
        fixture.hold(AGE + Duration::from_secs(5), |_| Ok(()))?;
        let before = Kept::read(fixture)?;
        println!("{} containers run; evicted: {:?}", before.containers.len(), before.ends);
        fixture.swap_to(next)?;
        fixture.hold(time, |_| {
            watched.check()?;
            assert_undisturbed(&of_others(watched.events()))
        })?;
        let now = Kept::read(fixture)?;
        ensure!(now == before, "the node has {now:#?} instead of {before:#?}");
        limited(fixture, MEMORY[turn + 1])?;
    }
    fixture.clear()
}

fn objects() -> Vec<Value> {
    let resized = [(GUARANTEED, guaranteed(0)), (BURSTABLE, burstable(0))];
    let waits = (WAITS, json!({ "requests": { "cpu": "20m" } }));
    let mut pods: Vec<Value> = resized
        .into_iter()
        .chain([waits])
        .map(|(name, resources)| {
            let mut pod = pod(name, IDLE);
            pod["spec"]["containers"][0]["resources"] = resources;
            pod
        })
        .collect();
    pods.extend(EVICTED.map(|name| {
        let mut pod = pod(name, HELD);
        pod["spec"]["volumes"] = json!([{ "name": "scratch", "emptyDir": { "sizeLimit": "4Mi" } }]);
        pod["spec"]["containers"][0]["volumeMounts"] =
            json!([{ "name": "scratch", "mountPath": "/scratch" }]);
        pod
    }));
    for pod in &mut pods {
        pod["metadata"]["labels"][LABEL.0] = json!(LABEL.1);
    }
    pods
}

/// After so many resizes.
fn guaranteed(turn: usize) -> Value {
    let both = json!({ "cpu": format!("{}m", 50 * (turn + 1)), "memory": format!("{}Mi", MEMORY[turn]) });
    json!({ "requests": both, "limits": both })
}

/// After so many resizes.
fn burstable(turn: usize) -> Value {
    json!({
        "requests": { "cpu": format!("{}m", 20 * (turn + 1)), "memory": "16Mi" },
        "limits": { "memory": format!("{}Mi", MEMORY[turn]) },
    })
}

/// Has the kubelet of the moment resize two pods and evict one.
fn change(fixture: &ClusterFixture, turn: usize) -> Result<()> {
    fixture.exec(EVICTED[turn], "main", "dd if=/dev/zero of=/scratch/much bs=1M count=8")?;
    for (name, resources) in [(GUARANTEED, guaranteed(turn + 1)), (BURSTABLE, burstable(turn + 1))] {
        resize(fixture, name, &resources)?;
        let path = "{.status.containerStatuses[0].resources}";
        fixture.await_that(&["pod", name], path, |told| {
            serde_json::from_str::<Value>(told).is_ok_and(|told| told == resources)
        })?;
        await_condition(fixture, name, "")?;
    }
    limited(fixture, MEMORY[turn + 1])?;
    fixture.await_that(&["pod", EVICTED[turn]], "{.status.phase}/{.status.reason}", |told| {
        told == "Failed/Evicted"
    })?;
    Ok(())
}

fn resize(fixture: &ClusterFixture, name: &str, resources: &Value) -> Result<()> {
    let patch = json!({ "spec": { "containers": [{ "name": "main", "resources": resources }] } }).to_string();
    fixture.kubectl(&["patch", "pod", name, "--subresource=resize", "-p", &patch]).map(drop)
}

/// Waits until the conditions of a resize are these.
fn await_condition(fixture: &ClusterFixture, name: &str, wanted: &str) -> Result<()> {
    let path = "{range .status.conditions[*]}{.type}={.reason} {end}";
    fixture.await_that(&["pod", name], path, |told| resize_conditions(told) == wanted).map(drop)
}

fn resize_conditions(told: &str) -> String {
    let of_resize = told.split_whitespace().filter(|word| word.starts_with("PodResize"));
    of_resize.collect::<Vec<_>>().join(" ")
}

/// The kernel's limits of both, by either version of cgroups.
fn limited(fixture: &ClusterFixture, mib: u64) -> Result<()> {
    let files = "/sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max";
    let script = format!("cat {files} 2>/dev/null | grep -qx {}", mib << 20);
    [GUARANTEED, BURSTABLE].into_iter().try_for_each(|name| fixture.exec(name, "main", &script))
}

/// Events of pods that nobody may disturb.
fn of_others(events: Vec<Value>) -> Vec<Value> {
    let evicted = |event: &Value| EVICTED.iter().any(|name| event["object"]["metadata"]["name"] == *name);
    events.into_iter().filter(|event| !evicted(event)).collect()
}

/// What a swap must leave as it is.
#[derive(Debug, PartialEq)]
struct Kept {
    containers: Containers,
    /// Of pods that run.
    allocations: BTreeMap<String, Value>,
    /// Of evicted ones: reason, message and why.
    ends: BTreeMap<String, Value>,
}

impl Kept {
    fn read(fixture: &ClusterFixture) -> Result<Self> {
        let told = fixture.kubectl(&["get", "pods", "-o", "json"])?;
        let told: Value = serde_json::from_str(&told).context("read the pods")?;
        let mut kept =
            Self { containers: fixture.containers()?, allocations: BTreeMap::new(), ends: BTreeMap::new() };
        for pod in told["items"].as_array().into_iter().flatten() {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            let (status, container) = (&pod["status"], &pod["status"]["containerStatuses"][0]);
            let conditions = status["conditions"].as_array().into_iter().flatten();
            let because: Vec<_> = conditions
                .filter(|one| one["type"] == "DisruptionTarget" || one["type"] == "PodResizePending")
                .map(|one| (&one["type"], &one["reason"]))
                .collect();
            if status["phase"] == "Running" {
                let own = json!([container["allocatedResources"], container["resources"], because]);
                kept.allocations.insert(name, own);
            } else {
                kept.ends.insert(name, json!([status["reason"], status["message"], because]));
            }
        }
        Ok(kept)
    }
}
