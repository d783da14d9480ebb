//! Which messages make and take elements, sets and their rules: pure.
//!
//! Owns the form of the set `attachments`. An address of an attachment: the key is the owner and a number, the comment
//! the address with its prefix length, and the pod. A counter of a subnet's set: the key is a hash of its name, the
//! comment the count and the name. Never touches the kernel. Called by `members`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use super::MemberLayout;
use crate::nft::message::BatchMessage;
use crate::nft::set::{self, KernelElement, KeyType};
use crate::nft::{Error, InstalledRule, Rule, RuleChange, RuleOwner};

/// The set that tells addresses by owner, and counts.
pub(super) const ATTACHMENTS: &str = "attachments";

/// An address of an attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HeldAddress {
    /// Of the element of `attachments` that tells it; `None` when none does.
    pub(super) key: Option<Vec<u8>>,
    pub(super) address: IpNet,
    /// Whether the subnet's set has it as this attachment's: another one may have got it since.
    pub(super) is_own: bool,
}

/// What some attachments have.
#[derive(Debug, Default)]
pub(super) struct Holding {
    /// Rules of earlier versions.
    pub(super) rules: Vec<InstalledRule>,
    pub(super) held: Vec<HeldAddress>,
    /// Who else is in their subnets, and in those that are wanted.
    pub(super) crowds: BTreeMap<IpNet, Crowd>,
}

/// What a subnet's set has beside what is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Crowd {
    pub(super) others: usize,
    /// Whether there is a counter, and what it says, if that can be read.
    pub(super) is_counted: bool,
    pub(super) told: Option<usize>,
    pub(super) has_set: bool,
}

impl Holding {
    /// The elements of a subnet's set that are theirs.
    pub(super) fn own_of(&self, subnet: IpNet) -> impl Iterator<Item = IpAddr> + '_ {
        let own = self.held.iter().filter(|held| held.is_own).map(|held| held.address);
        own.filter(move |address| address.trunc() == subnet).map(|address| address.addr())
    }

    /// Whether an address is an element of theirs.
    pub(super) fn has(&self, address: IpNet) -> bool {
        self.held.iter().any(|held| held.is_own && held.address == address)
    }
}

/// What an attachment is to have.
#[derive(Debug)]
pub(super) struct Wanted<'a> {
    pub(super) owner: &'a RuleOwner,
    pub(super) pod: &'a str,
    pub(super) addresses: &'a BTreeSet<IpNet>,
    /// Those of them that are elements of another attachment yet.
    pub(super) taken: &'a [IpNet],
}

/// The address that an element of `attachments` tells.
pub(super) fn address_of(entry: &KernelElement) -> Option<IpNet> {
    entry.comment.split(' ').next()?.parse().ok()
}

pub(super) fn counter_key(subnet: IpNet) -> Vec<u8> {
    RuleOwner::thing(&set::subnet_set(subnet)).key(0)
}

/// What a counter says.
pub(super) fn count_of(counter: &KernelElement) -> Option<usize> {
    counter.comment.split(' ').next()?.parse().ok()
}

/// What attachments of which `is_meant` is true have, by all elements of `attachments` and of subnets' sets.
pub(super) fn all_held(
    entries: &[KernelElement],
    sets: &[(IpNet, Vec<KernelElement>)],
    is_meant: impl Fn(&RuleOwner) -> bool,
) -> Vec<HeldAddress> {
    let mut held = Vec::new();
    for (subnet, elements) in sets {
        for element in elements {
            let owner = RuleOwner::read(&element.comment).filter(&is_meant);
            let address = set::read_address_key(&element.key)
                .and_then(|address| IpNet::new(address, subnet.prefix_len()).ok());
            if let (Some(_), Some(address)) = (owner, address) {
                held.push(HeldAddress { key: None, address, is_own: true });
            }
        }
    }
    for entry in entries {
        let is_meant = RuleOwner::read_key(&entry.key).is_some_and(|owner| is_meant(&owner));
        if let Some(address) = address_of(entry).filter(|_| is_meant) {
            held.push(HeldAddress { key: Some(entry.key.clone()), address, is_own: false });
        }
    }
    held
}

/// Takes away what is held, and gives what is wanted.
pub(super) fn change(
    layout: &MemberLayout,
    found: &[InstalledRule],
    holding: &Holding,
    wanted: Option<&Wanted<'_>>,
) -> RuleChange {
    let table = layout.frame.table;
    let subnets: BTreeSet<IpNet> =
        wanted.iter().flat_map(|wanted| wanted.addresses).map(IpNet::trunc).collect();
    let over: BTreeSet<IpNet> = holding
        .crowds
        .iter()
        .filter(|(subnet, crowd)| crowd.others == 0 && !subnets.contains(subnet))
        .map(|(subnet, _)| *subnet)
        .collect();
    let of_subnets: Vec<_> = of_subnets(layout, found).collect();
    let is_right = |subnet: IpNet| {
        of_subnets.iter().any(|(of, found)| *of == subnet && found.says(&rule(layout, subnet)))
    };
    let is_to_go = |subnet: IpNet| over.contains(&subnet) || subnets.contains(&subnet) && !is_right(subnet);
    let mut change = RuleChange { remove: holding.rules.clone(), ..RuleChange::default() };
    let to_go = of_subnets.iter().filter(|(subnet, _)| is_to_go(*subnet));
    change.remove.extend(to_go.map(|(_, found)| (*found).clone()));
    change.sets.change = removed(table, holding, &over, wanted);
    change.sets.change.extend(counted(table, holding, &over, wanted));
    change.sets.change.extend(sets_over(table, holding, &over));
    let Some(wanted) = wanted else {
        let is_last = of_subnets.iter().all(|(subnet, _)| over.contains(subnet));
        if is_last && holding.held.iter().any(|held| held.key.is_some()) {
            change.sets.change.push(set::delete_set(table, ATTACHMENTS));
        }
        return change;
    };
    change.sets.is_add = true;
    change.sets.make.push(set::new_set(table, ATTACHMENTS, KeyType::Marks));
    for subnet in subnets.into_iter().filter(|subnet| !is_right(*subnet)) {
        let set = set::subnet_set(subnet);
        change.sets.make.push(set::new_set(table, &set, KeyType::of(subnet)));
        change.add.push((layout.chain, rule(layout, subnet), set));
    }
    change.sets.change.extend(added(table, wanted));
    change
}

fn rule(layout: &MemberLayout, subnet: IpNet) -> Rule {
    (layout.rule)(subnet, set::subnet_set(subnet))
}

/// The rules that look into sets: each has the name of its set for a comment.
pub(super) fn of_subnets<'a>(
    layout: &'a MemberLayout,
    found: &'a [InstalledRule],
) -> impl Iterator<Item = (IpNet, &'a InstalledRule)> {
    let in_chain = found.iter().filter(|rule| rule.chain == layout.chain);
    in_chain.filter_map(|rule| Some((set::read_subnet_set(&rule.comment)?, rule)))
}

/// Elements that go. Those of sets that are over go with them.
fn removed(
    table: &str,
    holding: &Holding,
    over: &BTreeSet<IpNet>,
    wanted: Option<&Wanted<'_>>,
) -> Vec<BatchMessage> {
    let entries = holding.held.iter().filter_map(|held| held.key.as_deref());
    let entries = entries.map(|key| set::delete_element(table, ATTACHMENTS, key));
    let own = holding.held.iter().filter(|held| held.is_own).map(|held| held.address);
    let taken = wanted.iter().flat_map(|wanted| wanted.taken).copied();
    let addresses: BTreeSet<IpNet> = own.chain(taken).collect();
    let addresses = addresses.into_iter().filter(|address| !over.contains(&address.trunc()));
    let elements = addresses.map(|address| {
        set::delete_element(table, &set::subnet_set(address.trunc()), &set::address_key(address.addr()))
    });
    entries.chain(elements).collect()
}

/// Counters that say how many there are then.
fn counted(
    table: &str,
    holding: &Holding,
    over: &BTreeSet<IpNet>,
    wanted: Option<&Wanted<'_>>,
) -> Vec<BatchMessage> {
    let of = |addresses: &mut dyn Iterator<Item = &IpNet>, subnet: IpNet| {
        addresses.filter(|address| address.trunc() == subnet).count()
    };
    let mut messages = Vec::new();
    for (subnet, crowd) in &holding.crowds {
        let key = counter_key(*subnet);
        let more = of(&mut wanted.iter().flat_map(|wanted| wanted.addresses), *subnet);
        let taken = of(&mut wanted.iter().flat_map(|wanted| wanted.taken), *subnet);
        let count = Some(crowd.others.saturating_sub(taken) + more).filter(|_| !over.contains(subnet));
        if crowd.told == count && count.is_some() {
            continue;
        }
        if crowd.is_counted {
            messages.push(set::delete_element(table, ATTACHMENTS, &key));
        }
        if let Some(count) = count {
            let comment = format!("{count} {}", set::subnet_set(*subnet));
            messages.push(set::new_element(table, ATTACHMENTS, &key, &comment));
        }
    }
    messages
}

fn sets_over(table: &str, holding: &Holding, over: &BTreeSet<IpNet>) -> Vec<BatchMessage> {
    let has_set = |subnet: &&IpNet| holding.crowds.get(subnet).is_some_and(|crowd| crowd.has_set);
    over.iter().filter(has_set).map(|subnet| set::delete_set(table, &set::subnet_set(*subnet))).collect()
}

fn added(table: &str, wanted: &Wanted<'_>) -> Vec<BatchMessage> {
    let comment = format!("{} {}", wanted.owner.prefix(), wanted.pod);
    let numbered = (0..).zip(wanted.addresses);
    let pair = |(number, address): (u32, &IpNet)| {
        let (set, key) = (set::subnet_set(address.trunc()), set::address_key(address.addr()));
        let entry = format!("{address} {}", wanted.pod);
        [
            set::new_element(table, ATTACHMENTS, &wanted.owner.key(number), &entry),
            set::new_element(table, &set, &key, &comment),
        ]
    };
    numbered.flat_map(pair).collect()
}

/// Whether a subnet has its rule, and the rule says what it must.
pub(super) fn check_rule(layout: &MemberLayout, found: &[InstalledRule], subnet: IpNet) -> Result<(), Error> {
    let rules: Vec<_> = of_subnets(layout, found).filter(|(of, _)| *of == subnet).collect();
    let whose = format!("of subnet {subnet}");
    match rules[..] {
        [(_, found)] if found.says(&rule(layout, subnet)) => Ok(()),
        [_] => Err(Error::Changed { chain: layout.chain, whose }),
        _ => Err(Error::Count { chain: layout.chain, whose, found: rules.len(), expected: 1 }),
    }
}

/// Whether these addresses are held, all as the attachment's own, and no others.
pub(super) fn check_addresses(held: &[HeldAddress], wanted: &BTreeSet<IpNet>) -> Result<(), Error> {
    let found: BTreeSet<IpNet> = held.iter().map(|held| held.address).collect();
    if found != *wanted {
        let list = |addresses: &BTreeSet<IpNet>| {
            addresses.iter().map(IpNet::to_string).collect::<Vec<_>>().join(" ")
        };
        return Err(Error::Addresses { found: list(&found), expected: list(wanted) });
    }
    match held.iter().find(|held| !held.is_own) {
        None => Ok(()),
        Some(held) => {
            Err(Error::Member { set: set::subnet_set(held.address.trunc()), address: held.address.addr() })
        }
    }
}

#[cfg(test)]
mod tests;
