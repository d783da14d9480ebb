//! Which events vary by their message only and are told as one: client-go's EventAggregator. Pure:
//! owns the messages it has seen; time comes in. Called by a pod's list of events and by the sink, for
//! what comes past such lists.

use std::collections::{BTreeMap, BTreeSet};

/// So many different messages of one kind are combined.
pub(super) const SIMILAR: usize = 10;
/// After so many nanoseconds without one of its kind they are told one by one again.
const WITHIN: u64 = 600 * 1_000_000_000;

#[derive(Debug, Clone)]
struct MessageGroup {
    messages: BTreeSet<String>,
    last: i64,
}

/// By object, type and reason: which container it is about makes no difference, as upstream.
#[derive(Debug, Clone)]
pub(super) struct Similar<K> {
    seen: BTreeMap<K, MessageGroup>,
    most: usize,
}

impl<K: Ord + Clone> Similar<K> {
    /// Remembers so many kinds at most.
    pub(super) fn new(most: usize) -> Self {
        Self { seen: BTreeMap::new(), most }
    }

    /// Whether one that says `message` now is one of too many.
    pub(super) fn is_one_of_many(&mut self, kind: &K, message: &str, now: i64) -> bool {
        if self.seen.len() >= self.most && !self.seen.contains_key(kind) {
            let oldest = self.seen.iter().min_by_key(|(_, seen)| seen.last).map(|(kind, _)| kind.clone());
            oldest.and_then(|kind| self.seen.remove(&kind));
        }
        let fresh = || MessageGroup { messages: BTreeSet::new(), last: now };
        let seen = self.seen.entry(kind.clone()).or_insert_with(fresh);
        if seen.last.abs_diff(now) > WITHIN {
            *seen = fresh();
        }
        seen.last = now;
        seen.messages.insert(message.to_owned());
        let many = seen.messages.len() >= SIMILAR;
        if many {
            // Upstream forgets any of them; the new one it is here, so that the others keep their own.
            seen.messages.remove(message);
        }
        many
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: i64 = 60 * 1_000_000_000;

    #[test]
    fn the_tenth_message_within_ten_minutes_of_the_one_before_is_one_of_many() {
        let mut similar = Similar::new(8);
        for n in 0..9 {
            assert!(!similar.is_one_of_many(&"a", &n.to_string(), n * 9 * MINUTE), "{n}");
        }
        let now = 80 * MINUTE;
        assert!(similar.is_one_of_many(&"a", "9", now), "the window rolls: 80 minutes in all are no matter");
        assert!(similar.is_one_of_many(&"a", "9", now), "it was not remembered as one of its own");
        assert!(!similar.is_one_of_many(&"a", "3", now), "a known one is counted as itself");
        assert!(!similar.is_one_of_many(&"b", "9", now), "of another kind");
        assert!(!similar.is_one_of_many(&"a", "9", now + 11 * MINUTE), "long after");
    }

    #[test]
    fn kinds_are_bounded() {
        let mut similar = Similar::new(3);
        for n in 0..9 {
            similar.is_one_of_many(&n, "x", i64::from(n));
        }
        assert_eq!(similar.seen.keys().copied().collect::<Vec<_>>(), [6, 7, 8]);
    }
}
