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

pub(crate) use config::{Config, ConfigError};

use std::net::IpAddr;
use std::os::fd::AsFd;

use ipnet::IpNet;

use crate::bridge;
use crate::chain::timed;
use crate::host_local::{Allocation, ip_config};
use crate::ipam::{self, Ipam};
use crate::masquerade::{self, alone};
use crate::netlink::{self, Netlink, NewAddress, VethPair};
use crate::netns;
use crate::request::{Home, Target, ValidAttachment};
use crate::result::{CniResult, Route};
use crate::sysctl;
use crate::veth::{self, Dress, interface};

/// Why a pod is not connected, or still is.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot allocate an address")]
    Allocate(#[source] ipam::Error),
    #[error("plugin {kind} gave no address")]
    NoAddress { kind: String },
    #[error("plugin {kind} gave {address} without a gateway, which is what leads to the host")]
    NoGateway { kind: String, address: IpNet },
    #[error("cannot release the addresses")]
    Release(#[source] ipam::Error),
    #[error("cannot plan the routes")]
    Plan(#[source] bridge::PlanError),
    #[error("cannot let the host forward packets")]
    Forwarding(#[source] sysctl::Error),
    #[error("cannot open a netlink socket on the host")]
    Netlink(#[source] netlink::Error),
    #[error("cannot enter the pod's network namespace")]
    Netns(#[source] netns::Error),
    #[error("cannot make veth pair {host_name} and {ifname}")]
    MakePair {
        host_name: String,
        ifname: String,
        #[source]
        source: netlink::Error,
    },
    #[error("cannot wire the pod up")]
    Pod(#[source] veth::Error),
    #[error("cannot set {name} up on the host")]
    Host {
        name: String,
        #[source]
        source: netlink::Error,
    },
    #[error("cannot masquerade the pod")]
    Masquerade(#[source] masquerade::Error),
    #[error("cannot stop masquerading the pod")]
    Unmasquerade(#[source] masquerade::Error),
    #[error("cannot remove the pod's link")]
    Remove(#[source] veth::Error),
    #[error("the pod's link is not as it was")]
    Changed(#[source] veth::Error),
    #[error(transparent)]
    Ipam(ipam::Error),
    #[error("attachment failed ({primary}), and so did undoing it")]
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
    let ipam = &config.ipam;
    let allocated = timed(on_plugin, ipam.kind(), |_| ipam.add(target));
    let attached = allocated.map_err(Error::Allocate).and_then(|found| attach(config, target, found));
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
    let Allocation { leases, routes, dns } = allocation;
    let kind = || config.ipam.kind().to_owned();
    if leases.is_empty() {
        return Err(Error::NoAddress { kind: kind() });
    }
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
    make_pair(config, target, &mut host, &host_name, mac)?;
    let raised = raise(config, target, &mut host, &host_name, &ends, resolved);
    let host_mac = raised.map_err(|error| {
        let undo = veth::unlink(&mut host, &host_name).map(drop).map_err(Error::Remove);
        with_undo(error, undo)
    })?;
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

fn make_pair(
    config: &Config,
    target: Target<'_>,
    host: &mut Netlink,
    host_name: &str,
    mac: [u8; 6],
) -> Result<(), Error> {
    let netns = netns::open(target.netns).map_err(Error::Netns)?;
    let pair = VethPair {
        host_name,
        bridge_index: None,
        peer_name: target.ifname,
        peer_mac: mac,
        peer_netns: netns.as_fd(),
        mtu: config.mtu,
    };
    host.add_veth(&pair).map_err(|source| Error::MakePair {
        host_name: host_name.into(),
        ifname: target.ifname.into(),
        source,
    })
}

/// Everything behind the making of the pair; returns the hardware address of the host's end.
fn raise(
    config: &Config,
    target: Target<'_>,
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
    let dress =
        Dress { ifname: target.ifname, addresses: &addresses, on_link: false, routes: &all, skip_dad: true };
    veth::dress(target.netns, &dress).map_err(Error::Pod)?;
    let link = veth::await_link(host, host_name, |link| link.operational).map_err(Error::Pod)?;
    for (address, gateway) in ends {
        let how = NewAddress { on_link: true, skip_dad: true };
        match host.add_address(link.index, alone(*gateway), how) {
            // Two addresses of one subnet have one gateway.
            Err(error) if error.is_exists() => {}
            other => other.map_err(failed)?,
        }
        host.add_route(link.index, &plan::route_to(address.addr()), None).map_err(failed)?;
    }
    if config.ip_masq {
        masquerade::add(target, &addresses).map_err(Error::Masquerade)?;
    }
    Ok(link.mac)
}

/// Detaches a pod; what is gone already is fine. The lease goes last: an address in use must not be given again.
pub(crate) fn del(config: &Config, target: Target<'_>) -> Result<(), Error> {
    veth::remove(target).map_err(Error::Remove)?;
    if config.ip_masq {
        masquerade::del(target).map_err(Error::Unmasquerade)?;
    }
    config.ipam.del(target).map_err(Error::Release)
}

/// Whether lease, links, addresses, routes and rules are as ADD left them.
pub(crate) fn check(config: &Config, target: Target<'_>, result: &CniResult) -> Result<(), Error> {
    config.ipam.check(target, result).map_err(Error::Ipam)?;
    veth::check(target, result, None).map_err(Error::Changed)?;
    if config.ip_masq {
        let addresses: Vec<IpNet> = result.addresses_of(target.ifname).map(|ip| ip.address).collect();
        masquerade::check(target, &addresses).map_err(Error::Masquerade)?;
    }
    Ok(())
}

/// Removes rules and leases of attachments that are none of these.
pub(crate) fn gc(
    config: &Config,
    network: &str,
    home: Home<'_>,
    valid: &[ValidAttachment],
) -> Result<(), Error> {
    if config.ip_masq {
        masquerade::gc(network, home, valid).map_err(Error::Unmasquerade)?;
    }
    config.ipam.gc(valid).map_err(Error::Release)
}
