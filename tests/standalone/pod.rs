//! `gantry run` as a user types it: one pod from a file, end to end, and its errors.

use std::time::Duration;

use anyhow::{Context, Result};
use gantry_tests::leakcheck::Snapshot;
use gantry_tests::node::Roots;
use gantry_tests::poll::poll;
use gantry_tests::ready::{PAGE, web_image};
use gantry_tests::registry::{self, Registry};
use gantry_tests::standalone::{Standalone, flat, run_command};
use gantry_tests::{http, place};
use tokio::signal::unix::{SignalKind, signal};

fn manifest(image: &str, extra: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\nspec:\n  restartPolicy: Never\n  containers:\n  \
         - name: web\n    image: {image}\n{extra}"
    )
}

/// Waits until `gantry ps` shows these words.
fn await_ps(run: &Standalone, words: &[&str]) -> Result<serde_json::Value> {
    poll("gantry ps to show it", Duration::from_secs(60), || {
        let text = run.gantry_ok("ps", &["--output=json"]).map_err(|error| format!("{error:#}"))?;
        if !words.iter().all(|word| text.contains(word)) {
            return Err(text);
        }
        flat(&text).map(serde_json::Value::from).map_err(|error| format!("{error:#}"))
    })
}

/// How much of the time from `seen` to `ready` some stage covers, in percent. A share, not a time: a
/// busy machine makes the stages longer, and the agent's own with them.
fn explained_share(timeline: &str) -> Result<i64> {
    let spans: Vec<serde_json::Value> = serde_json::from_str(timeline)?;
    let at = |name: &str| {
        let span = spans.iter().find(|span| span["name"] == name);
        span.and_then(|span| span["startUnixNanos"].as_i64()).with_context(|| format!("no {name}"))
    };
    let (seen, ready) = (at("seen")?, at("ready")?);
    let (mut covered, mut reached) = (0, seen);
    for span in &spans {
        // By start, as they come.
        let (Some(start), Some(end)) = (span["startUnixNanos"].as_i64(), span["endUnixNanos"].as_i64())
        else {
            continue;
        };
        covered += (end.min(ready) - start.max(reached)).max(0);
        reached = reached.max(end);
    }
    Ok(covered * 100 / (ready - seen).max(1))
}

#[test]
fn a_pod_from_a_file_runs_shows_and_stops() -> Result<()> {
    place::require_own_namespaces()?;
    let registry = Registry::start()?;
    let image = registry.push("demo/web", "v1", &web_image()?.build()?)?;
    let roots = Roots::new()?;
    let scope = roots.scope();
    let before = Snapshot::take(&gantry_tests::leakcheck::Scope { folders: Vec::new(), ..scope.clone() })?;
    let mut run = Standalone::start(roots, &manifest(&image, ""))?;
    let listed = await_ps(&run, &["Running", "10.99."])?;
    let ip = listed[0]["ip"].as_str().unwrap_or_default();
    let addr = format!("{ip}:8080").parse()?;
    let page = poll("the page", Duration::from_secs(20), || {
        http::get(addr, "/").map_err(|error| format!("{error:#}"))
    })?;
    assert_eq!(page.text(), PAGE);
    poll("the request in gantry logs", Duration::from_secs(10), || {
        let log = run.gantry_ok("logs", &["web"]).map_err(|error| format!("{error:#}"))?;
        if log.contains("GET / HTTP/1.1") { Ok(()) } else { Err(log) }
    })?;
    let timeline = run.gantry_ok("timeline", &["web"])?;
    for stage in ["image", "sandbox", "container"] {
        assert!(timeline.contains(stage), "{stage} is not in\n{timeline}");
    }
    let share = explained_share(&run.gantry_ok("timeline", &["web", "--json"])?)?;
    assert!(share >= 95, "{share} % of the start are explained by\n{timeline}");
    let stopped = run.gantry_ok("stop", &["web"])?;
    assert!(stopped.contains("web: exit code 0 (Completed)"), "{stopped}");
    let status = run.await_end()?;
    assert!(status.success(), "{status}: {}", run.stderr());
    assert!(run.stdout().contains("[web] listening on port 8080"), "{}", run.stdout());
    before.await_clean(&gantry_tests::leakcheck::Scope { folders: Vec::new(), ..scope })
}

#[test]
fn ctrl_c_stops_the_pod_and_a_failed_one_is_told_by_the_exit_code() -> Result<()> {
    place::require_own_namespaces()?;
    let registry = Registry::start()?;
    let image = registry.push("demo/web", "v1", &web_image()?.build()?)?;
    let roots = Roots::new()?;
    let scope = gantry_tests::leakcheck::Scope { folders: Vec::new(), ..roots.scope() };
    let before = Snapshot::take(&scope)?;
    let mut run = Standalone::start(roots, &manifest(&image, "    args: [count, '0']\n"))?;
    await_ps(&run, &["Running"])?;
    run.interrupt()?;
    assert!(run.await_end()?.success(), "{}", run.stderr());
    drop(run);
    let mut run = Standalone::start(Roots::new()?, &manifest(&image, "    args: [exit, '9']\n"))?;
    let status = run.await_end()?;
    assert_eq!(status.code(), Some(1), "{}", run.stderr());
    let said = format!("{}{}", run.stdout(), run.stderr());
    assert!(said.contains('9') && said.contains("Failed"), "{said}");
    drop(run);
    before.await_clean(&scope)
}

#[test]
fn the_end_of_the_terminal_ends_the_pods() -> Result<()> {
    place::require_own_namespaces()?;
    let registry = Registry::start()?;
    let image = registry.push("demo/web", "v1", &web_image()?.build()?)?;
    let roots = Roots::new()?;
    let scope = gantry_tests::leakcheck::Scope { folders: Vec::new(), ..roots.scope() };
    let before = Snapshot::take(&scope)?;
    // Under nohup(1) SIGHUP is ignored, by children too; one that is handled is theirs by default again (execve(2)).
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let _handled = runtime.block_on(async { signal(SignalKind::hangup()) })?;
    let mut run = Standalone::start(roots, &manifest(&image, "    args: [count, '0']\n"))?;
    await_ps(&run, &["Running"])?;
    run.hang_up()?;
    assert!(run.await_end()?.success(), "{}", run.stderr());
    drop(run);
    before.await_clean(&scope)
}

#[test]
fn without_any_network_configuration_the_built_in_one_comes_and_goes() -> Result<()> {
    place::require_own_namespaces()?;
    let registry = Registry::start()?;
    let image = registry.push("demo/web", "v1", &web_image()?.build()?)?;
    let roots = Roots::new()?;
    std::fs::remove_file(roots.path("net.d/10-test.conflist"))?;
    let tag = roots.tag().to_owned();
    let scope = gantry_tests::leakcheck::Scope { folders: Vec::new(), ..roots.scope() };
    let before = Snapshot::take(&scope)?;
    let mut run = Standalone::start(roots, &manifest(&image, ""))?;
    await_ps(&run, &["Running", "10.87."])?;
    run.gantry_ok("stop", &["web"])?;
    assert!(run.await_end()?.success(), "{}", run.stderr());
    // The bridge is not in the scope's list of those that may stay, and the root cgroups go, too.
    before.await_clean(&scope)?;
    assert_eq!(gantry_tests::leakcheck::tagged_cgroups(&tag)?, Vec::<std::path::PathBuf>::new());
    Ok(())
}

#[test]
fn an_unknown_field_is_named_and_nothing_is_begun() -> Result<()> {
    let roots = Roots::new()?;
    let before = Snapshot::take(&roots.scope())?;
    let file = roots.path("pod.yaml");
    std::fs::write(&file, manifest("127.0.0.1:1/x:v1", "    imagee: typo\n"))?;
    let output = run_command(&roots, &file)?.output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("spec.containers[0].imagee") && said.contains("pod.yaml"), "{said}");
    before.await_clean(&roots.scope())
}

#[test]
fn pulls_that_cannot_work_are_shown_and_leave_nothing() -> Result<()> {
    place::require_own_namespaces()?;
    let registry = Registry::start()?;
    let built = web_image()?.build()?;
    let corrupt = registry.push("demo/corrupt", "v1", &built)?;
    registry.corrupt(&built.layers[1].digest)?;
    let down = format!("{}/demo/web:v1", registry::free_port()?);
    for (image, word) in
        [(format!("{}/no/such:v1", registry.host()), "not found"), (down, "refused"), (corrupt, "digest")]
    {
        let roots = Roots::new()?;
        let scope = gantry_tests::leakcheck::Scope { folders: Vec::new(), ..roots.scope() };
        let before = Snapshot::take(&scope)?;
        let mut run = Standalone::start(roots, &manifest(&image, ""))?;
        let listed = await_ps(&run, &["ImagePull", word])?;
        assert_eq!(listed[0]["phase"], "Pending", "{listed}");
        run.gantry_ok("stop", &["web"])?;
        run.await_end()?;
        drop(run);
        before.await_clean(&scope)?;
    }
    Ok(())
}
