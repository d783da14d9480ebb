//! Pods on the bridge: addresses, and that they reach each other.

use std::time::Duration;

use anyhow::Result;
use gantry_tests::pod::{self, Pod};
use gantry_tests::poll::poll;
use gantry_tests::{http, leakcheck};
use serde_json::json;

use crate::images::{PAGE, ready};

#[test]
fn two_pods_reach_each_other() -> Result<()> {
    let ready = ready()?;
    let (server, client) = (Pod::run(&ready.node, "server")?, Pod::run(&ready.node, "client")?);
    assert_ne!(server.ip()?, client.ip()?);
    server.start(&pod::container_config("web", &ready.image, &[]))?;
    let addr = server.addr(8080)?;
    poll("the server", Duration::from_secs(20), || {
        http::get(addr, "/").map_err(|error| format!("{error:#}"))
    })?;
    let command = ["/workload", "dial", &addr.to_string()];
    let id = client.start(&pod::container_config("dial", &ready.image, &command))?;
    let status = pod::await_exit(&ready.node, &id)?;
    let log = client.log("dial")?;
    assert_eq!(status.exit_code, 0, "{log}");
    assert!(log.contains(PAGE.trim()), "{log}");
    server.remove()?;
    client.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn an_address_is_free_again_after_its_pod() -> Result<()> {
    let ready = ready()?;
    let links = leakcheck::links()?;
    for round in 0..3 {
        let pod = Pod::run(&ready.node, "again")?;
        let ip = pod.ip()?;
        pod.remove()?;
        ready.node.assert_clean(&ready.before)?;
        assert!(ip.is_ipv4(), "round {round}: {ip}");
    }
    let new: Vec<String> = leakcheck::links()?.into_iter().filter(|link| !links.contains(link)).collect();
    assert!(new.len() <= 1, "more than the bridge: {new:?}");
    Ok(())
}

#[test]
fn a_pod_on_the_hosts_network_has_no_namespace_of_its_own() -> Result<()> {
    let ready = ready()?;
    let mut config = pod::sandbox_config(&ready.node, "host");
    let node_mode = gantry_proto::cri::NamespaceMode::Node.into();
    let security = config.linux.get_or_insert_default().security_context.get_or_insert_default();
    security.namespace_options.get_or_insert_default().network = node_mode;
    let pod = Pod::run_config(&ready.node, config)?;
    let mut config = pod::container_config("id", &ready.image, &["/workload", "id"]);
    pod::with_security(&mut config, |context| {
        context.namespace_options.get_or_insert_default().network = node_mode;
    });
    let id = pod.start(&config)?;
    assert_eq!(pod::await_exit(&ready.node, &id)?.exit_code, 0);
    let own = gantry_tests::place::own_netns()?;
    assert!(pod.log("id")?.contains(&format!("ns.net {own}")), "{}", pod.log("id")?);
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

/// What a plugin answers that has done nothing for eth0: containers would run where nobody reaches them.
#[test]
fn a_network_that_gives_no_address_makes_no_pod() -> Result<()> {
    let ready = ready()?;
    ready.node.set_network(&json!([{"type": "loopback"}]))?;
    let error = format!("{:#}", Pod::run(&ready.node, "nowhere").unwrap_err());
    assert!(error.contains("failed to find network info for sandbox"), "{error}");
    ready.node.assert_clean(&ready.before)
}
