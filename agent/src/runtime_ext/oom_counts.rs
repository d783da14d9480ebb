//! Which containers ran out of memory how often. Pure: owns the counts and their bound; never hears of one
//! by itself. Written by who listens to a runtime, read by [`crate::pod_workers::oom_survivor`] and the metrics.

use std::collections::BTreeMap;

/// Containers that are remembered; the one that was longest without makes room.
const MOST: usize = 1024;
/// A container's ID is 64 letters by custom; nothing of a stranger's length is kept.
const MOST_LETTERS: usize = 256;

/// Counts by container ID.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ooms {
    containers: BTreeMap<String, OomCount>,
    /// Of all that was told.
    turn: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct OomCount {
    count: u64,
    /// When, in the order of telling.
    last: u64,
}

impl Ooms {
    /// Once more; false when the ID can be nobody's.
    pub fn add(&mut self, container: &str) -> bool {
        if container.is_empty() || container.len() > MOST_LETTERS {
            return false;
        }
        self.turn = self.turn.saturating_add(1);
        if !self.containers.contains_key(container) && self.containers.len() >= MOST {
            let oldest = self.containers.iter().min_by_key(|(_, told)| told.last).map(|(id, _)| id.clone());
            oldest.and_then(|id| self.containers.remove(&id));
        }
        let told = self.containers.entry(container.to_owned()).or_insert(OomCount { count: 0, last: 0 });
        told.count = told.count.saturating_add(1);
        told.last = self.turn;
        true
    }

    /// How often; none when it never was told.
    #[must_use]
    pub fn of(&self, container: &str) -> Option<u64> {
        self.containers.get(container).map(|told| told.count)
    }

    /// Of whom it was told since `before` was all.
    pub fn since(&self, before: &Self) -> impl Iterator<Item = &str> {
        let before = before.turn;
        self.containers.iter().filter(move |(_, told)| told.last > before).map(|(id, _)| id.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_are_counted_and_strangers_are_not() {
        let mut ooms = Ooms::default();
        assert!(ooms.add("a") && ooms.add("b"));
        let before = ooms.clone();
        assert!(ooms.add("a"));
        assert_eq!((ooms.of("a"), ooms.of("b"), ooms.of("c")), (Some(2), Some(1), None));
        assert_eq!(ooms.since(&before).collect::<Vec<_>>(), ["a"]);
        assert!(!ooms.add("") && !ooms.add(&"x".repeat(MOST_LETTERS + 1)));
    }

    #[test]
    fn a_flood_is_bounded_and_forgets_who_was_longest_without() {
        let mut ooms = Ooms::default();
        ooms.add("first");
        ooms.add("second");
        (0..MOST - 2).for_each(|n| assert!(ooms.add(&format!("c{n}"))));
        ooms.add("first");
        ooms.add("one more");
        assert_eq!(ooms.containers.len(), MOST);
        assert_eq!((ooms.of("first"), ooms.of("second"), ooms.of("one more")), (Some(2), None, Some(1)));
    }
}
