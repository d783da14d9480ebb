//! The tier `kind`: a cluster of two nodes, both Gantry's, on a docker of its own: a Deployment on both, its Service by
//! name, exec, logs, `kind load`, a restart of a node, and the end without a trace. Owns the steps and their names; they
//! follow one another. Called by the tiers.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, ensure};

use super::bed::{Bed, as_before, seen};
use super::image;
use super::web::{self, IMAGE};
use crate::sh;
use crate::summary::Counts;

const NAME: &str = "tier";
const WEB: &str = include_str!("web.yaml");

/// One step of the tier.
type Step = (&'static str, fn(&Bed) -> Result<()>);

const STEPS: [Step; 6] = [
    ("kind: both nodes are Gantry's", nodes),
    ("kind: kind load brings an image to both nodes", load_image),
    ("kind: a Deployment on both nodes answers through its Service by name", deployment),
    ("kind: exec and logs", exec_and_logs),
    ("kind: a node that docker restarts comes back with its pods", restart),
    ("kind: a Deployment that is deleted leaves no container", delete),
];

/// All of it: a step whose predecessor has failed is not tried.
pub(crate) fn tests() -> Result<Counts> {
    sh::require_root("a kind cluster")?;
    web::fetch()?;
    let made = image::make(false)?;
    let before = seen()?;
    let bed = Bed::start(sh::target_dir().join("kind-tier"), NAME)?;
    let mut failed = None;
    let mut counts = Counts::default();
    counts += Counts::check("kind: create cluster", noted(bed.create(&made, 2), &mut failed));
    for (name, step) in STEPS {
        if failed.is_none() {
            counts += Counts::check(name, noted(step(&bed), &mut failed));
        }
    }
    if let Some(error) = failed {
        println!("{}", bed.state());
        println!("{error}");
    }
    counts += Counts::check("kind: delete cluster", bed.delete());
    counts += Counts::check("kind: docker's end leaves no cgroup", bed.end());
    counts += Counts::check("kind: the host has the links and mounts that it had", as_before(&before));
    Ok(counts)
}

fn noted(outcome: Result<()>, failed: &mut Option<String>) -> Result<()> {
    if let Err(error) = &outcome {
        *failed = Some(format!("{error:#}"));
    }
    outcome
}

fn nodes(bed: &Bed) -> Result<()> {
    let form = "jsonpath={range .items[*]}{.status.nodeInfo.containerRuntimeVersion}{\"\\n\"}{end}";
    let runtimes = bed.kubectl(&["get", "nodes", "--output", form])?;
    let all: Vec<_> = runtimes.lines().collect();
    ensure!(all.len() == 2 && all.iter().all(|name| name.starts_with("gantry://")), "{runtimes}");
    Ok(())
}

fn load_image(bed: &Bed) -> Result<()> {
    let archive = web::archive(&bed.folder)?;
    let archive = archive.to_str().context("a path")?;
    bed.run(&["docker", "load", "--quiet", "--input", archive])?;
    bed.run(&["kind", "load", "docker-image", IMAGE, "--name", NAME])?;
    for node in ["tier-control-plane", "tier-worker"] {
        let images = bed.run(&["docker", "exec", node, "crictl", "images", "--output", "json"])?;
        ensure!(images.contains(IMAGE), "{node} has not got {IMAGE}: {images}");
    }
    Ok(())
}

fn deployment(bed: &Bed) -> Result<()> {
    let manifest = bed.folder.join("web.yaml");
    fs::write(&manifest, WEB)?;
    bed.kubectl(&["apply", "--filename", manifest.to_str().context("a path")?])?;
    bed.kubectl(&["rollout", "status", "deployment/web", "--timeout=180s"])?;
    let form = "jsonpath={.items[*].spec.nodeName}";
    let on = bed.kubectl(&["get", "pods", "--selector=app=web", "--output", form])?;
    let on: BTreeSet<_> = on.split_whitespace().collect();
    ensure!(on.len() == 2, "both pods are on {on:?}");
    web::all_answer(bed, 2)
}

fn exec_and_logs(bed: &Bed) -> Result<()> {
    let pods = bed.kubectl(&["get", "pods", "--selector=app=web", "--output", "name"])?;
    for pod in pods.lines() {
        let name = bed.kubectl(&["exec", pod, "--", "hostname"])?;
        ensure!(pod.ends_with(&name), "exec in {pod} is in {name}");
        let logs = bed.kubectl(&["logs", pod])?;
        ensure!(logs == "serving", "logs of {pod}: {logs}");
    }
    Ok(())
}

fn restart(bed: &Bed) -> Result<()> {
    bed.run(&["docker", "restart", "tier-worker"])?;
    let form = "jsonpath={.status.nodeInfo.bootID} {.status.conditions[?(@.type==\"Ready\")].status}";
    let ready = ["kubectl", "get", "node", "tier-worker", "--output", form];
    bed.until("the node to be ready", &ready, |said| said.ends_with(" True"))?;
    let running = "jsonpath={.items[*].status.containerStatuses[0].ready} {.items[*].status.containerStatuses[0].restartCount}";
    let pods = ["kubectl", "get", "pods", "--selector=app=web", "--output", running];
    bed.until("the node's pod to run again", &pods, |said| {
        said == "true true 0 1" || said == "true true 1 0"
    })?;
    web::all_answer(bed, 2)
}

fn delete(bed: &Bed) -> Result<()> {
    bed.kubectl(&["delete", "deployment,service", "web", "--wait", "--timeout=60s"])?;
    let pods = ["kubectl", "get", "pods", "--selector=app=web", "--output", "name"];
    bed.until("the pods to go", &pods, str::is_empty)?;
    for node in ["tier-control-plane", "tier-worker"] {
        let words = ["docker", "exec", node, "crictl", "ps", "--all", "--name", "web", "--quiet"];
        bed.until("the containers to go", &words, str::is_empty)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_names_the_image_that_is_loaded() {
        assert!(WEB.contains(&format!("image: {IMAGE}\n")));
    }
}
