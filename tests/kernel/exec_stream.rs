//! Exec by its URL, as kubectl and the conformance tests use it: client-go over SPDY and WebSocket in
//! every version, and the old WebSocket protocols by hand.

use anyhow::Result;
use gantry_proto::cri;
use gantry_tests::pod::{self, Pod};
use gantry_tests::stream_client::{self, FAILED};
use gantry_tests::websocket::WebSocket;

use crate::images::{Ready, ready};

/// Transport and protocol as the client's flags, and whether it learns the exit code.
const TRANSPORTS: [(&str, &str, bool); 6] = [
    ("spdy", "v4.channel.k8s.io", true),
    ("spdy", "v3.channel.k8s.io", false),
    ("spdy", "v2.channel.k8s.io", false),
    ("spdy", "", true),
    ("ws", "v5.channel.k8s.io", true),
    ("ws", "v4.channel.k8s.io", true),
];

fn url(ready: &Ready, id: &str, cmd: &[&str], change: impl FnOnce(&mut cri::ExecRequest)) -> Result<String> {
    let mut request = cri::ExecRequest {
        container_id: id.to_owned(),
        cmd: cmd.iter().map(|&word| word.to_owned()).collect(),
        stdout: true,
        stderr: true,
        ..Default::default()
    };
    change(&mut request);
    Ok(ready.node.cri().exec(request)?.url)
}

fn sleeper(ready: &Ready, pod: &Pod<'_>) -> Result<String> {
    pod.start(&pod::container_config("sleeper", &ready.image, &["/workload", "sleep", "600"]))
}

#[test]
fn output_and_exit_code_come_over_every_transport() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "transports")?;
    let id = sleeper(&ready, &pod)?;
    for (transport, protocol, knows_code) in TRANSPORTS {
        for code in [0, 3] {
            let script = format!("echo out; echo err >&2; exit {code}");
            let url = url(&ready, &id, &["sh", "-c", &script], |_| {})?;
            let flags = ["command", "-transport", transport, "-protocol", protocol, "-stderr", &url];
            let output = stream_client::run(&flags, b"")?;
            let what = format!("{transport} {protocol} {code}: {output:?}");
            assert_eq!((&output.stdout[..], &output.stderr[..4]), (&b"out\n"[..], &b"err\n"[..]), "{what}");
            let expected = if code == 0 || knows_code { code } else { FAILED };
            assert_eq!(output.status.code(), Some(expected), "{what}");
            if expected == FAILED {
                assert!(String::from_utf8_lossy(&output.stderr).contains("exit status 3"), "{what}");
            }
        }
    }
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn input_comes_back_whole_and_its_end_ends_the_command() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "echo")?;
    let id = sleeper(&ready, &pod)?;
    // More than all buffers on the way together.
    let input: Vec<u8> = (0..8_000_000u32).map(|number| number.to_le_bytes()[0] ^ 0x5a).collect();
    for (transport, protocol) in
        [("spdy", "v4.channel.k8s.io"), ("spdy", "v2.channel.k8s.io"), ("ws", "v5.channel.k8s.io")]
    {
        let url = url(&ready, &id, &["cat"], |request| request.stdin = true)?;
        let flags = ["command", "-transport", transport, "-protocol", protocol, "-stdin", "-stderr", &url];
        let output = stream_client::run(&flags, &input)?;
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{transport} {protocol}: {errors}");
        assert!(output.stdout == input, "{transport} {protocol}: {} bytes came back", output.stdout.len());
    }
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn a_terminal_has_the_clients_size_and_follows_it() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "tty")?;
    let id = sleeper(&ready, &pod)?;
    let script = "until [ \"$(stty size)\" = '24 80' ]; do sleep 0.02; done; echo first $TERM next size; \
        until [ \"$(stty size)\" = '40 100' ]; do sleep 0.02; done; echo second; tty; read line; echo \"<$line>\"; \
        test -t 0 && test -t 1 && test -t 2 && exit 7";
    for (transport, protocol) in
        [("spdy", "v4.channel.k8s.io"), ("ws", "v5.channel.k8s.io"), ("ws", "v4.channel.k8s.io")]
    {
        let url = url(&ready, &id, &["sh", "-c", script], |request| {
            request.tty = true;
            request.stderr = false;
            request.stdin = true;
        })?;
        let sizes = "80x24,100x40";
        let flags = [
            "command",
            "-transport",
            transport,
            "-protocol",
            protocol,
            "-tty",
            "-stdin",
            "-size",
            sizes,
            &url,
        ];
        let output = stream_client::run(&flags, b"typed\n")?;
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(7), "{transport} {protocol}: {output:?}");
        for line in ["first xterm", "second", "/dev/pts/", "<typed>"] {
            assert!(text.contains(line), "{transport} {protocol}: {line} is not in {text:?}");
        }
    }
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn the_old_websocket_protocols_are_those_of_the_conformance_tests() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "old")?;
    let id = sleeper(&ready, &pod)?;
    for (protocol, base64) in [("channel.k8s.io", false), ("", false), ("base64.channel.k8s.io", true)] {
        let url = url(&ready, &id, &["sh", "-c", "read line; echo \"$line\"; echo err >&2"], |request| {
            request.stdin = true;
        })?;
        let mut socket = WebSocket::connect(&url, protocol)?;
        assert_eq!(socket.protocol, protocol);
        // "hi\n" on channel 0.
        socket.send(base64, if base64 { b"0aGkK" } else { b"\0hi\n" })?;
        let messages = socket.rest()?;
        let empty: &[u8] = if base64 { b"1" } else { b"\x01" };
        assert_eq!(messages[0], empty, "all is set up");
        let (out, err): (&[u8], &[u8]) =
            if base64 { (b"1aGkK", b"2ZXJyCg==") } else { (b"\x01hi\n", b"\x02err\n") };
        assert!(messages.iter().any(|message| message == out), "{messages:?}");
        assert!(messages.iter().any(|message| message == err), "{messages:?}");
    }
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn a_url_is_good_once_and_a_request_that_makes_no_sense_gets_none() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "urls")?;
    let id = sleeper(&ready, &pod)?;
    let once = url(&ready, &id, &["true"], |_| {})?;
    assert!(once.starts_with("http://127.0.0.1:"), "{once}");
    WebSocket::connect(&once, "v4.channel.k8s.io")?.rest()?;
    let again = WebSocket::connect(&once, "v4.channel.k8s.io").unwrap_err();
    assert!(again.to_string().contains("404"), "{again}");
    let no_output = |request: &mut cri::ExecRequest| {
        (request.stdout, request.stderr) = (false, false);
    };
    let all_on_a_terminal = |request: &mut cri::ExecRequest| request.tty = true;
    for change in [no_output as fn(&mut cri::ExecRequest), all_on_a_terminal] {
        let mut request = cri::ExecRequest {
            container_id: id.clone(),
            cmd: vec!["true".into()],
            stdout: true,
            stderr: true,
            ..Default::default()
        };
        change(&mut request);
        let error = ready.node.cri().exec(request).unwrap_err();
        assert_eq!(error.code(), tonic::Code::InvalidArgument, "{error:?}");
    }
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn an_output_nobody_wants_goes_to_the_nodes_null_device_and_leaves_it_roots() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "null")?;
    let mut config = pod::container_config("null", &ready.image, &["/workload", "sleep", "600"]);
    pod::with_security(&mut config, |security| {
        security.run_as_user = Some(cri::Int64Value { value: 1234 });
    });
    let id = pod.start(&config)?;
    let url = url(&ready, &id, &["sh", "-c", "echo out; echo err >&2"], |request| request.stderr = false)?;
    let output = stream_client::run(&["command", &url], b"")?;
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &b"out\n"[..]), "{output:?}");
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/dev/null")?), 0);
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn a_command_that_cannot_run_says_why_in_the_error_channel() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "why")?;
    let id = sleeper(&ready, &pod)?;
    for transport in ["spdy", "ws"] {
        let url = url(&ready, &id, &["/no/such"], |_| {})?;
        let output = stream_client::run(&["command", "-transport", transport, "-stderr", &url], b"")?;
        assert_eq!(output.status.code(), Some(FAILED), "{output:?}");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("exec \"/no/such\": no such file or directory"), "{text}");
    }
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn a_user_other_than_root_can_open_its_stdin_by_name() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "by-name")?;
    let mut config = pod::container_config("by-name", &ready.image, &["/workload", "sleep", "600"]);
    pod::with_security(&mut config, |context| context.run_as_user = Some(cri::Int64Value { value: 1000 }));
    let id = pod.start(&config)?;
    let url =
        url(&ready, &id, &["sh", "-c", "id -u; cat < /proc/self/fd/0"], |request| request.stdin = true)?;
    let output = stream_client::run(&["command", "-stdin", "-stderr", &url], b"typed\n")?;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(output.stdout, b"1000\ntyped\n", "{output:?}");
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}
