//! A table of ours: a fixed frame of chains, and rules that belong to attachments.
//!
//! Owns the transaction. Each rule of an attachment carries a comment that begins with its owner, so that DEL and GC find
//! it without knowing addresses or ports. The table is there exactly as long as it has such a rule: the last DEL takes it
//! away whole, and the host's rules are as they were. Called by `masquerade` and `portmap`.

use std::collections::HashSet;
use std::convert::Infallible;

use super::{Error, NLM_F_ACK, NLM_F_REQUEST, Netfilter, Rule, UNSPEC, message};
use crate::request::{AttachmentTarget, NodeDirs, ValidAttachment};
use message::{BatchMessage, KernelRule};

/// How often a transaction starts anew when others keep changing rules. Each try takes a fraction of a millisecond.
pub(super) const TRIES: u32 = 200;

/// A table's name and frame.
#[derive(Debug)]
pub(crate) struct TableLayout {
    pub(crate) table: &'static str,
    /// Chains in an order in which each is there before it is jumped to.
    pub(crate) chains: Vec<TableChain>,
}

/// A chain of the frame.
#[derive(Debug)]
pub(crate) struct TableChain {
    pub(crate) name: &'static str,
    /// Who calls it; `None` for one that is jumped to.
    pub(crate) hook: Option<super::Hook>,
    /// `None`: it holds rules of attachments.
    pub(crate) rules: Option<Vec<Rule>>,
}

/// Whose rules these are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RuleOwner {
    network: u64,
    instance: u64,
}

impl RuleOwner {
    pub(crate) fn of(target: AttachmentTarget<'_>) -> RuleOwner {
        RuleOwner::new(target.network, target.home, target.container_id, target.ifname)
    }

    pub(crate) fn new(network: &str, home: NodeDirs<'_>, container_id: &str, ifname: &str) -> RuleOwner {
        RuleOwner { network: network_of(network, home), instance: hash(&[container_id, ifname]) }
    }

    /// What the comments of its rules begin with.
    pub(crate) fn prefix(&self) -> String {
        format!("{:016x}-{:016x}", self.network, self.instance)
    }

    /// Whether a rule is one of its.
    pub(crate) fn has(&self, found: &InstalledRule) -> bool {
        found.comment.starts_with(&self.prefix())
    }

    /// What the comments of all rules of a network of this node begin with.
    pub(crate) fn network_prefix(network: &str, home: NodeDirs<'_>) -> String {
        format!("{:016x}-", network_of(network, home))
    }
}

/// GC must not take another node's rules for garbage: it does not know what is valid there.
fn network_of(network: &str, home: NodeDirs<'_>) -> u64 {
    if home.is_default_dirs() {
        return hash(&[network]);
    }
    hash(&[network, &home.data_dir.to_string_lossy(), &home.cache_dir.to_string_lossy()])
}

/// FNV-1a, 64 bits: the same in every version of this program, since rules outlive it.
fn hash(parts: &[&str]) -> u64 {
    parts
        .iter()
        .flat_map(|part| part.bytes().chain([0]))
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Which rules of a network belong to none of these attachments.
pub(crate) fn garbage(
    network: &str,
    home: NodeDirs<'_>,
    valid: &[ValidAttachment],
) -> impl Fn(&InstalledRule) -> bool + use<> {
    let of_network = RuleOwner::network_prefix(network, home);
    let valid: Vec<_> =
        valid.iter().map(|valid| RuleOwner::new(network, home, &valid.container_id, &valid.ifname)).collect();
    move |found| found.comment.starts_with(&of_network) && !valid.iter().any(|owner| owner.has(found))
}

/// Takes rules away; where there is no nf_tables, there are none.
pub(crate) fn remove(layout: &TableLayout, is_garbage: impl Fn(&InstalledRule) -> bool) -> Result<(), Error> {
    let gone = Netfilter::open().map_err(Edit::Kernel).and_then(|mut netfilter| {
        netfilter.edit(layout, |found| {
            let remove = found.iter().filter(|found| is_garbage(found)).cloned().collect();
            Ok::<_, Infallible>(RuleChange { remove, add: Vec::new() })
        })
    });
    match gone {
        Err(Edit::Kernel(error)) if !error.is_unsupported() => Err(error),
        _ => Ok(()),
    }
}

/// A rule of an attachment as it stands in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InstalledRule {
    pub(crate) chain: String,
    pub(crate) comment: String,
    handle: u64,
}

impl InstalledRule {
    /// None for one of the frame.
    fn from(rule: KernelRule) -> Option<InstalledRule> {
        Some(InstalledRule { chain: rule.chain, comment: rule.comment?, handle: rule.handle })
    }
}

#[cfg(test)]
impl InstalledRule {
    pub(crate) fn of(chain: &str, comment: &str) -> InstalledRule {
        InstalledRule { chain: chain.into(), comment: comment.into(), handle: 1 }
    }
}

/// What to do with the rules that were found.
#[derive(Debug, Default)]
pub(crate) struct RuleChange {
    pub(crate) remove: Vec<InstalledRule>,
    /// Chain, rule, comment.
    pub(crate) add: Vec<(&'static str, Rule, String)>,
}

/// Why a transaction did not happen.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Edit<E> {
    #[error(transparent)]
    Kernel(#[from] Error),
    #[error(transparent)]
    Refused(E),
}

impl Netfilter {
    /// Whether the kernel lets tables be read.
    pub(crate) fn status(&mut self, layout: &TableLayout) -> Result<(), Error> {
        self.read(layout).map(drop)
    }

    /// Whether a table has the frame of `layout` and these rules of an attachment, word for word, and no more of it.
    pub(crate) fn check(
        &mut self,
        layout: &TableLayout,
        owner: &RuleOwner,
        rules: &[(&'static str, Rule)],
    ) -> Result<(), Error> {
        let standing = self.read(layout)?.1.unwrap_or_default();
        compare(layout, owner, rules, &standing)
    }

    /// Changes a table: `decide` gets the rules of attachments, and is asked again when somebody changed them meanwhile.
    pub(crate) fn edit<E>(
        &mut self,
        layout: &TableLayout,
        mut decide: impl FnMut(&[InstalledRule]) -> Result<RuleChange, E>,
    ) -> Result<(), Edit<E>> {
        for _ in 0..TRIES {
            let (generation, standing) = self.read(layout)?;
            let found =
                standing.map(|rules| rules.into_iter().filter_map(InstalledRule::from).collect::<Vec<_>>());
            let change = decide(found.as_deref().unwrap_or_default()).map_err(Edit::Refused)?;
            let messages = plan(layout, found.as_deref(), &change);
            if messages.is_empty() {
                return Ok(());
            }
            match self.commit(generation, message::FAMILY, &messages) {
                Err(error) if error.is_stale() => {}
                other => return Ok(other?),
            }
        }
        Err(Error::Restless { tries: TRIES }.into())
    }

    /// The generation and, if the table is there, its rules.
    fn read(&mut self, layout: &TableLayout) -> Result<(u32, Option<Vec<KernelRule>>), Error> {
        for _ in 0..TRIES {
            let before = self.generation()?;
            if !self.is_committed(before)? {
                continue;
            }
            let tables = self.dump("to list tables", message::GET_TABLE, message::FAMILY, &[])?;
            let is_it = |body: &[u8]| message::read_table(body).as_deref() == Some(layout.table);
            if !tables.iter().any(|answer| answer.kind == message::NEW_TABLE && is_it(&answer.body)) {
                return Ok((before, None));
            }
            let asked = message::rules_of(layout.table);
            let rules = self.dump("to list rules", message::GET_RULE, message::FAMILY, asked.as_slice())?;
            let found: Vec<_> = rules
                .iter()
                .filter(|answer| answer.kind == message::NEW_RULE)
                .filter_map(|answer| message::read_rule(&answer.body))
                // Old kernels do not filter by table.
                .filter(|rule| rule.table == layout.table)
                .collect();
            if is_whole(&found) && self.is_committed(before)? {
                return Ok((before, Some(found)));
            }
        }
        Err(Error::Restless { tries: TRIES })
    }

    /// Whether `generation` is in force as a whole. The kernel counts a generation up before its rules replace the old
    /// ones, so that a list read in between is the old one, or half of each, under the new number. And a list that is
    /// told in parts goes on where a count of rules says, which those of a commit that is being prepared are in, too: it
    /// then tells a rule again. An empty batch waits until the commit that is under way has ended, and is told when it
    /// was not the one expected.
    pub(super) fn is_committed(&mut self, generation: u32) -> Result<bool, Error> {
        self.send_batch(generation, message::FAMILY, &[])?;
        // An empty batch is answered only when it is refused: an answer of what comes next says that it was not.
        match self.generation() {
            Ok(now) => Ok(now == generation),
            Err(error) if error.is_stale() => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(super) fn generation(&mut self) -> Result<u32, Error> {
        const WHAT: &str = "to tell its generation of rules";
        let answers = match self.request(WHAT, message::GET_GENERATION, UNSPEC, &[]) {
            // It was the first word of this subsystem: what nfnetlink says when nobody answers to it.
            Err(Error::Refused { source, .. }) if is_no_listener(&source) => {
                return Err(Error::Absent(source));
            }
            other => other?,
        };
        answers
            .iter()
            .filter(|answer| answer.kind == message::NEW_GENERATION)
            .find_map(|answer| message::read_generation(&answer.body))
            .ok_or_else(|| Error::Refused { what: WHAT, source: std::io::ErrorKind::InvalidData.into() })
    }

    /// All of the messages or none, and none when the rules have changed since `generation`.
    pub(super) fn commit(
        &mut self,
        generation: u32,
        family: u8,
        messages: &[BatchMessage],
    ) -> Result<(), Error> {
        let last = self.send_batch(generation, family, messages)?;
        self.receive("the rules", last).map(drop)
    }

    /// Returns the sequence number of the last message.
    fn send_batch(&mut self, generation: u32, family: u8, messages: &[BatchMessage]) -> Result<u32, Error> {
        let mut bytes = Vec::new();
        let begin = message::generation(generation);
        self.append(
            &mut bytes,
            message::BATCH_BEGIN,
            NLM_F_REQUEST,
            UNSPEC,
            message::BATCH_OF,
            begin.as_slice(),
        );
        let mut last = 0;
        for (index, BatchMessage { kind, flags, attributes }) in messages.iter().enumerate() {
            // Refusals are told anyway; one acknowledgement, of the last message, says that all went well.
            let ack = if index + 1 == messages.len() { NLM_F_ACK } else { 0 };
            let flags = NLM_F_REQUEST | ack | flags;
            last = self.append(&mut bytes, *kind, flags, family, 0, attributes.as_slice());
        }
        self.append(&mut bytes, message::BATCH_END, NLM_F_REQUEST, UNSPEC, message::BATCH_OF, &[]);
        self.socket.send(&bytes)?;
        Ok(last)
    }
}

/// Whether each rule was told once: a commit that was prepared and given up while the list was told leaves no other trace.
/// Handles are numbers of a table.
pub(super) fn is_whole(rules: &[KernelRule]) -> bool {
    let mut handles = HashSet::new();
    rules.iter().all(|rule| handles.insert((&rule.table, rule.handle)))
}

fn is_no_listener(error: &std::io::Error) -> bool {
    use rustix::io::Errno;
    [Errno::INVAL, Errno::OPNOTSUPP, Errno::PROTONOSUPPORT]
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Chain by chain: each wanted rule against the one that stands in its place.
fn compare(
    layout: &TableLayout,
    owner: &RuleOwner,
    rules: &[(&'static str, Rule)],
    standing: &[KernelRule],
) -> Result<(), Error> {
    for chain in &layout.chains {
        let name = chain.name;
        let (whose, wanted): (_, Vec<&Rule>) = match &chain.rules {
            Some(fixed) => ("of the frame", fixed.iter().collect()),
            None => {
                ("of the pod", rules.iter().filter(|(of, _)| *of == name).map(|(_, rule)| rule).collect())
            }
        };
        let is_meant = |rule: &&KernelRule| {
            let own = rule.comment.as_ref().is_some_and(|comment| comment.starts_with(&owner.prefix()));
            rule.chain == name && (chain.rules.is_some() || own)
        };
        let found: Vec<&KernelRule> = standing.iter().filter(is_meant).collect();
        if found.len() != wanted.len() {
            return Err(Error::Count { chain: name, whose, found: found.len(), expected: wanted.len() });
        }
        if !wanted.iter().zip(&found).all(|(wanted, found)| wanted.matches_kernel(&found.expressions)) {
            return Err(Error::Changed { chain: name, whose });
        }
    }
    Ok(())
}

/// The messages of a change. `found` is `None` when there is no table.
fn plan(layout: &TableLayout, found: Option<&[InstalledRule]>, change: &RuleChange) -> Vec<BatchMessage> {
    let table = layout.table;
    if change.add.is_empty() {
        let Some(found) = found else { return Vec::new() };
        if found.iter().all(|rule| change.remove.contains(rule)) {
            return vec![message::delete_table(table)];
        }
        return change
            .remove
            .iter()
            .map(|rule| message::delete_rule(table, &rule.chain, rule.handle))
            .collect();
    }
    // The frame is written anew each time: whatever was done to it by hand, afterwards it is right.
    let mut messages = vec![message::new_table(table)];
    for chain in &layout.chains {
        messages.push(message::new_chain(table, chain.name, chain.hook));
        if let Some(rules) = &chain.rules {
            messages.push(message::flush_chain(table, chain.name));
            messages.extend(rules.iter().map(|rule| message::new_rule(table, chain.name, rule, None)));
        }
    }
    messages.extend(change.remove.iter().map(|rule| message::delete_rule(table, &rule.chain, rule.handle)));
    let added = change.add.iter();
    messages.extend(added.map(|(chain, rule, comment)| message::new_rule(table, chain, rule, Some(comment))));
    messages
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nft::Verdict;

    fn layout() -> TableLayout {
        let jump = Rule { matches: Vec::new(), verdict: Verdict::Jump("mine") };
        TableLayout {
            table: "t",
            chains: vec![
                TableChain { name: "mine", hook: None, rules: None },
                TableChain {
                    name: "hooked",
                    hook: Some(crate::nft::Hook::SrcnatPostrouting),
                    rules: Some(vec![jump]),
                },
            ],
        }
    }

    fn found(handle: u64) -> InstalledRule {
        InstalledRule { chain: "mine".into(), comment: format!("owner{handle}"), handle }
    }

    #[test]
    fn a_rule_that_is_told_twice_is_one_of_the_same_table() {
        let rule = |table: &str, handle| KernelRule {
            table: table.into(),
            chain: "c".into(),
            handle,
            comment: None,
            expressions: Vec::new(),
        };
        assert!(is_whole(&[rule("nat", 1), rule("filter", 1), rule("nat", 2)]));
        assert!(!is_whole(&[rule("nat", 1), rule("nat", 1)]));
    }

    #[test]
    fn the_last_rule_takes_the_table_with_it() {
        let all = [found(1), found(2)];
        let remove = |remove: &[InstalledRule]| RuleChange { remove: remove.into(), add: Vec::new() };
        assert_eq!(plan(&layout(), None, &remove(&[])), []);
        assert_eq!(plan(&layout(), Some(&all), &remove(&[])), []);
        assert_eq!(plan(&layout(), Some(&all), &remove(&all[..1])), [message::delete_rule("t", "mine", 1)]);
        assert_eq!(plan(&layout(), Some(&all), &remove(&all)), [message::delete_table("t")]);
        assert_eq!(
            plan(&layout(), Some(&[]), &remove(&[])),
            [message::delete_table("t")],
            "an empty one, too"
        );
    }

    #[test]
    fn adding_writes_the_frame_first() {
        let rule = Rule { matches: Vec::new(), verdict: Verdict::Drop };
        let change =
            RuleChange { remove: vec![found(1)], add: vec![("mine", rule.clone(), "owner3".into())] };
        let TableChain { rules: Some(fixed), .. } = &layout().chains[1] else { panic!() };
        assert_eq!(
            plan(&layout(), None, &change),
            [
                message::new_table("t"),
                message::new_chain("t", "mine", None),
                message::new_chain("t", "hooked", Some(crate::nft::Hook::SrcnatPostrouting)),
                message::flush_chain("t", "hooked"),
                message::new_rule("t", "hooked", &fixed[0], None),
                message::delete_rule("t", "mine", 1),
                message::new_rule("t", "mine", &rule, Some("owner3")),
            ]
        );
    }

    #[test]
    fn owners_are_told_apart() {
        let usual = NodeDirs::default_dirs();
        let owner = RuleOwner::new("net", usual, "c1", "eth0");
        assert_eq!(owner, RuleOwner::new("net", usual, "c1", "eth0"));
        assert!(owner.prefix().starts_with(&RuleOwner::network_prefix("net", usual)));
        for other in [
            RuleOwner::new("net2", usual, "c1", "eth0"),
            RuleOwner::new("net", usual, "c1e", "th0"),
            RuleOwner::new("net", usual, "c1", "eth1"),
        ] {
            assert_ne!(owner.prefix(), other.prefix());
        }
    }

    #[test]
    fn another_nodes_network_of_the_same_name_is_another_network() {
        let usual = NodeDirs::default_dirs();
        let [data, cache] = ["/a", "/b"].map(std::path::Path::new);
        let prefixes = [
            usual,
            NodeDirs { data_dir: data, ..usual },
            NodeDirs { cache_dir: cache, ..usual },
            NodeDirs { data_dir: data, cache_dir: cache },
        ]
        .map(|home| RuleOwner::network_prefix("net", home));
        let distinct: std::collections::BTreeSet<_> = prefixes.iter().collect();
        assert_eq!(distinct.len(), prefixes.len());
        // Rules outlive this program: those of the usual folders keep their name.
        assert_eq!(prefixes.first().unwrap(), &format!("{:016x}-", hash(&["net"])));
    }
}
