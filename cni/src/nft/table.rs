//! A table of ours: a fixed frame of chains, and rules that belong to attachments.
//!
//! Owns the transaction. Each rule of an attachment carries a comment that begins with its owner, so that DEL and GC find
//! it without knowing addresses or ports. The table is there exactly as long as it has a rule with a comment: the last DEL
//! takes it away whole, and the host's rules are as they were. Called by `members` and `portmap`.

use std::collections::HashSet;
use std::convert::Infallible;

use super::attr::Attrs;
use super::{Error, NLM_F_ACK, NLM_F_REQUEST, Netfilter, NftReply, Rule, RuleOwner, UNSPEC, message};
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

/// Takes rules away; where there is no nf_tables, there are none.
pub(crate) fn remove(layout: &TableLayout, is_meant: impl Fn(&RuleOwner) -> bool) -> Result<(), Error> {
    when_supported(|netfilter| {
        netfilter.edit(layout, |_, found| {
            let remove = found.iter().filter(|found| found.is_of(&is_meant)).cloned().collect();
            Ok(RuleChange::of_rules(remove, Vec::new()))
        })
    })
}

/// Takes something away; where there is no nf_tables, there is nothing.
pub(super) fn when_supported(
    job: impl FnOnce(&mut Netfilter) -> Result<(), Edit<Infallible>>,
) -> Result<(), Error> {
    match super::with(job) {
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
    expressions: Vec<u8>,
}

impl InstalledRule {
    /// None for one of the frame.
    pub(super) fn from(rule: KernelRule) -> Option<InstalledRule> {
        let KernelRule { chain, comment, handle, expressions, .. } = rule;
        Some(InstalledRule { chain, comment: comment?, handle, expressions })
    }

    /// Whether it belongs to such an attachment.
    pub(crate) fn is_of(&self, is_meant: impl Fn(&RuleOwner) -> bool) -> bool {
        RuleOwner::read(&self.comment).is_some_and(|owner| is_meant(&owner))
    }

    /// Whether it says this.
    pub(super) fn says(&self, rule: &Rule) -> bool {
        rule.matches_kernel(&self.expressions)
    }
}

#[cfg(test)]
impl InstalledRule {
    pub(crate) fn of(chain: &str, comment: &str) -> InstalledRule {
        InstalledRule { chain: chain.into(), comment: comment.into(), handle: 1, expressions: Vec::new() }
    }

    pub(super) fn saying(mut self, rule: &Rule) -> InstalledRule {
        self.expressions = rule.expressions().as_slice().into();
        self
    }
}

/// What to do with what was found.
#[derive(Debug, Default)]
pub(crate) struct RuleChange {
    pub(crate) remove: Vec<InstalledRule>,
    /// Chain, rule, comment.
    pub(crate) add: Vec<(&'static str, Rule, String)>,
    pub(super) sets: SetChange,
}

impl RuleChange {
    /// Of a table whose rules look into nothing.
    pub(crate) fn of_rules(remove: Vec<InstalledRule>, add: Vec<(&'static str, Rule, String)>) -> RuleChange {
        RuleChange { remove, add, sets: SetChange::default() }
    }
}

/// What to do with what rules look into.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SetChange {
    /// Sets, which are there before the rules are.
    pub(super) make: Vec<BatchMessage>,
    /// Elements that come and go, and behind them sets that no rule looks into any more.
    pub(super) change: Vec<BatchMessage>,
    /// Whether an attachment gets something.
    pub(super) is_add: bool,
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

    /// Changes a table: `decide` gets the rules of attachments, may read more, and is asked again when somebody changed
    /// anything meanwhile.
    pub(crate) fn edit<E>(
        &mut self,
        layout: &TableLayout,
        mut decide: impl FnMut(&mut Netfilter, &[InstalledRule]) -> Result<RuleChange, Edit<E>>,
    ) -> Result<(), Edit<E>> {
        for _ in 0..TRIES {
            let (generation, standing) = self.read(layout)?;
            let has_frame = standing.as_deref().is_some_and(|standing| has_frame(layout, standing));
            let found =
                standing.map(|rules| rules.into_iter().filter_map(InstalledRule::from).collect::<Vec<_>>());
            let change = decide(self, found.as_deref().unwrap_or_default())?;
            let messages = plan(layout, found.as_deref(), has_frame, &change);
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

    /// As [`Netfilter::request`], of something that may not be there.
    pub(super) fn request_any(
        &mut self,
        what: &'static str,
        kind: u16,
        asked: &Attrs,
    ) -> Result<Option<Vec<NftReply>>, Error> {
        match self.request(what, kind, message::FAMILY, asked.as_slice()) {
            Err(error) if error.is_missing() => Ok(None),
            other => other.map(Some),
        }
    }

    /// The generation and, if the table is there, its rules.
    pub(super) fn read(&mut self, layout: &TableLayout) -> Result<(u32, Option<Vec<KernelRule>>), Error> {
        for _ in 0..TRIES {
            let before = self.generation()?;
            if !self.is_committed(before)? {
                continue;
            }
            let asked = message::table_of(layout.table);
            if self.request_any("to show a table", message::GET_TABLE, &asked)?.is_none() {
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
        self.send(&bytes)?;
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

/// Whether the chains of the frame have its rules and no others. They are there, then, and so is what they jump to.
fn has_frame(layout: &TableLayout, standing: &[KernelRule]) -> bool {
    let nobody = |_: &KernelRule| false;
    layout.chains.iter().all(|chain| compare_chain(chain, &[], standing, nobody).is_ok())
}

/// Chain by chain: each wanted rule against the one that stands in its place.
pub(super) fn compare(
    layout: &TableLayout,
    owner: &RuleOwner,
    rules: &[(&'static str, Rule)],
    standing: &[KernelRule],
) -> Result<(), Error> {
    let is_own = |rule: &KernelRule| {
        rule.comment.as_deref().and_then(RuleOwner::read).is_some_and(|found| found == *owner)
    };
    layout.chains.iter().try_for_each(|chain| compare_chain(chain, rules, standing, is_own))
}

fn compare_chain(
    chain: &TableChain,
    rules: &[(&'static str, Rule)],
    standing: &[KernelRule],
    is_own: impl Fn(&KernelRule) -> bool,
) -> Result<(), Error> {
    let name = chain.name;
    let (whose, wanted): (_, Vec<&Rule>) = match &chain.rules {
        Some(fixed) => ("of the frame", fixed.iter().collect()),
        None => ("of the pod", rules.iter().filter(|(of, _)| *of == name).map(|(_, rule)| rule).collect()),
    };
    let is_meant = |rule: &&KernelRule| rule.chain == name && (chain.rules.is_some() || is_own(rule));
    let found: Vec<&KernelRule> = standing.iter().filter(is_meant).collect();
    if found.len() != wanted.len() {
        let whose = whose.into();
        return Err(Error::Count { chain: name, whose, found: found.len(), expected: wanted.len() });
    }
    if !wanted.iter().zip(&found).all(|(wanted, found)| wanted.matches_kernel(&found.expressions)) {
        return Err(Error::Changed { chain: name, whose: whose.into() });
    }
    Ok(())
}

/// The messages of a change. `found` is `None` when there is no table.
fn plan(
    layout: &TableLayout,
    found: Option<&[InstalledRule]>,
    has_frame: bool,
    change: &RuleChange,
) -> Vec<BatchMessage> {
    let table = layout.table;
    let delete_rule = |rule: &InstalledRule| message::delete_rule(table, &rule.chain, rule.handle);
    let sets = &change.sets;
    let mut messages = Vec::new();
    if change.add.is_empty() && !sets.is_add {
        let Some(found) = found else { return Vec::new() };
        if found.iter().all(|rule| change.remove.contains(rule)) {
            return vec![message::delete_table(table)];
        }
        messages.extend(change.remove.iter().map(delete_rule));
        messages.extend(sets.change.iter().cloned());
        return messages;
    }
    if found.is_none() {
        messages.push(message::new_table(table));
    }
    messages.extend(sets.make.iter().cloned());
    if !has_frame {
        messages.extend(frame(layout));
    }
    messages.extend(change.remove.iter().map(delete_rule));
    let added = change.add.iter();
    messages.extend(added.map(|(chain, rule, comment)| message::new_rule(table, chain, rule, Some(comment))));
    messages.extend(sets.change.iter().cloned());
    messages
}

/// The messages that make the frame. Whatever was done to it by hand, afterwards it is right.
fn frame(layout: &TableLayout) -> Vec<BatchMessage> {
    let table = layout.table;
    let mut messages = Vec::new();
    for chain in &layout.chains {
        messages.push(message::new_chain(table, chain.name, chain.hook));
        if let Some(rules) = &chain.rules {
            messages.push(message::flush_chain(table, chain.name));
            messages.extend(rules.iter().map(|rule| message::new_rule(table, chain.name, rule, None)));
        }
    }
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
        InstalledRule { handle, ..InstalledRule::of("mine", &format!("owner{handle}")) }
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
        let element = message::flush_chain("t", "an element");
        let plan = |found: Option<&[InstalledRule]>, remove: &[InstalledRule]| {
            let sets = SetChange { change: vec![element.clone()], ..SetChange::default() };
            plan(&layout(), found, true, &RuleChange { remove: remove.into(), add: Vec::new(), sets })
        };
        assert_eq!(plan(None, &[]), []);
        assert_eq!(plan(Some(&all), &[]), std::slice::from_ref(&element));
        assert_eq!(plan(Some(&all), &all[..1]), [message::delete_rule("t", "mine", 1), element.clone()]);
        assert_eq!(plan(Some(&all), &all), [message::delete_table("t")]);
        assert_eq!(plan(Some(&[]), &[]), [message::delete_table("t")], "an empty one, too");
    }

    #[test]
    fn adding_writes_the_frame_first_unless_it_is_right() {
        let rule = Rule { matches: Vec::new(), verdict: Verdict::Drop };
        let set = |name| message::flush_chain("t", name);
        let change = RuleChange {
            remove: vec![found(1)],
            add: vec![("mine", rule.clone(), "owner3".into())],
            sets: SetChange { make: vec![set("make")], change: vec![set("change")], is_add: true },
        };
        let TableChain { rules: Some(fixed), .. } = &layout().chains[1] else { panic!() };
        let frame = [
            message::new_chain("t", "mine", None),
            message::new_chain("t", "hooked", Some(crate::nft::Hook::SrcnatPostrouting)),
            message::flush_chain("t", "hooked"),
            message::new_rule("t", "hooked", &fixed[0], None),
        ];
        let rest = [
            message::delete_rule("t", "mine", 1),
            message::new_rule("t", "mine", &rule, Some("owner3")),
            set("change"),
        ];
        let all = [&[message::new_table("t"), set("make")], &frame[..], &rest].concat();
        assert_eq!(plan(&layout(), None, false, &change), all);
        assert_eq!(plan(&layout(), Some(&[found(1)]), false, &change), all[1..]);
        assert_eq!(plan(&layout(), Some(&[found(1)]), true, &change), [&[set("make")], &rest[..]].concat());
    }

    #[test]
    fn a_frame_is_right_when_its_chains_say_what_they_must_and_no_more() {
        let TableChain { rules: Some(fixed), .. } = &layout().chains[1] else { panic!() };
        let rule = |chain: &str, rule: &Rule| KernelRule {
            table: "t".into(),
            chain: chain.into(),
            handle: 1,
            comment: None,
            expressions: rule.expressions().as_slice().into(),
        };
        let drop = Rule { matches: Vec::new(), verdict: Verdict::Drop };
        let (right, other) = (rule("hooked", &fixed[0]), rule("hooked", &drop));
        assert!(has_frame(&layout(), &[right.clone(), rule("mine", &drop)]));
        let (alone, beside) = (std::slice::from_ref(&other), [right, other.clone()]);
        for standing in [&[][..], alone, &beside, &[rule("mine", &fixed[0])]] {
            assert!(!has_frame(&layout(), standing), "{standing:?}");
        }
    }
}
