//! Answers that stay true for a while. Owns the entries and how many may wait for one that is not
//! known yet; never asks by itself. Each key is asked for once at a time: who comes meanwhile waits
//! for that answer. Used by [`super::authn`] and [`super::authz`].

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;

/// More would only help somebody who makes keys up.
const MOST: usize = 4096;

/// Requests that wait for answers at once: for an API server that does not answer, many come and
/// none goes. Those whose answer is known do not wait.
const WAITING: usize = 256;

/// So many wait already.
#[derive(Debug)]
pub(super) struct Crowded;

#[derive(Debug)]
struct Slot<V> {
    known: Mutex<Option<(V, Instant)>>,
    /// Held while it is asked for.
    asking: tokio::sync::Mutex<()>,
}

impl<V: Clone> Slot<V> {
    fn known(&self) -> Option<V> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.as_ref().filter(|(_, until)| *until > Instant::now()).map(|(value, _)| value.clone())
    }
}

#[derive(Debug)]
struct CacheEntry<V> {
    slot: Arc<Slot<V>>,
    /// When it was last wanted: the oldest goes first when there are too many.
    wanted: Instant,
}

/// By key.
#[derive(Debug)]
pub(super) struct Cache<K, V> {
    entries: Mutex<HashMap<K, CacheEntry<V>>>,
    waiting: Semaphore,
}

impl<K, V> Default for Cache<K, V> {
    fn default() -> Self {
        Self { entries: Mutex::new(HashMap::new()), waiting: Semaphore::new(WAITING) }
    }
}

impl<K: Eq + Hash + Clone, V: Clone> Cache<K, V> {
    /// The answer kept, or what `ask` says, kept as long as `keep` says. An error is not kept, and
    /// who waited asks again. When too many wait already, it is an error.
    pub(super) async fn get<E: From<Crowded>>(
        &self,
        key: K,
        keep: impl FnOnce(&V) -> Duration,
        ask: impl Future<Output = Result<V, E>>,
    ) -> Result<V, E> {
        let slot = self.slot(key);
        if let Some(value) = slot.known() {
            return Ok(value);
        }
        let _waiting = self.waiting.try_acquire().map_err(|_| Crowded)?;
        let _asking = slot.asking.lock().await;
        if let Some(value) = slot.known() {
            return Ok(value);
        }
        let value = ask.await?;
        let known = Some((value.clone(), Instant::now() + keep(&value)));
        *slot.known.lock().unwrap_or_else(PoisonError::into_inner) = known;
        Ok(value)
    }

    /// What `ask` says; it is not kept.
    pub(super) async fn ask<E: From<Crowded>>(
        &self,
        ask: impl Future<Output = Result<V, E>>,
    ) -> Result<V, E> {
        let _waiting = self.waiting.try_acquire().map_err(|_| Crowded)?;
        ask.await
    }

    /// How many more may wait.
    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        self.waiting.available_permits()
    }

    fn slot(&self, key: K) -> Arc<Slot<V>> {
        // Nothing in here panics halfway.
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if entries.len() >= MOST && !entries.contains_key(&key) {
            let oldest = entries.iter().min_by_key(|(_, entry)| entry.wanted).map(|(key, _)| key.clone());
            oldest.map(|key| entries.remove(&key));
        }
        let fresh = || Arc::new(Slot { known: Mutex::new(None), asking: tokio::sync::Mutex::default() });
        let entry = entries.entry(key).or_insert_with(|| CacheEntry { slot: fresh(), wanted: now });
        entry.wanted = now;
        entry.slot.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Debug, PartialEq)]
    enum Why {
        Away,
        Crowd,
    }

    impl From<Crowded> for Why {
        fn from(_: Crowded) -> Self {
            Self::Crowd
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_known_is_told_whoever_waits_for_what_is_not() {
        let cache: Cache<usize, u8> = Cache::default();
        let told = |key| cache.get(key, |_| MINUTE, async { Ok::<_, Why>(7) });
        assert_eq!(told(0).await, Ok(7));
        let silent =
            (1..=WAITING).map(|key| cache.get(key, |_| MINUTE, std::future::pending::<Result<_, Why>>()));
        let mut silent = futures_util::future::join_all(silent).boxed_local();
        assert!((&mut silent).now_or_never().is_none());
        assert_eq!(cache.free(), 0);
        assert_eq!((told(0).await, told(WAITING + 1).await), (Ok(7), Err(Why::Crowd)));
        assert_eq!(cache.ask(async { Ok(7) }).await, Err(Why::Crowd));
        drop(silent);
        assert_eq!((cache.free(), told(WAITING + 1).await), (WAITING, Ok(7)));
    }

    const MINUTE: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_asked_for_once_until_it_is_old() {
        let (cache, asked) = (Cache::default(), AtomicUsize::new(0));
        let get = |key: &'static str| {
            let asked = &asked;
            cache.get(key, |_| MINUTE, async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok::<_, Why>(asked.fetch_add(1, Ordering::SeqCst))
            })
        };
        let (a, same, b) = tokio::join!(get("a"), get("a"), get("b"));
        assert!(a == same && a != b, "{a:?} {same:?} {b:?}");
        tokio::time::sleep(MINUTE).await;
        assert_eq!(get("a").await, Ok(2));
        assert_eq!(get("a").await, Ok(2));
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_is_not_kept_and_there_is_room_for_so_many() {
        let cache: Cache<usize, u8> = Cache::default();
        assert_eq!(cache.get(1, |_| MINUTE, async { Err(Why::Away) }).await, Err(Why::Away));
        assert_eq!(cache.get(1, |_| MINUTE, async { Ok::<_, Why>(7) }).await, Ok(7));
        for key in 2..2 * MOST {
            tokio::time::advance(Duration::from_millis(1)).await;
            cache.get(key, |_| MINUTE, async { Ok::<_, Why>(0) }).await.unwrap();
        }
        assert_eq!(cache.entries.lock().unwrap().len(), MOST);
        assert_eq!(cache.get(1, |_| MINUTE, async { Ok::<_, Why>(8) }).await, Ok(8));
    }
}
