//! The plugin `ptp`: a veth pair from a pod to the host itself, with routes instead of a bridge.
//!
//! Owns the order of the effects and their undoing. Every packet of the pod goes to its gateway, which is the host's end
//! of the pair: the subnet is not on the pod's link, so that pods do not ask each other's hardware addresses. Never runs
//! a program but that of a plugin for addresses. Called by the chain.
//!
//! ADD: lease → forwarding → veth pair → inside the pod: addresses, routes → on the host: the gateway's address, a route
//! to the pod → masquerading. A failed ADD removes its link, and with it routes and addresses, and releases the lease.

mod config;
mod plan;

pub(crate) use config::{PtpConfig, PtpConfigError};

use std::net::IpAddr;

use ipnet::IpNet;

use crate::attachment::{self, IpamScope, VethPlan};
use crate::bridge;
use crate::host_local::{Allocation, ip_config};
use crate::masquerade::host_net;
use crate::netlink::{self, Netlink, NewAddress};
use crate::request::{AttachmentTarget, NodeDirs, ValidAttachment};
use crate::result::{CniResult, Route};
use crate::sysctl;
use crate::veth::{self, InterfaceSetup, interface};

/// Why a pod is not connected, or still is.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Shared(#[from] attachment::Error),
    #[error("plugin {kind} gave {address} without a gateway, which is what leads to the host")]
    NoGateway { kind: String, address: IpNet },
    #[error("cannot plan the routes")]
    Plan(#[source] bridge::PlanError),
    #[error("cannot let the host forward packets")]
    Forwarding(#[source] sysctl::Error),
    #[error("cannot open a netlink socket on the host")]
    Netlink(#[source] netlink::Error),
    #[error("cannot wire the pod up")]
    Pod(#[source] veth::Error),
    #[error("cannot set {name} up on the host")]
    Host {
        name: String,
        #[source]
        source: netlink::Error,
    },
}

/// Attaches a pod. `on_plugin` hears of the plugin that hands out its addresses.
pub(crate) fn add(
    config: &PtpConfig,
    target: AttachmentTarget<'_>,
    on_plugin: &mut dyn FnMut(&str, i64, i64),
) -> Result<CniResult, Error> {
    ipam_scope(config).add(target, on_plugin, |allocation| attach(config, target, allocation))
}

fn ipam_scope(config: &PtpConfig) -> IpamScope<'_> {
    IpamScope { ipam: Some(&config.ipam), masquerade: config.ip_masq }
}

fn attach(
    config: &PtpConfig,
    target: AttachmentTarget<'_>,
    allocation: Allocation,
) -> Result<CniResult, Error> {
    let Allocation { leases, routes, dns } = allocation;
    let kind = || config.ipam.kind().to_owned();
    let ends: Vec<(IpNet, IpAddr)> = leases
        .iter()
        .map(|lease| {
            let address = lease.address;
            lease.gateway.map(|gateway| (address, gateway)).ok_or(Error::NoGateway { kind: kind(), address })
        })
        .collect::<Result<_, _>>()?;
    let resolved = bridge::resolve_gateways(&routes, &leases).map_err(Error::Plan)?;
    for (_, gateway) in &ends {
        sysctl::enable_forwarding(*gateway).map_err(Error::Forwarding)?;
    }
    let host_name = veth::host_name(target.container_id, target.ifname);
    let mac = veth::pod_mac(&leases, veth::random_mac().map_err(Error::Pod)?);
    let mut host = Netlink::open().map_err(Error::Netlink)?;
    let pair = VethPlan { host_name: &host_name, bridge_index: None, mac, mtu: config.mtu };
    attachment::make_pair(&mut host, target, &pair)?;
    let host_mac = bring_up(config, target, &mut host, &host_name, &ends, resolved)
        .map_err(|error| attachment::undo_pair(&mut host, &host_name, error))?;
    Ok(CniResult {
        interfaces: vec![
            interface(&host_name, &host_mac, None),
            interface(target.ifname, &mac, Some(target.netns)),
        ],
        ips: leases.iter().map(|lease| ip_config(lease, Some(1))).collect(),
        routes,
        dns: if config.dns.is_empty() { dns } else { config.dns.clone() },
        ..CniResult::default()
    })
}

/// Everything behind the making of the pair; returns the hardware address of the host's end.
fn bring_up(
    config: &PtpConfig,
    target: AttachmentTarget<'_>,
    host: &mut Netlink,
    host_name: &str,
    ends: &[(IpNet, IpAddr)],
    routes: Vec<Route>,
) -> Result<Vec<u8>, Error> {
    let failed = |source| Error::Host { name: host_name.into(), source };
    veth::detect_duplicates(host_name, false);
    // The host's end first: IPv6 routes go over links that are up only.
    host.set_up(host_name).map_err(failed)?;
    let addresses: Vec<IpNet> = ends.iter().map(|(address, _)| *address).collect();
    let mut all = plan::routes_of_pod(ends);
    all.extend(routes.into_iter().map(|route| (route, None)));
    let setup = InterfaceSetup {
        ifname: target.ifname,
        addresses: &addresses,
        on_link: false,
        routes: &all,
        skip_dad: true,
    };
    veth::set_up_interface(target.netns, &setup).map_err(Error::Pod)?;
    let link = veth::await_link(host, host_name, |link| link.operational).map_err(Error::Pod)?;
    for (address, gateway) in ends {
        let how = NewAddress { on_link: true, skip_dad: true };
        match host.add_address(link.index, host_net(*gateway), how) {
            // Two addresses of one subnet have one gateway.
            Err(error) if error.is_exists() => {}
            other => other.map_err(failed)?,
        }
        host.add_route(link.index, &plan::route_to(address.addr()), None).map_err(failed)?;
    }
    ipam_scope(config).masquerade(target, &addresses)?;
    Ok(link.mac)
}

/// Detaches a pod.
pub(crate) fn del(config: &PtpConfig, target: AttachmentTarget<'_>) -> Result<(), Error> {
    Ok(ipam_scope(config).del(target)?)
}

/// Whether everything is as ADD left it.
pub(crate) fn check(
    config: &PtpConfig,
    target: AttachmentTarget<'_>,
    result: &CniResult,
) -> Result<(), Error> {
    Ok(ipam_scope(config).check(target, result, None)?)
}

/// Removes what belongs to attachments that are none of these.
pub(crate) fn gc(
    config: &PtpConfig,
    network: &str,
    home: NodeDirs<'_>,
    valid: &[ValidAttachment],
) -> Result<(), Error> {
    Ok(ipam_scope(config).gc(network, home, valid)?)
}
