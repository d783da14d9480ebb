//! The best of all ways to take one hint of each list. Pure: owns upstream's order of what is better. Part of [`super`].
//!
//! Upstream looks at each way by itself, and there are as many as the product of the lists' lengths. What counts of a way
//! is its nodes, whether it is preferred, and, while it is, which nodes all of its hints name. Ways that agree in these are
//! one here, so that no more are kept than there are sets of nodes. The order is total, so that the best is the same.

use std::collections::BTreeSet;

use super::numa_info::NumaInfo;
use crate::hint::{Hints, TopologyHint};
use crate::node_mask::NodeMask;

/// The hints for one resource.
type HintList = Vec<TopologyHint>;

/// One hint of each list so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Way {
    nodes: NodeMask,
    preferred: bool,
    /// What all hints with nodes name; None before the first, and of a way that is not preferred.
    named: Option<NodeMask>,
}

impl Way {
    fn with(self, hint: TopologyHint) -> Self {
        let preferred = self.preferred && hint.preferred;
        let Some(nodes) = hint.nodes else {
            return Self { preferred, named: self.named.filter(|_| preferred), ..self };
        };
        let preferred = preferred && self.named.is_none_or(|named| named == nodes);
        Self { nodes: self.nodes.and(nodes), preferred, named: Some(nodes).filter(|_| preferred) }
    }
}

/// A list for each resource of each manager. One that minds nothing prefers every node; one that has no way, none.
pub(super) fn flatten(providers: &[Hints]) -> Vec<HintList> {
    let any = |preferred| vec![TopologyHint { nodes: None, preferred }];
    let mut lists = Vec::new();
    for hints in providers {
        if hints.is_empty() {
            lists.push(any(true));
        }
        lists.extend(hints.values().map(|list| match list {
            None => any(true),
            Some(list) if list.is_empty() => any(false),
            Some(list) => list.clone(),
        }));
    }
    lists
}

/// Only what is preferred and has one node, or any.
pub(super) fn single_node(mut lists: Vec<HintList>) -> Vec<HintList> {
    for list in &mut lists {
        list.retain(|hint| hint.preferred && hint.nodes.is_none_or(|nodes| nodes.count() == 1));
    }
    lists
}

/// Without a way that leaves any node, all of them, not preferred. `closest`: of as many nodes, the nearest to each other.
pub(super) fn best(lists: &[HintList], all: NodeMask, closest: Option<&NumaInfo>) -> TopologyHint {
    let mut ways = BTreeSet::from([Way { nodes: all, preferred: true, named: None }]);
    for list in lists {
        ways = ways.iter().flat_map(|way| list.iter().map(|hint| way.with(*hint))).collect();
        ways.retain(|way| !way.nodes.is_empty());
    }
    let order = Order { wanted: widest_need(lists), closest };
    let hints = ways.iter().filter(|way| !way.nodes.is_empty());
    let hints = hints.map(|way| TopologyHint { nodes: Some(way.nodes), preferred: way.preferred });
    let best = hints.reduce(|best, other| if order.is_better(other, best) { other } else { best });
    best.unwrap_or(TopologyHint { nodes: Some(all), preferred: false })
}

/// How many nodes the list needs that needs most.
fn widest_need(lists: &[HintList]) -> usize {
    let least = |list: &HintList| list.iter().filter_map(|hint| Some(hint.nodes?.count())).min();
    lists.iter().filter_map(least).max().unwrap_or(0)
}

/// Which of two ways is better.
struct Order<'a> {
    /// How many nodes one that is not preferred should have.
    wanted: usize,
    closest: Option<&'a NumaInfo>,
}

impl Order<'_> {
    fn is_better(&self, this: TopologyHint, other: TopologyHint) -> bool {
        let (nodes, others) = (this.nodes.unwrap_or_default(), other.nodes.unwrap_or_default());
        if this.preferred != other.preferred {
            return this.preferred;
        }
        if !this.preferred {
            let (distance, that) = (self.distance(nodes), self.distance(others));
            if distance != that {
                return distance < that;
            }
        }
        match self.closest {
            Some(numa) => numa.is_closer(nodes, others),
            None => nodes.is_narrower_than(others),
        }
    }

    /// How far a number of nodes is from the wanted one: too few are always nearer than too many.
    fn distance(&self, nodes: NodeMask) -> (bool, usize) {
        (nodes.count() > self.wanted, nodes.count().abs_diff(self.wanted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(nodes: &[u32], preferred: bool) -> TopologyHint {
        TopologyHint { nodes: Some(NodeMask::of(nodes.iter().copied())), preferred }
    }

    #[test]
    fn the_widest_need_is_the_most_of_the_least() {
        for (lists, most) in [
            (vec![], 0),
            (vec![vec![hint(&[], true)]], 0),
            (vec![vec![hint(&[0], true)]], 1),
            (vec![vec![hint(&[0, 1], true), hint(&[0, 1, 2], true)]], 2),
            (vec![vec![hint(&[0, 1], true), hint(&[0, 1, 2], true)], vec![hint(&[0, 1, 2], true)]], 3),
            (vec![vec![TopologyHint { nodes: None, preferred: true }]], 0),
        ] {
            assert_eq!(widest_need(&lists), most, "{lists:?}");
        }
    }

    /// Upstream's table of TestCompareHints: number wanted, the better, the other.
    #[test]
    fn hints_are_compared_as_upstream_does() {
        for (wanted, better, other) in [
            (0, hint(&[0, 1], true), hint(&[0], false)),
            (0, hint(&[0], true), hint(&[0, 1], true)),
            (0, hint(&[0], true), hint(&[1], true)),
            (1, hint(&[0, 1], false), hint(&[1, 2], false)),
            (2, hint(&[0, 1], false), hint(&[0], false)),
            (2, hint(&[0, 1], false), hint(&[1, 2], false)),
            (2, hint(&[0], false), hint(&[0, 1, 2], false)),
            (3, hint(&[1, 2], false), hint(&[0], false)),
            (4, hint(&[1, 2, 3], false), hint(&[0, 1], false)),
            (4, hint(&[0, 1, 2], false), hint(&[1, 2, 3], false)),
            (1, hint(&[0, 1], false), hint(&[0, 1, 2], false)),
        ] {
            let order = Order { wanted, closest: None };
            assert!(order.is_better(better, other), "{wanted} {better:?} {other:?}");
            assert!(!order.is_better(other, better), "{wanted} {other:?} {better:?}");
            assert!(!order.is_better(better, better), "{better:?}");
        }
    }

    /// Upstream's product of these lists has 255^6 ways.
    #[test]
    fn many_lists_on_a_wide_machine_are_merged_at_once() {
        let nodes: Vec<u32> = (0..8).collect();
        let list = NodeMask::combinations(&nodes).into_iter();
        let list: HintList =
            list.map(|nodes| TopologyHint { nodes: Some(nodes), preferred: nodes.count() == 3 }).collect();
        let lists = vec![list; 6];
        assert_eq!(best(&lists, NodeMask::of(nodes), None), hint(&[0, 1, 2], true));
    }
}
