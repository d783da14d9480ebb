//! What happened to a pod, as `kubectl describe` lists it: a bounded list in memory, repeats
//! counted, floods combined the way upstream's event recorder does it. Pure: owns the list and the
//! rules; never sends it anywhere. Filled by the pod's worker, read through its status.

pub mod sink;

use std::borrow::Cow;

/// How loud an event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// As expected.
    Normal,
    /// Worth a look.
    Warning,
}

impl Kind {
    /// As Kubernetes spells it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// Something to be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// How loud.
    pub kind: Kind,
    /// As upstream: Pulling, Created, BackOff …
    pub reason: Cow<'static, str>,
    /// The container it is about; the pod itself when empty.
    pub container: String,
    /// For people.
    pub message: String,
}

impl Note {
    /// About the pod.
    #[must_use]
    pub fn pod(kind: Kind, reason: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self { kind, reason: reason.into(), container: String::new(), message: message.into() }
    }

    /// About one of its containers.
    #[must_use]
    pub fn container(kind: Kind, reason: &'static str, name: &str, message: impl Into<String>) -> Self {
        Self { kind, reason: reason.into(), container: name.to_owned(), message: message.into() }
    }
}

/// Something to be told of the node itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeNote {
    /// How loud.
    pub kind: Kind,
    /// As upstream: Starting, NodeReady …
    pub reason: &'static str,
    /// For people.
    pub message: String,
}

/// One line of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// What.
    pub note: Note,
    /// How often.
    pub count: u32,
    /// Unix nanoseconds.
    pub first: i64,
    /// Unix nanoseconds.
    pub last: i64,
}

/// Entries of one pod; the one that is longest ago makes room.
const MOST: usize = 64;
/// client-go's EventAggregator: this many different messages of one kind within this time are told
/// one by one, more are combined.
const SIMILAR: usize = 10;
const SIMILAR_WITHIN: u64 = 600 * 1_000_000_000;
pub(crate) const COMBINED: &str = "(combined from similar events): ";

/// The events of one pod.
#[derive(Debug, Clone, Default)]
pub struct Journal {
    events: Vec<Event>,
}

impl Journal {
    /// In the order in which they happened first.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Takes a note; `now` is the wall clock's, for display.
    pub fn add(&mut self, mut note: Note, now: i64) {
        if let Some(event) = self.events.iter_mut().find(|event| event.note == note) {
            event.count = event.count.saturating_add(1);
            event.last = now;
            return;
        }
        let alike = |event: &&mut Event| {
            (event.note.kind, &event.note.reason, &event.note.container)
                == (note.kind, &note.reason, &note.container)
                && event.last.abs_diff(now) <= SIMILAR_WITHIN
        };
        let (mut combined, singles): (Vec<_>, Vec<_>) =
            self.events.iter_mut().filter(alike).partition(|event| event.note.message.starts_with(COMBINED));
        if singles.len() + 1 >= SIMILAR {
            note.message.insert_str(0, COMBINED);
            if let Some(event) = combined.first_mut() {
                event.note = note;
                event.count = event.count.saturating_add(1);
                event.last = now;
                return;
            }
        }
        if self.events.len() >= MOST
            && let Some(oldest) = (0..self.events.len()).min_by_key(|at| self.events.get(*at).map(|e| e.last))
        {
            self.events.remove(oldest);
        }
        self.events.push(Event { note, count: 1, first: now, last: now });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unhealthy(message: &str) -> Note {
        Note::container(Kind::Warning, "Unhealthy", "web", message)
    }

    #[test]
    fn repeats_are_counted_with_first_and_last_time() {
        let mut journal = Journal::default();
        for at in [5, 9, 12] {
            journal.add(unhealthy("no"), at);
        }
        journal.add(Note::container(Kind::Warning, "Unhealthy", "db", "no"), 13);
        let [web, db] = journal.events() else { panic!("{journal:?}") };
        assert_eq!((web.count, web.first, web.last), (3, 5, 12));
        assert_eq!((db.count, db.first, db.last), (1, 13, 13));
    }

    #[test]
    fn a_flood_of_different_messages_is_combined() {
        let mut journal = Journal::default();
        for n in 0..30 {
            journal.add(unhealthy(&format!("code {n}")), n);
        }
        assert_eq!(journal.events().len(), SIMILAR);
        let last = journal.events().last().unwrap();
        assert_eq!((last.note.message.as_str(), last.count), ("(combined from similar events): code 29", 21));
        // Long after, they are told one by one again.
        journal.add(unhealthy("later"), 2_000_000_000_000);
        assert_eq!(journal.events().last().unwrap().note.message, "later");
    }

    #[test]
    fn the_list_is_bounded_and_forgets_what_is_longest_ago() {
        let mut journal = Journal::default();
        for n in 0..200 {
            journal.add(Note::container(Kind::Normal, "Pulled", &format!("c{n}"), "x"), n);
        }
        assert_eq!(journal.events().len(), MOST);
        assert_eq!(journal.events().first().unwrap().note.container, "c136");
    }
}
