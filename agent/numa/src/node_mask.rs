//! A set of NUMA nodes. Pure. Used by hints and by the managers that give them.

/// Of how many nodes every set is looked at: there are 65,535 of them then, and twice as many with each node more.
pub const MOST_COMBINED: usize = 16;

/// NUMA nodes by their number, 0 to 63.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeMask(u64);

impl NodeMask {
    /// Of these nodes. One above 63 is left out: no kernel numbers so many that a kubelet is let start on
    /// (`maxAllowableNUMANodes`).
    #[must_use]
    pub fn of(nodes: impl IntoIterator<Item = u32>) -> Self {
        let bit = |node| 1_u64.checked_shl(node).unwrap_or(0);
        Self(nodes.into_iter().fold(0, |mask, node| mask | bit(node)))
    }

    /// From the lowest number on.
    pub fn iter(self) -> impl Iterator<Item = u32> {
        (0..u64::BITS).filter(move |node| self.contains(*node))
    }

    #[must_use]
    pub fn contains(self, node: u32) -> bool {
        1_u64.checked_shl(node).is_some_and(|bit| self.0 & bit != 0)
    }

    #[must_use]
    pub fn count(self) -> usize {
        self.0.count_ones() as usize
    }

    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Fewer nodes, or as many with lower numbers.
    #[must_use]
    pub fn is_narrower_than(self, other: Self) -> bool {
        if self.count() == other.count() { self.0 < other.0 } else { self.count() < other.count() }
    }

    /// Every set of these nodes that is not empty: the small ones first, and of one size by their numbers. For at most
    /// [`MOST_COMBINED`] nodes.
    #[must_use]
    pub fn combinations(nodes: &[u32]) -> Vec<Self> {
        let mut all = Vec::new();
        for size in 1..=nodes.len() {
            choose(nodes, size, Self::default(), &mut all);
        }
        all
    }
}

fn choose(nodes: &[u32], size: usize, chosen: NodeMask, all: &mut Vec<NodeMask>) {
    if size == 0 {
        all.push(chosen);
        return;
    }
    let mut rest = nodes;
    while let Some((first, more)) = rest.split_first() {
        choose(more, size - 1, chosen.or(NodeMask::of([*first])), all);
        rest = more;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_compared_by_size_and_then_by_number() {
        let mask = |nodes: &[u32]| NodeMask::of(nodes.iter().copied());
        assert!(mask(&[3]).is_narrower_than(mask(&[0, 1])));
        assert!(mask(&[0, 1]).is_narrower_than(mask(&[0, 2])));
        assert!(!mask(&[0]).is_narrower_than(mask(&[0])));
        assert_eq!(mask(&[0, 2]).and(mask(&[2, 3])), mask(&[2]));
        assert_eq!(mask(&[0, 2]).iter().collect::<Vec<_>>(), [0, 2]);
        assert!(mask(&[64, 99]).is_empty());
    }

    #[test]
    fn all_combinations_come_with_the_small_ones_first() {
        let all: Vec<Vec<u32>> =
            NodeMask::combinations(&[0, 1, 3]).into_iter().map(|mask| mask.iter().collect()).collect();
        assert_eq!(all, [vec![0], vec![1], vec![3], vec![0, 1], vec![0, 3], vec![1, 3], vec![0, 1, 3]]);
        assert_eq!(NodeMask::combinations(&[]), []);
    }
}
