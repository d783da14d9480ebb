//! The API server is away, and the kubelet is killed meanwhile. Pods run on, probes act, nothing is ended, and what happened
//! is told afterwards.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use gantry_tests::cluster::lives;
use gantry_tests::cluster::watched::Watched;
use gantry_tests::poll::poll_every;
use serde_json::{Value, json};

use crate::bed::{Bed, Containers, NAMESPACE, PATIENCE};
use crate::pods::{IDLE, pod};
use crate::seconds;

const STEADY: usize = 6;

fn probe(file: &str) -> Value {
    json!({ "exec": { "command": ["cat", file] }, "periodSeconds": 2, "timeoutSeconds": 10, "failureThreshold": 2 })
}

fn probed(name: &str, kind: &str, file: &str) -> Value {
    let mut probed = pod(name, &format!("touch {file}; {IDLE}"));
    probed["spec"]["containers"][0][kind] = probe(file);
    probed
}

/// Ends when it is told to.
fn ends(name: &str, policy: &str, code: i32) -> Value {
    let mut ends = pod(name, &format!("until [ -e /tmp/go ]; do sleep 0.2; done; exit {code}"));
    ends["spec"]["restartPolicy"] = json!(policy);
    ends
}

fn pods() -> Vec<Value> {
    let steady = |index: usize| {
        let mut steady = probed(&format!("steady-{index}"), "readinessProbe", "/tmp/there");
        steady["spec"]["containers"][0]["livenessProbe"] = probe("/tmp/there");
        steady
    };
    let mut pods: Vec<Value> = (0..STEADY).map(steady).collect();
    pods.push(probed("alive", "livenessProbe", "/tmp/alive"));
    pods.push(probed("ready", "readinessProbe", "/tmp/ready"));
    pods.push(ends("once", "Never", 0));
    pods.push(ends("again", "Always", 4));
    for pod in &mut pods {
        pod["metadata"]["labels"]["set"] = json!("all");
    }
    pods
}

pub(crate) fn run(bed: &mut Bed) -> Result<()> {
    let time = seconds("GANTRY_AWAY_SECONDS", 180)?;
    let pods = pods();
    let count = pods.len();
    bed.apply(pods)?;
    bed.await_ready("set=all", count)?;
    let events = Watched::start(bed.any(), NAMESPACE, count)?.events();
    let before = bed.containers()?;
    // By itself it would find the node silent when the API server comes back, and take its pods' readiness before the
    // kubelet can speak.
    bed.cluster.control_plane("kube-controller-manager")?.kill()?;
    bed.cluster.control_plane("kube-apiserver")?.kill()?;
    let start = Instant::now();
    bed.hold(time / 6, |bed| steady(bed, &before))?;
    let acted = disturb(bed, &before)?;
    println!("liveness and restart policy acted {acted} s after their cause, without an API server");
    bed.hold((time / 2).saturating_sub(start.elapsed()), |bed| steady(bed, &before))?;
    let kubelet = bed.cluster.kubelet()?.process();
    kubelet.kill()?;
    kubelet.restart()?;
    let ours = bed.containers()?;
    bed.hold(time.saturating_sub(start.elapsed()), |bed| {
        ensure!(bed.containers()? == ours, "other containers run after the kubelet's restart");
        steady(bed, &before)
    })?;
    let away = start.elapsed().as_secs();
    let start = Instant::now();
    come_back(bed)?;
    caught_up(bed)?;
    println!("away for {away} s; all is told {} s after its return", start.elapsed().as_secs());
    let mut watched = Watched::start(bed.any(), NAMESPACE, count)?;
    probes_act_again(bed)?;
    watched.check()?;
    let steady = |event: &Value| {
        event["object"]["metadata"]["name"].as_str().is_some_and(|name| name.starts_with("steady-"))
    };
    let all: Vec<Value> = events.into_iter().chain(watched.events()).filter(steady).collect();
    let wrongs: Vec<String> = lives::disturbed(&all).into_iter().collect();
    ensure!(wrongs.is_empty(), "{}", wrongs.join("\n"));
    bed.clear()
}

/// The steady pods' containers are those from before.
fn steady(bed: &Bed, before: &Containers) -> Result<()> {
    let now = bed.containers()?;
    for (key, container) in before.iter().filter(|((pod, _), _)| pod.starts_with("steady-") || pod == "ready")
    {
        ensure!(now.get(key) == Some(container), "{key:?}: {:?} instead of {container:?}", now.get(key));
    }
    Ok(())
}

/// Things happen that a kubelet acts on by itself; returns how many seconds it took.
fn disturb(bed: &Bed, before: &Containers) -> Result<u64> {
    let start = Instant::now();
    bed.exec("alive", "main", "rm /tmp/alive")?;
    bed.exec("ready", "main", "rm /tmp/ready")?;
    for name in ["once", "again"] {
        bed.exec(name, "main", "touch /tmp/go")?;
    }
    for name in ["alive", "again"] {
        await_attempt(bed, name, 1)?;
    }
    let once = ("once".to_owned(), "main".to_owned());
    ensure!(before.contains_key(&once), "it was to run");
    poll_every(Duration::from_millis(250), "a pod's end", PATIENCE, || {
        let now = bed.containers().map_err(|error| format!("{error:#}"))?;
        if now.contains_key(&once) { Err(format!("{now:?}")) } else { Ok(()) }
    })?;
    Ok(start.elapsed().as_secs())
}

fn await_attempt(bed: &Bed, name: &str, attempt: u32) -> Result<()> {
    let key = (name.to_owned(), "main".to_owned());
    poll_every(Duration::from_millis(250), "a container's next life", PATIENCE, || {
        let now = bed.containers().map_err(|error| format!("{error:#}"))?;
        match now.get(&key) {
            Some(one) if one.attempt == attempt => Ok(()),
            other => Err(format!("{name}: {other:?}")),
        }
    })
}

/// API server, then the kubelet's word, then who judges by it.
fn come_back(bed: &mut Bed) -> Result<()> {
    bed.cluster.control_plane("kube-apiserver")?.restart()?;
    let before = poll_every(Duration::from_millis(250), "the API server", PATIENCE, || {
        bed.any().run(&["get", "--raw", "/readyz"]).map_err(|error| format!("{error:#}"))?;
        bed.renewed().map_err(|error| format!("{error:#}"))
    })?;
    bed.await_renewed(&before)?;
    bed.cluster.control_plane("kube-controller-manager")?.restart()
}

fn caught_up(bed: &Bed) -> Result<()> {
    let status = |field: &str| format!("{{.status.containerStatuses[0].{field}}}");
    for (pod, path, wanted) in [
        ("alive", status("restartCount"), "1"),
        ("alive", status("ready"), "true"),
        ("again", status("restartCount"), "1"),
        ("again", status("lastState.terminated.exitCode"), "4"),
        ("once", "{.status.phase}".to_owned(), "Succeeded"),
        ("ready", status("ready"), "false"),
        ("ready", status("restartCount"), "0"),
    ] {
        let told = bed.await_that(&["pod", pod], &path, |value| value == wanted);
        told.with_context(|| format!("{pod} is to have {path} {wanted}"))?;
    }
    Ok(())
}

/// The kubelet of now has never seen these pods start.
fn probes_act_again(bed: &mut Bed) -> Result<()> {
    bed.exec("ready", "main", "touch /tmp/ready")?;
    bed.await_that(&["pod", "ready"], "{.status.containerStatuses[0].ready}", |ready| ready == "true")?;
    bed.exec("alive", "main", "rm /tmp/alive")?;
    await_attempt(bed, "alive", 2)?;
    bed.await_that(&["pod", "alive"], "{.status.containerStatuses[0].restartCount}", |count| count == "2")?;
    bed.hold(Duration::from_secs(15), |_| Ok(()))
}
