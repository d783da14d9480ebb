//! The pod's end of a veth pair: addresses, routes, removal, and whether it is still as it was made.
//!
//! Owns what `bridge` and `ptp` have in common; `plan` decides names and hardware addresses. Never chooses addresses or
//! routes. The work inside the pod runs on a fresh thread in its namespace.

mod plan;

pub(crate) use plan::{host_name, mac_text, pod_mac};

use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use gantry_base::error::chain;
use ipnet::IpNet;
use rustix::rand::GetRandomFlags;

use crate::netlink::{self, Netlink};
use crate::netns;
use crate::request::AttachmentTarget;
use crate::result::{CniResult, Interface, Route};
use crate::sysctl;

/// How long a link may take until it passes frames on; usually it takes a few hundred microseconds.
const LINK_DEADLINE: Duration = Duration::from_secs(3);
const LINK_POLL: Duration = Duration::from_micros(200);

/// Which step failed, or what is not as it was.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot get random bytes")]
    Random(#[source] rustix::io::Errno),
    #[error("cannot open a netlink socket on the host")]
    HostNetlink(#[source] netlink::Error),
    #[error("cannot open a netlink socket in the pod")]
    PodNetlink(#[source] netlink::Error),
    #[error("cannot enter the pod's network namespace")]
    Netns(#[source] netns::Error),
    #[error("cannot look up link {name}")]
    Lookup {
        name: String,
        #[source]
        source: netlink::Error,
    },
    #[error("cannot bring {name} up")]
    BringUp {
        name: String,
        #[source]
        source: netlink::Error,
    },
    #[error("cannot enable IPv6 on {name}")]
    EnableIpv6 {
        name: String,
        #[source]
        source: sysctl::Error,
    },
    #[error("cannot give {name} the address {address}")]
    Address {
        name: String,
        address: IpNet,
        #[source]
        source: netlink::Error,
    },
    #[error("cannot add the route to {dst}")]
    Route {
        dst: IpNet,
        #[source]
        source: netlink::Error,
    },
    #[error("cannot remove link {name}")]
    Unlink {
        name: String,
        #[source]
        source: netlink::Error,
    },
    #[error("cannot read addresses and routes of {name}")]
    Read {
        name: String,
        #[source]
        source: netlink::Error,
    },
    #[error("there is no link {name}")]
    NoLink { name: String },
    #[error("link {name} is down")]
    Down { name: String },
    #[error("link {name} has hardware address {found}, not {expected}")]
    OtherMac { name: String, found: String, expected: String },
    #[error("link {name} lacks the address {address}")]
    NoAddress { name: String, address: IpNet },
    #[error("the route to {dst} is gone")]
    NoRoute { dst: IpNet },
    #[error("link {name} does not pass frames on after {} s", LINK_DEADLINE.as_secs())]
    NotForwarding { name: String },
    #[error("link {name} is no port of {bridge}")]
    NoPort { name: String, bridge: String },
}

/// How the pod's end of the pair is set up.
#[derive(Debug)]
pub(crate) struct InterfaceSetup<'a> {
    pub(crate) ifname: &'a str,
    pub(crate) addresses: &'a [IpNet],
    /// Whether an address brings the route to its subnet with it, as usual.
    pub(crate) on_link: bool,
    /// Routes, and the address that packets by them come from where it matters.
    pub(crate) routes: &'a [(Route, Option<IpAddr>)],
    /// Whether IPv6 addresses are used at once. Otherwise the kernel first asks for a second whether others have them.
    pub(crate) skip_dad: bool,
}

/// A fresh hardware address.
pub(crate) fn random_mac() -> Result<[u8; 6], Error> {
    let mut bytes = [0; 6];
    // Reads of up to 256 bytes are never cut (getrandom(2)).
    rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty()).map_err(Error::Random)?;
    Ok(plan::local_mac(bytes))
}

/// Gives the pod's end addresses and routes and brings it up.
pub(crate) fn set_up_interface(netns: &Path, setup: &InterfaceSetup<'_>) -> Result<(), Error> {
    netns::run(netns, || set_up_inside(setup)).map_err(Error::Netns)?
}

fn set_up_inside(setup: &InterfaceSetup<'_>) -> Result<(), Error> {
    let InterfaceSetup { ifname, addresses, on_link, routes, skip_dad } = *setup;
    let mut pod = Netlink::open().map_err(Error::PodNetlink)?;
    prepare_ipv6(ifname, addresses, skip_dad)?;
    pod.set_up(ifname).map_err(|source| Error::BringUp { name: ifname.into(), source })?;
    let link = lookup(&mut pod, ifname)?;
    for address in addresses {
        let how = netlink::NewAddress { on_link, skip_dad };
        pod.add_address(link.index, *address, how).map_err(|source| Error::Address {
            name: ifname.into(),
            address: *address,
            source,
        })?;
    }
    for (route, from) in routes {
        pod.add_route(link.index, route, *from).map_err(|source| Error::Route { dst: route.dst, source })?;
    }
    Ok(())
}

/// Before the link comes up: no duplicate address detection for its link-local address, which would keep IPv6 from
/// working in the first second, and IPv6 on when it is wanted.
fn prepare_ipv6(ifname: &str, addresses: &[IpNet], skip_dad: bool) -> Result<(), Error> {
    detect_duplicates(ifname, !skip_dad);
    if addresses.iter().any(|address| address.addr().is_ipv6()) {
        sysctl::ensure(format!("/proc/sys/net/ipv6/conf/{ifname}/disable_ipv6"), "0")
            .map_err(|source| Error::EnableIpv6 { name: ifname.into(), source })?;
    }
    Ok(())
}

/// Whether a link that is still down asks for a second or two, once it is up, if another has its link-local address.
/// Until then a link that forwards cannot even ask for its neighbours: packets for them come back as unreachable.
pub(crate) fn detect_duplicates(ifname: &str, wanted: bool) {
    let setting = format!("/proc/sys/net/ipv6/conf/{ifname}/accept_dad");
    match sysctl::ensure(setting, if wanted { "1" } else { "0" }) {
        // No IPv6 in this kernel, or /proc/sys is read-only: only the detection's second is at stake.
        Err(error) if !error.is_absent() => {
            tracing::debug!(ifname, error = %chain(&error), "duplicate address detection stays on");
        }
        _ => {}
    }
}

fn lookup(netlink: &mut Netlink, name: &str) -> Result<netlink::Link, Error> {
    netlink
        .link(name)
        .map_err(|source| Error::Lookup { name: name.into(), source })?
        .ok_or_else(|| Error::NoLink { name: name.into() })
}

/// Waits until a link is as it should be once both its ends are up. The kernel turns it on from a work queue. Until then
/// it drops frames, among them the pod's first question for a neighbour, whose repetition would cost a second.
pub(crate) fn await_link(
    netlink: &mut Netlink,
    name: &str,
    ready: impl Fn(&netlink::Link) -> bool,
) -> Result<netlink::Link, Error> {
    let deadline = Instant::now() + LINK_DEADLINE;
    loop {
        let link = lookup(netlink, name)?;
        if ready(&link) {
            return Ok(link);
        }
        if Instant::now() >= deadline {
            return Err(Error::NotForwarding { name: name.into() });
        }
        std::thread::sleep(LINK_POLL);
    }
}

/// An end of a pair as it stands in a result.
pub(crate) fn interface(name: &str, mac: &[u8], sandbox: Option<&Path>) -> Interface {
    let sandbox = sandbox.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
    Interface { name: name.into(), mac: mac_text(mac), sandbox, ..Interface::default() }
}

/// Removes an attachment's pair; what is gone already is fine, the namespace too.
pub(crate) fn remove(target: AttachmentTarget<'_>) -> Result<(), Error> {
    let mut host = Netlink::open().map_err(Error::HostNetlink)?;
    // One end takes the other with it. Only a pod that another runtime attached has a host end of another name.
    if unlink(&mut host, &host_name(target.container_id, target.ifname))? {
        return Ok(());
    }
    let inside = || unlink(&mut Netlink::open().map_err(Error::PodNetlink)?, target.ifname);
    match netns::run(target.netns, inside) {
        Ok(outcome) => outcome.map(drop),
        Err(error) if error.is_gone() => Ok(()),
        Err(source) => Err(Error::Netns(source)),
    }
}

/// Removes a link; false when there was none.
pub(crate) fn unlink(netlink: &mut Netlink, name: &str) -> Result<bool, Error> {
    netlink.delete_link(name).map_err(|source| Error::Unlink { name: name.into(), source })
}

/// Whether the pod's end and the host's are as the result says. `bridge`: whose port the host's end is.
pub(crate) fn check(
    target: AttachmentTarget<'_>,
    result: &CniResult,
    bridge: Option<&str>,
) -> Result<(), Error> {
    let mut host = Netlink::open().map_err(Error::HostNetlink)?;
    let master = bridge.map(|name| lookup(&mut host, name)).transpose()?;
    let own = host_name(target.container_id, target.ifname);
    // Other links on the host are other plugins', or those of another runtime, which names its own.
    let is_ours = |found: &&Interface| found.name == own || Some(found.name.as_str()) == bridge;
    for interface in result.interfaces.iter().filter(|found| found.sandbox.is_empty()).filter(is_ours) {
        let link = lookup(&mut host, &interface.name)?;
        same_mac(&link, interface)?;
        if let Some(master) = master.as_ref().filter(|master| master.index != link.index)
            && link.master != Some(master.index)
        {
            return Err(Error::NoPort { name: interface.name.clone(), bridge: master.name.clone() });
        }
    }
    netns::run(target.netns, || check_inside(target.ifname, result)).map_err(Error::Netns)?
}

fn same_mac(link: &netlink::Link, interface: &Interface) -> Result<(), Error> {
    let found = mac_text(&link.mac);
    if interface.mac.is_empty() || interface.mac.eq_ignore_ascii_case(&found) {
        return Ok(());
    }
    Err(Error::OtherMac { name: link.name.clone(), found, expected: interface.mac.clone() })
}

fn check_inside(ifname: &str, result: &CniResult) -> Result<(), Error> {
    let mut pod = Netlink::open().map_err(Error::PodNetlink)?;
    let link = lookup(&mut pod, ifname)?;
    if let Some(interface) = result.inside(ifname) {
        same_mac(&link, interface)?;
    }
    if !link.up && !result.ips.is_empty() {
        return Err(Error::Down { name: ifname.into() });
    }
    let failed = |source| Error::Read { name: ifname.into(), source };
    for ip in result.addresses_of(ifname) {
        let present = pod.addresses(link.index, ip.address.addr()).map_err(failed)?;
        if !present.contains(&ip.address) {
            return Err(Error::NoAddress { name: ifname.into(), address: ip.address });
        }
    }
    for route in &result.routes {
        // A later plugin may have changed the next hop; that there is a way at all is this plugin's part.
        if !pod.destinations(route.dst).map_err(failed)?.contains(&route.dst.trunc()) {
            return Err(Error::NoRoute { dst: route.dst });
        }
    }
    Ok(())
}
