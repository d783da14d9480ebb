//! One piece of work for all who want the same thing at the same time. Owns the table of work under
//! way; the work runs inside those who wait for it, and is dropped with the last of them. Called by
//! `pull` for images and for layers.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::{FutureExt, Shared, WeakShared};

type Work<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Shared calls by key.
pub(crate) struct SingleFlight<K, T: Clone> {
    under_way: Arc<Mutex<HashMap<K, WeakShared<Work<T>>>>>,
}

/// A handle on a shared call: the first caller runs it, the others join.
pub(crate) struct Flight<T: Clone> {
    pub(crate) work: Shared<Work<T>>,
    /// Somebody else began it: with their credentials, from their registry.
    pub(crate) joined: bool,
}

impl<K, T: Clone> fmt::Debug for SingleFlight<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SingleFlight").finish_non_exhaustive()
    }
}

impl<K: Eq + Hash + Clone, T: Clone> SingleFlight<K, T> {
    pub(crate) fn new() -> Self {
        Self { under_way: Arc::new(Mutex::new(HashMap::new())) }
    }

    /// Joins the flight of `key`, or begins it. A finished one is not joined: its result may be out
    /// of date.
    pub(crate) fn join(&self, key: &K, begin: impl FnOnce() -> Work<T>) -> Flight<T> {
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        // Flights end in many places; the table is swept here, in one.
        under_way.retain(|_, weak| weak.upgrade().is_some_and(|work| work.peek().is_none()));
        if let Some(work) = under_way.get(key).and_then(WeakShared::upgrade) {
            return Flight { work, joined: true };
        }
        let work = begin().shared();
        if let Some(weak) = work.downgrade() {
            under_way.insert(key.clone(), weak);
        }
        Flight { work, joined: false }
    }

    /// How many wait for `key`.
    #[cfg(test)]
    pub(crate) fn waiting(&self, key: &K) -> usize {
        let under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        let work = under_way.get(key).and_then(WeakShared::upgrade);
        work.and_then(|work| work.strong_count()).map_or(0, |count| count - 1)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn two_share_one_flight_and_a_third_begins_anew() {
        let single_flight: SingleFlight<&str, u32> = SingleFlight::new();
        let begun = Arc::new(AtomicUsize::new(0));
        let (done, wait) = oneshot::channel::<u32>();
        let begin = |work: Work<u32>| {
            begun.fetch_add(1, Ordering::SeqCst);
            work
        };
        let first = single_flight.join(&"k", || begin(Box::pin(async { wait.await.unwrap() })));
        let second = single_flight.join(&"k", || begin(Box::pin(async { 0 })));
        assert!(!first.joined && second.joined);
        done.send(7).unwrap();
        assert_eq!(tokio::join!(first.work.clone(), second.work), (7, 7));
        let third = single_flight.join(&"k", || begin(Box::pin(async { 8 })));
        assert!(!third.joined);
        assert_eq!(third.work.await, 8);
        assert_eq!(begun.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn the_work_is_dropped_with_the_last_who_waits() {
        struct Flag(Arc<AtomicUsize>);
        impl Drop for Flag {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        let single_flight: SingleFlight<&str, ()> = SingleFlight::new();
        let dropped = Arc::new(AtomicUsize::new(0));
        let flag = Flag(Arc::clone(&dropped));
        let begin = || -> Work<()> {
            Box::pin(async move {
                let _flag = flag;
                std::future::pending::<()>().await;
            })
        };
        let first = single_flight.join(&"k", begin);
        let second = single_flight.join(&"k", || Box::pin(async {}));
        drop(first);
        assert_eq!(dropped.load(Ordering::SeqCst), 0);
        drop(second);
        assert_eq!(dropped.load(Ordering::SeqCst), 1);
    }
}
