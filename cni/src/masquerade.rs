//! Masquerading: what a pod sends beyond its own subnet gets the node's address.
//!
//! Owns the table `inet gantry-masquerade`: a rule for each address of an attachment, which are gone with it. Never
//! touches another table. Called by `bridge` and `ptp` when `ipMasq` is set.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::nft::{
    self, Edit, Hook, Match, Netfilter, Rule, RuleChange, RuleOwner, TableChain, TableLayout, Verdict,
};
use crate::request::{AttachmentTarget, NodeDirs, ValidAttachment};

const PODS: &str = "pods";

/// Why packets of a pod are not masqueraded, or still are.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot change table inet gantry-masquerade of nftables")]
    Kernel(#[source] nft::Error),
    #[error("table inet gantry-masquerade of nftables is not as it was")]
    Check(#[source] nft::Error),
}

impl From<Edit<std::convert::Infallible>> for Error {
    fn from(error: Edit<std::convert::Infallible>) -> Error {
        match error {
            Edit::Kernel(source) => Error::Kernel(source),
            Edit::Refused(never) => match never {},
        }
    }
}

fn layout() -> TableLayout {
    let jump = Rule { matches: Vec::new(), verdict: Verdict::Jump(PODS) };
    TableLayout {
        table: "gantry-masquerade",
        chains: vec![
            TableChain { name: PODS, hook: None, rules: None },
            TableChain { name: "postrouting", hook: Some(Hook::SrcnatPostrouting), rules: Some(vec![jump]) },
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
            Match::From(host_net(address.addr())),
            Match::NotTo(address.trunc()),
            Match::NotTo(multicast),
        ],
        verdict: Verdict::Masquerade,
    }
}

/// The net of one address.
pub(crate) fn host_net(address: IpAddr) -> IpNet {
    IpNet::from(address)
}

/// Masquerades what these addresses, with the prefix length of their subnet, send beyond it.
pub(crate) fn add(target: AttachmentTarget<'_>, addresses: &[IpNet]) -> Result<(), Error> {
    let owner = RuleOwner::of(target);
    let comment = format!("{} {}", owner.prefix(), target.pod());
    let mut netfilter = Netfilter::open().map_err(Error::Kernel)?;
    Ok(netfilter.edit(&layout(), |found| {
        let remove = found.iter().filter(|found| owner.has(found)).cloned().collect();
        let add = addresses.iter().map(|address| (PODS, rule(*address), comment.clone())).collect();
        Ok(RuleChange { remove, add })
    })?)
}

/// Takes an attachment's rules away, if it has any.
pub(crate) fn del(target: AttachmentTarget<'_>) -> Result<(), Error> {
    let owner = RuleOwner::of(target);
    nft::remove(&layout(), |found| owner.has(found)).map_err(Error::Kernel)
}

/// Takes away the rules of a network whose attachment is none of these.
pub(crate) fn gc(network: &str, home: NodeDirs<'_>, valid: &[ValidAttachment]) -> Result<(), Error> {
    nft::remove(&layout(), nft::garbage(network, home, valid)).map_err(Error::Kernel)
}

/// Whether each address has its rule, and the rules are called.
pub(crate) fn check(target: AttachmentTarget<'_>, addresses: &[IpNet]) -> Result<(), Error> {
    let rules: Vec<_> = addresses.iter().map(|address| (PODS, rule(*address))).collect();
    Netfilter::open()
        .and_then(|mut netfilter| netfilter.check(&layout(), &RuleOwner::of(target), &rules))
        .map_err(Error::Check)
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
