//! Answers that stay true for a while. Owns the entries; never asks by itself. Each key is asked for
//! once at a time: who comes meanwhile waits for that answer. Used by [`super::authn`] and
//! [`super::authz`].

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// More would only help somebody who makes keys up.
const MOST: usize = 4096;

type Slot<V> = Arc<tokio::sync::Mutex<Option<(V, Instant)>>>;

#[derive(Debug)]
struct Entry<V> {
    slot: Slot<V>,
    /// When it was last wanted: the oldest goes first when there are too many.
    wanted: Instant,
}

/// By key.
#[derive(Debug)]
pub(super) struct Cache<K, V> {
    entries: Mutex<HashMap<K, Entry<V>>>,
}

impl<K, V> Default for Cache<K, V> {
    fn default() -> Self {
        Self { entries: Mutex::new(HashMap::new()) }
    }
}

impl<K: Eq + Hash + Clone, V: Clone> Cache<K, V> {
    /// The answer kept, or what `ask` says, kept as long as `keep` says. An error is not kept, and
    /// who waited asks again.
    pub(super) async fn get<E>(
        &self,
        key: K,
        keep: impl FnOnce(&V) -> Duration,
        ask: impl Future<Output = Result<V, E>>,
    ) -> Result<V, E> {
        let slot = self.slot(key);
        let mut held = slot.lock().await;
        if let Some((value, until)) = &*held
            && *until > Instant::now()
        {
            return Ok(value.clone());
        }
        let value = ask.await?;
        *held = Some((value.clone(), Instant::now() + keep(&value)));
        Ok(value)
    }

    fn slot(&self, key: K) -> Slot<V> {
        // Nothing in here panics halfway.
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if entries.len() >= MOST && !entries.contains_key(&key) {
            let oldest = entries.iter().min_by_key(|(_, entry)| entry.wanted).map(|(key, _)| key.clone());
            oldest.map(|key| entries.remove(&key));
        }
        let entry = entries.entry(key).or_insert_with(|| Entry { slot: Slot::default(), wanted: now });
        entry.wanted = now;
        entry.slot.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const MINUTE: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_asked_for_once_until_it_is_old() {
        let (cache, asked) = (Cache::default(), AtomicUsize::new(0));
        let get = |key: &'static str| {
            let asked = &asked;
            cache.get(key, |_| MINUTE, async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok::<_, ()>(asked.fetch_add(1, Ordering::SeqCst))
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
        assert_eq!(cache.get(1, |_| MINUTE, async { Err("away") }).await, Err("away"));
        assert_eq!(cache.get(1, |_| MINUTE, async { Ok::<_, ()>(7) }).await, Ok(7));
        for key in 2..2 * MOST {
            tokio::time::advance(Duration::from_millis(1)).await;
            cache.get(key, |_| MINUTE, async { Ok::<_, ()>(0) }).await.unwrap();
        }
        assert_eq!(cache.entries.lock().unwrap().len(), MOST);
        assert_eq!(cache.get(1, |_| MINUTE, async { Ok::<_, ()>(8) }).await, Ok(8));
    }
}
