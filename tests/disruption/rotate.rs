//! A node that joined with a token alone has certificates of a few minutes. A watch, an exec session and the kubelet's own
//! watch outlive them.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use gantry_tests::cluster::Join;
use gantry_tests::cluster::going::Going;
use gantry_tests::cluster::{audit, kubelet};
use serde_json::Value;

use crate::fixture::{ClusterFixture, NAMESPACE, PATIENCE};
use crate::pods::{IDLE, pod};

/// Where a kubelet keeps its certificates; each name there leads to a file with a date.
const KEPT: &str = "/var/lib/kubelet/pki";
const CLIENT: &str = "kubelet-client-current.pem";
const SERVING: &str = "kubelet-server-current.pem";
const TICKS: &str = "number=0; while :; do echo tick-$number; number=$((number + 1)); sleep 1; done";

/// The files that each name led to so far.
#[derive(Debug, Default)]
struct CertificateFiles {
    client: BTreeSet<String>,
    serving: BTreeSet<String>,
}

impl CertificateFiles {
    fn look(&mut self) {
        for (name, files) in [(CLIENT, &mut self.client), (SERVING, &mut self.serving)] {
            // There is none before the first is signed.
            if let Ok(file) = std::fs::read_link(std::path::Path::new(KEPT).join(name)) {
                files.insert(file.to_string_lossy().into_owned());
            }
        }
    }

    fn rotations(&self) -> (usize, usize) {
        (self.client.len().saturating_sub(1), self.serving.len().saturating_sub(1))
    }
}

pub(crate) fn run(fixture: &mut ClusterFixture) -> Result<()> {
    let Join::Asked(life) = crate::join_by_request()? else { anyhow::bail!("the node was to ask") };
    let mut seen = CertificateFiles::default();
    let first = Instant::now();
    // Nobody signs a serving certificate before somebody has looked at it.
    await_serving_certificate(fixture, &mut seen)?;
    let mut runs = pod("ticks", IDLE);
    runs["metadata"]["labels"]["set"] = "all".into();
    fixture.apply(vec![runs])?;
    fixture.await_ready("set=all", 1)?;
    let kubectl = |args: &[&str]| fixture.any().command(&[&["-n", NAMESPACE], args].concat());
    let mut ticks = Going::start(kubectl(&["exec", "ticks", "--", "sh", "-c", TICKS]))?;
    let mut watch = Going::start(kubectl(&["get", "pods", "-w"]))?;
    ticks.await_said("the session's first line", |said| said.contains("tick-0\n").then_some(()))?;
    watch.await_said("the watch's first row", |said| said.contains("ticks").then_some(()))?;
    let (from, start) = (audit::end(&fixture.cluster.audit_log())?, Instant::now());
    await_rotations(fixture, &mut seen)?;
    // The first ones are over as well.
    fixture.hold(life.saturating_sub(first.elapsed()) + Duration::from_secs(5), |fixture| {
        approve(fixture)?;
        seen.look();
        Ok(())
    })?;
    let passed = start.elapsed().as_secs();
    let (client, serving) = seen.rotations();
    println!("{client} rotations of the client's and {serving} of the serving certificate in {passed} s");
    ticking(&mut ticks, passed)?;
    // A new pod is seen by the kubelet and by the old watch, and a new session finds a kubelet that is believed.
    let mut after = pod("after", IDLE);
    after["metadata"]["labels"]["set"] = "all".into();
    fixture.apply(vec![after])?;
    fixture.await_ready("set=all", 2)?;
    watch.await_said("the new pod", |said| said.contains("after").then_some(()))?;
    ensure!(fixture.kubectl(&["exec", "after", "--", "echo", "here"])? == "here\n");
    let before = fixture.lease_renew_time()?;
    fixture.await_lease_renewal(&before)?;
    watches(fixture, from, passed, client)?;
    drop((ticks, watch));
    fixture.clear()
}

/// Waits for the first serving certificate.
fn await_serving_certificate(fixture: &mut ClusterFixture, seen: &mut CertificateFiles) -> Result<()> {
    gantry_tests::poll::poll_every(Duration::from_millis(500), "a serving certificate", PATIENCE, || {
        approve(fixture).map_err(|error| format!("{error:#}"))?;
        seen.look();
        if seen.serving.is_empty() { Err(format!("{seen:?}")) } else { Ok(()) }
    })
}

/// Waits for two rotations of each.
fn await_rotations(fixture: &mut ClusterFixture, seen: &mut CertificateFiles) -> Result<()> {
    let mut told = seen.rotations();
    gantry_tests::poll::poll_every(Duration::from_secs(1), "two rotations of each", PATIENCE * 4, || {
        if let Err(error) = approve(fixture).and_then(|()| fixture.cluster.check()) {
            return Ok(Err(error));
        }
        seen.look();
        let now = seen.rotations();
        if now != told {
            println!("rotations of client and serving certificate: {now:?}");
            told = now;
        }
        if now.0 >= 2 && now.1 >= 2 { Ok(Ok(())) } else { Err(format!("{now:?}")) }
    })?
}

/// As an operator does, or a controller of theirs: requests of nodes for serving certificates.
fn approve(fixture: &ClusterFixture) -> Result<()> {
    let list = fixture.any().json(&["get", "certificatesigningrequests"])?;
    let waits = |request: &&Value| {
        request["spec"]["signerName"] == "kubernetes.io/kubelet-serving"
            && request["status"]["conditions"].as_array().is_none_or(Vec::is_empty)
    };
    for request in list["items"].as_array().into_iter().flatten().filter(waits) {
        let name = request["metadata"]["name"].as_str().context("a request without a name")?;
        fixture.any().run(&["certificate", "approve", name])?;
    }
    Ok(())
}

/// Line after line, none left out, and it goes on.
fn ticking(ticks: &mut Going, passed: u64) -> Result<()> {
    let last = ticks.text().lines().count();
    let next = format!("tick-{}\n", last + 2);
    ticks.await_said("the session to go on", |said| said.contains(&next).then_some(()))?;
    let text = ticks.text();
    let lines: Vec<&str> = text.lines().collect();
    let right = lines.iter().enumerate().all(|(number, line)| *line == format!("tick-{number}"));
    ensure!(right, "the session has other lines: {text}");
    println!("the session has {} lines after {passed} s", lines.len());
    Ok(())
}

/// How often the node asked for its pods' watch: ours keeps the one it has, for the five to ten minutes that a watch is
/// asked for.
fn watches(fixture: &ClusterFixture, from: u64, passed: u64, rotations: usize) -> Result<()> {
    let requests = fixture.requests(from)?;
    let begun = requests.iter().filter(|one| one.verb == "watch" && one.resource == "pods").count();
    println!("the kubelet began {begun} watches of its pods in {passed} s");
    let by_age = 1 + usize::try_from(passed / 300)?;
    let dropped = begun > by_age || begun >= rotations;
    ensure!(
        fixture.chosen != kubelet::KubeletKind::Gantry || !dropped,
        "a rotation dropped the kubelet's watch"
    );
    Ok(())
}
