//! The rules of mapped ports, and who is in whose way: pure.
//!
//! Owns the frame of the table and what each mapping becomes. Never touches the kernel. Called by `portmap`.

use std::net::{Ipv4Addr, SocketAddr};

use ipnet::IpNet;

use super::config::{Mapping, PortmapConfig, Protocol};
use crate::masquerade::host_net;
use crate::nft::{Hook, InstalledRule, Match, Rule, RuleOwner, TableChain, TableLayout, Verdict};

/// Where packets to a mapped port are forwarded.
const PORTS: &str = "hostports";
/// Where forwarded packets get the node's address, when their answers would not come back otherwise.
const HAIRPIN: &str = "hairpin";

fn loopback() -> IpNet {
    IpNet::new_assert(Ipv4Addr::new(127, 0, 0, 0).into(), 8)
}

pub(super) fn layout() -> TableLayout {
    let to_this_host = || Rule { matches: vec![Match::ToThisHost], verdict: Verdict::Jump(PORTS) };
    let hairpin = Rule { matches: Vec::new(), verdict: Verdict::Jump(HAIRPIN) };
    let martian = Rule {
        matches: vec![Match::NotFromLoopback, Match::Family { v4: true }, Match::To(loopback())],
        verdict: Verdict::Drop,
    };
    let fixed = |name, hook, rules| TableChain { name, hook: Some(hook), rules: Some(rules) };
    TableLayout {
        table: "gantry-hostports",
        chains: vec![
            TableChain { name: PORTS, hook: None, rules: None },
            TableChain { name: HAIRPIN, hook: None, rules: None },
            fixed("prerouting", Hook::DstnatPrerouting, vec![to_this_host()]),
            fixed("output", Hook::DstnatOutput, vec![to_this_host()]),
            fixed("postrouting", Hook::SrcnatPostrouting, vec![hairpin]),
            fixed("raw", Hook::RawPrerouting, vec![martian]),
        ],
    }
}

/// A rule of a mapping, and what it says of itself in its comment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PlannedRule {
    chain: &'static str,
    rule: Rule,
    protocol: Protocol,
    on: SocketAddr,
}

impl PlannedRule {
    /// The rule with its comment: owner, port, pod.
    pub(super) fn with_comment(&self, owner: &RuleOwner, pod: &str) -> (&'static str, Rule, String) {
        let comment = format!("{} {}/{} {pod}", owner.prefix(), self.protocol.name(), self.on);
        (self.chain, self.rule.clone(), comment)
    }

    /// The rule and its chain.
    pub(super) fn in_chain(self) -> (&'static str, Rule) {
        (self.chain, self.rule)
    }
}

/// The rules of all mappings that lead to an address of a pod.
pub(super) fn rules(config: &PortmapConfig, pod: IpNet) -> Vec<PlannedRule> {
    config.mappings.iter().flat_map(|mapping| rules_of(config, mapping, pod)).collect()
}

fn rules_of(config: &PortmapConfig, mapping: &Mapping, pod: IpNet) -> Vec<PlannedRule> {
    let Some(on) = mapping.host_address(pod.addr()) else { return Vec::new() };
    let family = Match::Family { v4: pod.addr().is_ipv4() };
    let protocol = mapping.protocol.number();
    let mut matches = vec![family.clone()];
    if !on.ip().is_unspecified() {
        matches.push(Match::To(host_net(on.ip())));
    }
    matches.push(Match::Port { protocol, port: on.port() });
    let forward = Verdict::Forward { to: pod.addr(), port: mapping.container_port };
    let planned = |chain, matches, verdict| PlannedRule {
        chain,
        rule: Rule { matches, verdict },
        protocol: mapping.protocol,
        on,
    };
    let mut rules = vec![planned(PORTS, matches, forward)];
    for from in sources(config, pod) {
        let mut matches = vec![family.clone()];
        matches.extend(from.map(Match::From));
        matches.push(Match::To(host_net(pod.addr())));
        matches.push(Match::Port { protocol, port: mapping.container_port });
        // Only what came through this mapping: pods that talk to each other by a service keep their addresses.
        matches.push(Match::ForwardedFrom { port: on.port() });
        rules.push(planned(HAIRPIN, matches, Verdict::Masquerade));
    }
    rules
}

/// Whose connections get the node's address: all, or the pod's neighbours and itself, to whom it would answer directly,
/// and 127.0.0.0/8, which is no address outside. `None` stands for everybody.
fn sources(config: &PortmapConfig, pod: IpNet) -> Vec<Option<IpNet>> {
    if config.masq_all {
        return vec![None];
    }
    if !config.snat {
        return Vec::new();
    }
    let localhost = pod.addr().is_ipv4().then(|| Some(loopback()));
    std::iter::once(Some(pod.trunc())).chain(localhost).collect()
}

/// The port and the pod that has it, if a rule of another attachment is in this one's way.
pub(super) fn conflict(wanted: &PlannedRule, others: &[InstalledRule]) -> Option<(String, String)> {
    if wanted.chain != PORTS {
        return None;
    }
    others.iter().filter(|found| found.chain == PORTS).find_map(|found| {
        let mut words = found.comment.splitn(3, ' ').skip(1);
        let (protocol, at) = words.next()?.split_once('/')?;
        let at: SocketAddr = at.parse().ok()?;
        let same_address =
            at.ip() == wanted.on.ip() || at.ip().is_unspecified() || wanted.on.ip().is_unspecified();
        let clash = protocol == wanted.protocol.name()
            && at.port() == wanted.on.port()
            && at.is_ipv4() == wanted.on.is_ipv4()
            && same_address;
        let port = format!("{}/{}", at.port(), protocol.to_ascii_uppercase());
        clash.then(|| (port, words.next().unwrap_or("another pod").to_owned()))
    })
}

#[cfg(test)]
mod tests {
    use super::super::config::tests::parse;
    use super::*;
    use serde_json::json;

    fn config(more: serde_json::Value) -> PortmapConfig {
        parse(more, &json!([{"hostPort": 8080, "containerPort": 80}])).unwrap()
    }

    fn pod(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    #[test]
    fn a_port_is_forwarded_and_its_pod_and_localhost_are_masqueraded() {
        let rules = rules(&config(json!({})), pod("10.0.0.5/24"));
        assert_eq!(rules.len(), 3);
        assert_eq!(
            rules[0].rule,
            Rule {
                matches: vec![Match::Family { v4: true }, Match::Port { protocol: 6, port: 8080 }],
                verdict: Verdict::Forward { to: "10.0.0.5".parse().unwrap(), port: 80 },
            }
        );
        let back = |from: &str| Rule {
            matches: vec![
                Match::Family { v4: true },
                Match::From(pod(from)),
                Match::To(pod("10.0.0.5/32")),
                Match::Port { protocol: 6, port: 80 },
                Match::ForwardedFrom { port: 8080 },
            ],
            verdict: Verdict::Masquerade,
        };
        assert_eq!([&rules[1].rule, &rules[2].rule], [&back("10.0.0.0/24"), &back("127.0.0.0/8")]);
    }

    #[test]
    fn ipv6_has_no_localhost_and_snat_can_be_off_or_for_all() {
        assert_eq!(rules(&config(json!({})), pod("fd00::5/64")).len(), 2);
        assert_eq!(rules(&config(json!({"snat": false})), pod("10.0.0.5/24")).len(), 1);
        let all = rules(&config(json!({"masqAll": true})), pod("10.0.0.5/24"));
        assert_eq!(all.len(), 2);
        assert!(!all[1].rule.matches.iter().any(|found| matches!(found, Match::From(_))));
    }

    #[test]
    fn another_pods_port_is_in_the_way_where_both_would_match() {
        let owner = RuleOwner::new("net", crate::request::NodeDirs::default_dirs(), "c1", "eth0");
        let on = |protocol: &str, ip: &str| {
            let mapping = json!([{"hostPort": 80, "containerPort": 80, "protocol": protocol, "hostIP": ip}]);
            let pod = if ip.contains(':') { pod("fd00::5/64") } else { pod("10.0.0.5/24") };
            rules(&parse(json!({}), &mapping).unwrap(), pod).remove(0)
        };
        let found = |planned: &PlannedRule| {
            let (chain, _, comment) = planned.with_comment(&owner, "shop/web");
            InstalledRule::of(chain, &comment)
        };
        for (mine, theirs, expected) in [
            (on("tcp", ""), on("tcp", ""), true),
            (on("tcp", ""), on("tcp", "192.0.2.1"), true),
            (on("tcp", "192.0.2.1"), on("tcp", ""), true),
            (on("tcp", "192.0.2.1"), on("tcp", "192.0.2.1"), true),
            (on("tcp", "192.0.2.1"), on("tcp", "192.0.2.2"), false),
            (on("tcp", ""), on("udp", ""), false),
            (on("tcp", ""), on("tcp", "::"), false),
        ] {
            let clash = conflict(&mine, &[found(&theirs)]);
            assert_eq!(clash.is_some(), expected, "{mine:?} {theirs:?}");
            if let Some((port, pod)) = clash {
                assert_eq!((port.as_str(), pod.as_str()), ("80/TCP", "shop/web"));
            }
        }
    }
}
