//! Images while no runtime runs: a login at a real registry, a pull, and a pod that finds what came.

use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gantry_tests::leakcheck::{Scope, Snapshot};
use gantry_tests::node::Roots;
use gantry_tests::place;
use gantry_tests::poll::poll;
use gantry_tests::ready::web_image;
use gantry_tests::registry::{Guarded, Registry};
use gantry_tests::standalone::Standalone;

/// `gantry WORDS…` to its end.
fn gantry(words: &[&str]) -> Result<Output> {
    let mut command = Command::new(place::bin_dir()?.join("gantry"));
    command.args(words).stdin(Stdio::null()).output().with_context(|| format!("run gantry {words:?}"))
}

fn output_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_login_and_a_pull_without_a_runtime_serve_the_next_one() -> Result<()> {
    place::require_own_namespaces()?;
    let registry = Registry::start()?;
    registry.push("demo/web", "v1", &web_image()?.build()?)?;
    let guarded = registry.serve_with_password()?;
    let roots = Roots::new()?;
    let scope = Scope { folders: Vec::new(), ..roots.scope() };
    let before = Snapshot::take(&scope)?;
    let flag = |flag: &str, name: &str| format!("--{flag}={}", roots.path(name).display());
    let (auth, hosts) = (flag("registry-auth-file", "config.json"), flag("registry-hosts-dir", "certs.d"));
    let (root, state) = (flag("root", "root"), flag("state", "state"));
    let programs = format!("--programs-dir={}", place::bin_dir()?.display());
    let agent = flag("agent-socket", "agent.sock");
    let (host, image) = (guarded.host(), format!("{}/demo/web:v1", guarded.host()));
    let store = [&*root, &*state, &*programs, &*agent, &*auth, &*hosts];
    let on_store = |words: &[&str]| gantry(&[words, &store[..]].concat());

    let login =
        |password: &str| gantry(&["login", &*host, "-u", Guarded::USER, "-p", password, &*auth, &*hosts]);
    let refused = login("wrong")?;
    ensure!(
        !refused.status.success() && output_text(&refused).contains("refuses this user name"),
        "{refused:?}"
    );
    ensure!(!roots.path("config.json").exists(), "a login that was refused is kept");
    let pulled = on_store(&["pull", &*image])?;
    ensure!(!pulled.status.success() && output_text(&pulled).contains("access denied"), "{pulled:?}");
    let accepted = login(Guarded::PASSWORD)?;
    ensure!(accepted.status.success() && accepted.stdout == b"Login Succeeded\n", "{accepted:?}");
    let pulled = on_store(&["pull", &*image])?;
    ensure!(pulled.status.success() && pulled.stdout.starts_with(b"pulled "), "{pulled:?}");
    let listed = on_store(&["images"])?;
    ensure!(String::from_utf8_lossy(&listed.stdout).contains("/demo/web "), "{listed:?}");

    let pod = format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\nspec:\n  terminationGracePeriodSeconds: 5\n  containers:\n  \
         - name: web\n    image: {image}\n    imagePullPolicy: Never\n"
    );
    let agent_elsewhere = flag("agent-socket", "nobody.sock");
    let lost = [&*root, &*state, &*programs, &*agent_elsewhere].map(str::to_owned);
    let mut run = Standalone::start(roots, &pod)?;
    poll("the pod to run", Duration::from_secs(60), || {
        let text = run.gantry_ok("ps", &[]).map_err(|error| format!("{error:#}"))?;
        if text.contains("1/1") { Ok(()) } else { Err(text) }
    })?;
    // The runtime holds the store, and its agent is somewhere else.
    let words: Vec<&str> = std::iter::once("images").chain(lost.iter().map(String::as_str)).collect();
    let refused = gantry(&words)?;
    ensure!(!refused.status.success() && output_text(&refused).contains(", but process "), "{refused:?}");
    run.gantry_ok("stop", &["web"])?;
    run.await_end()?;
    drop(run);
    before.await_clean(&scope)
}
