//! Pods on the network that a kind cluster has: what kindnetd of kind v0.33.0 writes into `10-kindnet.conflist`, and a
//! second node that it leads to by routes.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gantry_proto::cri;
use gantry_tests::netns::Netns;
use gantry_tests::node::Node;
use gantry_tests::pod::{self, Pod};
use gantry_tests::poll::poll;
use gantry_tests::{http, leakcheck};
use serde_json::json;

use crate::images::{PAGE, ready};

/// As kindnetd has it: gone with a reboot of the node.
const LEASES: &str = "/run/cni-ipam-state";
const HOST_PORT: i32 = 18190;
/// The nodes' addresses on docker's network, and what kindnetd has of the second one's pods.
const NODES: [&str; 2] = ["172.18.0.2", "172.18.0.3"];
const POD_ELSEWHERE: &str = "10.244.2.5:8080";

/// Key for key as kindnetd writes it, for the first node of a cluster.
fn write_conflist(node: &Node) -> Result<()> {
    let list = json!({
        "cniVersion": "0.3.1",
        "name": "kindnet",
        "plugins": [
            {
                "type": "ptp",
                "ipMasq": false,
                "ipam": {
                    "type": "host-local",
                    "dataDir": LEASES,
                    "routes": [{"dst": "0.0.0.0/0"}],
                    "ranges": [[{"subnet": "10.244.1.0/24"}]],
                },
                "mtu": 1500,
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    });
    // Before the test's own by name.
    Ok(std::fs::write(node.roots().path("net.d/10-kindnet.conflist"), list.to_string())?)
}

fn ip(words: &str) -> Result<String> {
    let output = Command::new("ip").args(words.split(' ')).output().context("run ip")?;
    ensure!(output.status.success(), "ip {words}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Another node of the cluster: on one network with this one, each with a route to the other's pods (kindnetd's
/// `syncRoute`). Its pod is an address of its own.
fn second_node() -> Result<Netns> {
    let node = Netns::new("kindnode2")?;
    ip("link add kindnode1 type veth peer name eth0 netns kindnode2")?;
    ip(&format!("address add {}/16 dev kindnode1", NODES[0]))?;
    ip("link set kindnode1 up")?;
    let pod = POD_ELSEWHERE.parse::<SocketAddr>()?.ip();
    for words in [
        "link set lo up".to_owned(),
        format!("address add {pod}/32 dev lo"),
        format!("address add {}/16 dev eth0", NODES[1]),
        "link set eth0 up".to_owned(),
        format!("route add 10.244.1.0/24 via {}", NODES[0]),
    ] {
        ip(&format!("-n kindnode2 {words}"))?;
    }
    ip(&format!("route add 10.244.2.0/24 via {}", NODES[1]))?;
    Ok(node)
}

/// Serves one page there, and says who came for it.
fn serve(node: &Netns) -> Result<std::thread::JoinHandle<Result<SocketAddr>>> {
    let at: SocketAddr = POD_ELSEWHERE.parse()?;
    let listener = node.inside(move || TcpListener::bind(at))?.with_context(|| at.to_string())?;
    Ok(std::thread::spawn(move || {
        let (mut stream, from) = listener.accept()?;
        // What is not read when the stream is closed resets it.
        let mut request = BufReader::new(stream.try_clone()?).lines();
        while request.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
        write!(
            stream,
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{PAGE}",
            PAGE.len()
        )?;
        Ok(from)
    }))
}

fn page(at: SocketAddr) -> Result<String> {
    let answer = poll("the page", Duration::from_secs(20), || {
        http::get(at, "/").map_err(|error| format!("{at}: {error:#}"))
    })?;
    Ok(answer.text())
}

/// What a container of this command says in the end.
fn run_in_pod(node: &Node, pod: &Pod<'_>, image: &str, name: &str, command: &[&str]) -> Result<String> {
    let id = pod.start(&pod::container_config(name, image, command))?;
    let status = pod::await_exit(node, &id)?;
    let log = pod.log(name)?;
    ensure!(status.exit_code == 0, "{name}: {log}");
    Ok(log)
}

/// Addresses that are leased; lock and last address stay, as upstream's plugin leaves them.
fn leases() -> BTreeSet<String> {
    let entries = std::fs::read_dir(Path::new(LEASES).join("kindnet")).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.parse::<std::net::IpAddr>().is_ok()).collect()
}

/// The folder is the node's, not the test's own.
struct Leases;

impl Drop for Leases {
    fn drop(&mut self) {
        // Not there: no pod came so far.
        let _ = std::fs::remove_dir_all(LEASES);
    }
}

#[test]
fn pods_on_the_network_of_kindnetd_reach_each_other_and_the_other_node() -> Result<()> {
    ensure!(!Path::new(LEASES).exists(), "{LEASES} is there: somebody's leases, or what an earlier run left");
    let ready = ready()?;
    let _leases = Leases;
    write_conflist(&ready.node)?;
    let routes = ip("route show")?;
    let links = leakcheck::links()?;
    let other = second_node()?;

    let mut config = pod::sandbox_config(&ready.node, "server");
    config.port_mappings.push(cri::PortMapping {
        host_port: HOST_PORT,
        container_port: 8080,
        ..cri::PortMapping::default()
    });
    let server = Pod::run_config(&ready.node, config)?;
    let client = Pod::run(&ready.node, "client")?;
    server.start(&pod::container_config("web", &ready.image, &[]))?;
    let addr = server.addr(8080)?;
    let expected: BTreeSet<String> = [server.ip()?, client.ip()?].iter().map(ToString::to_string).collect();
    assert_eq!(leases(), expected);
    ensure!(expected.iter().all(|ip| ip.starts_with("10.244.1.")), "{expected:?}");

    // From the node, from a pod of the node, from the other node: to the pod, and to its port of the node.
    assert_eq!(page(addr)?, PAGE);
    let says = |name: &str, command: &[&str]| run_in_pod(&ready.node, &client, &ready.image, name, command);
    ensure!(says("dial", &["/workload", "dial", &addr.to_string()])?.contains(PAGE.trim()));
    assert_eq!(other.inside(move || page(addr))??, PAGE);
    let port: SocketAddr = format!("{}:{HOST_PORT}", NODES[0]).parse()?;
    assert_eq!(other.inside(move || page(port))??, PAGE);
    // And from a pod to one of the other node, by its own address: `ipMasq` is off.
    let served = serve(&other)?;
    ensure!(says("away", &["/workload", "dial", POD_ELSEWHERE])?.contains(PAGE.trim()));
    let from = served.join().map_err(|_| anyhow::anyhow!("the server died"))??;
    assert_eq!(from.ip(), client.ip()?);
    let mtu = says("mtu", &["/bin/cat", "/sys/class/net/eth0/mtu"])?;
    ensure!(mtu.contains("1500"), "{mtu}");

    server.remove()?;
    client.remove()?;
    assert_eq!(leases(), BTreeSet::new());
    drop(other);
    poll("links and routes as before", Duration::from_secs(20), || {
        let now =
            (leakcheck::links().map_err(|e| e.to_string())?, ip("route show").map_err(|e| e.to_string())?);
        if now == (links.clone(), routes.clone()) { Ok(()) } else { Err(format!("{now:?}")) }
    })?;
    ready.node.assert_clean(&ready.before)
}
