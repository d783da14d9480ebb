//! The API server is away, and the kubelet is killed meanwhile. Pods run on, probes act, nothing is ended, and what happened
//! is told afterwards.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use gantry_tests::cluster::lives;
use gantry_tests::cluster::watched::Watched;
use gantry_tests::poll::poll_every;
use serde_json::{Value, json};

use crate::fixture::{ClusterFixture, Containers, NAMESPACE, PATIENCE};
use crate::pods::{IDLE, pod};
use crate::seconds;

const STEADY: usize = 6;

fn probe(file: &str) -> Value {
    json!({ "exec": { "command": ["cat", file] }, "periodSeconds": 2, "timeoutSeconds": 10, "failureThreshold": 2 })
}

fn pod_with_probe(name: &str, kind: &str, file: &str) -> Value {
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
        let mut steady = pod_with_probe(&format!("steady-{index}"), "readinessProbe", "/tmp/there");
        steady["spec"]["containers"][0]["livenessProbe"] = probe("/tmp/there");
        steady
    };
    let mut pods: Vec<Value> = (0..STEADY).map(steady).collect();
    pods.push(pod_with_probe("alive", "livenessProbe", "/tmp/alive"));
    pods.push(pod_with_probe("ready", "readinessProbe", "/tmp/ready"));
    pods.push(ends("once", "Never", 0));
    pods.push(ends("again", "Always", 4));
    for pod in &mut pods {
        pod["metadata"]["labels"]["set"] = json!("all");
    }
    pods
}

pub(crate) fn run(fixture: &mut ClusterFixture) -> Result<()> {
    let time = seconds("GANTRY_AWAY_SECONDS", 180)?;
    let pods = pods();
    let count = pods.len();
    fixture.apply(pods)?;
    fixture.await_ready("set=all", count)?;
    let events = Watched::start(fixture.any(), NAMESPACE, count)?.events();
    let before = fixture.containers()?;
    // By itself it would find the node silent when the API server comes back, and take its pods' readiness before the
    // kubelet can speak.
    fixture.cluster.control_plane("kube-controller-manager")?.kill()?;
    fixture.cluster.control_plane("kube-apiserver")?.kill()?;
    let start = Instant::now();
    fixture.hold(time / 6, |fixture| steady(fixture, &before))?;
    let acted = disturb(fixture, &before)?;
    println!("liveness and restart policy acted {acted} s after their cause, without an API server");
    fixture.hold((time / 2).saturating_sub(start.elapsed()), |fixture| steady(fixture, &before))?;
    let kubelet = fixture.cluster.kubelet()?.process();
    kubelet.kill()?;
    kubelet.restart()?;
    let ours = fixture.containers()?;
    fixture.hold(time.saturating_sub(start.elapsed()), |fixture| {
        ensure!(fixture.containers()? == ours, "other containers run after the kubelet's restart");
        steady(fixture, &before)
    })?;
    let away = start.elapsed().as_secs();
    let start = Instant::now();
    come_back(fixture)?;
    await_catch_up(fixture)?;
    println!("away for {away} s; all is told {} s after its return", start.elapsed().as_secs());
    let mut watched = Watched::start(fixture.any(), NAMESPACE, count)?;
    probes_act_again(fixture)?;
    watched.check()?;
    let steady = |event: &Value| {
        event["object"]["metadata"]["name"].as_str().is_some_and(|name| name.starts_with("steady-"))
    };
    let all: Vec<Value> = events.into_iter().chain(watched.events()).filter(steady).collect();
    let wrongs: Vec<String> = lives::find_disturbed(&all).into_iter().collect();
    ensure!(wrongs.is_empty(), "{}", wrongs.join("\n"));
    fixture.clear()
}

/// The steady pods' containers are those from before.
fn steady(fixture: &ClusterFixture, before: &Containers) -> Result<()> {
    let now = fixture.containers()?;
    for (key, container) in before.iter().filter(|((pod, _), _)| pod.starts_with("steady-") || pod == "ready")
    {
        ensure!(now.get(key) == Some(container), "{key:?}: {:?} instead of {container:?}", now.get(key));
    }
    Ok(())
}

/// Things happen that a kubelet acts on by itself; returns how many seconds it took.
fn disturb(fixture: &ClusterFixture, before: &Containers) -> Result<u64> {
    let start = Instant::now();
    fixture.exec("alive", "main", "rm /tmp/alive")?;
    fixture.exec("ready", "main", "rm /tmp/ready")?;
    for name in ["once", "again"] {
        fixture.exec(name, "main", "touch /tmp/go")?;
    }
    for name in ["alive", "again"] {
        await_attempt(fixture, name, 1)?;
    }
    let once = ("once".to_owned(), "main".to_owned());
    ensure!(before.contains_key(&once), "it was to run");
    poll_every(Duration::from_millis(250), "a pod's end", PATIENCE, || {
        let now = fixture.containers().map_err(|error| format!("{error:#}"))?;
        if now.contains_key(&once) { Err(format!("{now:?}")) } else { Ok(()) }
    })?;
    Ok(start.elapsed().as_secs())
}

fn await_attempt(fixture: &ClusterFixture, name: &str, attempt: u32) -> Result<()> {
    let key = (name.to_owned(), "main".to_owned());
    poll_every(Duration::from_millis(250), "a container's next life", PATIENCE, || {
        let now = fixture.containers().map_err(|error| format!("{error:#}"))?;
        match now.get(&key) {
            Some(one) if one.attempt == attempt => Ok(()),
            other => Err(format!("{name}: {other:?}")),
        }
    })
}

/// API server, then the kubelet's word, then who judges by it.
fn come_back(fixture: &mut ClusterFixture) -> Result<()> {
    fixture.cluster.control_plane("kube-apiserver")?.restart()?;
    let before = poll_every(Duration::from_millis(250), "the API server", PATIENCE, || {
        fixture.any().run(&["get", "--raw", "/readyz"]).map_err(|error| format!("{error:#}"))?;
        fixture.lease_renew_time().map_err(|error| format!("{error:#}"))
    })?;
    fixture.await_lease_renewal(&before)?;
    fixture.cluster.control_plane("kube-controller-manager")?.restart()
}

fn await_catch_up(fixture: &ClusterFixture) -> Result<()> {
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
        let told = fixture.await_that(&["pod", pod], &path, |value| value == wanted);
        told.with_context(|| format!("{pod} is to have {path} {wanted}"))?;
    }
    Ok(())
}

/// The kubelet of now has never seen these pods start.
fn probes_act_again(fixture: &mut ClusterFixture) -> Result<()> {
    fixture.exec("ready", "main", "touch /tmp/ready")?;
    fixture.await_that(&["pod", "ready"], "{.status.containerStatuses[0].ready}", |ready| ready == "true")?;
    fixture.exec("alive", "main", "rm /tmp/alive")?;
    await_attempt(fixture, "alive", 2)?;
    fixture
        .await_that(&["pod", "alive"], "{.status.containerStatuses[0].restartCount}", |count| count == "2")?;
    fixture.hold(Duration::from_secs(15), |_| Ok(()))
}
