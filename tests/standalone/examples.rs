//! Every file of `examples/` as it stands, all of them on one node. The image that they name comes from the local
//! registry, which stands in for Docker Hub.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gantry_tests::image::{Image, Layer};
use gantry_tests::leakcheck::{Scope, Snapshot};
use gantry_tests::node::Roots;
use gantry_tests::poll::poll;
use gantry_tests::registry::Registry;
use gantry_tests::standalone::Standalone;
use gantry_tests::{http, place};
use serde_json::Value;

/// Where README and docs point to.
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");

/// Pods that are wrong on purpose, with what `gantry explain` must say.
const WRONG: [(&str, &str); 2] = [("broken", "listens on port 80"), ("crash", "cannot reach the database")];

/// What became of one pod, once nothing more is to come.
fn outcome(pod: &Value) -> Option<&'static str> {
    let name = pod["name"].as_str()?;
    if WRONG.iter().any(|(wrong, _)| *wrong == name) {
        // One that crashes is ready for a moment each time.
        let container = &pod["containers"][0];
        return (container["state"] == "running" || container["restartCount"] != 0).then_some("wrong");
    }
    if pod["phase"] == "Succeeded" {
        return Some("succeeded");
    }
    if pod["phase"] == "Failed" {
        return Some("failed");
    }
    let ready = |c: &Value| c["type"] == "Ready" && c["status"] == "True";
    pod["conditions"].as_array()?.iter().any(ready).then_some("ready")
}

fn files() -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(FOLDER).context(FOLDER)? {
        files.push(entry?.path());
    }
    files.retain(|path| path.extension().is_some_and(|end| end == "yaml"));
    files.sort();
    Ok(files)
}

/// The registry, with the image of the examples, in Docker Hub's place.
pub(crate) fn docker_hub(certs: &Path) -> Result<Registry> {
    let registry = Registry::start()?;
    let image = Image {
        layers: vec![Layer::busybox()?],
        entrypoint: Vec::new(),
        cmd: vec!["sh".into()],
        env: vec!["PATH=/bin".into()],
        user: String::new(),
        workdir: "/".into(),
    };
    registry.push("library/busybox", "1.36", &image.build()?)?;
    let folder = certs.join("docker.io");
    std::fs::create_dir_all(&folder)?;
    let hosts = format!("server = \"http://{0}\"\n[host.\"http://{0}\"]\n", registry.host());
    std::fs::write(folder.join("hosts.toml"), hosts)?;
    Ok(registry)
}

#[test]
fn every_example_runs_as_it_stands() -> Result<()> {
    place::require_own_namespaces()?;
    let roots = Roots::new()?;
    let _registry = docker_hub(&roots.path("certs.d"))?;
    // The built-in network has host ports.
    std::fs::remove_file(roots.path("net.d/10-test.conflist"))?;
    let scope = Scope { folders: Vec::new(), bridges: Vec::new(), ..roots.scope() };
    let before = Snapshot::take(&scope)?;
    let files = files()?;
    ensure!(files.len() >= 12, "{files:?}");
    let mut run = Standalone::start_files(roots, &files, &[])?;
    let outcomes = run.await_pods("every example's outcome", 120, |pods| {
        let known = |pod: &Value| Some((pod["name"].as_str()?.to_owned(), outcome(pod)?));
        let outcomes: Option<BTreeMap<String, &str>> = pods.iter().map(known).collect();
        outcomes.filter(|outcomes| outcomes.len() > files.len())
    })?;
    for (name, outcome) in &outcomes {
        let wrong = WRONG.iter().find(|(wrong, _)| wrong == name);
        ensure!((*outcome == "wrong") == wrong.is_some() && *outcome != "failed", "{outcomes:?}");
        if let Some((_, words)) = wrong {
            poll("the explanation", Duration::from_secs(60), || {
                let said = run.gantry_ok("explain", &[name]).map_err(|error| format!("{error:#}"))?;
                if said.contains(words) { Ok(()) } else { Err(said) }
            })?;
        }
    }
    let page = http::get((Ipv4Addr::LOCALHOST, 8088).into(), "/")?;
    assert_eq!(page.text(), "hello from web\n");
    for (pod, line) in [("task", "5050"), ("config", "the same"), ("client", "found"), ("sum-1", "part 1")] {
        let said = run.gantry_ok("logs", &[pod])?;
        ensure!(said.contains(line), "{pod}: {said}");
    }
    run.gantry_ok("stop", &["--all", "--grace=0"])?;
    run.await_end()?;
    drop(run);
    before.await_clean(&scope)
}
