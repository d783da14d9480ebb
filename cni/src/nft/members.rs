//! A table of ours whose rules look into sets: pods are elements, so that the next one costs as much as the first.
//!
//! Owns the transaction. Each subnet has a set of its pods' addresses and one rule, both there as long as the set has an
//! element. The set `attachments` tells an attachment's addresses by its owner, and how many elements a set has, so that
//! DEL need not know them and reads a few elements instead of lists. Elements carry comments as rules do. Never decides
//! what the rule says: `masquerade` does; `plan` has the messages. Earlier versions gave each address a rule: those are
//! found by their comments, and go at DEL and GC.

mod plan;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::IpAddr;

use ipnet::IpNet;

use super::set::{self, KernelElement};
use super::table::{compare, when_supported};
use super::{Edit, Error, InstalledRule, Netfilter, Rule, RuleOwner, TableLayout, message};
use plan::{ATTACHMENTS, Crowd, HeldAddress, Holding, Wanted};

/// A table whose pods are elements.
#[derive(Debug)]
pub(crate) struct MemberLayout {
    pub(crate) frame: TableLayout,
    /// Where the rules are that look into sets.
    pub(crate) chain: &'static str,
    /// The rule of a subnet, which looks into the set of this name.
    pub(crate) rule: fn(IpNet, String) -> Rule,
}

/// Takes away what belongs to such attachments; where there is no nf_tables, there is nothing.
pub(crate) fn remove(layout: &MemberLayout, which: &Which<'_>) -> Result<(), Error> {
    when_supported(|netfilter| {
        netfilter.edit(&layout.frame, |netfilter, found| {
            let holding = netfilter.holding(layout, found, which, std::iter::empty())?;
            Ok(plan::change(layout, found, &holding, None))
        })
    })
}

/// Whose elements and rules.
pub(crate) enum Which<'a> {
    /// Those of one attachment, which are looked up.
    One(&'a RuleOwner),
    /// Those of each of which this is true: all are read.
    Each(&'a dyn Fn(&RuleOwner) -> bool),
}

impl Which<'_> {
    fn has(&self, owner: &RuleOwner) -> bool {
        match self {
            Which::One(one) => owner == *one,
            Which::Each(is_meant) => is_meant(owner),
        }
    }
}

impl Netfilter {
    /// Gives an attachment these addresses, and no others any more.
    pub(crate) fn set_members(
        &mut self,
        layout: &MemberLayout,
        owner: &RuleOwner,
        pod: &str,
        addresses: &[IpNet],
    ) -> Result<(), Edit<Infallible>> {
        let addresses: BTreeSet<IpNet> = addresses.iter().copied().collect();
        self.edit(&layout.frame, |netfilter, found| {
            let subnets = addresses.iter().map(IpNet::trunc);
            let holding = netfilter.holding(layout, found, &Which::One(owner), subnets)?;
            let mut taken = Vec::new();
            for address in &addresses {
                let set = set::subnet_set(address.trunc());
                let stands = netfilter.element(layout, &set, &set::address_key(address.addr()))?.is_some();
                if stands && !holding.has(*address) {
                    taken.push(*address);
                }
            }
            let wanted = Wanted { owner, pod, addresses: &addresses, taken: &taken };
            Ok(plan::change(layout, found, &holding, Some(&wanted)))
        })
    }

    /// Whether an attachment has these addresses and no others, in sets that the right rules look into. `former` are the
    /// rules that an earlier version would have made for it.
    pub(crate) fn check_members(
        &mut self,
        layout: &MemberLayout,
        owner: &RuleOwner,
        addresses: &[IpNet],
        former: &[(&'static str, Rule)],
    ) -> Result<(), Error> {
        let standing = self.read(&layout.frame)?.1.unwrap_or_default();
        let found: Vec<_> = standing.iter().cloned().filter_map(InstalledRule::from).collect();
        if found.iter().any(|rule| rule.is_of(|of| of == owner)) {
            return compare(&layout.frame, owner, former, &standing);
        }
        compare(&layout.frame, owner, &[], &standing)?;
        let addresses: BTreeSet<IpNet> = addresses.iter().copied().collect();
        let subnets: BTreeSet<IpNet> = addresses.iter().map(IpNet::trunc).collect();
        subnets.into_iter().try_for_each(|subnet| plan::check_rule(layout, &found, subnet))?;
        let held = self.held(layout, owner)?;
        plan::check_addresses(&held, &addresses)
    }

    /// What such attachments have, and who else is in their subnets and in those that are wanted.
    fn holding(
        &mut self,
        layout: &MemberLayout,
        found: &[InstalledRule],
        which: &Which<'_>,
        wanted: impl Iterator<Item = IpNet>,
    ) -> Result<Holding, Error> {
        let rules = found.iter().filter(|rule| rule.is_of(|owner| which.has(owner))).cloned().collect();
        let (held, subnets) = match which {
            Which::One(owner) => {
                let held = self.held(layout, owner)?;
                let subnets = held.iter().map(|held| held.address.trunc()).chain(wanted).collect();
                (held, subnets)
            }
            Which::Each(is_meant) => {
                let subnets: BTreeSet<_> =
                    plan::of_subnets(layout, found).map(|(subnet, _)| subnet).collect();
                (self.all_held(layout, &subnets, is_meant)?, subnets)
            }
        };
        let mut holding = Holding { rules, held, crowds: BTreeMap::new() };
        for subnet in subnets {
            let own = holding.own_of(subnet).collect();
            let crowd = self.crowd(layout, subnet, &own, matches!(which, Which::One(_)))?;
            holding.crowds.insert(subnet, crowd);
        }
        Ok(holding)
    }

    /// What one attachment has, by its owner.
    fn held(&mut self, layout: &MemberLayout, owner: &RuleOwner) -> Result<Vec<HeldAddress>, Error> {
        let mut held = Vec::new();
        for number in 0.. {
            let key = owner.key(number);
            let Some(entry) = self.element(layout, ATTACHMENTS, &key)? else { break };
            let Some(address) = plan::address_of(&entry) else { continue };
            let of =
                self.element(layout, &set::subnet_set(address.trunc()), &set::address_key(address.addr()))?;
            let is_own = of.is_some_and(|of| RuleOwner::read(&of.comment).is_some_and(|of| of == *owner));
            held.push(HeldAddress { key: Some(key), address, is_own });
        }
        Ok(held)
    }

    /// What all such attachments have, by every element of the table.
    fn all_held(
        &mut self,
        layout: &MemberLayout,
        subnets: &BTreeSet<IpNet>,
        is_meant: impl Fn(&RuleOwner) -> bool,
    ) -> Result<Vec<HeldAddress>, Error> {
        let mut sets = Vec::new();
        for subnet in subnets {
            sets.push((*subnet, self.elements(layout, &set::subnet_set(*subnet))?.unwrap_or_default()));
        }
        let entries = self.elements(layout, ATTACHMENTS)?.unwrap_or_default();
        Ok(plan::all_held(&entries, &sets, is_meant))
    }

    /// Who is in a subnet's set beside `own`. Its counter is believed unless it says that nobody is.
    fn crowd(
        &mut self,
        layout: &MemberLayout,
        subnet: IpNet,
        own: &BTreeSet<IpAddr>,
        believe: bool,
    ) -> Result<Crowd, Error> {
        let counter = self.element(layout, ATTACHMENTS, &plan::counter_key(subnet))?;
        let is_counted = counter.is_some();
        let told = counter.and_then(|counter| plan::count_of(&counter));
        let others = told.filter(|_| believe).map(|told| told.saturating_sub(own.len()));
        if let Some(others) = others.filter(|others| *others > 0) {
            return Ok(Crowd { others, is_counted, told, has_set: true });
        }
        let elements = self.elements(layout, &set::subnet_set(subnet))?;
        let has_set = elements.is_some();
        let is_other = |element: &&KernelElement| {
            set::read_address_key(&element.key).is_none_or(|address| !own.contains(&address))
        };
        let others = elements.unwrap_or_default().iter().filter(is_other).count();
        Ok(Crowd { others, is_counted, told, has_set })
    }

    fn element(
        &mut self,
        layout: &MemberLayout,
        set: &str,
        key: &[u8],
    ) -> Result<Option<KernelElement>, Error> {
        let asked = set::element_of(layout.frame.table, set, key);
        let answers = self.request_any("to show an element", set::GET_ELEMENTS, &asked)?.unwrap_or_default();
        let mut elements = answers.iter().flat_map(|answer| set::read_elements(&answer.body));
        Ok(elements.find(|element| element.key == key))
    }

    /// All of a set, if it is there.
    fn elements(&mut self, layout: &MemberLayout, set: &str) -> Result<Option<Vec<KernelElement>>, Error> {
        let asked = set::elements_of(layout.frame.table, set);
        match self.dump("to list a set", set::GET_ELEMENTS, message::FAMILY, asked.as_slice()) {
            Err(error) if error.is_missing() => Ok(None),
            answers => {
                Ok(Some(answers?.iter().flat_map(|answer| set::read_elements(&answer.body)).collect()))
            }
        }
    }
}
