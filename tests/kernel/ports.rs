//! Host ports through the runtime: from the request to the connection, over a restart of the runtime, and away again.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use gantry_proto::cri;
use gantry_tests::http;
use gantry_tests::pod::{self, Pod};
use gantry_tests::poll::poll;
use serde_json::json;

use crate::images::{PAGE, Ready, ready};

/// A node whose network has what the built-in one has, too.
fn with_ports() -> Result<Ready> {
    let ready = ready()?;
    let mut bridge = ready.node.bridge_plugin()?;
    bridge["ipMasq"] = true.into();
    let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
    ready.node.set_network(&json!([bridge, portmap]))?;
    Ok(ready)
}

fn config(ready: &Ready, name: &str, host_port: i32) -> cri::PodSandboxConfig {
    let mut config = pod::sandbox_config(&ready.node, name);
    config.port_mappings.push(cri::PortMapping {
        host_port,
        container_port: 8080,
        ..cri::PortMapping::default()
    });
    config
}

fn page(at: &str) -> Result<String> {
    let at: SocketAddr = at.parse()?;
    let answer = poll("the page", Duration::from_secs(20), || {
        http::get(at, "/").map_err(|error| format!("{at}: {error:#}"))
    })?;
    Ok(answer.text())
}

#[test]
fn a_host_port_leads_to_its_pod_while_the_runtime_is_away() -> Result<()> {
    let mut ready = with_ports()?;
    let web = Pod::run_config(&ready.node, config(&ready, "web", 18080))?;
    web.start(&pod::container_config("web", &ready.image, &[]))?;
    let (id, ip) = (web.id.clone(), web.ip()?);
    assert_eq!(page(&format!("{ip}:8080"))?, PAGE);
    assert_eq!(page("127.0.0.1:18080")?, PAGE);
    ready.node.kill()?;
    assert_eq!(page("127.0.0.1:18080")?, PAGE);
    ready.node.restart()?;
    let remove = cri::RemovePodSandboxRequest { pod_sandbox_id: id };
    assert_eq!(page("127.0.0.1:18080")?, PAGE, "a start collects garbage, not pods");
    ready.node.cri().remove_pod_sandbox(remove)?;
    http::get("127.0.0.1:18080".parse()?, "/").expect_err("the port is gone");
    ready.node.assert_clean(&ready.before)
}

#[test]
fn a_port_that_is_taken_fails_the_second_pod_by_port_and_pod() -> Result<()> {
    let ready = with_ports()?;
    let first = Pod::run_config(&ready.node, config(&ready, "first", 18081))?;
    let error = format!("{:#}", Pod::run_config(&ready.node, config(&ready, "second", 18081)).unwrap_err());
    let expected = "host port 18081/TCP is taken by default/first, so default/second cannot have it";
    assert!(error.contains(expected), "{error}");
    first.remove()?;
    // The failed one left nothing that would be in its own way.
    Pod::run_config(&ready.node, config(&ready, "second", 18081))?.remove()?;
    ready.node.assert_clean(&ready.before)
}

/// runtime-traps 7.1: /run is gone after a power cut, and so may a record be that was never synced. What the disk still
/// says of the sandbox is taken back at the next start.
#[test]
fn runtime_trap_7_1_a_start_takes_back_what_a_sandbox_without_record_left() -> Result<()> {
    let mut ready = with_ports()?;
    let pod = Pod::run_config(&ready.node, config(&ready, "kept", 18082))?;
    let (id, ip) = (pod.id.clone(), pod.ip()?);
    let roots = ready.node.roots();
    let (cache, leases) = (roots.path("cache"), roots.path("leases/test"));
    ready.node.kill()?;
    let gone = "f".repeat(64);
    let cached =
        std::fs::read_to_string(cache.join(format!("test-{id}-eth0"))).context("the cached result")?;
    // The netns path holds half of the id.
    let cached = cached.replace(&id, &gone).replace(&id[..32], &gone[..32]);
    std::fs::write(cache.join(format!("test-{gone}-eth0")), cached)?;
    let lease = ip.to_string();
    let (network, _) = lease.rsplit_once('.').context("an IPv4 address")?;
    for (last, owner) in [(200, gone.as_str()), (201, "never-cached")] {
        std::fs::write(leases.join(format!("{network}.{last}")), format!("{owner}\r\neth0"))?;
    }
    ready.node.restart()?;
    let left: Vec<String> = std::fs::read_dir(&leases)?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<_>>()?;
    assert!(left.contains(&lease), "the living pod's: {left:?}");
    assert!(!left.iter().any(|name| name.ends_with(".200") || name.ends_with(".201")), "{left:?}");
    assert!(!cache.join(format!("test-{gone}-eth0")).exists());
    ready.node.cri().remove_pod_sandbox(cri::RemovePodSandboxRequest { pod_sandbox_id: id })?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn a_full_network_fails_pods_and_leaves_the_node_ready() -> Result<()> {
    let ready = ready()?;
    let mut bridge = ready.node.bridge_plugin()?;
    let subnet = bridge.pointer("/ipam/ranges/0/0/subnet").and_then(|text| text.as_str()).unwrap_or_default();
    let only = subnet.replace(".0/24", ".9");
    bridge["ipam"]["ranges"] = json!([[{"subnet": subnet, "rangeStart": only, "rangeEnd": only}]]);
    ready.node.set_network(&json!([bridge]))?;
    let first = Pod::run(&ready.node, "first")?;
    let error = format!("{:#}", Pod::run(&ready.node, "second").unwrap_err());
    assert!(error.contains(&format!("no free address in {only}-{only}")), "{error}");
    let status = ready.node.cri().status(cri::StatusRequest::default())?.status.unwrap_or_default();
    let network = status.conditions.into_iter().find(|one| one.r#type == "NetworkReady").unwrap_or_default();
    assert!(network.status, "pods that run would lose their node: {network:?}");
    assert!(network.message.contains("no free address"), "{network:?}");
    first.remove()?;
    ready.node.assert_clean(&ready.before)
}
