//! Commands on a terminal, as a person uses them: keys, windows that change their size, hang-ups, and
//! bars that are drawn over.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gantry_tests::leakcheck::{Scope, Snapshot};
use gantry_tests::node::Roots;
use gantry_tests::poll::poll;
use gantry_tests::pty::Pty;
use gantry_tests::ready::web_image;
use gantry_tests::registry::Registry;
use gantry_tests::standalone::{Standalone, run_command};
use gantry_tests::{place, proc};

use crate::progress::Dam;

const CTRL_C: &str = "\u{3}";
const CTRL_D: &str = "\u{4}";
/// Above the bars; as much of it as fits in the narrower window.
const SUMMARY: &str = " of 3 la";
const PATIENCE: Duration = Duration::from_secs(60);

/// A web server, and beside it a shell on a terminal.
fn manifest(image: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\nspec:\n  restartPolicy: Never\n  \
         terminationGracePeriodSeconds: 1\n  containers:\n  - name: web\n    image: {image}\n  \
         - name: shell\n    image: {image}\n    stdin: true\n    tty: true\n    command: [sh]\n"
    )
}

#[test]
fn a_shell_on_a_terminal_gets_keys_and_sizes_and_leaves_no_process() -> Result<()> {
    place::require_own_namespaces()?;
    let registry = Registry::start()?;
    let image = registry.push("demo/web", "v1", &web_image()?.build()?)?;
    let roots = Roots::new()?;
    let scope = Scope { folders: Vec::new(), ..roots.scope() };
    let before = Snapshot::take(&scope)?;
    let mut run = Standalone::start(roots, &manifest(&image))?;
    run.await_pods("both containers to run", 60, |pods| {
        let containers = pods.first()?["containers"].as_array()?;
        // A pod that has just been taken up has none yet.
        (containers.len() == 2 && containers.iter().all(|c| c["state"] == "running")).then_some(())
    })?;

    exec(&run)?;
    hang_up(&run)?;
    attach(&run)?;

    run.gantry_ok("stop", &["web"])?;
    run.await_end()?;
    drop(run);
    before.await_clean(&scope)
}

/// Asks for the window's size until it is this.
fn await_size(pty: &mut Pty, size: &str) -> Result<()> {
    poll(&format!("the window to be {size}"), PATIENCE, || {
        pty.keys("stty size\r").map_err(|error| error.to_string())?;
        let text = pty.text();
        if text.contains(&format!("{size}\r\n")) { Ok(()) } else { Err(text) }
    })
}

fn exec(run: &Standalone) -> Result<()> {
    let mut pty = Pty::start(&run.command(&["exec", "-it", "web", "-c", "web", "--", "sh"])?, 80, 24)?;
    // Typed ahead, before the shell is there.
    pty.keys("echo typed-$((20 + 3))\r")?;
    pty.await_text("typed-23\r\n")?;
    ensure!(!pty.is_cooked()?, "the terminal echoes by itself");
    await_size(&mut pty, "24 80")?;
    pty.resize(100, 30)?;
    await_size(&mut pty, "30 100")?;
    // A program's own key, which must not end this one.
    pty.keys("echo sleeping-$((1 + 1)); sleep 4242\r")?;
    pty.await_text("sleeping-2\r\n")?;
    pty.keys(CTRL_C)?;
    pty.keys("echo interrupted-$?\r")?;
    pty.await_text("interrupted-130\r\n")?;
    // The end of a program's input, then of the shell's. The shell reads ahead: it must be done before
    // keys are for the program.
    pty.keys("echo reading-$((1 + 1)); cat | sed s/^/read-/\r")?;
    pty.await_text("reading-2\r\n")?;
    pty.keys("a line\r")?;
    pty.keys(CTRL_D)?;
    pty.await_text("read-a line\r\n")?;
    pty.keys("sh -c 'echo last-$((3 + 4)); exit 7'\r")?;
    pty.await_text("last-7\r\n")?;
    let status = poll("the shell to take Ctrl-D", PATIENCE, || {
        // One that comes while the shell changes the terminal's mode is lost.
        if pty.keys(CTRL_D).is_err() {
            return Err(pty.text());
        }
        pty.try_exit_status().ok_or_else(|| pty.text())
    })?;
    ensure!(status.code() == Some(7), "{status}: {}", pty.text());
    ensure!(pty.is_cooked()?, "the terminal stays raw");
    Ok(())
}

/// A window that is closed takes along what runs in it.
fn hang_up(run: &Standalone) -> Result<()> {
    let mut pty = Pty::start(&run.command(&["exec", "-it", "web", "-c", "web", "--", "sh"])?, 80, 24)?;
    // busybox may sleep without a process of its own.
    pty.keys("sh -c 'while :; do sleep 1; done' mark-4343\r")?;
    let runs = || -> Result<bool> {
        Ok(proc::all()?.iter().any(|process| proc::command_line(process.pid).contains("mark-4343")))
    };
    poll("the loop to begin", PATIENCE, || match runs() {
        Ok(true) => Ok(()),
        other => Err(format!("{other:?}")),
    })?;
    pty.hang_up();
    let status = pty.await_end()?;
    ensure!(!status.success(), "{status}");
    poll("the loop to end with its terminal", PATIENCE, || match runs() {
        Ok(false) => Ok(()),
        other => Err(format!("{other:?}")),
    })
}

/// A container's own terminal; a client that goes leaves the shell as it is for the next.
fn attach(run: &Standalone) -> Result<()> {
    let command = run.command(&["attach", "-it", "-c", "shell", "web"])?;
    let mut pty = Pty::start(&command, 80, 24)?;
    pty.keys("kept=$((40 + 2)); echo first-$kept\r")?;
    pty.await_text("first-42\r\n")?;
    pty.hang_up();
    pty.await_end()?;
    let mut pty = Pty::start(&command, 90, 25)?;
    pty.keys("echo second-$kept\r")?;
    pty.await_text("second-42\r\n")?;
    await_size(&mut pty, "25 90")?;
    pty.keys("echo sleeping-$((1 + 1)); sleep 4444\r")?;
    pty.await_text("sleeping-2\r\n")?;
    pty.keys(CTRL_C)?;
    pty.keys("echo third-$((1 + 2))\r")?;
    pty.await_text("third-3\r\n")
}

#[test]
fn bars_of_a_pull_are_drawn_over_and_gone_at_the_end() -> Result<()> {
    place::require_own_namespaces()?;
    let registry = Registry::start()?;
    registry.push("demo/web", "v1", &web_image()?.build()?)?;
    let dam = Dam::before(&registry.host())?;
    let image = format!("{}/demo/web:v1", dam.host());
    let roots = Roots::new()?;
    let scope = Scope { folders: Vec::new(), ..roots.scope() };
    let before = Snapshot::take(&scope)?;
    let file = roots.path("pod.yaml");
    std::fs::write(
        &file,
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\nspec:\n  containers:\n  - name: web\n    \
             image: {image}\n"
        ),
    )?;
    // Narrower than a bar: it must neither wrap nor scroll.
    let mut run = Pty::start(&run_command(&roots, &file)?, 50, 8)?;
    run.await_text(SUMMARY)?;
    let socket = format!("--agent-socket={}", roots.path("agent.sock").display());
    let mut command = std::process::Command::new(place::bin_dir()?.join("gantry"));
    command.args(["pull", &socket, &image]);
    let mut pull = Pty::start(&command, 40, 24)?;
    // `gantry run` draws when something changes, `gantry pull` ten times a second.
    for (pty, times) in [(&run, 1), (&pull, 3)] {
        poll("bars that were drawn over", PATIENCE, || {
            let (text, screen) = (pty.text(), pty.screen().text());
            let drawn = text.matches(SUMMARY).count();
            let seen = screen.matches(SUMMARY).count();
            if drawn >= times && seen == 1 { Ok(()) } else { Err(format!("{drawn} times: {screen}")) }
        })?;
    }
    dam.open();
    let status = pull.await_end()?;
    ensure!(status.success(), "{status}: {}", pull.text());
    poll("only the result to be left", PATIENCE, || {
        let screen = pull.screen().text();
        let joined = screen.replace('\n', "");
        let clean = joined.starts_with(&format!("pulled {image} in ")) && !joined.contains('[');
        if clean { Ok(()) } else { Err(screen) }
    })?;
    poll("the server to listen, and no bar", PATIENCE, || {
        let screen = run.screen().text();
        let clean = screen.contains("[web] listening on port 8080") && !screen.contains("downloading");
        if clean && !screen.contains(SUMMARY) { Ok(()) } else { Err(screen) }
    })?;
    run.keys(CTRL_C)?;
    let status = run.await_end()?;
    ensure!(status.success(), "{status}: {}", run.text());
    let screen = run.screen().text();
    ensure!(screen.contains("stopping: press Ctrl-C again to kill"), "{screen}");
    ensure!(run.is_cooked()?, "the terminal was changed");
    drop(roots);
    before.await_clean(&scope).context("after Ctrl-C")
}
