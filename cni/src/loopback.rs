//! The plugin `loopback`: brings `lo` of a namespace up.
//!
//! Owns nothing that would need undoing: `lo` goes with its namespace, and the kernel gives it its addresses. Called by
//! the chain for every attachment, and again when a configuration names it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use crate::netlink::{self, Netlink};
use crate::netns;
use crate::result::{CniResult, Interface, IpConfig};

const LO: &str = "lo";

/// Why `lo` is not up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot reach the loopback interface")]
    Netns(#[source] netns::Error),
    #[error("cannot bring lo up")]
    Up(#[source] netlink::Error),
    #[error("cannot read lo")]
    Read(#[source] netlink::Error),
    #[error("loopback interface is down")]
    Down,
}

/// Brings `lo` of the namespace up.
pub(crate) fn up(netns: &Path) -> Result<(), Error> {
    netns::run(netns, || Netlink::open()?.set_up(LO)).map_err(Error::Netns)?.map_err(Error::Up)
}

/// Brings it up and says what it is, for a chain that begins with it.
pub(crate) fn add(netns: &Path) -> Result<CniResult, Error> {
    up(netns)?;
    let addresses = || {
        let mut pod = Netlink::open()?;
        let Some(link) = pod.link(LO)? else { return Ok(Vec::new()) };
        let mut found = pod.addresses(link.index, IpAddr::V4(Ipv4Addr::LOCALHOST))?;
        found.extend(pod.addresses(link.index, IpAddr::V6(Ipv6Addr::LOCALHOST))?);
        Ok(found)
    };
    let found = netns::run(netns, addresses).map_err(Error::Netns)?.map_err(Error::Read)?;
    let interface = Interface {
        name: LO.into(),
        mac: "00:00:00:00:00:00".into(),
        sandbox: netns.to_string_lossy().into_owned(),
        ..Interface::default()
    };
    let ips = found
        .into_iter()
        .map(|address| IpConfig { version: None, interface: Some(0), address, gateway: None })
        .collect();
    Ok(CniResult { interfaces: vec![interface], ips, ..CniResult::default() })
}

/// Whether it is up.
pub(crate) fn check(netns: &Path) -> Result<(), Error> {
    let link = netns::run(netns, || Netlink::open()?.link(LO)).map_err(Error::Netns)?.map_err(Error::Read)?;
    if link.is_some_and(|link| link.up) { Ok(()) } else { Err(Error::Down) }
}
