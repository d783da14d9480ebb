//! After a reboot, through the agent: what has ended stays ended, what should run runs anew.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use gantry_proto::cri;
use gantry_proto::cri::PodSandboxState;
use gantry_tests::node::{Node, Roots};
use gantry_tests::ready::{Ready, ready};
use gantry_tests::standalone::Foreground;
use gantry_tests::{fake_reboot, proc};
use serde_json::Value;

/// Each with its restart policy and what it runs.
const PODS: [(&str, &str, &str); 4] = [
    ("done", "Never", "[/workload, exit, '3']"),
    ("down", "Never", "[/workload, count, '7', '100']"),
    ("cut", "Never", "[/workload, count, '5']"),
    ("keeps", "Always", "[/workload, web, '8080']"),
];

fn manifests(roots: &Roots, image: &str) -> Result<Vec<PathBuf>> {
    let write = |(name, policy, command)| {
        let path = roots.path(&format!("{name}.yaml"));
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  restartPolicy: {policy}\n  \
             terminationGracePeriodSeconds: 2\n  containers:\n  - {{name: it, image: \"{image}\", command: {command}}}\n"
        );
        std::fs::write(&path, text)?;
        Ok(path)
    };
    PODS.into_iter().map(write).collect()
}

fn by_name(pods: &[Value]) -> BTreeMap<&str, &Value> {
    pods.iter().filter_map(|pod| Some((pod["name"].as_str()?, pod))).collect()
}

/// ID, state and exit code of a pod's container.
fn container(pod: &Value) -> (&str, &str, i64) {
    let it = &pod["containers"][0];
    let text = |name: &str| it[name].as_str().unwrap_or_default();
    (text("id"), text("state"), it["exitCode"].as_i64().unwrap_or(-1))
}

/// IDs of all containers that the runtime knows of a pod.
fn containers_of(node: &Node, pod: &str) -> Result<Vec<String>> {
    let list = node.cri().list_containers(cri::ListContainersRequest::default()).context("ListContainers")?;
    let of = |one: &cri::Container| one.labels.get("io.kubernetes.pod.name").is_some_and(|name| name == pod);
    Ok(list.containers.into_iter().filter(of).map(|one| one.id).collect())
}

#[test]
fn finished_never_pods_are_not_run_again_after_a_reboot() -> Result<()> {
    let Ready { mut node, registry: _registry, image, before } = ready()?;
    let folder = node.roots().path("");
    let mut flags = node.roots().flags()?;
    flags.push(format!("--root-dir={}", folder.join("kubelet").display()));
    flags.push(format!("--container-runtime-endpoint=unix://{}", folder.join("cri.sock").display()));
    let files = manifests(node.roots(), &image)?;
    let mut run = Foreground::start(&folder, &files, &flags)?;
    let seen = run.await_pods("one pod to have ended and three to run", 60, |pods| {
        let pods_by_name = by_name(pods);
        let runs = |name| Some(container(pods_by_name.get(name)?).1 == "running");
        let done = container(pods_by_name.get("done")?);
        (done.2 == 3 && runs("down")? && runs("cut")? && runs("keeps")?).then(|| pods.to_vec())
    })?;
    let old = by_name(&seen);
    // One ends while nobody but its monitor looks.
    node.kill()?;
    proc::await_end_of("count 7 100")?;
    run.kill()?;
    // A pull that died between its folder and the index's record. 26 characters, as theirs have.
    let stray = node.root().join("layers/strayabcdefghijklmnopqrstu");
    std::fs::create_dir(&stray)?;

    let flag = fake_reboot::cycle(node.roots(), "another boot")?;
    node.restart_with(&[flag])?;
    ensure!(!stray.exists(), "{} is still there", stray.display());
    ensure!(fake_reboot::leases(node.roots())?.is_empty(), "a lease of the old boot");
    let sandboxes = node.cri().list_pod_sandbox(cri::ListPodSandboxRequest::default())?.items;
    ensure!(sandboxes.len() >= 3, "{sandboxes:?}");
    for sandbox in &sandboxes {
        ensure!(sandbox.state() == PodSandboxState::SandboxNotready, "{sandbox:?}");
    }

    run.start_again()?;
    let seen = run.await_pods("the pod that should run to run", 60, |pods| {
        let pods_by_name = by_name(pods);
        let ended = |name| Some(container(pods_by_name.get(name)?).1 == "terminated");
        let keeps = *pods_by_name.get("keeps")?;
        let runs = container(keeps).1 == "running" && keeps["ip"].as_str()?.starts_with("10.");
        (runs && ended("done")? && ended("down")? && ended("cut")?).then(|| pods.to_vec())
    })?;
    let now = by_name(&seen);
    for (name, code) in [("done", 3), ("down", 7), ("cut", 255)] {
        let (id, _, exit_code) = container(now[name]);
        ensure!(exit_code == code && now[name]["phase"] == "Failed", "{}", now[name]);
        ensure!(id == container(old[name]).0, "{name} was run again: {}", now[name]);
        ensure!(containers_of(&node, name)? == [id], "{name} has a twin");
    }
    ensure!(container(now["keeps"]).0 != container(old["keeps"]).0, "{}", now["keeps"]);
    ensure!(fake_reboot::leases(node.roots())?.len() == 1, "{:?}", fake_reboot::leases(node.roots())?);

    run.interrupt()?;
    // Pods of its have failed.
    ensure!(run.await_end()?.code() == Some(1), "{}", run.stderr());
    drop(run);
    ensure!(fake_reboot::leases(node.roots())?.is_empty(), "{:?}", fake_reboot::leases(node.roots())?);
    node.assert_clean(&before)
}
