//! exec, attach and port-forward through the agent's socket, as a user types them.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gantry_tests::leakcheck::{Scope, Snapshot};
use gantry_tests::node::Roots;
use gantry_tests::poll::poll;
use gantry_tests::ready::{PAGE, web_image};
use gantry_tests::registry::Registry;
use gantry_tests::standalone::Standalone;
use gantry_tests::{http, place};

/// A web server and beside it a shell that reads lines.
fn manifest(image: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\nspec:\n  restartPolicy: Never\n  \
         terminationGracePeriodSeconds: 1\n  containers:\n  - name: web\n    image: {image}\n  \
         - name: reader\n    image: {image}\n    stdin: true\n    \
         command: [sh, -c, 'while read line; do echo heard $line; done']\n"
    )
}

/// The command with this on stdin: exit code, stdout, stderr.
fn with_input(run: &Standalone, words: &[&str], input: &str) -> Result<(Option<i32>, String, String)> {
    let mut child = run
        .command(words)?
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("start gantry")?;
    child.stdin.take().context("no stdin")?.write_all(input.as_bytes())?;
    let output = child.wait_with_output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok((output.status.code(), text(&output.stdout), text(&output.stderr)))
}

#[test]
fn commands_and_ports_of_a_pod_are_reached_through_the_agent() -> Result<()> {
    place::require_own_namespaces()?;
    let registry = Registry::start()?;
    let image = registry.push("demo/web", "v1", &web_image()?.build()?)?;
    let roots = Roots::new()?;
    let scope = Scope { folders: Vec::new(), ..roots.scope() };
    let before = Snapshot::take(&scope)?;
    let mut run = Standalone::start(roots, &manifest(&image))?;
    poll("the pod to run", Duration::from_secs(60), || {
        let text = run.gantry_ok("ps", &[]).map_err(|error| format!("{error:#}"))?;
        if text.contains("2/2") { Ok(()) } else { Err(text) }
    })?;

    exec(&run)?;
    attach(&run)?;
    forward(&run)?;

    run.gantry_ok("stop", &["web"])?;
    run.await_end()?;
    drop(run);
    before.await_clean(&scope)
}

fn exec(run: &Standalone) -> Result<()> {
    let words = ["exec", "-i", "web", "--", "sh", "-c", "cat; echo err >&2; exit 3"];
    let (code, out, err) = with_input(run, &words, "from stdin\n")?;
    assert_eq!((code, out.as_str()), (Some(3), "from stdin\n"), "{err}");
    assert_eq!(err, "Defaulted container \"web\" out of: web, reader\nerr\n");
    let (code, out, _) =
        with_input(run, &["exec", "web", "-c", "reader", "--", "cat", "/proc/1/cmdline"], "")?;
    assert_eq!(code, Some(0));
    assert!(out.contains("heard"), "{out}");
    let (_, out, _) =
        with_input(run, &["exec", "-q", "web", "--", "grep", "^Seccomp:", "/proc/1/status"], "")?;
    assert_eq!(
        out.split_whitespace().last(),
        Some("2"),
        "a pod that says nothing gets RuntimeDefault: {out}"
    );
    let (_, out, err) = with_input(run, &["exec", "web", "-c", "nobody", "--", "true"], "")?;
    assert!(out.is_empty() && err.contains("no container nobody; it has web, reader"), "{err}");
    Ok(())
}

fn attach(run: &Standalone) -> Result<()> {
    let words = ["attach", "-i", "-c", "reader", "web"];
    let mut child = run.command(&words)?.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut stdin = child.stdin.take().context("no stdin")?;
    stdin.write_all(b"one\n")?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().context("no stdout")?).read_line(&mut line)?;
    child.kill()?;
    child.wait()?;
    ensure!(line == "heard one\n", "{line:?}");
    Ok(())
}

fn forward(run: &Standalone) -> Result<()> {
    let mut child = run
        .command(&["port-forward", "web", ":8080", "--address=127.0.0.1"])?
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let fetched = fetch(&mut child);
    child.kill()?;
    child.wait()?;
    let mut said = String::new();
    child.stderr.take().context("no stderr")?.read_to_string(&mut said)?;
    assert_eq!(fetched.with_context(|| said.clone())?, PAGE);
    ensure!(said.is_empty(), "{said}");
    Ok(())
}

fn fetch(child: &mut std::process::Child) -> Result<String> {
    let mut line = String::new();
    BufReader::new(child.stdout.take().context("no stdout")?).read_line(&mut line)?;
    let addr = line.strip_prefix("Forwarding from ").and_then(|rest| rest.split_once(" -> 8080"));
    let addr = addr.with_context(|| format!("{line:?}"))?.0.parse()?;
    Ok(http::get(addr, "/")?.text())
}
