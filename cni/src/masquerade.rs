//! Masquerading: what a pod sends beyond its own subnet gets the node's address.
//!
//! Owns the table `inet gantry-masquerade`: a rule for each subnet, which looks into the set of the subnet's pods; both are
//! gone with its last pod. Never touches another table. Called by `bridge` and `ptp` when `ipMasq` is set.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::nft::{
    self, Edit, Hook, Match, MemberLayout, Rule, RuleOwner, TableChain, TableLayout, Verdict, Which,
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

fn layout() -> MemberLayout {
    let jump = Rule { matches: Vec::new(), verdict: Verdict::Jump(PODS) };
    let frame = TableLayout {
        table: "gantry-masquerade",
        chains: vec![
            TableChain { name: PODS, hook: None, rules: None },
            TableChain { name: "postrouting", hook: Some(Hook::SrcnatPostrouting), rules: Some(vec![jump]) },
        ],
    };
    let rule = |subnet: IpNet, set| rule(subnet, Match::FromSet { v4: subnet.addr().is_ipv4(), set });
    MemberLayout { frame, chain: PODS, rule }
}

/// `ip saddr … ip daddr != SUBNET ip daddr != MULTICAST masquerade`
fn rule(subnet: IpNet, from: Match) -> Rule {
    let multicast = match subnet {
        IpNet::V4(_) => IpNet::new_assert(Ipv4Addr::new(224, 0, 0, 0).into(), 4),
        IpNet::V6(_) => IpNet::new_assert(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0).into(), 8),
    };
    Rule {
        matches: vec![
            Match::Family { v4: subnet.addr().is_ipv4() },
            from,
            Match::NotTo(subnet),
            Match::NotTo(multicast),
        ],
        verdict: Verdict::Masquerade,
    }
}

/// The rule that earlier versions made for an address.
fn former_rule(address: IpNet) -> Rule {
    rule(address.trunc(), Match::From(host_net(address.addr())))
}

/// The net of one address.
pub(crate) fn host_net(address: IpAddr) -> IpNet {
    IpNet::from(address)
}

/// Masquerades what these addresses, with the prefix length of their subnet, send beyond it.
pub(crate) fn add(target: AttachmentTarget<'_>, addresses: &[IpNet]) -> Result<(), Error> {
    let owner = RuleOwner::of(target);
    Ok(nft::with(|netfilter| netfilter.set_members(&layout(), &owner, &target.pod(), addresses))?)
}

/// Takes away what an attachment has, if it has anything.
pub(crate) fn del(target: AttachmentTarget<'_>) -> Result<(), Error> {
    nft::remove_members(&layout(), &Which::One(&RuleOwner::of(target))).map_err(Error::Kernel)
}

/// Takes away what attachments of a network have that are none of these.
pub(crate) fn gc(network: &str, home: NodeDirs<'_>, valid: &[ValidAttachment]) -> Result<(), Error> {
    nft::remove_members(&layout(), &Which::Each(&nft::garbage(network, home, valid))).map_err(Error::Kernel)
}

/// Whether each address is masqueraded, and no other one of the attachment.
pub(crate) fn check(target: AttachmentTarget<'_>, addresses: &[IpNet]) -> Result<(), Error> {
    let former: Vec<_> = addresses.iter().map(|address| (PODS, former_rule(*address))).collect();
    let owner = RuleOwner::of(target);
    nft::with(|netfilter| netfilter.check_members(&layout(), &owner, addresses, &former))
        .map_err(Error::Check)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_leaves_the_subnet_and_multicast_alone() {
        let subnet = "10.87.0.0/16".parse().unwrap();
        let matches = |from| {
            [
                Match::Family { v4: true },
                from,
                Match::NotTo(subnet),
                Match::NotTo("224.0.0.0/4".parse().unwrap()),
            ]
        };
        let set = Match::FromSet { v4: true, set: "pods".into() };
        assert_eq!((layout().rule)(subnet, "pods".into()).matches, matches(set));
        let address = Match::From("10.87.0.5/32".parse().unwrap());
        assert_eq!(former_rule("10.87.0.5/16".parse().unwrap()).matches, matches(address));
    }
}
