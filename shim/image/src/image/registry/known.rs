//! What was found out about hosts that serve blobs, so that the next layer need not find it out again. Owns these
//! facts, in memory alone; asks nobody. Called by `download` and `pieces`.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use reqwest::Url;
use tokio::time::Instant;

/// Networks and registries change.
const LASTS: Duration = Duration::from_secs(600);
/// Names of hosts come from strangers' redirects.
const MOST: usize = 256;

/// How large blobs come from a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fact {
    /// One connection is slow, and it serves ranges.
    Pieces,
    /// It refused them.
    Whole,
}

/// Scheme, host and port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Origin(String);

impl Origin {
    pub(super) fn of(url: &Url) -> Self {
        Self(url.origin().ascii_serialization())
    }
}

/// Facts by host.
#[derive(Debug, Default)]
pub(super) struct Known(Mutex<HashMap<Origin, (Instant, Fact)>>);

impl Known {
    pub(super) fn of(&self, origin: &Origin) -> Option<Fact> {
        let facts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        facts.get(origin).filter(|(since, _)| since.elapsed() < LASTS).map(|(_, fact)| *fact)
    }

    /// The last word counts, and the time from the first word of its kind: a fact is looked at anew now and then.
    pub(super) fn tell(&self, origin: &Origin, fact: Fact) {
        let mut facts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        facts.retain(|_, (since, _)| since.elapsed() < LASTS);
        if facts.get(origin).is_some_and(|(_, known)| *known == fact) {
            return;
        }
        if facts.len() >= MOST
            && !facts.contains_key(origin)
            && let Some(oldest) = facts.iter().min_by_key(|(_, (since, _))| *since)
        {
            let oldest = oldest.0.clone();
            facts.remove(&oldest);
        }
        facts.insert(origin.clone(), (Instant::now(), fact));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(text: &str) -> Origin {
        Origin::of(&Url::parse(text).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn facts_are_of_scheme_host_and_port_and_are_forgotten() {
        let known = Known::default();
        let registry = origin("https://r.example/v2/a?x=1");
        known.tell(&registry, Fact::Pieces);
        assert_eq!(known.of(&origin("https://r.example:443/other")), Some(Fact::Pieces));
        for other in ["http://r.example/", "https://r.example:444/", "https://s.example/"] {
            assert_eq!(known.of(&origin(other)), None, "{other}");
        }
        known.tell(&registry, Fact::Whole);
        assert_eq!(known.of(&registry), Some(Fact::Whole));
        tokio::time::advance(LASTS / 2).await;
        known.tell(&registry, Fact::Whole);
        tokio::time::advance(LASTS / 2).await;
        assert_eq!(known.of(&registry), None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_goes_when_there_are_too_many() {
        let known = Known::default();
        let host = |number: usize| origin(&format!("https://h{number}.example/"));
        for number in 0..=MOST {
            known.tell(&host(number), Fact::Whole);
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert_eq!(known.0.lock().unwrap().len(), MOST);
        assert_eq!((known.of(&host(0)), known.of(&host(1))), (None, Some(Fact::Whole)));
    }
}
