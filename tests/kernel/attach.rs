//! Attach: a container's own streams, its terminal, and a client that reads too slowly.

use std::io::{Read, Write};
use std::time::Duration;

use anyhow::{Context, Result};
use gantry_proto::cri;
use gantry_tests::pod::{self, Pod};
use gantry_tests::poll::poll;
use gantry_tests::stream_client::{self, FAILED};

use crate::images::{Ready, ready};

fn url(ready: &Ready, id: &str, tty: bool) -> Result<String> {
    let request =
        cri::AttachRequest { container_id: id.to_owned(), stdin: true, stdout: true, tty, stderr: !tty };
    Ok(ready.node.cri().attach(request)?.url)
}

#[test]
fn stdin_once_ends_with_its_first_attach_and_the_log_has_it_all() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "once")?;
    for transport in ["spdy", "ws"] {
        let script = "while read line; do echo got $line; done; echo end >&2";
        let mut config = pod::container_config(transport, &ready.image, &["sh", "-c", script]);
        (config.stdin, config.stdin_once) = (true, true);
        let id = pod.start(&config)?;
        let flags = ["command", "-transport", transport, "-stdin", "-stderr", &url(&ready, &id, false)?];
        let output = stream_client::run(&flags, b"one\ntwo\n")?;
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"got one\ngot two\n"[..], &b"end\n"[..]));
        assert_eq!(pod::await_exit(&ready.node, &id)?.exit_code, 0);
        assert_eq!(pod.log(transport)?, "got one\ngot two\nend\n");
    }
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn a_terminal_outlives_its_attaches() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "shell")?;
    let mut config = pod::container_config("shell", &ready.image, &["sh"]);
    (config.stdin, config.tty) = (true, true);
    let id = pod.start(&config)?;
    // The first client goes without ending anything.
    let first_url = url(&ready, &id, true)?;
    let mut first = stream_client::start(&["command", "-tty", "-stdin", "-size", "81x25", &first_url])?;
    let mut stdin = first.stdin.take().context("no stdin")?;
    stdin.write_all(b"echo $((6 * 7)) $TERM; readlink -f /proc/self/fd/0; ls /dev/console\n")?;
    let mut seen = String::new();
    let mut stdout = first.stdout.take().context("no stdout")?;
    while !(seen.contains("42 xterm") && seen.contains("/dev/pts/0") && seen.contains("\n/dev/console")) {
        let mut chunk = [0u8; 1024];
        let count = stdout.read(&mut chunk)?;
        anyhow::ensure!(count > 0, "the attach ended: {seen:?}");
        seen.push_str(&String::from_utf8_lossy(&chunk[..count]));
    }
    first.kill()?;
    first.wait()?;
    let flags =
        ["command", "-transport", "spdy", "-tty", "-stdin", "-size", "100x40", &url(&ready, &id, true)?];
    let script = b"until [ \"$(stty size)\" = '40 100' ]; do sleep 0.02; done; echo sized; exit 3\n";
    let output = stream_client::run(&flags, script)?;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("\nsized"), "{output:?}");
    assert_eq!(pod::await_exit(&ready.node, &id)?.exit_code, 3);
    let log = pod.log("shell")?;
    assert!(log.contains("42 xterm") && log.contains("sized"), "{log}");
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

/// Closes the terminal, says so, and opens it again when it is told to.
const AWAY: &str = "echo here; exec </dev/null >/dev/null 2>&1; echo > /gone-$0; until [ -e /back-$0 ]; do \
    sleep 0.05; done; read word <$1; echo \"got $word\" >$1; exit 4";

/// Until `AWAY` has closed its terminal and whoever reads it has looked at that; then has it come back.
fn away_and_back(ready: &Ready, id: &str, name: &str) -> Result<()> {
    let script = format!("until [ -e /gone-{name} ]; do sleep 0.05; done; sleep 0.3; echo > /back-{name}");
    let cmd = ["sh", "-c", script.as_str()].map(str::to_owned).to_vec();
    let request = cri::ExecSyncRequest { container_id: id.to_owned(), cmd, timeout: 60 };
    let answer = ready.node.cri().exec_sync(request)?;
    anyhow::ensure!(answer.exit_code == 0, "{answer:?}");
    Ok(())
}

#[test]
fn a_terminal_that_nobody_has_open_for_a_moment_is_not_over() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "away")?;
    let mut config = pod::container_config("away", &ready.image, &["sh", "-c", AWAY, "main", "/dev/console"]);
    (config.stdin, config.tty) = (true, true);
    let id = pod.start(&config)?;
    let address = url(&ready, &id, true)?;
    let mut attached = stream_client::start(&["command", "-tty", "-stdin", &address])?;
    attached.stdin.as_mut().context("no stdin")?.write_all(b"word\n")?;
    away_and_back(&ready, &id, "main")?;
    assert_eq!(pod::await_exit(&ready.node, &id)?.exit_code, 4);
    let output = stream_client::finish(attached)?;
    assert!(String::from_utf8_lossy(&output.stdout).contains("got word"), "{output:?}");
    let log = pod.log("away")?;
    assert!(log.contains("here") && log.contains("got word"), "{log:?}");
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn an_execs_terminal_that_nobody_has_open_for_a_moment_is_not_over() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "away")?;
    let id = pod.start(&pod::container_config("away", &ready.image, &["/workload", "sleep", "600"]))?;
    for (name, transport) in [("one", "spdy"), ("two", "ws")] {
        let cmd = ["sh", "-c", AWAY, name, "/dev/tty"].map(str::to_owned).to_vec();
        let container_id = id.clone();
        let request =
            cri::ExecRequest { container_id, cmd, tty: true, stdin: true, stdout: true, stderr: false };
        let address = ready.node.cri().exec(request)?.url;
        let mut exec =
            stream_client::start(&["command", "-transport", transport, "-tty", "-stdin", &address])?;
        exec.stdin.as_mut().context("no stdin")?.write_all(b"word\n")?;
        away_and_back(&ready, &id, name)?;
        let output = stream_client::finish(exec)?;
        assert_eq!(output.status.code(), Some(4), "{transport}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("got word"), "{transport}: {output:?}");
    }
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

const SLOW_BYTES: usize = 24_000_000;

#[test]
fn rt_2_13_a_slow_attach_is_dropped_and_neither_log_nor_container_waits() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "slow")?;
    // More than the sockets and pipes on the way to the client hold.
    let script = format!("read go; head -c {SLOW_BYTES} /dev/zero | tr '\\0' x; echo; echo finished");
    let mut config = pod::container_config("slow", &ready.image, &["sh", "-c", &script]);
    config.stdin = true;
    let id = pod.start(&config)?;
    let mut client = stream_client::start(&[
        "command",
        "-transport",
        "ws",
        "-stdin",
        "-stderr",
        &url(&ready, &id, false)?,
    ])?;
    // It sends the word and reads nothing.
    client.stdin.as_mut().context("no stdin")?.write_all(b"go\n")?;
    assert_eq!(pod::await_exit(&ready.node, &id)?.exit_code, 0);
    let log = poll("the end of the log", Duration::from_secs(30), || {
        let log = pod.log("slow").map_err(|error| error.to_string())?;
        if log.ends_with("\nfinished\n") { Ok(log) } else { Err(format!("{} bytes", log.len())) }
    })?;
    assert_eq!(log.len(), SLOW_BYTES + "\nfinished\n".len());
    let output = stream_client::finish(client)?;
    assert_eq!(output.status.code(), Some(FAILED), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("writes faster than this client reads"), "{text}");
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn an_attach_outlives_a_runtime_only_as_a_container() -> Result<()> {
    let mut ready = ready()?;
    let id = {
        let pod = Pod::run(&ready.node, "kept")?;
        let mut config = pod::container_config(
            "kept",
            &ready.image,
            &["sh", "-c", "while read line; do echo got $line; done"],
        );
        config.stdin = true;
        pod.start(&config)?
    };
    let address = url(&ready, &id, false)?;
    let mut lost = stream_client::start(&["command", "-stdin", "-stderr", &address])?;
    lost.stdin.as_mut().context("no stdin")?.write_all(b"before\n")?;
    let mut got = [0u8; 11];
    lost.stdout.as_mut().context("no stdout")?.read_exact(&mut got)?;
    assert_eq!(&got, b"got before\n");
    ready.node.restart()?;
    assert_ne!(stream_client::finish(lost)?.status.code(), Some(0), "the runtime was killed");
    // stdin is still open: the monitor holds it, not the runtime.
    let address = url(&ready, &id, false)?;
    let mut again = stream_client::start(&["command", "-stdin", "-stderr", &address])?;
    again.stdin.as_mut().context("no stdin")?.write_all(b"after\n")?;
    let mut got = [0u8; 10];
    again.stdout.as_mut().context("no stdout")?.read_exact(&mut got)?;
    assert_eq!(&got, b"got after\n");
    again.kill()?;
    again.wait()?;
    let sandboxes = ready.node.cri().list_pod_sandbox(cri::ListPodSandboxRequest::default())?.items;
    for sandbox in sandboxes {
        let pod_sandbox_id = sandbox.id;
        ready
            .node
            .cri()
            .stop_pod_sandbox(cri::StopPodSandboxRequest { pod_sandbox_id: pod_sandbox_id.clone() })?;
        ready.node.cri().remove_pod_sandbox(cri::RemovePodSandboxRequest { pod_sandbox_id })?;
    }
    ready.node.assert_clean(&ready.before)
}
