//! What `bridge` and `ptp` do alike: the lease around an attachment, the pair of links, and masquerading.
//!
//! Owns the order of undoing: the link goes before its address does, because an address that is still in use must not be
//! given to another pod. Never decides what the links look like: the two plugins do. Called by them alone.

use std::os::fd::AsFd;

use gantry_base::error::chain;
use ipnet::IpNet;

use crate::host_local::Allocation;
use crate::ipam::{self, Ipam};
use crate::masquerade;
use crate::netlink::{self, Netlink, VethPair};
use crate::netns;
use crate::report::run_timed;
use crate::request::{AttachmentTarget, NodeDirs, ValidAttachment};
use crate::result::CniResult;
use crate::veth;

/// Why an attachment was not made, removed or confirmed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot allocate an address")]
    Allocate(#[source] ipam::Error),
    #[error("plugin {kind} gave no address")]
    NoAddress { kind: String },
    #[error("cannot release the addresses")]
    Release(#[source] ipam::Error),
    #[error("cannot enter the pod's network namespace")]
    Netns(#[source] netns::Error),
    #[error("cannot make veth pair {host_name} and {ifname}")]
    MakePair {
        host_name: String,
        ifname: String,
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

/// What an attachment has besides its link: addresses (IPAM) and masquerading.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IpamScope<'a> {
    pub(crate) ipam: Option<&'a Ipam>,
    pub(crate) masquerade: bool,
}

/// The pair to be made: the host's end in this namespace, the pod's in its own, both down.
#[derive(Debug)]
pub(crate) struct VethPlan<'a> {
    pub(crate) host_name: &'a str,
    pub(crate) bridge_index: Option<u32>,
    pub(crate) mac: [u8; 6],
    pub(crate) mtu: Option<u32>,
}

/// Makes the pair; after an error there is none.
pub(crate) fn make_pair(
    host: &mut Netlink,
    target: AttachmentTarget<'_>,
    pair: &VethPlan<'_>,
) -> Result<(), Error> {
    let netns = netns::open(target.netns).map_err(Error::Netns)?;
    let made = host.add_veth(&VethPair {
        host_name: pair.host_name,
        bridge_index: pair.bridge_index,
        peer_name: target.ifname,
        peer_mac: pair.mac,
        peer_netns: netns.as_fd(),
        mtu: pair.mtu,
    });
    made.map_err(|source| Error::MakePair {
        host_name: pair.host_name.into(),
        ifname: target.ifname.into(),
        source,
    })
}

/// The error to report when undoing may have failed as well.
fn combine_undo_error<E: From<Error> + std::error::Error + 'static>(
    primary: E,
    undo: Result<(), Error>,
) -> E {
    match undo {
        Ok(()) => primary,
        Err(undo) => Error::Undo { primary: chain(&primary), source: Box::new(undo) }.into(),
    }
}

/// Removes a pair that could not be brought up.
pub(crate) fn undo_pair<E: From<Error> + std::error::Error + 'static>(
    host: &mut Netlink,
    host_name: &str,
    primary: E,
) -> E {
    combine_undo_error(primary, veth::unlink(host, host_name).map(drop).map_err(Error::Remove))
}

impl IpamScope<'_> {
    /// Attaches with addresses, which go back when that fails. `on_plugin` hears of the plugin that hands them out.
    pub(crate) fn add<E: From<Error> + std::error::Error + 'static>(
        &self,
        target: AttachmentTarget<'_>,
        on_plugin: &mut dyn FnMut(&str, i64, i64),
        attach: impl FnOnce(Allocation) -> Result<CniResult, E>,
    ) -> Result<CniResult, E> {
        let Some(ipam) = self.ipam else { return attach(Allocation::default()) };
        let release = || ipam.del(target).map_err(Error::Release);
        let allocation = match (run_timed(on_plugin, ipam.kind(), |_| ipam.add(target)), ipam) {
            (Ok(allocation), _) => allocation,
            // It undid itself, and what is leased to this interface is another ADD's.
            (Err(error), Ipam::HostLocal(_)) => return Err(Error::Allocate(error).into()),
            (Err(error), Ipam::External(_)) => {
                return Err(combine_undo_error(Error::Allocate(error).into(), release()));
            }
        };
        let attached = if allocation.leases.is_empty() {
            Err(Error::NoAddress { kind: ipam.kind().into() }.into())
        } else {
            attach(allocation)
        };
        attached.map_err(|primary| combine_undo_error(primary, release()))
    }

    /// Masquerades the pod's addresses if that is wanted.
    pub(crate) fn masquerade(&self, target: AttachmentTarget<'_>, addresses: &[IpNet]) -> Result<(), Error> {
        if !self.masquerade {
            return Ok(());
        }
        masquerade::add(target, addresses).map_err(Error::Masquerade)
    }

    /// Detaches a pod; what is gone already is fine, the namespace too.
    pub(crate) fn del(&self, target: AttachmentTarget<'_>) -> Result<(), Error> {
        veth::remove(target).map_err(Error::Remove)?;
        if self.masquerade {
            masquerade::del(target).map_err(Error::Unmasquerade)?;
        }
        self.ipam.map_or(Ok(()), |ipam| ipam.del(target).map_err(Error::Release))
    }

    /// Whether lease, links, addresses, routes and rules are as ADD left them. `bridge`: whose port the host's end is.
    pub(crate) fn check(
        &self,
        target: AttachmentTarget<'_>,
        result: &CniResult,
        bridge: Option<&str>,
    ) -> Result<(), Error> {
        if let Some(ipam) = self.ipam {
            ipam.check(target, result).map_err(Error::Ipam)?;
        }
        veth::check(target, result, bridge).map_err(Error::Changed)?;
        if self.masquerade {
            let addresses: Vec<IpNet> = result.addresses_of(target.ifname).map(|ip| ip.address).collect();
            masquerade::check(target, &addresses).map_err(Error::Masquerade)?;
        }
        Ok(())
    }

    /// Removes rules and leases of attachments that are none of these. Their links went with their namespaces.
    pub(crate) fn gc(
        &self,
        network: &str,
        home: NodeDirs<'_>,
        valid: &[ValidAttachment],
    ) -> Result<(), Error> {
        if self.masquerade {
            masquerade::gc(network, home, valid).map_err(Error::Unmasquerade)?;
        }
        self.ipam.map_or(Ok(()), |ipam| ipam.gc(valid).map_err(Error::Release))
    }
}
