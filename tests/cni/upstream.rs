//! Our chain runner on upstream's `bridge`, `host-local` and `portmap`: the same pods, the same addresses and ports.

use std::time::Duration;

use anyhow::Result;
use gantry_proto::cri;
use gantry_tests::pod::{self, Pod};
use gantry_tests::poll::poll;
use gantry_tests::{go, http, nft};
use serde_json::json;

use crate::images::{PAGE, ready};

#[test]
fn pods_run_on_upstreams_plugins() -> Result<()> {
    let plugins = go::upstream_plugins()?;
    let mut ready = ready()?;
    let mut bridge = ready.node.bridge_plugin()?;
    bridge["ipMasq"] = true.into();
    bridge["ipMasqBackend"] = "nftables".into();
    // Upstream's plugins know no flag for it.
    bridge["ipam"]["dataDir"] = json!(ready.node.roots().path("leases"));
    let portmap = json!({"type": "portmap", "backend": "nftables", "capabilities": {"portMappings": true}});
    ready.node.set_network(&json!([bridge, portmap]))?;
    let flags = ["--cni-external".to_owned(), format!("--cni-bin-dir={}", plugins.display())];
    ready.node.restart_with(&flags)?;

    let mut config = pod::sandbox_config(&ready.node, "web");
    config.port_mappings.push(cri::PortMapping {
        host_port: 18180,
        container_port: 8080,
        ..cri::PortMapping::default()
    });
    let web = Pod::run_config(&ready.node, config)?;
    let other = Pod::run(&ready.node, "other")?;
    assert_ne!(web.ip()?, other.ip()?);
    web.start(&pod::container_config("web", &ready.image, &[]))?;
    for at in [web.addr(8080)?, "127.0.0.1:18180".parse()?] {
        let page = poll("the page", Duration::from_secs(20), || {
            http::get(at, "/").map_err(|error| format!("{at}: {error:#}"))
        })?;
        assert_eq!(page.text(), PAGE, "{at}");
    }
    // It was upstream's portmap that did it.
    let tables = nft::tables()?;
    assert!(tables.iter().any(|table| table == "table ip cni_hostport"), "{tables:?}");
    web.remove()?;
    other.remove()?;
    http::get("127.0.0.1:18180".parse()?, "/").expect_err("the port is gone");
    nft::drop_upstream_tables()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn a_program_that_is_not_there_is_named_and_del_goes_on_without_it() -> Result<()> {
    let plugins = go::upstream_plugins()?;
    let folder = tempfile::tempdir()?;
    for name in ["bridge", "host-local"] {
        std::os::unix::fs::symlink(plugins.join(name), folder.path().join(name))?;
    }
    let mut ready = ready()?;
    let mut bridge = ready.node.bridge_plugin()?;
    bridge["ipam"]["dataDir"] = json!(ready.node.roots().path("leases"));
    ready.node.set_network(&json!([bridge]))?;
    let flags = ["--cni-external".to_owned(), format!("--cni-bin-dir={}", folder.path().display())];
    ready.node.restart_with(&flags)?;
    let pod = Pod::run(&ready.node, "one")?;
    std::fs::remove_file(folder.path().join("bridge"))?;
    let error = format!("{:#}", Pod::run(&ready.node, "two").unwrap_err());
    assert!(error.contains("there is no program") && error.contains("install it there"), "{error}");
    let status = ready.node.cri().status(cri::StatusRequest::default())?.status.unwrap_or_default();
    let network = status.conditions.into_iter().find(|one| one.r#type == "NetworkReady").unwrap_or_default();
    assert!(!network.status && network.reason == "NetworkPluginNotReady", "{network:?}");
    // runtime-traps 7.2: a pod must end although its plugin went before it. Its lease is the plugin's to give back.
    pod.remove()?;
    std::os::unix::fs::symlink(plugins.join("bridge"), folder.path().join("bridge"))?;
    for entry in std::fs::read_dir(ready.node.roots().path("leases/test"))? {
        std::fs::remove_file(entry?.path())?;
    }
    ready.node.assert_clean(&ready.before)
}
