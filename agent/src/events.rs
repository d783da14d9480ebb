//! What happened to a pod, as `kubectl describe` lists it: a bounded list in memory, repeats
//! counted, floods combined the way upstream's event recorder does it. Pure: owns the list and the
//! rules; never sends it anywhere. Filled by the pod's worker, read through its status.

mod similar;
pub(crate) mod sink;
mod volume_notes;

use std::borrow::Cow;
use std::collections::BTreeMap;

use similar::Similar;
pub use volume_notes::VolumeNotes;
pub(crate) use volume_notes::{ClaimIdentity, VolumeIdentity, VolumeNote, VolumeNoteSubject};

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
    /// For programs, on the event.
    pub annotations: BTreeMap<String, String>,
}

impl Note {
    /// About the pod.
    #[must_use]
    pub fn pod(kind: Kind, reason: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        let (reason, message) = (reason.into(), message.into());
        Self { kind, reason, container: String::new(), message, annotations: BTreeMap::new() }
    }

    /// About one of its containers.
    #[must_use]
    pub fn container(kind: Kind, reason: &'static str, name: &str, message: impl Into<String>) -> Self {
        Self { container: name.to_owned(), ..Self::pod(kind, reason, message) }
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
/// Kinds whose messages are remembered.
const KINDS: usize = 64;
pub(crate) const COMBINED: &str = "(combined from similar events): ";

/// The events of one pod.
#[derive(Debug, Clone)]
pub(crate) struct Journal {
    events: Vec<Event>,
    similar: Similar<(Kind, Cow<'static, str>)>,
}

impl Default for Journal {
    fn default() -> Self {
        Self { events: Vec::new(), similar: Similar::new(KINDS) }
    }
}

impl Journal {
    /// In the order in which they happened first.
    #[must_use]
    pub(crate) fn events(&self) -> &[Event] {
        &self.events
    }

    /// Takes a note; `now` is the wall clock's, for display.
    pub(crate) fn add(&mut self, mut note: Note, now: i64) {
        let kind = (note.kind, note.reason.clone());
        let many = self.similar.is_one_of_many(&kind, &note.message, now);
        if many {
            note.message.insert_str(0, COMBINED);
        }
        let same = |event: &&mut Event| match many {
            // All that are combined are one, whatever they say and of whichever container.
            true => {
                event.note.message.starts_with(COMBINED)
                    && kind == (event.note.kind, event.note.reason.clone())
            }
            false => event.note == note,
        };
        if let Some(event) = self.events.iter_mut().find(same) {
            event.note = note;
            event.count = event.count.saturating_add(1);
            event.last = now;
            return;
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
        assert_eq!(journal.events().len(), 10);
        let last = journal.events().last().unwrap();
        assert_eq!((last.note.message.as_str(), last.count), ("(combined from similar events): code 29", 21));
        // Long after, they are told one by one again.
        journal.add(unhealthy("later"), 2_000_000_000_000);
        assert_eq!(journal.events().last().unwrap().note.message, "later");
    }

    #[test]
    fn a_flood_over_several_containers_is_one_flood() {
        let mut journal = Journal::default();
        for n in 0..30 {
            let of = if n % 2 == 0 { "web" } else { "db" };
            journal.add(Note::container(Kind::Warning, "Unhealthy", of, format!("code {n}")), n);
        }
        let combined: Vec<&Event> =
            journal.events().iter().filter(|event| event.note.message.starts_with(COMBINED)).collect();
        let [combined] = combined[..] else { panic!("{combined:?}") };
        assert_eq!(
            (combined.count, combined.note.container.as_str(), journal.events().len()),
            (21, "db", 10)
        );
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
