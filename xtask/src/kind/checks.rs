//! The tier `kind`: a cluster of two nodes, both Gantry's, on a docker of its own: a Deployment on both, its Service by
//! name, exec, logs, `kind load`, a restart of a node, and the end without a trace. Owns the steps and their names; they
//! follow one another. Never uses the host's docker. Called by the tiers.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gantry_tests::debian;
use gantry_tests::image::{Image, Layer};
use gantry_tests::leakcheck;
use gantry_tests::poll::poll;
use gantry_tests::saved;

use super::engine::{self, Docker};
use super::{At, Up, beside, create, image, kind};
use crate::sh;
use crate::summary::Counts;

const WAIT: Duration = Duration::from_secs(180);
/// No registry has it: it comes by `kind load`.
const IMAGE: &str = "localhost/tier/web:v1";
const WEB: &str = include_str!("web.yaml");
const ASK: &str =
    "for n in 1 2 3 4 5 6 7 8 9 10; do curl -sS -m 5 http://web.default.svc.cluster.local; done";
/// Debian's static busybox crashes in its `wget`, in a bare chroot, too.
const CURL: (&str, &[&str]) = ("kind-curl", &["curl"]);

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

/// A cluster while it is looked at.
struct Bed {
    docker: Docker,
    at: At,
    folder: PathBuf,
}

/// All of it: a step whose predecessor has failed is not tried.
pub(crate) fn tests() -> Result<Counts> {
    sh::require_root("a kind cluster")?;
    debian::fetch_closure(CURL.0, CURL.1)?;
    let made = image::make(false)?;
    let folder = sh::target_dir().join("kind-tier");
    let before = seen()?;
    let docker = engine::start(&folder)?;
    let bed = Bed { docker, at: At { name: "tier".into() }, folder };
    let options = Up { at: bed.at.clone(), nodes: 2, release: false, look: crate::Look::default() };
    let mut failed = None;
    let mut counts = Counts::default();
    let up = create(&bed.docker, &made, &options);
    counts += Counts::check("kind: create cluster", noted(up, &mut failed));
    for (name, step) in STEPS {
        if failed.is_none() {
            counts += Counts::check(name, noted(step(&bed), &mut failed));
        }
    }
    if let Some(error) = failed {
        println!("{}", bed.state());
        println!("{error}");
    }
    let deleted = sh::run(kind(&bed.docker, &bed.at)?.args(["delete", "cluster", "--name", &bed.at.name]));
    counts += Counts::check("kind: delete cluster", deleted);
    counts += Counts::check("kind: docker's end leaves no cgroup", engine::end(&bed.folder));
    let after = seen()?;
    let left: Vec<_> = after.difference(&before).collect();
    let clean = if left.is_empty() { Ok(()) } else { Err(anyhow::anyhow!("left behind: {left:?}")) };
    counts += Counts::check("kind: the host has the links and mounts that it had", clean);
    Ok(counts)
}

fn noted(outcome: Result<()>, failed: &mut Option<String>) -> Result<()> {
    if let Err(error) = &outcome {
        *failed = Some(format!("{error:#}"));
    }
    outcome
}

/// Links and mounts of this host.
fn seen() -> Result<BTreeSet<String>> {
    let mounts = leakcheck::mounts()?.into_iter().map(|mount| format!("mount {}", mount.point.display()));
    Ok(mounts.chain(leakcheck::links()?.into_iter().map(|link| format!("link {link}"))).collect())
}

impl Bed {
    /// What a command prints in there.
    fn run(&self, words: &[&str]) -> Result<String> {
        let mut command = beside(&self.docker, &self.at)?;
        let output = command.args(words).output().with_context(|| sh::missing(&command))?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}: {}\n{}", words.join(" "), output.status, said.trim());
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    fn kubectl(&self, words: &[&str]) -> Result<String> {
        self.run(&[&["kubectl"], words].concat())
    }

    /// Until a command succeeds and prints what is wanted.
    fn until(&self, what: &str, words: &[&str], wanted: impl Fn(&str) -> bool) -> Result<String> {
        poll(what, WAIT, || match self.run(words) {
            Ok(said) if wanted(&said) => Ok(said),
            Ok(said) => Err(said),
            Err(error) => Err(format!("{error:#}")),
        })
    }

    /// For who reads why a step failed.
    fn state(&self) -> String {
        let tell = |words: &[&str]| self.run(words).unwrap_or_else(|error| format!("{error:#}"));
        let pods = tell(&["kubectl", "get", "nodes,pods", "--all-namespaces", "--output", "wide"]);
        let events = tell(&["kubectl", "get", "events", "--all-namespaces"]);
        format!("{pods}\n{events}")
    }
}

fn nodes(bed: &Bed) -> Result<()> {
    let form = "jsonpath={range .items[*]}{.status.nodeInfo.containerRuntimeVersion}{\"\\n\"}{end}";
    let runtimes = bed.kubectl(&["get", "nodes", "--output", form])?;
    let all: Vec<_> = runtimes.lines().collect();
    ensure!(all.len() == 2 && all.iter().all(|name| name.starts_with("gantry://")), "{runtimes}");
    Ok(())
}

fn load_image(bed: &Bed) -> Result<()> {
    let page = Layer::default().file(
        "serve",
        0o755,
        "#!/bin/sh\nmkdir -p /tmp/www && hostname >/tmp/www/index.html && echo serving\n\
         exec httpd -f -p 8080 -h /tmp/www\n",
    );
    let env = vec!["PATH=/usr/bin:/bin".to_owned()];
    let image = Image {
        layers: vec![Layer::busybox()?, debian::closure_layer(CURL.0)?, page],
        env,
        cmd: vec!["/serve".into()],
        ..Image::default()
    };
    let archive = bed.folder.join("web.tar");
    fs::write(&archive, saved::classic(&image.build()?, &[IMAGE])?)?;
    let archive = archive.to_str().context("a path")?;
    bed.run(&["docker", "load", "--quiet", "--input", archive])?;
    bed.run(&["kind", "load", "docker-image", IMAGE, "--name", &bed.at.name])?;
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
    both_answer(bed)
}

/// Each pod asks the Service by its name until both have answered: DNS, the Service and the way between the nodes.
fn both_answer(bed: &Bed) -> Result<()> {
    let pods = bed.kubectl(&["get", "pods", "--selector=app=web", "--output", "name"])?;
    ensure!(pods.lines().count() == 2, "{pods}");
    for pod in pods.lines() {
        let words = ["kubectl", "exec", pod, "--", "sh", "-c", ASK];
        bed.until("both pods to answer", &words, |said| said.lines().collect::<BTreeSet<_>>().len() == 2)?;
    }
    Ok(())
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
    both_answer(bed)
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
