//! Fifty pods at once, one file each, with the runtime as a process of its own: and either half killed
//! midway. What had started runs on as it was; the rest comes up all the same.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use gantry_proto::cri;
use gantry_tests::image::{Image, Layer};
use gantry_tests::leakcheck::{Scope, Snapshot};
use gantry_tests::node::{Node, Roots};
use gantry_tests::place;
use gantry_tests::registry::Registry;
use gantry_tests::standalone::{Foreground, Standalone};
use serde_json::Value;

const PODS: usize = 50;
/// Of them midway: some are ready and some are not.
const MIDWAY: usize = 15;
const SECONDS: u64 = 150;

/// A static program and nothing else: what is measured is not the pull.
fn image() -> Result<Image> {
    let workload = place::bin_dir()?.join("gantry-workload");
    let workload = std::fs::read(&workload).with_context(|| workload.display().to_string())?;
    Ok(Image {
        layers: vec![Layer::default().file("workload", 0o755, workload)],
        entrypoint: vec!["/workload".into(), "web".into(), "8080".into()],
        ..Image::default()
    })
}

/// One file for each pod. Half of them take their time, so that there is a midway on any machine.
pub(crate) fn manifests(roots: &Roots, image: &str, count: usize) -> Result<Vec<PathBuf>> {
    let folder = roots.path("pods");
    std::fs::create_dir_all(&folder)?;
    (1..=count)
        .map(|number| {
            let path = folder.join(format!("{number:02}.yaml"));
            let slowly = match number * 2 > count {
                true => format!(
                    "  initContainers:\n  - {{name: wait, image: \"{image}\", command: [/workload, sleep, \"4\"]}}\n"
                ),
                false => String::new(),
            };
            let text = format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: pod-{number:02}}}\nspec:\n  \
                 terminationGracePeriodSeconds: 5\n{slowly}  containers:\n  - name: web\n    image: \"{image}\"\n    \
                 readinessProbe: {{tcpSocket: {{port: 8080}}, periodSeconds: 2}}\n"
            );
            std::fs::write(&path, text)?;
            Ok(path)
        })
        .collect()
}

fn container(pod: &Value) -> &Value {
    pod.pointer("/containers/0").unwrap_or(&Value::Null)
}

/// IDs of the containers that have started, by their pods' names.
pub(crate) fn container_ids(pods: &[Value]) -> BTreeMap<String, String> {
    let runs = pods.iter().filter(|pod| container(pod)["state"] == "running");
    runs.map(|pod| (text(&pod["name"]), text(&container(pod)["id"]))).collect()
}

fn ready(pods: &[Value]) -> usize {
    pods.iter().filter(|pod| container(pod)["ready"] == true).count()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Waits until every pod is ready and holds them against what had started before.
pub(crate) fn assert_all_ready(
    run: &mut Foreground,
    count: usize,
    before: &BTreeMap<String, String>,
) -> Result<()> {
    let pods = run.await_pods("every pod to be ready", SECONDS, |pods| {
        (pods.len() == count && ready(pods) == count).then(|| pods.to_vec())
    })?;
    let addresses: BTreeSet<String> = pods.iter().map(|pod| text(&pod["ip"])).collect();
    ensure!(addresses.len() == count && !addresses.contains(""), "addresses: {addresses:?}");
    let now = container_ids(&pods);
    for (name, id) in before {
        ensure!(now.get(name) == Some(id), "the container of {name} was {id}, is {:?}", now.get(name));
    }
    for pod in &pods {
        ensure!(container(pod)["restartCount"] == 0, "{pod}");
    }
    Ok(())
}

/// Every container that the runtime knows and that has run is one of these.
fn assert_no_twins(node: &Node, run: &Foreground) -> Result<()> {
    let pods = run.pods()?;
    let inits = pods.iter().filter_map(|pod| pod["initContainers"].as_array()).flatten();
    let known: BTreeSet<String> =
        container_ids(&pods).into_values().chain(inits.map(|init| text(&init["id"]))).collect();
    let list = node.cri().list_containers(cri::ListContainersRequest::default()).context("ListContainers")?;
    for container in list.containers {
        let status = gantry_tests::pod::container_status(node, &container.id)?;
        ensure!(status.started_at == 0 || known.contains(&container.id), "a twin: {status:?}");
    }
    Ok(())
}

/// Fifty pods, something done midway, and the end of them all.
fn fleet(midway: impl FnOnce(&mut Node, &mut Foreground) -> Result<()>) -> Result<()> {
    place::require_own_namespaces()?;
    let registry = Registry::start()?;
    let image = registry.push("demo/fleet", "v1", &image()?.build()?)?;
    let mut node = Node::start()?;
    node.pull(&image).context("PullImage")?;
    let before = node.snapshot()?;
    let folder = node.roots().path("");
    let mut flags = node.roots().flags()?;
    flags.push(format!("--root-dir={}", folder.join("kubelet").display()));
    flags.push(format!("--container-runtime-endpoint=unix://{}", folder.join("cri.sock").display()));
    let files = manifests(node.roots(), &image, PODS)?;
    let mut run = Foreground::start(&folder, &files, &flags)?;
    let seen = run.await_pods("some pods to be ready", SECONDS, |pods| {
        (ready(pods) >= MIDWAY).then(|| pods.to_vec())
    })?;
    ensure!(ready(&seen) < PODS, "all were ready before anything could be killed");
    midway(&mut node, &mut run)?;
    assert_all_ready(&mut run, PODS, &container_ids(&seen))?;
    assert_no_twins(&node, &run)?;
    run.interrupt()?;
    let status = run.await_end()?;
    ensure!(status.success(), "{status}: {}", run.stderr());
    drop(run);
    let left: Vec<_> = std::fs::read_dir(folder.join("kubelet/pods"))?.flatten().collect();
    ensure!(left.is_empty(), "left of the pods' folders: {left:?}");
    node.assert_clean(&before)
}

#[test]
fn fifty_pods_come_up_while_the_runtime_is_killed_midway() -> Result<()> {
    fleet(|node, _run| {
        node.kill()?;
        node.restart()
    })
}

#[test]
fn fifty_pods_come_up_while_the_agent_is_killed_midway() -> Result<()> {
    fleet(|_node, run| {
        run.kill()?;
        run.start_again()
    })
}

#[test]
fn a_gantry_run_killed_whole_adopts_its_pods_when_it_is_started_again() -> Result<()> {
    place::require_own_namespaces()?;
    let registry = Registry::start()?;
    let image = registry.push("demo/fleet", "v1", &image()?.build()?)?;
    let roots = Roots::new()?;
    let scope = Scope { folders: Vec::new(), ..roots.scope() };
    let before = Snapshot::take(&scope)?;
    let files = manifests(&roots, &image, 5)?;
    let mut run = Standalone::start_files(roots, &files, &[])?;
    assert_all_ready(&mut run, 5, &BTreeMap::new())?;
    let seen = container_ids(&run.pods()?);
    assert_eq!(seen.len(), 5);
    run.kill()?;
    run.start_again()?;
    assert_all_ready(&mut run, 5, &seen)?;
    run.interrupt()?;
    assert!(run.await_end()?.success(), "{}", run.stderr());
    before.await_clean(&scope)
}
