//! The plugin `bridge`: a veth pair from a pod to a bridge of the host, with addresses from another plugin.
//!
//! Owns the order of the effects and their undoing; `config` and `plan` decide, `links` and `veth` talk to the kernel.
//! Never runs a program but that of a plugin for addresses, and never leaves half an attachment: a failed ADD removes its
//! link and releases its address. Called by the chain.
//!
//! ADD: lease → bridge → its address, forwarding → veth pair → inside the pod: addresses, routes → port forwards →
//! masquerading. The lease comes first because the pod's hardware address follows from its IPv4 address, and because a
//! lease is what keeps [`remove_idle`] from taking the bridge away in between.

mod config;
mod links;
mod plan;

pub(crate) use config::{BridgeConfig, BridgeConfigError};
pub(crate) use plan::{Error as PlanError, resolve_gateways};

use ipnet::IpNet;

use crate::attachment::{self, IpamScope, VethPlan};
use crate::host_local::{self, Allocation, Lease, ip_config};
use crate::ipam::Ipam;
use crate::netlink::{self, Netlink};
use crate::request::{AttachmentTarget, NodeDirs, ValidAttachment};
use crate::result::CniResult;
use crate::veth::{self, InterfaceSetup, interface};

/// Why a pod is not on the bridge, or not off it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Shared(#[from] attachment::Error),
    #[error("cannot look at the leases")]
    Leases(#[source] host_local::Error),
    #[error("cannot plan the routes")]
    Plan(#[source] plan::Error),
    #[error("cannot wire the pod up")]
    Wire(#[source] links::Error),
    #[error("cannot wire the pod up")]
    Pod(#[source] veth::Error),
    #[error("cannot open a netlink socket on the host")]
    Netlink(#[source] netlink::Error),
    #[error("cannot remove the bridge")]
    Remove(#[source] veth::Error),
    #[error("cannot look for ports of bridge {bridge}")]
    Ports {
        bridge: String,
        #[source]
        source: netlink::Error,
    },
}

/// Attaches a pod. `on_plugin` hears of the plugin that hands out its addresses.
pub(crate) fn add(
    config: &BridgeConfig,
    target: AttachmentTarget<'_>,
    on_plugin: &mut dyn FnMut(&str, i64, i64),
) -> Result<CniResult, Error> {
    ipam_scope(config).add(target, on_plugin, |allocation| attach(config, target, allocation))
}

fn ipam_scope(config: &BridgeConfig) -> IpamScope<'_> {
    IpamScope { ipam: config.ipam.as_ref(), masquerade: config.ip_masq }
}

fn attach(
    config: &BridgeConfig,
    target: AttachmentTarget<'_>,
    allocation: Allocation,
) -> Result<CniResult, Error> {
    let leases = plan::with_gateways(&allocation.leases, config.is_gateway);
    let routes = plan::routes(&leases, &allocation.routes, config.is_default_gateway);
    let resolved = plan::resolve_gateways(&routes, &leases).map_err(Error::Plan)?;
    let mut host = Netlink::open().map_err(Error::Netlink)?;
    let bridge = links::ensure_bridge(&mut host, config).map_err(Error::Wire)?;
    if config.is_gateway {
        for gateway in plan::gateways(&leases) {
            links::ensure_gateway(&mut host, &bridge, gateway, config.force_address).map_err(Error::Wire)?;
        }
    }
    let random = veth::random_mac().map_err(Error::Pod)?;
    let host_name = veth::host_name(target.container_id, target.ifname);
    let mac = config.mac.unwrap_or_else(|| veth::pod_mac(&leases, random));
    let pair = VethPlan { host_name: &host_name, bridge_index: Some(bridge.index), mac, mtu: config.mtu };
    attachment::make_pair(&mut host, target, &pair)?;
    let routes_from = resolved.into_iter().map(|route| (route, None)).collect::<Vec<_>>();
    let host_mac = bring_up(config, target, &mut host, &host_name, &leases, &routes_from)
        .map_err(|error| attachment::undo_pair(&mut host, &host_name, error))?;
    let interfaces = vec![
        interface(&bridge.name, &bridge.mac, None),
        interface(&host_name, &host_mac, None),
        interface(target.ifname, &mac, Some(target.netns)),
    ];
    let ips = leases.iter().map(|lease| ip_config(lease, Some(interfaces.len() - 1))).collect();
    let dns = if config.dns.is_empty() { allocation.dns } else { config.dns.clone() };
    Ok(CniResult { interfaces, ips, routes, dns, ..CniResult::default() })
}

/// Everything behind the making of the pair; returns the hardware address of the host's end.
fn bring_up(
    config: &BridgeConfig,
    target: AttachmentTarget<'_>,
    host: &mut Netlink,
    host_name: &str,
    leases: &[Lease],
    routes: &[(crate::result::Route, Option<std::net::IpAddr>)],
) -> Result<Vec<u8>, Error> {
    links::bring_up_port(host, host_name, config).map_err(Error::Wire)?;
    if config.disable_container_interface {
        // An end that is down keeps the port from forwarding, as its user wants it.
        return links::host_mac(host, host_name).map_err(Error::Wire);
    }
    let addresses: Vec<IpNet> = leases.iter().map(|lease| lease.address).collect();
    let setup = InterfaceSetup {
        ifname: target.ifname,
        addresses: &addresses,
        on_link: true,
        routes,
        skip_dad: !config.enable_dad,
    };
    veth::set_up_interface(target.netns, &setup).map_err(Error::Pod)?;
    let mac = links::await_port(host, host_name).map_err(Error::Wire)?;
    ipam_scope(config).masquerade(target, &addresses)?;
    Ok(mac)
}

/// Detaches a pod.
pub(crate) fn del(config: &BridgeConfig, target: AttachmentTarget<'_>) -> Result<(), Error> {
    Ok(ipam_scope(config).del(target)?)
}

/// Whether everything is as ADD left it.
pub(crate) fn check(
    config: &BridgeConfig,
    target: AttachmentTarget<'_>,
    result: &CniResult,
) -> Result<(), Error> {
    Ok(ipam_scope(config).check(target, result, Some(&config.bridge))?)
}

/// Removes what belongs to attachments that are none of these.
pub(crate) fn gc(
    config: &BridgeConfig,
    network: &str,
    home: NodeDirs<'_>,
    valid: &[ValidAttachment],
) -> Result<(), Error> {
    Ok(ipam_scope(config).gc(network, home, valid)?)
}

/// Removes the bridge if no pod of the network has a lease and no link is a port of it; says whether it did.
///
/// The network's lock is held meanwhile, and an ADD leases first: none can meet a bridge that vanishes under it.
pub(crate) fn remove_idle(config: &BridgeConfig) -> Result<bool, Error> {
    let Some(Ipam::HostLocal(ipam)) = &config.ipam else { return Ok(false) };
    let failed = |source| Error::Leases(host_local::Error::Store { dir: ipam.dir.clone(), source });
    let store = host_local::LeaseStore::lock(&ipam.dir).map_err(failed)?;
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
