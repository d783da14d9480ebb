//! The kubelet is killed every 20 seconds while sixty pods come up, run, crash and go. Only what ends by itself may end.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use gantry_tests::cluster::lives::{self, CRASHES, CUT_SHORT, MAY};
use gantry_tests::cluster::watched::Watched;
use gantry_tests::poll::poll;
use gantry_tests::proc;
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};

use crate::fixture::{ClusterFixture, NAMESPACE};
use crate::pods::{IDLE, pod};
use crate::seconds;

/// Between two kills.
const EVERY: Duration = Duration::from_secs(20);
const STEADY: usize = 24;
const CRASHING: usize = 12;
/// Of all that come and go.
const PASSING: usize = 24;

/// Nothing may happen to it: probes of its own, and a sidecar in every second.
fn steady(index: usize) -> Value {
    let mut steady = pod(&format!("steady-{index}"), &format!("touch /tmp/there; {IDLE}"));
    steady["metadata"]["labels"]["set"] = json!("steady");
    let probe =
        json!({ "exec": { "command": ["cat", "/tmp/there"] }, "periodSeconds": 10, "timeoutSeconds": 10 });
    let spec = &mut steady["spec"];
    spec["containers"][0]["readinessProbe"] = probe.clone();
    spec["containers"][0]["livenessProbe"] = probe;
    if index.is_multiple_of(2) {
        let side = json!({
            "name": "side", "image": "busybox", "command": ["sh", "-c", IDLE], "restartPolicy": "Always",
        });
        spec["initContainers"] = json!([side]);
    }
    steady
}

/// One container ends by itself again and again, the other one runs on beside it.
fn crashing(index: usize) -> Value {
    let mut crashing = pod(&format!("crashing-{index}"), IDLE);
    crashing["metadata"]["labels"]["set"] = json!("crashing");
    crashing["metadata"]["labels"][MAY] = json!("crash");
    let script = format!("sleep {}; exit {}", 5 + index * 2, CRASHES.1);
    let crashes = json!({ "name": CRASHES.0, "image": "busybox", "command": ["sh", "-c", script] });
    if let Some(containers) = crashing["spec"]["containers"].as_array_mut() {
        containers.push(crashes);
    }
    crashing
}

fn passing(index: usize) -> Value {
    let mut passing = pod(&format!("passing-{index}"), IDLE);
    passing["metadata"]["labels"]["set"] = json!("passing");
    passing["metadata"]["labels"][MAY] = json!("go");
    passing
}

pub(crate) fn run(fixture: &mut ClusterFixture) -> Result<()> {
    let time = seconds("GANTRY_KILL_SECONDS", 240)?;
    let mut watched = Watched::start(fixture.any(), NAMESPACE, 0)?;
    fixture.apply((0..STEADY).map(steady).chain((0..CRASHING).map(crashing)).collect())?;
    let kills = kills(fixture, &mut watched, time)?;
    println!("killed {kills} times");
    fixture.await_ready("set=steady", STEADY)?;
    let path = "{.items[*].metadata.name}";
    fixture.await_that(&["pods", "-l", "set=passing"], path, str::is_empty)?;
    let there = fixture.await_that(&["pods"], path, |_| true)?.split_whitespace().count();
    ensure!(there == STEADY + CRASHING, "{there} pods instead of {}", STEADY + CRASHING);
    fixture.await_clean()?;
    watched.check()?;
    let events = watched.events();
    report(fixture, &events)?;
    let wrongs: Vec<String> = lives::find_disturbed(&events).into_iter().collect();
    ensure!(wrongs.is_empty(), "{}", wrongs.join("\n"));
    fixture.clear()?;
    end_shims(&events)
}

/// A client that is killed in the midst of a StartContainer takes containerd's call along: the container has a StartError,
/// and containerd forgets its shim, which waits for ever. No kubelet can know of it; there may be no more than such starts.
fn end_shims(events: &[Value]) -> Result<()> {
    let shims = || -> Result<Vec<proc::Process>> {
        let all = proc::all()?.into_iter();
        Ok(all.filter(|one| one.name.starts_with("containerd-shim") && one.state != 'Z').collect())
    };
    let mut cut: BTreeSet<&str> = BTreeSet::new();
    for status in
        events.iter().filter_map(|event| event["object"]["status"]["containerStatuses"].as_array()).flatten()
    {
        let ends = [&status["state"]["terminated"], &status["lastState"]["terminated"]];
        cut.extend(
            ends.iter()
                .filter(|end| end["reason"] == CUT_SHORT)
                .filter_map(|end| end["containerID"].as_str()),
        );
    }
    let done = poll("the shims to end", Duration::from_secs(20), || match shims() {
        Ok(left) if left.is_empty() => Ok(()),
        left => Err(format!("{left:?}")),
    });
    let left = shims()?;
    println!("{} starts were cut short; containerd has forgotten {} shims", cut.len(), left.len());
    ensure!(
        done.is_ok() || left.len() <= cut.len(),
        "more shims are left than starts were cut short: {left:?}"
    );
    for shim in left {
        for pid in proc::children(shim.pid)?.iter().map(|child| child.pid).chain([shim.pid]) {
            let pid = Pid::from_raw(pid).context("a pid")?;
            rustix::process::kill_process(pid, Signal::KILL).context("end what containerd has forgotten")?;
        }
    }
    Ok(())
}

/// One kill after the other; between them some pods are made, and those made before are deleted. Returns their number.
fn kills(fixture: &mut ClusterFixture, watched: &mut Watched, time: Duration) -> Result<usize> {
    let rounds = usize::try_from(time.as_secs() / EVERY.as_secs()).context("a number of rounds")?.max(2);
    let each = PASSING / (rounds - 1).max(1);
    let start = Instant::now();
    let mut made: Vec<String> = Vec::new();
    for round in 0..rounds {
        fixture.hold(EVERY, |_| watched.check())?;
        if !made.is_empty() {
            let names: Vec<&str> = made.iter().map(String::as_str).collect();
            fixture.kubectl(&[&["delete", "pods", "--wait=false"], &names[..]].concat())?;
        }
        let last = round + 1 == rounds;
        let first = round * each;
        let until = if round + 2 == rounds { PASSING } else { first + each };
        let next = if last { 0..0 } else { first..until };
        made = next.clone().map(|index| format!("passing-{index}")).collect();
        if !next.is_empty() {
            fixture.apply(next.map(passing).collect())?;
        }
        // In the midst of both.
        let kubelet = fixture.cluster.kubelet()?.process();
        kubelet.check()?;
        kubelet.kill()?;
        kubelet.restart()?;
    }
    println!("{rounds} rounds in {} s", start.elapsed().as_secs());
    Ok(rounds)
}

/// What the watch saw, in numbers, and that what was to crash did.
fn report(fixture: &ClusterFixture, events: &[Value]) -> Result<()> {
    let path = r#"{range .items[*]}{.status.containerStatuses[?(@.name=="crashes")].restartCount} {end}"#;
    let restarts = fixture.await_that(&["pods", "-l", "set=crashing"], path, |_| true)?;
    let restarts: Vec<u64> = restarts.split_whitespace().filter_map(|count| count.parse().ok()).collect();
    println!("{} events of the watch; restarts of what crashes: {restarts:?}", events.len());
    ensure!(restarts.len() == CRASHING && restarts.iter().all(|count| *count > 0), "not all have crashed");
    Ok(())
}
