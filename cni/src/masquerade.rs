//! Masquerading: what a pod sends beyond its own subnet gets the node's address.
//!
//! Owns the table `inet gantry-masquerade`: a rule for each address of an attachment, which are gone with it. Never
//! touches another table. Called by `bridge` and `ptp` when `ipMasq` is set.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::nft::{self, Change, Edit, Fixed, Found, Hook, Layout, Match, Netfilter, Owner, Rule, Verdict};
use crate::request::{Home, Target, ValidAttachment};

const PODS: &str = "pods";

/// Why packets of a pod are not masqueraded, or still are.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot change table inet gantry-masquerade of nftables")]
    Kernel(#[source] nft::Error),
    #[error("table inet gantry-masquerade of nftables has {found} rules of the pod, not {expected}")]
    Missing { found: usize, expected: usize },
}

impl From<Edit<std::convert::Infallible>> for Error {
    fn from(error: Edit<std::convert::Infallible>) -> Error {
        match error {
            Edit::Kernel(source) => Error::Kernel(source),
            Edit::Refused(never) => match never {},
        }
    }
}

fn layout() -> Layout {
    let jump = Rule { matches: Vec::new(), verdict: Verdict::Jump(PODS) };
    Layout {
        table: "gantry-masquerade",
        chains: vec![
            Fixed { name: PODS, hook: None, rules: None },
            Fixed { name: "postrouting", hook: Some(Hook::SrcnatPostrouting), rules: Some(vec![jump]) },
        ],
    }
}

/// `ip saddr POD ip daddr != SUBNET ip daddr != MULTICAST masquerade`
fn rule(address: IpNet) -> Rule {
    let multicast = match address {
        IpNet::V4(_) => IpNet::new_assert(Ipv4Addr::new(224, 0, 0, 0).into(), 4),
        IpNet::V6(_) => IpNet::new_assert(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0).into(), 8),
    };
    Rule {
        matches: vec![
            Match::Family { v4: address.addr().is_ipv4() },
            Match::From(alone(address.addr())),
            Match::NotTo(address.trunc()),
            Match::NotTo(multicast),
        ],
        verdict: Verdict::Masquerade,
    }
}

/// The net of one address.
pub(crate) fn alone(address: IpAddr) -> IpNet {
    IpNet::from(address)
}

fn is_of(found: &Found, owner: &Owner) -> bool {
    found.comment.starts_with(&owner.prefix())
}

fn owner(target: Target<'_>) -> Owner {
    Owner::of(target)
}

/// Masquerades what these addresses, with the prefix length of their subnet, send beyond it.
pub(crate) fn add(target: Target<'_>, addresses: &[IpNet]) -> Result<(), Error> {
    let owner = owner(target);
    let comment = format!("{} {}", owner.prefix(), target.pod());
    let mut netfilter = Netfilter::open().map_err(Error::Kernel)?;
    Ok(netfilter.edit(&layout(), |found| {
        let remove = found.iter().filter(|found| is_of(found, &owner)).cloned().collect();
        let add = addresses.iter().map(|address| (PODS, rule(*address), comment.clone())).collect();
        Ok(Change { remove, add })
    })?)
}

/// Takes an attachment's rules away, if it has any.
pub(crate) fn del(target: Target<'_>) -> Result<(), Error> {
    let owner = owner(target);
    remove(|found| is_of(found, &owner))
}

/// Takes away the rules of a network whose attachment is none of these.
pub(crate) fn gc(network: &str, home: Home<'_>, valid: &[ValidAttachment]) -> Result<(), Error> {
    let garbage = garbage(network, home, valid);
    remove(|found| garbage(found))
}

/// Which rules of a network belong to no valid attachment.
pub(crate) fn garbage(
    network: &str,
    home: Home<'_>,
    valid: &[ValidAttachment],
) -> impl Fn(&Found) -> bool + use<> {
    let of_network = Owner::network_prefix(network, home);
    let valid: Vec<String> = valid
        .iter()
        .map(|valid| Owner::new(network, home, &valid.container_id, &valid.ifname).prefix())
        .collect();
    move |found| {
        found.comment.starts_with(&of_network)
            && !valid.iter().any(|prefix| found.comment.starts_with(prefix))
    }
}

fn remove(is_garbage: impl Fn(&Found) -> bool) -> Result<(), Error> {
    let gone = Netfilter::open().map_err(Edit::Kernel).and_then(|mut netfilter| {
        netfilter.edit(&layout(), |found| {
            let remove = found.iter().filter(|found| is_garbage(found)).cloned().collect();
            Ok(Change { remove, add: Vec::new() })
        })
    });
    match gone {
        Err(Edit::Kernel(error)) if error.is_unsupported() => Ok(()),
        other => Ok(other?),
    }
}

/// Whether each address has its rule.
pub(crate) fn check(target: Target<'_>, addresses: &[IpNet]) -> Result<(), Error> {
    let owner = owner(target);
    let found =
        Netfilter::open().and_then(|mut netfilter| netfilter.found(&layout())).map_err(Error::Kernel)?;
    let found = found.iter().filter(|found| is_of(found, &owner)).count();
    if found == addresses.len() {
        return Ok(());
    }
    Err(Error::Missing { found, expected: addresses.len() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_leaves_the_subnet_and_multicast_alone() {
        let rule = rule("10.87.0.5/16".parse().unwrap());
        assert_eq!(
            rule.matches,
            [
                Match::Family { v4: true },
                Match::From("10.87.0.5/32".parse().unwrap()),
                Match::NotTo("10.87.0.0/16".parse().unwrap()),
                Match::NotTo("224.0.0.0/4".parse().unwrap()),
            ]
        );
    }
}
