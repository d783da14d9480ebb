//! The kernel half of `bridge`: makes the links and brings them up.
//!
//! Owns which messages are sent in which order. Never decides what the links look like (`plan`) and never undoes
//! (`bridge`). Called by `bridge` on the host's thread; the pod's side runs on a fresh thread inside its namespace.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use rustix::rand::GetRandomFlags;

use super::plan;
use crate::netlink::{self, Link, Netlink, VethPair};
use crate::netns;
use crate::result::Route;
use crate::sysctl;

/// How long a port may take until it passes frames on; usually it takes a few hundred microseconds.
const FORWARD_DEADLINE: Duration = Duration::from_secs(3);
const FORWARD_POLL: Duration = Duration::from_micros(200);

/// Which step failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot get random bytes")]
    Random(#[source] rustix::io::Errno),
    #[error("cannot look up link {name}")]
    Lookup {
        name: String,
        #[source]
        source: netlink::Error,
    },
    #[error("{name} exists but is not a bridge; name another one in the configuration")]
    NotABridge { name: String },
    #[error("link {name} vanished")]
    Vanished { name: String },
    #[error("cannot make bridge {name}")]
    MakeBridge {
        name: String,
        #[source]
        source: netlink::Error,
    },
    #[error("cannot bring {name} up")]
    Raise {
        name: String,
        #[source]
        source: netlink::Error,
    },
    #[error("cannot read the addresses of bridge {name}")]
    Addresses {
        name: String,
        #[source]
        source: netlink::Error,
    },
    #[error("cannot use the bridge")]
    Clash(#[source] plan::Error),
    #[error("cannot give {name} the address {address}")]
    Address {
        name: String,
        address: IpNet,
        #[source]
        source: netlink::Error,
    },
    #[error("cannot fix the hardware address of {name}")]
    Mac {
        name: String,
        #[source]
        source: netlink::Error,
    },
    #[error("cannot let the host forward packets")]
    Forwarding(#[source] sysctl::Error),
    #[error("cannot enter the pod's network namespace")]
    Netns(#[source] netns::Error),
    #[error("cannot make veth pair {host_name} and {ifname}")]
    MakePair {
        host_name: String,
        ifname: String,
        #[source]
        source: netlink::Error,
    },
    #[error("cannot open a netlink socket in the pod")]
    PodNetlink(#[source] netlink::Error),
    #[error("cannot enable IPv6 on {name}")]
    EnableIpv6 {
        name: String,
        #[source]
        source: sysctl::Error,
    },
    #[error("cannot add the route to {dst}")]
    Route {
        dst: IpNet,
        #[source]
        source: netlink::Error,
    },
    #[error("bridge port {name} does not forward after {} s", FORWARD_DEADLINE.as_secs())]
    NotForwarding { name: String },
}

/// The pair to be made for an attachment.
#[derive(Debug)]
pub(crate) struct Port<'a> {
    pub(crate) host_name: &'a str,
    pub(crate) ifname: &'a str,
    pub(crate) netns: &'a Path,
    pub(crate) mac: [u8; 6],
    pub(crate) mtu: Option<u32>,
    pub(crate) hairpin: bool,
}

/// A fresh hardware address.
pub(crate) fn random_mac() -> Result<[u8; 6], Error> {
    let mut bytes = [0; 6];
    // Reads of up to 256 bytes are never cut (getrandom(2)).
    rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty()).map_err(Error::Random)?;
    Ok(plan::local_mac(bytes))
}

/// Finds the bridge, or makes it; up in either case.
pub(crate) fn ensure_bridge(host: &mut Netlink, name: &str, mtu: Option<u32>) -> Result<Link, Error> {
    let mut bridge = lookup(host, name)?;
    if bridge.is_none() {
        match host.add_bridge(name, random_mac()?, mtu) {
            // Another ADD was faster.
            Err(error) if error.is_exists() => {}
            other => other.map_err(|source| Error::MakeBridge { name: name.into(), source })?,
        }
        bridge = lookup(host, name)?;
    }
    let bridge = bridge.ok_or_else(|| Error::Vanished { name: name.into() })?;
    if !bridge.is_bridge {
        return Err(Error::NotABridge { name: name.into() });
    }
    if !bridge.up {
        host.set_up(name).map_err(|source| Error::Raise { name: name.into(), source })?;
    }
    Ok(bridge)
}

fn lookup(host: &mut Netlink, name: &str) -> Result<Option<Link>, Error> {
    host.link(name).map_err(|source| Error::Lookup { name: name.into(), source })
}

/// Gives the bridge the gateway's address and lets the host forward.
pub(crate) fn ensure_gateway(host: &mut Netlink, bridge: &Link, gateway: IpNet) -> Result<(), Error> {
    let name = || bridge.name.clone();
    let existing = host
        .addresses(bridge.index, gateway.addr())
        .map_err(|source| Error::Addresses { name: name(), source })?;
    if plan::lacks_address(&bridge.name, &existing, gateway).map_err(Error::Clash)? {
        match host.add_address(bridge.index, gateway) {
            Err(error) if error.is_exists() => {}
            other => other.map_err(|source| Error::Address { name: name(), address: gateway, source })?,
        }
        // A bridge that someone else made may have taken its hardware address from a port; as gateway it must keep it.
        host.set_mac(&bridge.name, &bridge.mac).map_err(|source| Error::Mac { name: name(), source })?;
    }
    sysctl::enable_forwarding(gateway.addr()).map_err(Error::Forwarding)
}

/// Makes the pair: the host's end a port of the bridge, the pod's end in its namespace, both down. After an error
/// there is none.
pub(crate) fn add_pair(host: &mut Netlink, bridge: &Link, port: &Port<'_>) -> Result<(), Error> {
    let netns = netns::open(port.netns).map_err(Error::Netns)?;
    host.add_veth(&VethPair {
        host_name: port.host_name,
        bridge_index: bridge.index,
        peer_name: port.ifname,
        peer_mac: port.mac,
        peer_netns: netns.as_fd(),
        mtu: port.mtu,
    })
    .map_err(|source| Error::MakePair {
        host_name: port.host_name.into(),
        ifname: port.ifname.into(),
        source,
    })
}

/// Brings both ends up, with the pod's addresses and routes, and waits until the port forwards. Returns the hardware
/// address of the host's end.
pub(crate) fn raise(
    host: &mut Netlink,
    port: &Port<'_>,
    addresses: &[IpNet],
    routes: &[Route],
) -> Result<Vec<u8>, Error> {
    host.raise_port(port.host_name, port.hairpin)
        .map_err(|source| Error::Raise { name: port.host_name.into(), source })?;
    netns::run(port.netns, || raise_inside(port.ifname, addresses, routes)).map_err(Error::Netns)??;
    // The kernel turns the port on from a work queue. Until then it drops frames, among them the pod's first ARP
    // request, whose repetition would cost the first connection a second.
    let deadline = Instant::now() + FORWARD_DEADLINE;
    loop {
        let link =
            lookup(host, port.host_name)?.ok_or_else(|| Error::Vanished { name: port.host_name.into() })?;
        if link.forwarding {
            return Ok(link.mac);
        }
        if Instant::now() >= deadline {
            return Err(Error::NotForwarding { name: port.host_name.into() });
        }
        std::thread::sleep(FORWARD_POLL);
    }
}

/// Runs inside the pod's namespace.
fn raise_inside(ifname: &str, addresses: &[IpNet], routes: &[Route]) -> Result<(), Error> {
    let mut pod = Netlink::open().map_err(Error::PodNetlink)?;
    prepare_ipv6(ifname, addresses)?;
    pod.set_up(ifname).map_err(|source| Error::Raise { name: ifname.into(), source })?;
    let link = lookup(&mut pod, ifname)?.ok_or_else(|| Error::Vanished { name: ifname.into() })?;
    for address in addresses {
        pod.add_address(link.index, *address).map_err(|source| Error::Address {
            name: ifname.into(),
            address: *address,
            source,
        })?;
    }
    for route in routes {
        pod.add_route(link.index, route).map_err(|source| Error::Route { dst: route.dst, source })?;
    }
    Ok(())
}

/// Before the link comes up: no duplicate address detection for its link-local address, which would keep IPv6 from
/// working in the first second, and IPv6 on when it is wanted.
fn prepare_ipv6(ifname: &str, addresses: &[IpNet]) -> Result<(), Error> {
    let settings = format!("/proc/sys/net/ipv6/conf/{ifname}");
    match sysctl::ensure(format!("{settings}/accept_dad"), "0") {
        // No IPv6 in this kernel, or /proc/sys is read-only: only the detection's second is at stake.
        Err(error) if !error.is_absent() => {
            tracing::debug!(ifname, error = %crate::chain::explain(&error), "duplicate address detection stays on");
        }
        _ => {}
    }
    if addresses.iter().any(|address| address.addr().is_ipv6()) {
        sysctl::ensure(format!("{settings}/disable_ipv6"), "0")
            .map_err(|source| Error::EnableIpv6 { name: ifname.into(), source })?;
    }
    Ok(())
}
