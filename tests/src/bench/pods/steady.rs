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
use crate::cluster::Cluster;
use crate::cluster::kubelet::KubeletKind;
use crate::cluster::lives::{ContainerLife, is_ready, lives};
use crate::place;
use crate::poll::poll_every;

/// Between two looks at the new kubelet's pods.
const RHYTHM: Duration = Duration::from_millis(100);

/// Per cent of one core over that time: each daemon's, and the whole node's.
pub(super) fn idle(
    cluster: &mut Cluster,
    usage: &NodeUsage,
    time: Duration,
) -> Result<BTreeMap<String, f64>> {
    let daemons = super::daemons(cluster)?;
    let all = || {
        let of = |(name, pid): &(&str, i32)| Ok(((*name).to_owned(), processor_time_of(*pid)?));
        let whole = ("whole node".to_owned(), usage.processor_time()?);
        daemons.iter().map(of).chain([Ok(whole)]).collect::<Result<BTreeMap<_, _>>>()
    };
    let (begun, before) = (Instant::now(), all()?);
    std::thread::sleep(time);
    let (took, after) = (begun.elapsed(), all()?);
    let share = |(name, used): (String, Duration)| {
        let used = used.saturating_sub(before.get(&name).copied().unwrap_or_default());
        (name, used.as_secs_f64() / took.as_secs_f64() * 100.0)
    };
    Ok(after.into_iter().map(share).collect())
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
