//! The commands that look into a pod: cp both ways, wait, inspect, stats, logs of several pods, and the Kubernetes object.

use std::fs;

use anyhow::{Result, ensure};
use gantry_tests::leakcheck::{Scope, Snapshot};
use gantry_tests::node::Roots;
use gantry_tests::place;
use gantry_tests::ready::web_image;
use gantry_tests::registry::Registry;
use gantry_tests::standalone::Standalone;
use serde_json::Value;

fn manifest(image: &str, name: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {{app: both}}}}\nspec:\n  \
         terminationGracePeriodSeconds: 1\n  priority: 7\n  containers:\n  - name: c\n    image: {image}\n    \
         command: [/bin/sh, -c, \"echo from {name}; exec sleep 1000\"]\n    \
         resources: {{limits: {{cpu: 500m, memory: 64Mi}}}}\n"
    )
}

#[test]
fn the_commands_that_look_into_a_pod() -> Result<()> {
    place::require_own_namespaces()?;
    let registry = Registry::start()?;
    let image = registry.push("demo/web", "v1", &web_image()?.build()?)?;
    let roots = Roots::new()?;
    let scope = Scope { folders: Vec::new(), ..roots.scope() };
    let before = Snapshot::take(&scope)?;
    let mut run = Standalone::start(roots, &(manifest(&image, "one") + &manifest(&image, "two")))?;
    run.await_pods("both pods", 60, |pods| (pods.len() == 2).then_some(()))?;
    let said = run.gantry_ok("wait", &["--for=condition=Ready", "-l", "app=both", "--timeout=60s"])?;
    ensure!(said.contains("pod/one condition met") && said.contains("pod/two condition met"), "{said}");
    run.gantry_ok("wait", &["pod/one", "--for=jsonpath={.status.phase}=Running", "--timeout=0"])?;
    ensure!(run.gantry_ok("wait", &["one", "--for=delete", "--timeout=0"]).is_err(), "it is there");

    copies(&run)?;

    let one: Value = serde_json::from_str(&run.gantry_ok("ps", &["one", "-o", "json"])?)?;
    ensure!(one["kind"] == "Pod" && one["spec"]["priority"] == 7, "{one}");
    let events: Value = serde_json::from_str(&run.gantry_ok("events", &["one", "-o", "json"])?)?;
    ensure!(events["items"][0]["involvedObject"]["name"] == "one", "{events}");
    let told: Value = serde_json::from_str(&run.gantry_ok("inspect", &["one"])?)?;
    let container = &told["containers"][0];
    ensure!(container["status"]["state"] == "CONTAINER_RUNNING", "{told}");
    ensure!(told["sandbox"]["status"]["metadata"]["name"] == "one", "{told}");
    ensure!(container["info"].as_object().is_some_and(|info| !info.is_empty()), "{told}");
    let said = run.gantry_ok("stats", &["one"])?;
    ensure!(said.contains("500m") && said.contains("64Mi"), "{said}");
    let said = run.gantry_ok("logs", &["-l", "app=both"])?;
    assert_eq!(said, "[pod/one/c] from one\n[pod/two/c] from two\n");

    run.gantry_ok("stop", &["one", "--grace=0"])?;
    run.gantry_ok("wait", &["one", "--for=delete"])?;
    run.gantry_ok("stop", &["two", "--grace=0"])?;
    run.await_end()?;
    drop(run);
    before.await_clean(&scope)
}

/// A folder into the container and out again, and one file.
fn copies(run: &Standalone) -> Result<()> {
    let (from, to) = (run.roots().path("from"), run.roots().path("to"));
    fs::create_dir_all(from.join("deep"))?;
    fs::write(from.join("deep/a"), "content")?;
    let large = vec![7_u8; 3 << 20];
    fs::write(from.join("large"), &large)?;
    let from = from.display().to_string();
    run.gantry_ok("cp", &[&from, "one:/tmp"])?;
    run.gantry_ok("cp", &["default/one:/tmp/from", &to.display().to_string()])?;
    ensure!(fs::read_to_string(to.join("deep/a"))? == "content" && fs::read(to.join("large"))? == large);
    run.gantry_ok("cp", &[&format!("{from}/deep/a"), "one:/tmp/renamed"])?;
    run.gantry_ok("cp", &["one:/tmp/renamed", &to.display().to_string()])?;
    ensure!(fs::read_to_string(to.join("renamed"))? == "content");
    let error = run.gantry_ok("cp", &["one:/none", &to.display().to_string()]).unwrap_err();
    ensure!(format!("{error:#}").contains("tar in container c ended with exit code"), "{error:#}");
    Ok(())
}
