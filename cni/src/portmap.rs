//! The plugin `portmap`: ports of the node that lead to a pod.
//!
//! Owns the table `inet gantry-hostports`. Traffic to an address of this host and a mapped port is forwarded, whether it
//! comes from elsewhere, from the host itself (127.0.0.1 too, IPv4 only) or from the pod (hairpin). Never touches
//! another table, and never takes a port from a pod that has it: the error names both. `config` and `plan` decide,
//! `listener` looks whether a process of the host has the port. Called by the chain behind the plugin that gave the pod
//! its address.

mod config;
mod listener;
mod plan;

pub(crate) use config::{PortmapConfig, PortmapConfigError};

use std::net::IpAddr;

use gantry_base::error::chain;
use ipnet::IpNet;

use crate::masquerade;
use crate::netlink::{self, Netlink};
use crate::nft::{self, Edit, InstalledRule, RuleChange, RuleOwner, conntrack};
use crate::request::{AttachmentTarget, NodeDirs, ValidAttachment};
use crate::result::CniResult;
use crate::sysctl;
use config::Mapping;

const UDP: u8 = 17;

/// Why a port does not lead to its pod, or still does.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot change table inet gantry-hostports of nftables")]
    Kernel(#[source] nft::Error),
    #[error("host port {port} is taken by {owner}, so {pod} cannot have it; change one of the two")]
    Taken { port: String, owner: String, pod: String },
    #[error(
        "a process of the host listens on host port {port}, so {pod} cannot have it; end it or change the port"
    )]
    Listened { port: String, pod: String },
    #[error("the host has no route to {address}")]
    NoRoute {
        address: IpAddr,
        #[source]
        source: netlink::Error,
    },
    #[error("cannot let 127.0.0.1 reach the pod")]
    Localnet(#[source] sysctl::Error),
    #[error("table inet gantry-hostports of nftables is not as it was")]
    Check(#[source] nft::Error),
}

impl From<Edit<Error>> for Error {
    fn from(error: Edit<Error>) -> Error {
        match error {
            Edit::Kernel(source) => Error::Kernel(source),
            Edit::Refused(error) => error,
        }
    }
}

/// The pod's first address of each family: that is where its ports are.
fn addresses(target: AttachmentTarget<'_>, result: &CniResult) -> Vec<IpNet> {
    let all = || result.addresses_of(target.ifname).map(|ip| ip.address);
    let v4 = all().find(|address| address.addr().is_ipv4());
    v4.into_iter().chain(all().find(|address| address.addr().is_ipv6())).collect()
}

/// Forwards the configuration's ports to the pod of `previous`.
pub(crate) fn add(
    config: &PortmapConfig,
    target: AttachmentTarget<'_>,
    previous: &CniResult,
) -> Result<(), Error> {
    if config.mappings.is_empty() {
        return Ok(());
    }
    let owner = RuleOwner::of(target);
    let addresses = addresses(target, previous);
    let rules: Vec<_> = addresses.iter().flat_map(|address| plan::rules(config, *address)).collect();
    refuse_listeners(config, target, &addresses)?;
    let decide = |found: &[InstalledRule]| {
        let (own, others): (Vec<_>, Vec<_>) =
            found.iter().cloned().partition(|found| found.is_of(|of| *of == owner));
        if let Some((port, taken_by)) = rules.iter().find_map(|rule| plan::conflict(rule, &others)) {
            return Err(Edit::Refused(Error::Taken { port, owner: taken_by, pod: target.pod() }));
        }
        let add = rules.iter().map(|rule| rule.with_comment(&owner, &target.pod())).collect();
        Ok(RuleChange::of_rules(own, add))
    };
    nft::with(|netfilter| netfilter.edit(&plan::layout(), |_, found| decide(found)))?;
    let opened = open_localhost(config, &addresses);
    if opened.is_err() {
        // A failed ADD leaves nothing.
        if let Err(undo) = del(config, target) {
            tracing::warn!(error = %chain(&undo), "rules of a failed port mapping are left behind");
        }
    }
    forget_flows(config, &addresses);
    opened
}

fn refuse_listeners(
    config: &PortmapConfig,
    target: AttachmentTarget<'_>,
    addresses: &[IpNet],
) -> Result<(), Error> {
    let on = |mapping: &Mapping| {
        addresses.iter().find_map(|address| {
            mapping.host_address(address.addr()).filter(|port| listener::has(mapping.protocol, *port))
        })
    };
    match config.mappings.iter().find_map(|mapping| on(mapping).map(|port| mapping.name(port))) {
        None => Ok(()),
        Some(port) => Err(Error::Listened { port, pod: target.pod() }),
    }
}

/// The kernel takes packets from 127.0.0.0/8 that leave the host for nonsense unless the way out allows them. The
/// table's chain `raw` keeps others from using that to reach what listens on 127.0.0.1 (CVE-2020-8558).
fn open_localhost(config: &PortmapConfig, addresses: &[IpNet]) -> Result<(), Error> {
    let v4 = addresses.iter().map(IpNet::addr).find(IpAddr::is_ipv4);
    let Some(address) = v4.filter(|_| config.snat) else { return Ok(()) };
    let no_route = |source| Error::NoRoute { address, source };
    let link = Netlink::open().and_then(|mut host| host.way_to(address)).map_err(no_route)?;
    sysctl::ensure(format!("/proc/sys/net/ipv4/conf/{link}/route_localnet"), "1").map_err(Error::Localnet)
}

/// Flows of UDP that began before the rules changed go on by the old ones until they are forgotten. Ports only: they are
/// an attempt to help, not a part of the mapping.
fn forget_flows(config: &PortmapConfig, addresses: &[IpNet]) {
    for v4 in [true, false] {
        let ports: Vec<_> = config
            .mappings
            .iter()
            .filter(|mapping| mapping.protocol.number() == UDP)
            .flat_map(|mapping| addresses.iter().filter_map(|address| mapping.host_address(address.addr())))
            .filter(|port| port.is_ipv4() == v4)
            .map(|port| (port.ip(), port.port()))
            .collect();
        if let Err(error) = conntrack::forget_udp(v4, &ports) {
            tracing::debug!(error = %chain(&error), "old flows of UDP are not forgotten");
        }
    }
}

/// Takes the pod's ports back, if it has any; ports that the configuration does not name, too.
pub(crate) fn del(config: &PortmapConfig, target: AttachmentTarget<'_>) -> Result<(), Error> {
    let owner = RuleOwner::of(target);
    nft::remove(&plan::layout(), |of| *of == owner).map_err(Error::Kernel)?;
    // The addresses are not known any more, and do not matter: ports do.
    forget_flows(config, &[masquerade::host_net(config::ANY_V4), masquerade::host_net(config::ANY_V6)]);
    Ok(())
}

/// Takes back the ports of a network's attachments that are none of these.
pub(crate) fn gc(network: &str, home: NodeDirs<'_>, valid: &[ValidAttachment]) -> Result<(), Error> {
    nft::remove(&plan::layout(), nft::garbage(network, home, valid)).map_err(Error::Kernel)
}

/// Whether every mapping has its rules, and the rules are called.
pub(crate) fn check(
    config: &PortmapConfig,
    target: AttachmentTarget<'_>,
    result: &CniResult,
) -> Result<(), Error> {
    let rules: Vec<_> = addresses(target, result)
        .iter()
        .flat_map(|address| plan::rules(config, *address))
        .map(plan::PlannedRule::in_chain)
        .collect();
    if rules.is_empty() {
        return Ok(());
    }
    let owner = RuleOwner::of(target);
    nft::with(|netfilter| netfilter.check(&plan::layout(), &owner, &rules)).map_err(Error::Check)
}

/// Whether the kernel has what ports need.
pub(crate) fn status() -> Result<(), Error> {
    nft::with(|netfilter| netfilter.status(&plan::layout())).map_err(Error::Kernel)
}

impl Mapping {
    /// The port in words: `8080/TCP`, or with the address that it was asked for on.
    fn name(&self, port: std::net::SocketAddr) -> String {
        let protocol = self.protocol.name().to_ascii_uppercase();
        if port.ip().is_unspecified() {
            format!("{}/{protocol}", port.port())
        } else {
            format!("{port}/{protocol}")
        }
    }
}
