//! The tiers `kind` and `kind-all`, each a cluster of two nodes on a docker of its own: one has upstream's control plane
//! and a worker of Gantry's, the other has only nodes of Gantry's. In each a Deployment on both nodes, its Service by
//! name, exec, logs, `kind load`, a restart of the worker, and the end without a trace. Owns the steps and their names;
//! they follow one another. Called by the tiers.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use super::bed::Bed;
use super::image::{self, Made};
use super::tier::on_cluster;
use super::web::{self, IMAGE};
use crate::sh;
use crate::summary::Counts;

const WEB: &str = include_str!("web.yaml");

/// One step of the tier.
type KindStep = (&'static str, fn(&Bed) -> Result<()>);

const STEPS: [KindStep; 5] = [
    ("kind load brings an image to both nodes", load_image),
    ("a Deployment on both nodes answers through its Service by name", deployment),
    ("exec and logs", exec_and_logs),
    ("a node that docker restarts comes back with its pods", restart),
    ("a Deployment that is deleted leaves no container", delete),
];

/// A worker of Gantry's, under upstream's control plane. A step whose predecessor has failed is not tried.
pub(crate) fn mixed() -> Result<Counts> {
    let own = prepare()?;
    let nodes = [image::of_upstream(&own)?, image::of(&own)?];
    cluster("mixed", &nodes.each_ref(), ["containerd", "gantry"])
}

/// The same steps where both nodes are Gantry's.
pub(crate) fn all_gantry() -> Result<Counts> {
    let gantry = image::of(&prepare()?)?;
    cluster("kind", &[&gantry, &gantry], ["gantry", "gantry"])
}

/// The programs that node images are made of.
fn prepare() -> Result<PathBuf> {
    sh::require_root("a kind cluster")?;
    web::fetch()?;
    image::programs_of(false)
}

/// A cluster of these images, and the runtimes that its nodes must have.
fn cluster(name: &str, made: &[&Made], runtimes: [&str; 2]) -> Result<Counts> {
    on_cluster(name, name, made, |bed| {
        let mut counts = Counts::check(&format!("{name}: the nodes' runtimes"), nodes(bed, runtimes));
        for (step, check) in STEPS {
            if counts.failed == 0 {
                counts += Counts::check(&format!("{name}: {step}"), check(bed));
            }
        }
        counts
    })
}

fn nodes(bed: &Bed, runtimes: [&str; 2]) -> Result<()> {
    for (node, runtime) in node_names(bed).iter().zip(runtimes) {
        let form = "jsonpath={.status.nodeInfo.containerRuntimeVersion}";
        let said = bed.kubectl(&["get", "node", node, "--output", form])?;
        ensure!(said.starts_with(&format!("{runtime}://")), "{node} has {said}, not {runtime}");
    }
    Ok(())
}

/// As kind names them.
fn node_names(bed: &Bed) -> [String; 2] {
    [bed.control_plane(), worker(bed)]
}

fn worker(bed: &Bed) -> String {
    format!("{}-worker", bed.name())
}

fn load_image(bed: &Bed) -> Result<()> {
    let archive = web::archive(&bed.folder)?;
    let archive = archive.to_str().context("a path")?;
    bed.run(&["docker", "load", "--quiet", "--input", archive])?;
    bed.run(&["kind", "load", "docker-image", IMAGE, "--name", bed.name()])?;
    for node in &node_names(bed) {
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
    let worker = worker(bed);
    bed.run(&["docker", "restart", &worker])?;
    let form = "jsonpath={.status.nodeInfo.bootID} {.status.conditions[?(@.type==\"Ready\")].status}";
    let ready = ["kubectl", "get", "node", &worker, "--output", form];
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
    for node in &node_names(bed) {
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
