//! Ports of a pod from outside it: over SPDY and in a WebSocket tunnel by client-go, and over the old
//! WebSocket channels by hand.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::Result;
use gantry_proto::cri;
use gantry_tests::http;
use gantry_tests::pod::{self, Pod};
use gantry_tests::poll::{bound, poll};
use gantry_tests::stream_client::Forward;
use gantry_tests::websocket::WebSocket;

use crate::images::{PAGE, Ready, ready};

fn url(ready: &Ready, pod: &Pod<'_>) -> Result<String> {
    let request = cri::PortForwardRequest { pod_sandbox_id: pod.id.clone(), port: Vec::new() };
    Ok(ready.node.cri().port_forward(request)?.url)
}

fn web<'a>(ready: &'a Ready, name: &str) -> Result<Pod<'a>> {
    let pod = Pod::run(&ready.node, name)?;
    pod.start(&pod::container_config("web", &ready.image, &[]))?;
    let addr = pod.addr(8080)?;
    poll("the page", Duration::from_secs(20), || http::get(addr, "/").map_err(|error| format!("{error:#}")))?;
    Ok(pod)
}

#[test]
fn a_page_comes_through_spdy_and_through_a_tunnel() -> Result<()> {
    let ready = ready()?;
    let pod = web(&ready, "forward")?;
    for transport in ["spdy", "tunnel"] {
        let forward = Forward::start(transport, 8080, &url(&ready, &pod)?)?;
        // One connection after the other, on the same SPDY connection.
        for _ in 0..20 {
            assert_eq!(http::get(forward.addr, "/")?.text(), PAGE, "{transport}");
        }
        let complaints = forward.stop()?;
        assert!(!complaints.contains("error"), "{transport}: {complaints}");
    }
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn a_port_where_nobody_listens_is_named_to_the_client() -> Result<()> {
    let ready = ready()?;
    let pod = web(&ready, "nobody")?;
    let forward = Forward::start("spdy", 81, &url(&ready, &pod)?)?;
    let mut stream = TcpStream::connect(forward.addr)?;
    stream.set_read_timeout(Some(bound(Duration::from_secs(20))))?;
    assert_eq!(stream.read(&mut [0u8; 16]).unwrap_or(0), 0, "a byte from nobody");
    let complaints = poll("the complaint", Duration::from_secs(10), || Ok::<_, String>(()))
        .and_then(|()| forward.stop())?;
    assert!(complaints.contains("failed to connect to localhost:81 inside namespace"), "{complaints}");
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn a_half_closed_request_still_gets_its_answer() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "half")?;
    // Answers with what it got once the request has ended.
    let script = "nc -l -p 9000 -e sh -c 'sort; echo done'";
    pod.start(&pod::container_config("half", &ready.image, &["sh", "-c", script]))?;
    poll("the port", Duration::from_secs(20), || {
        let name = format!(":{:04X} ", 9000);
        let tcp = ready_tcp(&ready, &pod).map_err(|error| error.to_string())?;
        if tcp.contains(&name) { Ok(()) } else { Err(tcp) }
    })?;
    let forward = Forward::start("spdy", 9000, &url(&ready, &pod)?)?;
    let mut stream = TcpStream::connect(forward.addr)?;
    stream.set_read_timeout(Some(bound(Duration::from_secs(20))))?;
    stream.write_all(b"b\na\n")?;
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    assert_eq!(answer, "a\nb\ndone\n");
    forward.stop()?;
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

/// The pod's /proc/net/tcp, by an exec.
fn ready_tcp(ready: &Ready, pod: &Pod<'_>) -> Result<String> {
    let filter = cri::ContainerFilter { pod_sandbox_id: pod.id.clone(), ..Default::default() };
    let found = ready.node.cri().list_containers(cri::ListContainersRequest { filter: Some(filter) })?;
    let id = found.containers.first().map(|container| container.id.clone()).unwrap_or_default();
    let cmd = ["cat", "/proc/net/tcp", "/proc/net/tcp6"].map(str::to_owned).to_vec();
    let answer = ready.node.cri().exec_sync(cri::ExecSyncRequest { container_id: id, cmd, timeout: 10 })?;
    Ok(String::from_utf8_lossy(&answer.stdout).into_owned())
}

#[test]
fn the_old_websocket_channels_carry_the_port_first() -> Result<()> {
    let ready = ready()?;
    let pod = web(&ready, "channels")?;
    let address = format!("{}?port=8080", url(&ready, &pod)?);
    let mut socket = WebSocket::connect(&address, "v4.channel.k8s.io")?;
    assert_eq!(socket.receive()?.unwrap(), [&[0u8][..], &8080u16.to_le_bytes()].concat());
    assert_eq!(socket.receive()?.unwrap(), [&[1u8][..], &8080u16.to_le_bytes()].concat());
    socket.send(false, b"\0GET / HTTP/1.0\r\n\r\n")?;
    let answer: Vec<u8> = socket
        .rest()?
        .into_iter()
        .filter_map(|message| message.strip_prefix(&[0]).map(<[u8]>::to_vec))
        .flatten()
        .collect();
    assert!(String::from_utf8_lossy(&answer).ends_with(PAGE), "{}", String::from_utf8_lossy(&answer));
    let missing = WebSocket::connect(&url(&ready, &pod)?, "v4.channel.k8s.io").unwrap_err();
    assert!(missing.to_string().contains("400"), "{missing}");
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}
