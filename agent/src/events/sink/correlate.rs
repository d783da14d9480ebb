//! Which happenings become a new event, which count up one that is there, and which are held back: as
//! client-go's correlator. Pure: owns what was posted and the budget of each object; time comes in,
//! nothing is sent. Called by [`super::post`].

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use crate::events::similar::Similar;
use crate::events::{COMBINED, Kind};

/// Objects and events that are remembered; as client-go's caches.
const MOST: usize = 4096;
/// Events about one object at once, and how long until one more.
const BURST: f64 = 25.0;
const REFILL: Duration = Duration::from_secs(300);

/// What it happened to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum About {
    /// This node.
    Node,
    /// As in ObjectReference.
    Pod { namespace: String, name: String, uid: String },
    /// A PersistentVolumeClaim.
    Claim { namespace: String, name: String, uid: String },
    /// A PersistentVolume.
    Volume { name: String, uid: String },
}

/// Something to be told, one or several times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Happening {
    pub(super) about: About,
    /// `spec.containers{web}`, or empty.
    pub(super) field: String,
    pub(super) kind: Kind,
    pub(super) reason: Cow<'static, str>,
    pub(super) message: String,
    /// Of the new event; one that only counts keeps its own.
    pub(super) annotations: BTreeMap<String, String>,
    /// It stands for different messages of one reason: those of a pod's list are combined there.
    pub(super) combined: bool,
    pub(super) times: u32,
    /// Unix nanoseconds.
    pub(super) first: i64,
    /// Unix nanoseconds.
    pub(super) last: i64,
}

/// An event of the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Posted {
    pub(super) name: String,
    pub(super) count: u32,
    /// Unix nanoseconds.
    pub(super) first: i64,
}

/// What becomes of a happening.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EventDecision {
    /// As a new event.
    Create(Posted),
    /// One more of an event that is there.
    Count(Posted),
    /// Counted, and not told.
    Hold,
}

type Key = (About, String, Kind, Cow<'static, str>, String);

#[derive(Debug)]
struct Budget {
    left: f64,
    at: Duration,
}

/// Client-go's aggregate key; source and reporter are this kubelet's always.
type Group = (About, Kind, Cow<'static, str>);

#[derive(Debug)]
pub(super) struct Correlator {
    similar: Similar<Group>,
    posted: BTreeMap<Key, (Posted, Duration)>,
    /// As its spam key: an object, and the type of the event.
    budgets: BTreeMap<(About, Kind), Budget>,
}

impl Default for Correlator {
    fn default() -> Self {
        Self { similar: Similar::new(MOST), posted: BTreeMap::new(), budgets: BTreeMap::new() }
    }
}

fn key(happening: &Happening) -> Key {
    let Happening { about, field, kind, reason, message, combined, .. } = happening;
    // All that are combined are one.
    let (field, message) = if *combined { ("", "") } else { (field.as_str(), message.as_str()) };
    (about.clone(), field.to_owned(), *kind, reason.clone(), message.to_owned())
}

impl Correlator {
    /// What is told one by one, and is one of too many that differ by their message only, becomes one
    /// that stands for all of them.
    pub(super) fn combine(&mut self, mut happening: Happening) -> Happening {
        let group = (happening.about.clone(), happening.kind, happening.reason.clone());
        if !happening.combined && self.similar.is_one_of_many(&group, &happening.message, happening.last) {
            happening.message.insert_str(0, COMBINED);
            happening.combined = true;
        }
        happening
    }

    /// `name` is for a new event, `now` on the monotonic clock.
    pub(super) fn judge(&mut self, happening: &Happening, name: String, now: Duration) -> EventDecision {
        let key = key(happening);
        let known = self.posted.get(&key).map(|(posted, _)| posted.clone());
        let there = known.is_some();
        let mut posted = known.unwrap_or(Posted { name, count: 0, first: happening.first });
        posted.count = posted.count.saturating_add(happening.times);
        self.posted.insert(key, (posted.clone(), now));
        bound(&mut self.posted, |(_, at)| *at);
        match (self.spend(happening, now), there) {
            (false, _) => EventDecision::Hold,
            (true, true) => EventDecision::Count(posted),
            (true, false) => EventDecision::Create(posted),
        }
    }

    /// The server has forgotten it: the next one is new.
    pub(super) fn forget(&mut self, happening: &Happening) {
        self.posted.remove(&key(happening));
    }

    fn spend(&mut self, happening: &Happening, now: Duration) -> bool {
        let of = (happening.about.clone(), happening.kind);
        let budget = self.budgets.entry(of).or_insert(Budget { left: BURST, at: now });
        let passed = now.saturating_sub(budget.at).as_secs_f64() / REFILL.as_secs_f64();
        budget.left = (budget.left + passed).min(BURST);
        budget.at = now;
        let enough = budget.left >= 1.0;
        if enough {
            budget.left -= 1.0;
        }
        bound(&mut self.budgets, |budget| budget.at);
        enough
    }
}

/// The one that is longest ago makes room.
fn bound<K: Ord + Clone, V>(all: &mut BTreeMap<K, V>, at: impl Fn(&V) -> Duration) {
    if all.len() > MOST
        && let Some(oldest) = all.iter().min_by_key(|(_, value)| at(value)).map(|(key, _)| key.clone())
    {
        all.remove(&oldest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn happening(message: &str) -> Happening {
        let about = About::Pod { namespace: "default".into(), name: "web".into(), uid: "u".into() };
        Happening {
            about,
            field: "spec.containers{web}".into(),
            kind: Kind::Warning,
            reason: "Unhealthy".into(),
            message: message.into(),
            annotations: BTreeMap::new(),
            combined: false,
            times: 1,
            first: 1,
            last: 1,
        }
    }

    fn at(second: u64) -> Duration {
        Duration::from_secs(second)
    }

    fn posted(name: &str, count: u32) -> Posted {
        Posted { name: name.into(), count, first: 1 }
    }

    #[test]
    fn the_same_is_counted_another_is_new() {
        let mut correlator = Correlator::default();
        assert_eq!(
            correlator.judge(&happening("no"), "a".into(), at(0)),
            EventDecision::Create(posted("a", 1))
        );
        let more = Happening { times: 3, ..happening("no") };
        assert_eq!(correlator.judge(&more, "b".into(), at(1)), EventDecision::Count(posted("a", 4)));
        assert_eq!(
            correlator.judge(&happening("yes"), "c".into(), at(2)),
            EventDecision::Create(posted("c", 1))
        );
        correlator.forget(&happening("no"));
        assert_eq!(
            correlator.judge(&happening("no"), "d".into(), at(3)),
            EventDecision::Create(posted("d", 1))
        );
    }

    #[test]
    fn combined_ones_share_one_event_whatever_they_say() {
        let mut correlator = Correlator::default();
        let combined = |message: &str| Happening { combined: true, ..happening(message) };
        correlator.judge(&combined("1"), "a".into(), at(0));
        assert_eq!(correlator.judge(&combined("2"), "b".into(), at(1)), EventDecision::Count(posted("a", 2)));
    }

    #[test]
    fn what_comes_past_a_list_is_combined_by_object_type_and_reason() {
        let mut correlator = Correlator::default();
        let told = |correlator: &mut Correlator, n: i64, field: &str| {
            let one = Happening { field: field.into(), last: n, ..happening(&format!("code {n}")) };
            correlator.combine(one)
        };
        for n in 0..9 {
            // Of which container makes no difference.
            let field = if n % 2 == 0 { "spec.containers{a}" } else { "spec.containers{b}" };
            assert!(!told(&mut correlator, n, field).combined, "{n}");
        }
        let tenth = told(&mut correlator, 9, "spec.containers{c}");
        assert_eq!(
            (tenth.combined, tenth.message.as_str()),
            (true, "(combined from similar events): code 9")
        );
        let other = Happening { about: About::Node, ..happening("code 9") };
        assert!(!correlator.combine(other).combined);
        let again = correlator.combine(tenth.clone());
        assert_eq!(again.message, tenth.message, "those that a list has combined stay as they are");
    }

    #[test]
    fn an_object_has_twenty_five_events_and_one_more_each_five_minutes() {
        let mut correlator = Correlator::default();
        for n in 0..25 {
            let verdict = correlator.judge(&happening("no"), "a".into(), at(n / 10));
            assert_ne!(verdict, EventDecision::Hold, "{n}");
        }
        assert_eq!(correlator.judge(&happening("no"), "a".into(), at(5)), EventDecision::Hold);
        // Normal ones have a budget of their own, and so has another pod.
        let normal = Happening { kind: Kind::Normal, ..happening("no") };
        assert_ne!(correlator.judge(&normal, "b".into(), at(5)), EventDecision::Hold);
        assert_ne!(
            correlator.judge(&Happening { about: About::Node, ..happening("no") }, "c".into(), at(5)),
            EventDecision::Hold
        );
        // What was held back was counted.
        assert_eq!(
            correlator.judge(&happening("no"), "a".into(), at(305)),
            EventDecision::Count(posted("a", 27))
        );
    }

    #[test]
    fn memory_is_bounded() {
        let mut correlator = Correlator::default();
        for n in 0..5000 {
            correlator.judge(&happening(&n.to_string()), n.to_string(), at(n));
        }
        assert_eq!(correlator.posted.len(), MOST);
        let known = |n: u64| correlator.posted.contains_key(&key(&happening(&n.to_string())));
        assert!(!known(0) && known(4999), "what is longest ago is forgotten");
    }
}
