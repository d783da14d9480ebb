//! An image that comes without a registry: `gantry image load`, from a folder, a packed tar and standard input.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gantry_tests::leakcheck::{Scope, Snapshot};
use gantry_tests::node::Roots;
use gantry_tests::place;
use gantry_tests::poll::poll;
use gantry_tests::ready::web_image;
use gantry_tests::standalone::Standalone;

const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\nspec:\n  terminationGracePeriodSeconds: 5\n  \
    containers:\n  - name: web\n    image: offline.example/web:v1\n    imagePullPolicy: Never\n";

#[test]
fn a_pod_runs_from_an_archive_without_a_registry() -> Result<()> {
    place::require_own_namespaces()?;
    let roots = Roots::new()?;
    let scope = Scope { folders: Vec::new(), ..roots.scope() };
    let before = Snapshot::take(&scope)?;
    let layout = roots.path("layout");
    web_image()?.build()?.write_layout(&layout, "offline.example/web:v1")?;
    let packed = roots.path("web.tgz");
    let tar = Command::new("tar").arg("-czf").arg(&packed).arg("-C").arg(&layout).arg(".").status()?;
    ensure!(tar.success(), "tar: {tar}");
    let mut run = Standalone::start(roots, POD)?;
    poll("the pod to want its image", Duration::from_secs(30), || {
        let text = run.gantry_ok("ps", &[]).map_err(|error| format!("{error:#}"))?;
        if text.contains("ErrImageNeverPull") { Ok(()) } else { Err(text) }
    })?;

    let layout = layout.to_string_lossy().into_owned();
    let said = run.gantry_ok("image", &["load", &layout])?;
    ensure!(said.starts_with("loaded offline.example/web:v1 in "), "{said}");
    poll("the pod to run", Duration::from_secs(60), || {
        let text = run.gantry_ok("ps", &[]).map_err(|error| format!("{error:#}"))?;
        if text.contains("1/1") { Ok(()) } else { Err(text) }
    })?;

    // The same, through gzip and a pipe: the image is there, and is told again.
    let id = run.gantry_ok("images", &["-q"])?;
    let socket = format!("--agent-socket={}", run.roots().path("agent.sock").display());
    let output = Command::new(place::bin_dir()?.join("gantry"))
        .args(["image", "load", "--quiet", &socket])
        .stdin(Stdio::from(std::fs::File::open(&packed)?))
        .output()
        .context("run gantry image load")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout), id);

    let bad = run.roots().path("bad.tar");
    std::fs::write(&bad, [0; 2048])?;
    let output = run.gantry("image", &["load", &bad.to_string_lossy()])?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(!output.status.success() && said.contains("neither index.json"), "{said}");
    run.gantry_ok("stop", &["web"])?;
    run.await_end()?;
    drop(run);
    before.await_clean(&scope)
}
