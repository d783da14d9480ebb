//! The rules of kube-proxy and kubelets: tables `kube-proxy`, and chains `KUBE-…` with the jumps into them, as iptables
//! has them in nf_tables. Owns what of a table is theirs, and the transaction that takes it away; rules of others stay.
//! Rules of the older interface (iptables-legacy) are another part of the kernel. Called by [`crate::leftovers`].

use std::fmt;

use super::message::{self, BatchMessage, KernelRule};
use super::table::{TRIES, is_whole};
use super::{Error, Netfilter, attr};

/// Whose tables; `NFPROTO_IPV4` and `NFPROTO_IPV6`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Family {
    Ip,
    Ip6,
}

impl Family {
    pub(crate) const ALL: [Family; 2] = [Family::Ip, Family::Ip6];

    fn number(self) -> u8 {
        match self {
            Family::Ip => 2,
            Family::Ip6 => 10,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::Ip => "ip",
            Family::Ip6 => "ip6",
        })
    }
}

/// `ip nat`.
pub(crate) type NftTable = (Family, String);

/// Of kube-proxy's mode nftables, whole.
const OWN: &str = "kube-proxy";
/// Those that iptables makes when it is first used.
const SHARED: [&str; 5] = ["filter", "nat", "mangle", "raw", "security"];
const PREFIX: &str = "KUBE-";

/// The tables of both families; none where there is no nf_tables.
pub(crate) fn tables() -> Result<Vec<NftTable>, Error> {
    let listed: Result<_, Error> = super::with(|netfilter| {
        let mut found = Vec::new();
        for family in Family::ALL {
            found.extend(netfilter.tables(family)?.into_iter().map(|name| (family, name)));
        }
        Ok(found)
    });
    match listed {
        Err(error) if error.is_unsupported() => Ok(Vec::new()),
        listed => listed,
    }
}

/// Takes away what is theirs, and tables of iptables that were not there `before` and are empty then. Tells how many
/// chains and tables went.
pub(crate) fn remove(before: &[NftTable]) -> Result<usize, Error> {
    let removed: Result<_, Error> = super::with(|netfilter| {
        let mut count = 0;
        for family in Family::ALL {
            count += netfilter.clear(family, before)?;
        }
        Ok(count)
    });
    match removed {
        Err(error) if error.is_unsupported() => Ok(0),
        removed => removed,
    }
}

/// What a family has.
#[derive(Debug, Default)]
struct Ruleset {
    tables: Vec<String>,
    /// Table and name.
    chains: Vec<(String, String)>,
    rules: Vec<KernelRule>,
}

impl Netfilter {
    fn tables(&mut self, family: Family) -> Result<Vec<String>, Error> {
        // Nobody answers at all where there is no nf_tables.
        self.generation()?;
        let tables = self.dump("to list tables", message::GET_TABLE, family.number(), &[])?;
        let tables = tables.iter().filter(|answer| answer.kind == message::NEW_TABLE);
        Ok(tables.filter_map(|answer| message::read_table(&answer.body)).collect())
    }

    fn ruleset(&mut self, family: Family) -> Result<Ruleset, Error> {
        let tables = self.tables(family)?;
        let chains = self.dump("to list chains", message::GET_CHAIN, family.number(), &[])?;
        let rules = self.dump("to list rules", message::GET_RULE, family.number(), &[])?;
        let of = |kind: u16| move |answer: &&super::NftReply| answer.kind == kind;
        Ok(Ruleset {
            tables,
            chains: chains
                .iter()
                .filter(of(message::NEW_CHAIN))
                .filter_map(|answer| message::read_chain(&answer.body))
                .collect(),
            rules: rules
                .iter()
                .filter(of(message::NEW_RULE))
                .filter_map(|answer| message::read_rule(&answer.body))
                .collect(),
        })
    }

    fn clear(&mut self, family: Family, before: &[NftTable]) -> Result<usize, Error> {
        for _ in 0..TRIES {
            let generation = self.generation()?;
            if !self.is_committed(generation)? {
                continue;
            }
            let ruleset = self.ruleset(family)?;
            if !is_whole(&ruleset.rules) || !self.is_committed(generation)? {
                continue;
            }
            let known = |table: &str| before.iter().any(|(of, name)| *of == family && name == table);
            let (messages, count) = plan(&ruleset, known);
            if messages.is_empty() {
                return Ok(0);
            }
            match self.commit(generation, family.number(), &messages) {
                Err(error) if error.is_stale() => {}
                done => return done.map(|()| count),
            }
        }
        Err(Error::Restless { tries: TRIES })
    }
}

/// The messages, and of how many chains and tables they are the end.
fn plan(ruleset: &Ruleset, known: impl Fn(&str) -> bool) -> (Vec<BatchMessage>, usize) {
    let mut messages = Vec::new();
    let mut ends = Vec::new();
    for table in &ruleset.tables {
        let is_theirs = |chain: &str| chain.starts_with(PREFIX);
        let rules = || ruleset.rules.iter().filter(|rule| rule.table == *table);
        let jumps = || {
            rules().filter(|rule| {
                !is_theirs(&rule.chain) && jump(&rule.expressions).is_some_and(|to| is_theirs(&to))
            })
        };
        let chains: Vec<&str> = ruleset
            .chains
            .iter()
            .filter(|(of, name)| of == table && is_theirs(name))
            .map(|(_, name)| name.as_str())
            .collect();
        let shared = SHARED.contains(&table.as_str());
        let others = rules().filter(|rule| !is_theirs(&rule.chain)).count() - jumps().count();
        if table == OWN || shared && !chains.is_empty() && others == 0 && !known(table) {
            ends.push(message::delete_table(table));
        } else if shared {
            messages.extend(jumps().map(|rule| message::delete_rule(table, &rule.chain, rule.handle)));
            // One may jump to another: all are empty before the first goes.
            messages.extend(chains.iter().map(|chain| message::flush_chain(table, chain)));
            ends.extend(chains.iter().map(|chain| message::delete_chain(table, chain)));
        }
    }
    let count = ends.len();
    messages.extend(ends);
    (messages, count)
}

/// The chain that a rule goes to, if it goes to one: `NFTA_LIST_ELEM` of an expression `immediate` whose
/// `NFTA_IMMEDIATE_DATA` is an `NFTA_DATA_VERDICT` with an `NFTA_VERDICT_CHAIN`.
fn jump(expressions: &[u8]) -> Option<String> {
    attr::read(expressions).find_map(|(_, expression)| {
        let name = attr::text(attr::find(expression, 1)?);
        let chain = attr::path(expression, &[2, 2, 2, 2])?;
        (name == "immediate").then(|| attr::text(chain))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nft::{Rule, Verdict};

    fn rule(table: &str, chain: &str, handle: u64, verdict: Verdict) -> KernelRule {
        let expressions = Rule { matches: Vec::new(), verdict }.expressions().as_slice().to_vec();
        KernelRule { table: table.into(), chain: chain.into(), handle, comment: None, expressions }
    }

    fn chain(table: &str, name: &str) -> (String, String) {
        (table.into(), name.into())
    }

    /// As kube-proxy leaves a machine: nat is shared with docker, filter is its own.
    fn ruleset() -> Ruleset {
        Ruleset {
            tables: ["nat", "filter", "kube-proxy", "other"].map(str::to_owned).into(),
            chains: vec![
                chain("nat", "PREROUTING"),
                chain("nat", "DOCKER"),
                chain("nat", "KUBE-SERVICES"),
                chain("nat", "KUBE-MARK-MASQ"),
                chain("filter", "INPUT"),
                chain("filter", "KUBE-FIREWALL"),
                chain("other", "KUBE-MINE"),
            ],
            rules: vec![
                rule("nat", "PREROUTING", 1, Verdict::Jump("KUBE-SERVICES")),
                rule("nat", "PREROUTING", 2, Verdict::Jump("DOCKER")),
                rule("nat", "KUBE-SERVICES", 3, Verdict::Jump("KUBE-MARK-MASQ")),
                rule("filter", "INPUT", 4, Verdict::Jump("KUBE-FIREWALL")),
                rule("filter", "KUBE-FIREWALL", 5, Verdict::Drop),
                rule("other", "KUBE-MINE", 6, Verdict::Drop),
            ],
        }
    }

    #[test]
    fn a_jump_is_told_from_other_rules() {
        assert_eq!(
            jump(&rule("t", "c", 1, Verdict::Jump("KUBE-SERVICES")).expressions),
            Some("KUBE-SERVICES".into())
        );
        assert_eq!(jump(&rule("t", "c", 1, Verdict::Drop).expressions), None);
        assert_eq!(jump(&rule("t", "c", 1, Verdict::Masquerade).expressions), None);
        assert_eq!(jump(&[1, 2, 3]), None);
    }

    #[test]
    fn their_chains_go_with_the_jumps_into_them_and_the_rest_stays() {
        let (messages, count) = plan(&ruleset(), |_| true);
        assert_eq!(count, 4);
        assert_eq!(
            messages,
            [
                message::delete_rule("nat", "PREROUTING", 1),
                message::flush_chain("nat", "KUBE-SERVICES"),
                message::flush_chain("nat", "KUBE-MARK-MASQ"),
                message::delete_rule("filter", "INPUT", 4),
                message::flush_chain("filter", "KUBE-FIREWALL"),
                message::delete_chain("nat", "KUBE-SERVICES"),
                message::delete_chain("nat", "KUBE-MARK-MASQ"),
                message::delete_chain("filter", "KUBE-FIREWALL"),
                message::delete_table("kube-proxy"),
            ]
        );
        assert_eq!(plan(&Ruleset::default(), |_| false), (Vec::new(), 0));
    }

    #[test]
    fn a_table_that_only_they_used_goes_whole_unless_it_was_there_before() {
        let (messages, count) = plan(&ruleset(), |_| false);
        assert_eq!(count, 4, "docker's rule keeps nat");
        assert!(messages.contains(&message::delete_table("filter")), "{messages:?}");
        assert!(!messages.contains(&message::delete_table("nat")), "{messages:?}");
        let mut alone = ruleset();
        alone.rules.remove(1);
        let (messages, _) = plan(&alone, |_| false);
        assert_eq!(messages, ["nat", "filter", "kube-proxy"].map(message::delete_table));
    }
}
