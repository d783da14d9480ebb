//! The plugin `bridge`: a veth pair from a pod to a bridge of the host, with addresses from another plugin.
//!
//! Owns the order of the effects and their undoing; `config` and `plan` decide, `wire` and `veth` talk to the kernel.
//! Never runs a program but that of a plugin for addresses, and never leaves half an attachment: a failed ADD removes its
//! link and releases its address. Called by the chain.
//!
//! ADD: lease → bridge → its address, forwarding → veth pair → inside the pod: addresses, routes → port forwards →
//! masquerading. The lease comes first because the pod's hardware address follows from its IPv4 address, and because a
//! lease is what keeps [`remove_idle`] from taking the bridge away in between.

mod config;
mod plan;
mod wire;

pub(crate) use config::{Config, ConfigError};
pub(crate) use plan::{Error as PlanError, resolve_gateways};

use ipnet::IpNet;

use crate::chain::timed;
use crate::host_local::{self, Allocation, Lease, ip_config};
use crate::ipam::{self, Ipam};
use crate::masquerade;
use crate::netlink::{self, Netlink};
use crate::request::{Home, Target, ValidAttachment};
use crate::result::CniResult;
use crate::veth::{self, Dress, interface};
use wire::Port;

/// Why a pod is not on the bridge, or not off it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot allocate an address")]
    Allocate(#[source] ipam::Error),
    #[error("plugin {kind} gave no address")]
    NoAddress { kind: String },
    #[error("cannot release the addresses")]
    Release(#[source] ipam::Error),
    #[error("cannot look at the leases")]
    Leases(#[source] host_local::Error),
    #[error("cannot plan the routes")]
    Plan(#[source] plan::Error),
    #[error("cannot wire the pod up")]
    Wire(#[source] wire::Error),
    #[error("cannot wire the pod up")]
    Pod(#[source] veth::Error),
    #[error("cannot masquerade the pod")]
    Masquerade(#[source] masquerade::Error),
    #[error("cannot stop masquerading the pod")]
    Unmasquerade(#[source] masquerade::Error),
    #[error("cannot open a netlink socket on the host")]
    Netlink(#[source] netlink::Error),
    #[error("cannot remove the pod's link")]
    Remove(#[source] veth::Error),
    #[error("the pod's link is not as it was")]
    Changed(#[source] veth::Error),
    #[error(transparent)]
    Ipam(ipam::Error),
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

/// Attaches a pod. `on_plugin` hears of the plugin that hands out its addresses.
pub(crate) fn add(
    config: &Config,
    target: Target<'_>,
    on_plugin: &mut dyn FnMut(&str, i64, i64),
) -> Result<CniResult, Error> {
    let Some(ipam) = &config.ipam else { return attach(config, target, Allocation::default()) };
    let allocated = timed(on_plugin, ipam.kind(), |_| ipam.add(target));
    let attached = allocated.map_err(Error::Allocate).and_then(|allocation| {
        if allocation.leases.is_empty() {
            return Err(Error::NoAddress { kind: ipam.kind().into() });
        }
        attach(config, target, allocation)
    });
    attached.map_err(|primary| match (&primary, ipam) {
        // It undid itself, and what is leased to this interface is another ADD's.
        (Error::Allocate(_), Ipam::HostLocal(_)) => primary,
        _ => with_undo(primary, ipam.del(target).map_err(Error::Release)),
    })
}

/// The error to report when undoing may have failed as well.
fn with_undo(primary: Error, undo: Result<(), Error>) -> Error {
    match undo {
        Ok(()) => primary,
        Err(undo) => Error::Undo { primary: crate::chain::explain(&primary), source: Box::new(undo) },
    }
}

fn attach(config: &Config, target: Target<'_>, allocation: Allocation) -> Result<CniResult, Error> {
    let leases = plan::with_gateways(&allocation.leases, config.is_gateway);
    let routes = plan::routes(&leases, &allocation.routes, config.is_default_gateway);
    let resolved = plan::resolve_gateways(&routes, &leases).map_err(Error::Plan)?;
    let mut host = Netlink::open().map_err(Error::Netlink)?;
    let bridge = wire::ensure_bridge(&mut host, config).map_err(Error::Wire)?;
    if config.is_gateway {
        for gateway in plan::gateways(&leases) {
            wire::ensure_gateway(&mut host, &bridge, gateway, config.force_address).map_err(Error::Wire)?;
        }
    }
    let random = veth::random_mac().map_err(Error::Pod)?;
    let port = Port {
        host_name: &veth::host_name(target.container_id, target.ifname),
        ifname: target.ifname,
        netns: target.netns,
        mac: config.mac.unwrap_or_else(|| veth::pod_mac(&leases, random)),
        mtu: config.mtu,
        hairpin: config.hairpin,
        isolated: config.port_isolation,
    };
    wire::add_pair(&mut host, &bridge, &port).map_err(Error::Wire)?;
    let routes_from = resolved.into_iter().map(|route| (route, None)).collect::<Vec<_>>();
    let host_mac = raise(config, target, &mut host, &port, &leases, &routes_from).map_err(|error| {
        let undo = veth::unlink(&mut host, port.host_name).map(drop).map_err(Error::Remove);
        with_undo(error, undo)
    })?;
    let interfaces = vec![
        interface(&bridge.name, &bridge.mac, None),
        interface(port.host_name, &host_mac, None),
        interface(target.ifname, &port.mac, Some(target.netns)),
    ];
    let ips = leases.iter().map(|lease| ip_config(lease, Some(interfaces.len() - 1))).collect();
    let dns = if config.dns.is_empty() { allocation.dns } else { config.dns.clone() };
    Ok(CniResult { interfaces, ips, routes, dns, ..CniResult::default() })
}

/// Everything behind the making of the pair; returns the hardware address of the host's end.
fn raise(
    config: &Config,
    target: Target<'_>,
    host: &mut Netlink,
    port: &Port<'_>,
    leases: &[Lease],
    routes: &[(crate::result::Route, Option<std::net::IpAddr>)],
) -> Result<Vec<u8>, Error> {
    wire::raise_port(host, port).map_err(Error::Wire)?;
    if config.disable_container_interface {
        // An end that is down keeps the port from forwarding, as its user wants it.
        return wire::host_mac(host, port.host_name).map_err(Error::Wire);
    }
    let addresses: Vec<IpNet> = leases.iter().map(|lease| lease.address).collect();
    let dress = Dress {
        ifname: port.ifname,
        addresses: &addresses,
        on_link: true,
        routes,
        skip_dad: !config.enable_dad,
    };
    veth::dress(port.netns, &dress).map_err(Error::Pod)?;
    let mac = wire::await_port(host, port.host_name).map_err(Error::Wire)?;
    if config.ip_masq {
        masquerade::add(target, &addresses).map_err(Error::Masquerade)?;
    }
    Ok(mac)
}

/// Detaches a pod; what is gone already is fine, the namespace too. The lease is released only once the link is gone:
/// an address that is still in use must not be given to another pod.
pub(crate) fn del(config: &Config, target: Target<'_>) -> Result<(), Error> {
    veth::remove(target).map_err(Error::Remove)?;
    if config.ip_masq {
        masquerade::del(target).map_err(Error::Unmasquerade)?;
    }
    match &config.ipam {
        Some(ipam) => ipam.del(target).map_err(Error::Release),
        None => Ok(()),
    }
}

/// Whether lease, links, addresses, routes and rules are as ADD left them.
pub(crate) fn check(config: &Config, target: Target<'_>, result: &CniResult) -> Result<(), Error> {
    if let Some(ipam) = &config.ipam {
        ipam.check(target, result).map_err(Error::Ipam)?;
    }
    veth::check(target, result, Some(&config.bridge)).map_err(Error::Changed)?;
    if config.ip_masq {
        let addresses: Vec<IpNet> = result.addresses_of(target.ifname).map(|ip| ip.address).collect();
        masquerade::check(target, &addresses).map_err(Error::Masquerade)?;
    }
    Ok(())
}

/// Removes rules and leases of attachments that are none of these. Their links went with their namespaces.
pub(crate) fn gc(
    config: &Config,
    network: &str,
    home: Home<'_>,
    valid: &[ValidAttachment],
) -> Result<(), Error> {
    if config.ip_masq {
        masquerade::gc(network, home, valid).map_err(Error::Unmasquerade)?;
    }
    match &config.ipam {
        Some(ipam) => ipam.gc(valid).map_err(Error::Release),
        None => Ok(()),
    }
}

/// Removes the bridge if no pod of the network has a lease and no link is a port of it; says whether it did.
///
/// The network's lock is held meanwhile, and an ADD leases first: none can meet a bridge that vanishes under it.
pub(crate) fn remove_idle(config: &Config) -> Result<bool, Error> {
    let Some(Ipam::HostLocal(ipam)) = &config.ipam else { return Ok(false) };
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
    veth::unlink(&mut host, &config.bridge).map_err(Error::Remove)
}
