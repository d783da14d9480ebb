//! How many layers are on their way at the same time, of all pulls of the node together. Owns that number and who is
//! next; knows no layer but its size. Called by `pull`.
//!
//! A layer in work takes processor time (two processes, two hashes) and about 1 MiB of the runtime's memory, so the
//! bound is the node's, not an image's. A small layer mostly waits for the network: more of them may be at work. A
//! pull that has no desk always gets one, and a few more while there is memory: a registry that stalls holds up its
//! own pulls only.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

/// Compressed bytes up to which a layer is small.
const SMALL: u64 = 1 << 20;
/// Of memory rather than of processors: 1 MiB each.
const MOST: usize = 16;
/// What a pull may have although others hold all that the processors are good for.
const FEW: usize = 3;

/// All desks of the node.
#[derive(Debug)]
pub(super) struct Desks {
    limits: Limits,
    taken: Mutex<Taken>,
    freed: Notify,
}

/// Layers at work at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Limits {
    large: usize,
    all: usize,
}

#[derive(Debug, Default, Clone, Copy)]
struct Taken {
    large: usize,
    all: usize,
}

/// One pull at the desks.
#[derive(Debug, Clone)]
pub(super) struct Team {
    desks: Arc<Desks>,
    own: Arc<AtomicUsize>,
}

/// A place to work at; free when it is dropped.
#[derive(Debug)]
pub(super) struct Desk {
    desks: Arc<Desks>,
    own: Arc<AtomicUsize>,
    large: bool,
}

impl Limits {
    fn of(cores: usize) -> Self {
        let large = cores.saturating_mul(2).clamp(3, MOST);
        Self { large, all: large.saturating_mul(2).min(MOST) }
    }

    /// `own`: what this pull has already.
    fn allow(self, taken: Taken, own: usize, large: bool) -> bool {
        own == 0
            || (own < FEW && taken.all < MOST)
            || (taken.all < self.all && (!large || taken.large < self.large))
    }
}

impl Desks {
    pub(super) fn of_this_node() -> Arc<Self> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Arc::new(Self { limits: Limits::of(cores), taken: Mutex::default(), freed: Notify::new() })
    }

    /// Layers that may be at work, small ones among them.
    #[cfg(test)]
    pub(super) fn most(&self) -> usize {
        self.limits.all
    }

    /// The desks of one more pull.
    pub(super) fn team(self: &Arc<Self>) -> Team {
        Team { desks: Arc::clone(self), own: Arc::default() }
    }
}

impl Team {
    /// A desk for a layer of so many compressed bytes, as soon as there is one. Those who wait longest are woken
    /// first.
    pub(super) async fn desk(&self, bytes: u64) -> Desk {
        loop {
            let freed = self.desks.freed.notified();
            tokio::pin!(freed);
            // What is freed between the look and the wait counts.
            freed.as_mut().enable();
            if let Some(desk) = self.try_desk(bytes) {
                return desk;
            }
            freed.await;
        }
    }

    fn try_desk(&self, bytes: u64) -> Option<Desk> {
        let large = bytes > SMALL;
        let mut taken = self.desks.taken.lock().unwrap_or_else(PoisonError::into_inner);
        // Changed under the lock alone.
        if !self.desks.limits.allow(*taken, self.own.load(Ordering::Relaxed), large) {
            return None;
        }
        self.own.fetch_add(1, Ordering::Relaxed);
        taken.all += 1;
        taken.large += usize::from(large);
        Some(Desk { desks: Arc::clone(&self.desks), own: Arc::clone(&self.own), large })
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        let mut taken = self.desks.taken.lock().unwrap_or_else(PoisonError::into_inner);
        self.own.fetch_sub(1, Ordering::Relaxed);
        taken.all -= 1;
        taken.large -= usize::from(self.large);
        drop(taken);
        self.desks.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: u64 = SMALL + 1;

    fn desks(cores: usize) -> Arc<Desks> {
        Arc::new(Desks { limits: Limits::of(cores), taken: Mutex::default(), freed: Notify::new() })
    }

    fn fill(team: &Team, bytes: u64) -> Vec<Desk> {
        std::iter::from_fn(|| team.try_desk(bytes)).collect()
    }

    #[test]
    fn as_many_as_the_node_has_cores_for() {
        let limits = |cores| (Limits::of(cores).large, Limits::of(cores).all);
        assert_eq!([1, 2, 4, 64].map(limits), [(3, 6), (4, 8), (8, 16), (16, 16)]);
    }

    #[test]
    fn small_layers_get_through_beside_large_ones() {
        let desks = desks(2);
        let team = desks.team();
        let large = fill(&team, LARGE);
        assert_eq!(large.len(), 4);
        let small = fill(&team, SMALL);
        assert_eq!(small.len(), 4);
        drop(small);
        assert_eq!(fill(&team, LARGE).len(), 0);
        drop(large);
        assert_eq!(fill(&team, SMALL).len(), 8);
    }

    #[test]
    fn the_bound_is_the_nodes_and_every_pull_has_one() {
        let desks = desks(2);
        let (stalled, other) = (desks.team(), desks.team());
        let held = fill(&stalled, LARGE);
        let few = fill(&other, LARGE);
        assert_eq!((held.len(), few.len()), (4, 3));
        let more: Vec<Team> = (0..10).map(|_| desks.team()).collect();
        let more: Vec<Vec<Desk>> = more.iter().map(|team| fill(team, SMALL)).collect();
        let counts: Vec<usize> = more.iter().map(Vec::len).collect();
        assert_eq!(counts, [3, 3, 3, 1, 1, 1, 1, 1, 1, 1], "one each there always is");
        drop((held, few, more));
        let taken = *desks.taken.lock().unwrap();
        assert_eq!((taken.all, taken.large), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_gets_the_next_desk_that_is_free() {
        let desks = desks(1);
        let team = desks.team();
        let mut held = fill(&team, LARGE);
        let waiting = tokio::spawn(async move { team.desk(LARGE).await });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(held.pop());
        let desk = tokio::time::timeout(std::time::Duration::from_secs(60), waiting).await.unwrap();
        assert!(desk.unwrap().large);
    }
}
