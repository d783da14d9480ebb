//! What goes on between a user and a container: a log that is followed, a shell on a terminal, an attached stdin, files,
//! ports.

use anyhow::{Context, Result, ensure};
use gantry_tests::cluster::going::Going;
use gantry_tests::poll::poll;
use gantry_tests::pty::Pty;
use gantry_tests::{debian, http, image};
use serde_json::json;

use crate::served::web_sockets;
use crate::spec::{IDLE, PATIENCE, Spec, pod};

/// Two lives: the first one speaks when it is told to and fails, the second one goes on.
const TWO_LIVES: &str = "if [ -e /state/second ]; then echo of the second; trap 'exit 0' TERM; \
    while :; do sleep 1; done; fi; echo begins; until [ -e /state/go ]; do sleep 0.1; done; \
    for word in one two three; do echo $word; sleep 0.5; done; touch /state/second; echo ends >&2; exit 3";

pub(crate) fn logs(spec: &Spec<'_>) -> Result<()> {
    let mut twice = pod("twice", TWO_LIVES);
    twice["spec"]["volumes"] = json!([{ "name": "state", "emptyDir": {} }]);
    twice["spec"]["containers"][0]["volumeMounts"] = json!([{ "name": "state", "mountPath": "/state" }]);
    spec.start_pod(twice)?;
    let mut follow = spec.start(&["logs", "-f", "twice"])?;
    follow.await_said("the first line", |said| said.contains("begins\n").then_some(()))?;
    spec.shell("twice", "touch /state/go")?;
    // It ends with the container, not with the pod.
    let status = follow.await_end()?;
    ensure!(status.success(), "{status}: {}", follow.text());
    let all = "begins\none\ntwo\nthree\nends\n";
    follow.await_said("the last line", |said| (said == all).then_some(()))?;
    spec.await_value(&["pod/twice"], "{.status.containerStatuses[0].restartCount}", "1")?;
    spec.await_value(&["pod/twice"], "{.status.containerStatuses[0].ready}", "true")?;
    let previous = spec.kubectl(&["logs", "twice", "--previous"])?;
    ensure!(previous == all, "{previous:?}");
    let now = spec.kubectl(&["logs", "twice"])?;
    ensure!(now == "of the second\n", "{now:?}");
    let last = "{.status.containerStatuses[0].lastState.terminated.exitCode}";
    ensure!(spec.value(&["pod/twice"], last)? == "3");
    Ok(())
}

/// Asks for the window's size until it is this.
fn await_size(pty: &mut Pty, size: &str) -> Result<()> {
    poll(&format!("the window to be {size}"), PATIENCE, || {
        pty.keys("stty size\r").map_err(|error| error.to_string())?;
        let text = pty.text();
        if text.contains(&format!("{size}\r\n")) { Ok(()) } else { Err(text) }
    })
}

pub(crate) fn terminal(spec: &Spec<'_>) -> Result<()> {
    spec.start_pod(pod("shell", IDLE))?;
    let (before, promised) = web_sockets(spec, "exec")?;
    let mut pty = Pty::start(&spec.command(&["exec", "-it", "shell", "--", "sh"]), 80, 24)?;
    // The sums are the shell's: what is typed shows, too.
    pty.keys("echo typed-$((20 + 3))\r")?;
    pty.await_text("typed-23\r\n")?;
    ensure!(!pty.is_cooked()?, "the terminal echoes by itself");
    await_size(&mut pty, "24 80")?;
    pty.resize(100, 30)?;
    await_size(&mut pty, "30 100")?;
    pty.keys("echo sleeping-$((1 + 1)); sleep 4242\r")?;
    pty.await_text("sleeping-2\r\n")?;
    pty.keys("\u{3}")?;
    pty.keys("echo interrupted-$?\r")?;
    pty.await_text("interrupted-130\r\n")?;
    pty.keys("exit 7\r")?;
    let status = pty.await_end()?;
    ensure!(status.code() == Some(7), "{status}: {}", pty.text());
    // It may have been written and not been read yet.
    pty.await_text("exit code 7")?;
    ensure!(pty.is_cooked()?, "the terminal stays raw");
    // kubectl opens a WebSocket, which the API server translates where the kubelet does not say that it takes it.
    let (after, _) = web_sockets(spec, "exec")?;
    ensure!(promised == (after > before), "promised: {promised}, counted: {before}, then {after}");
    Ok(())
}

pub(crate) fn attach(spec: &Spec<'_>) -> Result<()> {
    let mut echo = pod("echo", "while read word; do sleep 1; echo heard $word; done; echo no more");
    echo["spec"]["containers"][0]["stdin"] = json!(true);
    spec.start_pod(echo)?;
    // A client that goes leaves the container's stdin open for the next one.
    for word in ["first", "second"] {
        let mut attached = spec.start(&["attach", "-i", "echo"])?;
        attached.say(&format!("{word}\n"))?;
        let heard = format!("heard {word}\n");
        attached.await_said(&heard, |said| said.contains(&heard).then_some(()))?;
    }
    spec.await_log(&["echo"], |log| log == "heard first\nheard second\n")
}

pub(crate) fn copy(spec: &Spec<'_>) -> Result<()> {
    let folder = spec.folder()?;
    let tree = folder.join("tree/inner");
    std::fs::create_dir_all(&tree)?;
    // More than one message of any stream, and bytes that are no text.
    let bytes: Vec<u8> =
        (0..3_000_000_u32).flat_map(|number| number.wrapping_mul(2_654_435_761).to_be_bytes()).collect();
    std::fs::write(folder.join("tree/large"), &bytes)?;
    std::fs::write(tree.join("small"), "a word\n")?;
    spec.start_pod(pod("keeps", IDLE))?;
    let at = |name: &str| folder.join(name).display().to_string();
    spec.kubectl(&["cp", &at("tree"), "keeps:/tmp/copied"])?;
    let sums = spec.shell("keeps", "sha256sum </tmp/copied/large; cat /tmp/copied/inner/small")?;
    let sum = image::sha256(&bytes).replace("sha256:", "");
    ensure!(sums == format!("{sum}  -\na word\n"), "{sums:?} instead of {sum}");
    spec.kubectl(&["cp", "keeps:/tmp/copied", &at("back")])?;
    ensure!(std::fs::read(folder.join("back/large"))? == bytes, "other bytes came back");
    ensure!(std::fs::read_to_string(folder.join("back/inner/small"))? == "a word\n");
    spec.kubectl(&["cp", "keeps:/tmp/copied/large", &at("alone"), "-c", "main"])?;
    ensure!(std::fs::read(folder.join("alone"))? == bytes, "other bytes came back alone");
    std::fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())
}

/// Where a `port-forward` listens.
fn address(forward: &mut Going) -> Result<std::net::SocketAddr> {
    forward.await_said("the forwarded port", |said| {
        let rest = said.split_once("Forwarding from ")?.1;
        rest.split_once(" -> ")?.0.parse().ok()
    })
}

pub(crate) fn port_forward(spec: &Spec<'_>) -> Result<()> {
    spec.kubectl(&["create", "deployment", "web", "--image=nginx", "--port=80"])?;
    spec.kubectl(&["expose", "deployment", "web", "--port=8080", "--target-port=80"])?;
    spec.kubectl(&["rollout", "status", "deployment/web", "--timeout=120s"])?;
    let pod = format!("pod/{}", spec.value(&["pods"], "{.items[0].metadata.name}")?);
    for (what, port) in [(pod.as_str(), ":80"), ("service/web", ":8080"), ("deployment/web", ":80")] {
        let mut forward = spec.start(&["port-forward", what, port])?;
        let address = address(&mut forward)?;
        // One after the other on one stream, and some at a time.
        for _ in 0..3 {
            let page = http::get(address, "/")?;
            ensure!(page.status == 200 && page.text() == debian::nginx_page(), "{what}: {page:?}");
        }
        let asked: Vec<_> = (0..8).map(|_| std::thread::spawn(move || http::get(address, "/"))).collect();
        for answer in asked {
            let page = answer.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
            ensure!(page.status == 200 && page.text() == debian::nginx_page(), "{what}: {page:?}");
        }
    }
    // A port where nobody listens: an end of that connection, which the forward outlives.
    let mut forward = spec.start(&["port-forward", &pod, ":81"])?;
    let nobody = address(&mut forward)?;
    ensure!(http::get(nobody, "/").is_err(), "somebody listens on port 81");
    forward.await_said("the refusal", |said| said.contains("onnection refused").then_some(()))
}

/// What process 1 of the container is; a word on stdin shows that the user is attached. Not at once: containerd takes an
/// attached client's stdin up before its stdout, and what a container answers in between goes to the log alone. Nor at
/// last: the end of a container closes the connection, and an attached client (no exec's) may miss what came just before.
const WHO: &str = "read word; sleep 1; echo $word: $(tr '\\0' ' ' </proc/1/cmdline); sleep 3";

pub(crate) fn debug(spec: &Spec<'_>) -> Result<()> {
    spec.start_pod(pod("sick", IDLE))?;
    let start = ["debug", "sick", "-i", "--image=busybox", "--container=apart", "--", "sh", "-c", WHO];
    let mut apart = spec.start(&start)?;
    apart.say("who\n")?;
    apart.await_said("its own process", |said| said.contains("who: sh -c read word").then_some(()))?;
    let state = "{.status.ephemeralContainerStatuses[0].state.terminated.reason}";
    spec.await_value(&["pod/sick"], state, "Completed")?;
    is_well(spec)
}

fn is_well(spec: &Spec<'_>) -> Result<()> {
    ensure!(spec.value(&["pod/sick"], "{.status.containerStatuses[0].restartCount}")? == "0");
    let ready = r#"{.status.conditions[?(@.type=="Ready")].status}"#;
    ensure!(spec.value(&["pod/sick"], ready)? == "True", "an ephemeral container's end made the pod unready");
    Ok(())
}

pub(crate) fn debug_target(spec: &Spec<'_>) -> Result<()> {
    spec.start_pod(pod("sick", &format!("echo a mark of its own >/tmp/mark; {IDLE}")))?;
    let start = ["debug", "sick", "-i", "--image=busybox"];
    let with = ["--container=beside", "--target=main", "--", "sh", "-c", WHO];
    let mut beside = spec.start(&[&start[..], &with[..]].concat())?;
    beside.say("who\n")?;
    let refused = beside.await_said("the target's process", |said| {
        let refused = said.lines().find(|line| line.starts_with("Warning: container beside: "));
        let seen = said.contains("who: sh -c echo a mark").then(String::new);
        refused.map(str::to_owned).or(seen)
    })?;
    ensure!(refused.is_empty(), "{refused}");
    // The target's files, through its processes.
    let script = "cat /proc/1/root/tmp/mark; hostname";
    spec.kubectl(&[
        "debug",
        "sick",
        "--image=busybox",
        "--container=reads",
        "--target=main",
        "--profile=sysadmin",
        "--",
        "sh",
        "-c",
        script,
    ])?;
    let state = r#"{.status.ephemeralContainerStatuses[?(@.name=="reads")].state.terminated.reason}"#;
    spec.await_value(&["pod/sick"], state, "Completed")?;
    let logs = spec.kubectl(&["logs", "sick", "-c", "reads"])?;
    ensure!(logs == "a mark of its own\nsick\n", "{logs:?}");
    is_well(spec)
}
