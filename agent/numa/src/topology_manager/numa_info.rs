//! The machine's NUMA nodes and how far they are from each other. Pure: never looks at the machine. Part of [`super`].

use std::collections::BTreeMap;

use crate::node_mask::NodeMask;

/// NUMA nodes and their distances.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NumaInfo {
    /// By number.
    nodes: Vec<u32>,
    /// Of each node to all, in the order of `nodes`; empty where the machine tells none.
    distances: BTreeMap<u32, Vec<u64>>,
}

impl NumaInfo {
    /// By node: its `distance` file in sysfs, which is in the order of the nodes' numbers. Empty: it has none.
    #[must_use]
    pub fn new(distances: BTreeMap<u32, Vec<u64>>) -> Self {
        Self { nodes: distances.keys().copied().collect(), distances }
    }

    /// From the lowest number on.
    #[must_use]
    pub fn nodes(&self) -> &[u32] {
        &self.nodes
    }

    pub(super) fn mask(&self) -> NodeMask {
        NodeMask::of(self.nodes.iter().copied())
    }

    pub(super) fn knows_distances(&self) -> bool {
        self.distances.values().all(|to| !to.is_empty())
    }

    /// Whether `this` has fewer nodes than the other; or as many, nearer to each other; or as near, with lower numbers.
    pub(super) fn is_closer(&self, this: NodeMask, other: NodeMask) -> bool {
        if this.count() != other.count() {
            return this.is_narrower_than(other);
        }
        // Of as many pairs, so that sums compare as averages do.
        let (own, others) = (self.sum(this), self.sum(other));
        if own == others { this < other } else { own < others }
    }

    /// Of all pairs of these nodes, each with itself, too.
    fn sum(&self, nodes: NodeMask) -> u64 {
        let within = |(_, node): &(usize, &u32)| nodes.contains(**node);
        let to = |from: u32, at: usize| self.distances.get(&from).and_then(|to| to.get(at)).copied();
        let pairs = nodes.iter().flat_map(|from| {
            self.nodes.iter().enumerate().filter(within).map(move |(at, _)| to(from, at).unwrap_or(0))
        });
        pairs.fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(nodes: &[u32]) -> NodeMask {
        NodeMask::of(nodes.iter().copied())
    }

    fn info(distances: &[(u32, &[u64])]) -> NumaInfo {
        NumaInfo::new(distances.iter().map(|(node, to)| (*node, to.to_vec())).collect())
    }

    #[test]
    fn of_as_many_nodes_the_nearer_ones_are_closer() {
        let four = info(&[
            (0, &[10, 11, 12, 12]),
            (1, &[11, 10, 12, 12]),
            (2, &[12, 12, 10, 11]),
            (3, &[12, 12, 11, 10]),
        ]);
        for (closer, other) in [
            (&[0][..], &[0, 2][..]),
            (&[0, 1], &[0, 1, 2]),
            (&[0, 1], &[0, 2]),
            (&[2, 3], &[1, 2]),
            (&[0, 1], &[2, 3]),
            (&[0, 2], &[1, 3]),
        ] {
            assert!(four.is_closer(mask(closer), mask(other)), "{closer:?} {other:?}");
            assert!(!four.is_closer(mask(other), mask(closer)), "{other:?} {closer:?}");
        }
        assert!(!four.is_closer(mask(&[1]), mask(&[1])));
    }

    /// The file's columns are the nodes that are there, not all numbers up to the highest.
    #[test]
    fn numbers_may_be_left_out() {
        let sparse = info(&[(0, &[10, 20, 30]), (2, &[20, 10, 11]), (7, &[30, 11, 10])]);
        assert!(sparse.is_closer(mask(&[2, 7]), mask(&[0, 2])));
        assert!(sparse.is_closer(mask(&[0, 2]), mask(&[0, 7])));
        assert_eq!((sparse.nodes(), sparse.mask()), (&[0, 2, 7][..], mask(&[0, 2, 7])));
    }

    #[test]
    fn a_node_without_distances_is_seen() {
        assert!(info(&[(0, &[10])]).knows_distances());
        assert!(!info(&[(0, &[10, 20]), (1, &[])]).knows_distances());
    }
}
