//! Many pods on upstream's own network plugins, run as programs: bridge, host-local and portmap.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use anyhow::{Context, Result};
use gantry_tests::leakcheck::{Scope, Snapshot};
use gantry_tests::node::Roots;
use gantry_tests::ready::{PAGE, web_image};
use gantry_tests::registry::Registry;
use gantry_tests::standalone::Standalone;
use gantry_tests::{go, http, nft, place};
use serde_json::{Value, json};

use crate::fleet::{assert_all_ready, manifests};

const PODS: usize = 50;
const HOST_PORT: u16 = 18181;

/// The tests' network with upstream's words for what ours knows by flags.
fn set_network(roots: &Roots) -> Result<()> {
    let path = roots.path("net.d/10-test.conflist");
    let mut list: Value = serde_json::from_slice(&std::fs::read(&path)?)?;
    let plugins = list["plugins"].as_array_mut().context("a network without plugins")?;
    plugins[0]["ipMasq"] = true.into();
    plugins[0]["ipMasqBackend"] = "nftables".into();
    plugins[0]["ipam"]["dataDir"] = json!(roots.path("leases"));
    plugins.push(json!({"type": "portmap", "backend": "nftables", "capabilities": {"portMappings": true}}));
    std::fs::write(&path, serde_json::to_vec_pretty(&list)?)?;
    Ok(())
}

#[test]
fn fifty_pods_run_on_upstreams_bridge_host_local_and_portmap() -> Result<()> {
    place::require_own_namespaces()?;
    let plugins = go::upstream_plugins()?;
    let registry = Registry::start()?;
    let image = registry.push("demo/web", "v1", &web_image()?.build()?)?;
    let roots = Roots::new()?;
    set_network(&roots)?;
    let scope = Scope { folders: Vec::new(), ..roots.scope() };
    let before = Snapshot::take(&scope)?;
    let mut files = manifests(&roots, &image, PODS - 1)?;
    let with_port = roots.path("pods/port.yaml");
    let text = std::fs::read_to_string(&files[0])?.replace("pod-01", "port");
    let ports = format!("    ports: [{{containerPort: 8080, hostPort: {HOST_PORT}}}]\n");
    std::fs::write(&with_port, text + &ports)?;
    files.push(with_port);
    let flags = ["--cni-external".to_owned(), format!("--cni-bin-dir={}", plugins.display())];
    let mut run = Standalone::start_files(roots, &files, &flags)?;
    assert_all_ready(&mut run, PODS, &BTreeMap::new())?;
    let page = http::get((Ipv4Addr::LOCALHOST, HOST_PORT).into(), "/")?;
    assert_eq!(page.text(), PAGE);
    // It was upstream's portmap that did it.
    let tables = nft::tables()?;
    assert!(tables.iter().any(|table| table == "table ip cni_hostport"), "{tables:?}");
    run.interrupt()?;
    assert!(run.await_end()?.success(), "{}", run.stderr());
    nft::drop_upstream_tables()?;
    before.await_clean(&scope)
}
