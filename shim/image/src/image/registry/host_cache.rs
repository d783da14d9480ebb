//! What was found out about hosts that serve blobs, so that the next layer need not find it out again. Owns these
//! facts, in memory alone; asks nobody. Called by `download` and `ranges`.

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
pub(super) enum RangeSupport {
    /// One connection is slow, and it serves ranges.
    Ranges,
    /// It refused them.
    WholeBlob,
}

/// Scheme, host and port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Origin(String);

impl Origin {
    pub(super) fn of(url: &Url) -> Self {
        Self(url.origin().ascii_serialization())
    }
}

/// Range support by host.
#[derive(Debug, Default)]
pub(super) struct HostCache(Mutex<HashMap<Origin, (Instant, RangeSupport)>>);

impl HostCache {
    pub(super) fn get(&self, origin: &Origin) -> Option<RangeSupport> {
        let entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.get(origin).filter(|(since, _)| since.elapsed() < LASTS).map(|(_, support)| *support)
    }

    /// The last word counts, and the time from the first word of its kind: an entry is looked at anew now and then.
    pub(super) fn record(&self, origin: &Origin, support: RangeSupport) {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.retain(|_, (since, _)| since.elapsed() < LASTS);
        if entries.get(origin).is_some_and(|(_, last)| *last == support) {
            return;
        }
        if entries.len() >= MOST
            && !entries.contains_key(origin)
            && let Some(oldest) = entries.iter().min_by_key(|(_, (since, _))| *since)
        {
            let oldest = oldest.0.clone();
            entries.remove(&oldest);
        }
        entries.insert(origin.clone(), (Instant::now(), support));
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
        let cache = HostCache::default();
        let registry = origin("https://r.example/v2/a?x=1");
        cache.record(&registry, RangeSupport::Ranges);
        assert_eq!(cache.get(&origin("https://r.example:443/other")), Some(RangeSupport::Ranges));
        for other in ["http://r.example/", "https://r.example:444/", "https://s.example/"] {
            assert_eq!(cache.get(&origin(other)), None, "{other}");
        }
        cache.record(&registry, RangeSupport::WholeBlob);
        assert_eq!(cache.get(&registry), Some(RangeSupport::WholeBlob));
        tokio::time::advance(LASTS / 2).await;
        cache.record(&registry, RangeSupport::WholeBlob);
        tokio::time::advance(LASTS / 2).await;
        assert_eq!(cache.get(&registry), None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_goes_when_there_are_too_many() {
        let cache = HostCache::default();
        let host = |number: usize| origin(&format!("https://h{number}.example/"));
        for number in 0..=MOST {
            cache.record(&host(number), RangeSupport::WholeBlob);
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert_eq!(cache.0.lock().unwrap().len(), MOST);
        assert_eq!((cache.get(&host(0)), cache.get(&host(1))), (None, Some(RangeSupport::WholeBlob)));
    }
}
