//! A cluster's network on one machine: the node's address on a veth pair, the pods' bridge by CNI, what the node's
//! programs leave in the kernel. Owns those links and tables; never touches another namespace but to leave the pair's far
//! end there. Called by `cluster`.
//!
//! The node needs an address that is not loopback's (a kubelet refuses that one) and a default route: without one the
//! kernel refuses to connect to a Service's address before kube-proxy's rules see the packet.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::json;

use crate::leakcheck;

/// Pods' addresses; the node's part is the first of [`NODE_MASK`] bits: a thousand pods.
pub(super) const PODS: &str = "10.85.0.0/16";
pub(super) const NODE_MASK: &str = "22";
const NODE_PODS: &str = "10.85.0.0/22";
/// Services' addresses.
pub(super) const SERVICES: &str = "10.96.0.0/16";
/// Of the Service `kubernetes`.
pub(super) const API: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1));
/// Of the cluster's DNS.
pub(super) const DNS: &str = "10.96.0.10";

const LINK: &str = "node0";
const BRIDGE: &str = "cni0";
/// What kube-proxy, the kubelet and upstream's portmap leave by design.
const TABLES: [&str; 10] = [
    "ip kube-proxy",
    "ip6 kube-proxy",
    "ip cni_hostport",
    "ip6 cni_hostport",
    "ip mangle",
    "ip6 mangle",
    "ip nat",
    "ip6 nat",
    "ip filter",
    "ip6 filter",
];

/// Where the pair's far end goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outside {
    /// Nowhere: it stays here without an address
    Closed,
    /// Into a network namespace by its file, under this name
    Open { namespace: String, link: String },
}

/// The node's network.
#[derive(Debug)]
pub(super) struct NodeNetwork {
    up: bool,
}

/// Node's address and the far end's, of a cluster's number.
pub(super) fn addresses(number: u8) -> (Ipv4Addr, Ipv4Addr) {
    (Ipv4Addr::new(10, 87, number, 1), Ipv4Addr::new(10, 87, number, 2))
}

impl NodeNetwork {
    /// Makes the pair and writes the pods' CNI configuration.
    pub(super) fn make(folder: &Path, number: u8, outside: &Outside) -> Result<Self> {
        let (node, far) = addresses(number);
        ip(&["link", "add", LINK, "type", "veth", "peer", "name", "node1"])?;
        let network = Self { up: true };
        match outside {
            Outside::Closed => ip(&["link", "set", "node1", "up"])?,
            Outside::Open { namespace, link } => {
                ip(&["link", "set", "node1", "name", link, "netns", namespace])?;
            }
        }
        ip(&["address", "add", &format!("{node}/24"), "dev", LINK])?;
        ip(&["link", "set", LINK, "up"])?;
        ip(&["route", "add", "default", "via", &far.to_string(), "dev", LINK])?;
        let conflists = folder.join("cni/net.d");
        std::fs::create_dir_all(&conflists)?;
        std::fs::write(conflists.join("10-gantry.conflist"), serde_json::to_vec_pretty(&conflist())?)?;
        Ok(network)
    }

    /// Takes away what is the node's own. What pods left stays, and shows in a leak check.
    pub(super) fn remove(&mut self) -> Result<()> {
        self.up = false;
        leakcheck::remove_bridges(&[BRIDGE.to_owned(), LINK.to_owned()]);
        let listed = Command::new("nft").args(["list", "tables"]).output().context("run nft")?;
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        for table in listed.lines().filter_map(|line| line.strip_prefix("table ")) {
            if TABLES.contains(&table) {
                run(Command::new("nft").args(["delete", "table"]).args(table.split(' ')))?;
            }
        }
        Ok(())
    }
}

impl Drop for NodeNetwork {
    fn drop(&mut self) {
        if self.up {
            // What stays shows in the leak check.
            let _ = self.remove();
        }
    }
}

fn conflist() -> serde_json::Value {
    json!({
        "cniVersion": "1.0.0",
        "name": "gantry",
        "plugins": [
            {
                "type": "bridge",
                "bridge": BRIDGE,
                "isGateway": true,
                "hairpinMode": true,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{ "subnet": NODE_PODS }]],
                    "routes": [{ "dst": "0.0.0.0/0" }],
                },
            },
            { "type": "portmap", "backend": "nftables", "capabilities": { "portMappings": true } },
        ],
    })
}

/// The far end in the namespace it went to: called there.
///
/// # Errors
/// When `ip` refuses.
pub fn dress_far_end(link: &str, number: u8) -> Result<()> {
    ip(&["address", "add", &format!("{}/24", addresses(number).1), "dev", link])?;
    ip(&["link", "set", link, "up"])
}

fn ip(args: &[&str]) -> Result<()> {
    run(Command::new("ip").args(args))
}

fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("start {program}"))?;
    if !output.status.success() {
        let args: Vec<_> = command.get_args().map(|arg| arg.to_string_lossy().into_owned()).collect();
        bail!("{program} {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
