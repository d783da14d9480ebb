//! The plugin `bridge`: a veth pair from a pod to a bridge of the host, with addresses from `host-local`.
//!
//! Owns the order of the effects and their undoing; `config` and `plan` decide, `wire` talks to the kernel. Never runs
//! a program and never leaves half an attachment: a failed ADD removes its link and releases its address. Called by
//! the chain.
//!
//! ADD: lease → bridge → its address, forwarding → veth pair → inside the pod: addresses, routes → port forwards.
//! The lease comes first because the pod's hardware address follows from its IPv4 address, and because a lease is what
//! keeps [`remove_idle`] from taking the bridge away in between.

mod config;
mod plan;
mod wire;

pub(crate) use config::{Config, ConfigError};

use std::path::Path;

use ipnet::IpNet;

use crate::host_local::{self, Lease};
use crate::netlink::{self, Netlink};
use crate::netns;
use crate::result::{CniResult, Interface, IpConfig};
use wire::Port;

/// The attachment as this plugin sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) container_id: &'a str,
    pub(crate) ifname: &'a str,
    pub(crate) netns: &'a Path,
}

/// Why a pod is not on the bridge, or not off it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot allocate an address")]
    Allocate(#[source] host_local::Error),
    #[error("cannot release the addresses")]
    Release(#[source] host_local::Error),
    #[error("cannot look at the leases")]
    Leases(#[source] host_local::Error),
    #[error("cannot plan the routes")]
    Plan(#[source] plan::Error),
    #[error("cannot wire the pod up")]
    Wire(#[source] wire::Error),
    #[error("cannot open a netlink socket on the host")]
    Netlink(#[source] netlink::Error),
    #[error("cannot remove link {name}")]
    Unlink {
        name: String,
        #[source]
        source: netlink::Error,
    },
    #[error("cannot remove {name} inside the pod")]
    UnlinkInside {
        name: String,
        #[source]
        source: netns::Error,
    },
    #[error("cannot look for ports of bridge {bridge}")]
    Ports {
        bridge: String,
        #[source]
        source: netlink::Error,
    },
    #[error("bridge attachment failed ({primary}), and so did undoing it")]
    Undo {
        primary: String,
        #[source]
        source: Box<Error>,
    },
}

/// Attaches a pod. `allocate` leases its addresses; it is the caller's so that the caller can time it.
pub(crate) fn add(
    config: &Config,
    target: Target<'_>,
    allocate: impl FnOnce(&host_local::Config) -> Result<Vec<Lease>, host_local::Error>,
) -> Result<CniResult, Error> {
    let Some(ipam) = &config.ipam else { return attach(config, target, &[]) };
    let leases = allocate(ipam).map_err(Error::Allocate)?;
    attach(config, target, &leases).map_err(|primary| {
        let undo = host_local::del(ipam, target.container_id, target.ifname).map_err(Error::Release);
        with_undo(primary, undo)
    })
}

/// The error to report when undoing may have failed as well.
fn with_undo(primary: Error, undo: Result<(), Error>) -> Error {
    match undo {
        Ok(()) => primary,
        Err(undo) => Error::Undo { primary: crate::chain::explain(&primary), source: Box::new(undo) },
    }
}

fn attach(config: &Config, target: Target<'_>, leases: &[Lease]) -> Result<CniResult, Error> {
    let ipam_routes = config.ipam.as_ref().map(|ipam| ipam.routes.as_slice()).unwrap_or_default();
    let routes = plan::routes(leases, ipam_routes, config.is_default_gateway);
    let resolved = plan::resolve_gateways(&routes, leases).map_err(Error::Plan)?;
    let mut host = Netlink::open().map_err(Error::Netlink)?;
    let bridge = wire::ensure_bridge(&mut host, &config.bridge, config.mtu).map_err(Error::Wire)?;
    if config.is_gateway {
        for gateway in plan::gateways(leases) {
            wire::ensure_gateway(&mut host, &bridge, gateway).map_err(Error::Wire)?;
        }
    }
    let port = Port {
        host_name: &plan::host_name(target.container_id, target.ifname),
        ifname: target.ifname,
        netns: target.netns,
        mac: wire::random_mac().map(|random| plan::pod_mac(leases, random)).map_err(Error::Wire)?,
        mtu: config.mtu,
        hairpin: config.hairpin,
    };
    wire::add_pair(&mut host, &bridge, &port).map_err(Error::Wire)?;
    let addresses: Vec<IpNet> = leases.iter().map(|lease| lease.address).collect();
    let host_mac = wire::raise(&mut host, &port, &addresses, &resolved).map_err(|error| {
        let undo = unlink(&mut host, port.host_name).map(drop);
        with_undo(Error::Wire(error), undo)
    })?;
    let interfaces = vec![
        interface(&bridge.name, &bridge.mac, None),
        interface(port.host_name, &host_mac, None),
        interface(target.ifname, &port.mac, Some(target.netns)),
    ];
    let ips = leases.iter().map(|lease| ip_config(lease, interfaces.len() - 1)).collect();
    Ok(CniResult { interfaces, ips, routes, dns: config.dns.clone(), ..CniResult::default() })
}

fn interface(name: &str, mac: &[u8], sandbox: Option<&Path>) -> Interface {
    let sandbox = sandbox.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
    Interface { name: name.into(), mac: plan::mac_text(mac), sandbox }
}

fn ip_config(lease: &Lease, interface: usize) -> IpConfig {
    IpConfig {
        version: None,
        interface: Some(interface),
        address: lease.address,
        gateway: Some(lease.gateway),
    }
}

/// Detaches a pod; what is gone already is fine, the namespace too. The lease is released only once the link is gone:
/// an address that is still in use must not be given to another pod.
pub(crate) fn del(config: &Config, target: Target<'_>) -> Result<(), Error> {
    let mut host = Netlink::open().map_err(Error::Netlink)?;
    // One end takes the other with it. Only a pod that another runtime attached has a host end of another name.
    if !unlink(&mut host, &plan::host_name(target.container_id, target.ifname))? {
        unlink_inside(target)?;
    }
    match &config.ipam {
        Some(ipam) => host_local::del(ipam, target.container_id, target.ifname).map_err(Error::Release),
        None => Ok(()),
    }
}

fn unlink(netlink: &mut Netlink, name: &str) -> Result<bool, Error> {
    netlink.delete_link(name).map_err(|source| Error::Unlink { name: name.into(), source })
}

fn unlink_inside(target: Target<'_>) -> Result<(), Error> {
    let removed =
        netns::run(target.netns, || unlink(&mut Netlink::open().map_err(Error::Netlink)?, target.ifname));
    match removed {
        Ok(outcome) => outcome.map(drop),
        Err(error) if error.is_gone() => Ok(()),
        Err(source) => Err(Error::UnlinkInside { name: target.ifname.into(), source }),
    }
}

/// Removes the bridge if no pod of the network has a lease and no link is a port of it; says whether it did.
///
/// The network's lock is held meanwhile, and an ADD leases first: none can meet a bridge that vanishes under it.
pub(crate) fn remove_idle(config: &Config) -> Result<bool, Error> {
    let Some(ipam) = &config.ipam else { return Ok(false) };
    let failed = |source| Error::Leases(host_local::Error::Store { dir: ipam.dir.clone(), source });
    let store = host_local::Store::lock(&ipam.dir).map_err(failed)?;
    if !store.leases().map_err(failed)?.is_empty() {
        return Ok(false);
    }
    let mut host = Netlink::open().map_err(Error::Netlink)?;
    let links = host.links().map_err(|source| Error::Ports { bridge: config.bridge.clone(), source })?;
    let Some(bridge) = links.iter().find(|link| link.name == config.bridge && link.is_bridge) else {
        return Ok(false);
    };
    if links.iter().any(|link| link.master == Some(bridge.index)) {
        return Ok(false);
    }
    unlink(&mut host, &config.bridge)
}
