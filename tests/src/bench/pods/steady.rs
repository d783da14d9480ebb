//! A node whose pods all run: what it uses while nothing happens, and how long a kubelet that was killed takes to have
//! all of them again. Owns the killing. Called by `bench::pods`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::super::usage::{NodeUsage, processor_time_of};
use super::super::watch::DEADLINE;
use crate::cluster::audit;
use crate::cluster::kubelet::KubeletKind;
use crate::cluster::lives::{ContainerLife, is_ready, lives};
use crate::cluster::{Cluster, NODE};
use crate::place;
use crate::poll::poll_every;

/// Between two looks at the new kubelet's pods.
const RHYTHM: Duration = Duration::from_millis(100);

/// What a node costs whose pods all run, while nothing happens.
#[derive(Debug, Clone, Default)]
pub struct IdleNode {
    /// Per cent of one core: each daemon's, and the whole node's.
    pub shares: BTreeMap<String, f64>,
    /// Of the node, by verb and resource, in a minute.
    pub requests: BTreeMap<String, f64>,
    /// Bytes to the API server and from it, in a minute.
    pub traffic: [f64; 2],
}

pub(super) fn idle(cluster: &mut Cluster, usage: &NodeUsage, time: Duration) -> Result<IdleNode> {
    let daemons = super::daemons(cluster)?;
    let all = || {
        let of = |(name, pid): &(&str, i32)| Ok(((*name).to_owned(), processor_time_of(*pid)?));
        let whole = ("whole node".to_owned(), usage.processor_time()?);
        daemons.iter().map(of).chain([Ok(whole)]).collect::<Result<BTreeMap<_, _>>>()
    };
    let (log, connections) = (audit::end(&cluster.audit_log())?, super::connections(cluster)?);
    let (begun, before) = (Instant::now(), all()?);
    std::thread::sleep(time);
    let (took, after) = (begun.elapsed(), all()?);
    let bytes = super::connections(cluster)?.since(&connections);
    let asked = audit::requests(&cluster.audit_log(), log, &format!("system:node:{NODE}"))?;
    let share = |(name, used): (String, Duration)| {
        let used = used.saturating_sub(before.get(&name).copied().unwrap_or_default());
        (name, used.as_secs_f64() / took.as_secs_f64() * 100.0)
    };
    let minutes = took.as_secs_f64() / 60.0;
    let mut requests = BTreeMap::new();
    for request in asked {
        *requests.entry(format!("{} {}", request.verb, request.resource)).or_default() += 1.0 / minutes;
    }
    let traffic = [bytes.sent, bytes.received].map(|bytes| in_float(bytes) / minutes);
    Ok(IdleNode { shares: after.into_iter().map(share).collect(), requests, traffic })
}

#[expect(clippy::cast_precision_loss, reason = "bytes of minutes")]
fn in_float(bytes: u64) -> f64 {
    bytes as f64
}

/// Kills the kubelet and starts it again. Until its own list has every pod as ready, from the kill on; every container
/// must be the one that ran before. None for upstream's, which has no such list.
pub(super) fn adoption(
    cluster: &mut Cluster,
    usage: &NodeUsage,
    namespace: &str,
    pods: usize,
) -> Result<Option<Duration>> {
    if cluster.kubelet()?.kind() == KubeletKind::Upstream {
        return Ok(None);
    }
    let before = containers(cluster, namespace)?;
    let process = cluster.kubelet()?.process();
    process.kill()?;
    let begun = Instant::now();
    process.restart()?;
    let pid = process.pid()?.as_raw_nonzero().get();
    usage.add(pid)?;
    let program = place::bin_dir()?.join("gantry");
    poll_every(RHYTHM, "the kubelet to have its pods again", DEADLINE, || {
        match ready_pods(&program, namespace) {
            Ok(ready) if ready == pods => Ok(()),
            Ok(ready) => Err(format!("{ready} of {pods} are ready")),
            Err(error) => Err(format!("{error:#}")),
        }
    })?;
    let took = begun.elapsed();
    std::thread::sleep(super::TRAIL);
    let after = containers(cluster, namespace)?;
    ensure!(before.len() == pods, "{} of {pods} pods ran before the kubelet was killed", before.len());
    ensure!(after == before, "other containers run after the kubelet was killed");
    Ok(Some(took))
}

/// As `gantry ps` shows them.
fn ready_pods(program: &Path, namespace: &str) -> Result<usize> {
    let mut command = Command::new(program);
    let output = command
        .args(["ps", "--output=json", "--namespace", namespace])
        .stdin(Stdio::null())
        .output()
        .context("start gantry ps")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    let list: Value = serde_json::from_slice(&output.stdout).context("gantry ps")?;
    Ok(list["items"].as_array().into_iter().flatten().filter(|pod| is_ready(pod)).count())
}

/// What runs, by pod and container, with the times of restart.
fn containers(
    cluster: &Cluster,
    namespace: &str,
) -> Result<BTreeMap<String, BTreeMap<String, ContainerLife>>> {
    let list = cluster.kubectl().json(&["get", "pods", "-n", namespace])?;
    let named = |pod: &Value| (pod["metadata"]["name"].as_str().unwrap_or_default().to_owned(), lives(pod));
    Ok(list["items"].as_array().into_iter().flatten().map(named).collect())
}
