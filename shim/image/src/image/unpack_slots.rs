//! How many layers are on their way at the same time, of all pulls of the node together. Owns that number and who is
//! next; knows no layer but its size. Called by `pull`.
//!
//! A layer in work takes processor time (two processes, two hashes) and about 1 MiB of the runtime's memory, so the
//! bound is the node's, not an image's. A small layer mostly waits for the network: more of them may be at work. A
//! pull that has no slot always gets one, and a few more while there is memory: a registry that stalls holds up its
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

/// All slots of the node.
#[derive(Debug)]
pub(super) struct UnpackSlots {
    limits: SlotLimits,
    in_use: Mutex<SlotsInUse>,
    freed: Notify,
}

/// Layers at work at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SlotLimits {
    large: usize,
    all: usize,
}

#[derive(Debug, Default, Clone, Copy)]
struct SlotsInUse {
    large: usize,
    all: usize,
}

/// One pull at the slots.
#[derive(Debug, Clone)]
pub(super) struct PullQuota {
    slots: Arc<UnpackSlots>,
    in_use_by_pull: Arc<AtomicUsize>,
}

/// A place to work at; free when it is dropped.
#[derive(Debug)]
pub(super) struct UnpackSlot {
    slots: Arc<UnpackSlots>,
    in_use_by_pull: Arc<AtomicUsize>,
    large: bool,
}

impl SlotLimits {
    fn of(cores: usize) -> Self {
        let large = cores.saturating_mul(2).clamp(3, MOST);
        Self { large, all: large.saturating_mul(2).min(MOST) }
    }

    /// `own`: what this pull has already.
    fn is_allowed(self, taken: SlotsInUse, own: usize, large: bool) -> bool {
        own == 0
            || (own < FEW && taken.all < MOST)
            || (taken.all < self.all && (!large || taken.large < self.large))
    }
}

impl UnpackSlots {
    pub(super) fn of_this_node() -> Arc<Self> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Arc::new(Self { limits: SlotLimits::of(cores), in_use: Mutex::default(), freed: Notify::new() })
    }

    /// Layers that may be at work, small ones among them.
    #[cfg(test)]
    pub(super) fn most(&self) -> usize {
        self.limits.all
    }

    /// The slots of one more pull.
    pub(super) fn pull_quota(self: &Arc<Self>) -> PullQuota {
        PullQuota { slots: Arc::clone(self), in_use_by_pull: Arc::default() }
    }
}

impl PullQuota {
    /// A slot for a layer of so many compressed bytes, as soon as there is one. Those who wait longest are woken
    /// first.
    pub(super) async fn acquire(&self, bytes: u64) -> UnpackSlot {
        loop {
            let freed = self.slots.freed.notified();
            tokio::pin!(freed);
            // What is freed between the look and the wait counts.
            freed.as_mut().enable();
            if let Some(slot) = self.try_acquire(bytes) {
                return slot;
            }
            freed.await;
        }
    }

    fn try_acquire(&self, bytes: u64) -> Option<UnpackSlot> {
        let large = bytes > SMALL;
        let mut taken = self.slots.in_use.lock().unwrap_or_else(PoisonError::into_inner);
        // Changed under the lock alone.
        if !self.slots.limits.is_allowed(*taken, self.in_use_by_pull.load(Ordering::Relaxed), large) {
            return None;
        }
        self.in_use_by_pull.fetch_add(1, Ordering::Relaxed);
        taken.all += 1;
        taken.large += usize::from(large);
        Some(UnpackSlot {
            slots: Arc::clone(&self.slots),
            in_use_by_pull: Arc::clone(&self.in_use_by_pull),
            large,
        })
    }
}

impl Drop for UnpackSlot {
    fn drop(&mut self) {
        let mut taken = self.slots.in_use.lock().unwrap_or_else(PoisonError::into_inner);
        self.in_use_by_pull.fetch_sub(1, Ordering::Relaxed);
        taken.all -= 1;
        taken.large -= usize::from(self.large);
        drop(taken);
        self.slots.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: u64 = SMALL + 1;

    fn slots(cores: usize) -> Arc<UnpackSlots> {
        Arc::new(UnpackSlots {
            limits: SlotLimits::of(cores),
            in_use: Mutex::default(),
            freed: Notify::new(),
        })
    }

    fn fill(quota: &PullQuota, bytes: u64) -> Vec<UnpackSlot> {
        std::iter::from_fn(|| quota.try_acquire(bytes)).collect()
    }

    #[test]
    fn as_many_as_the_node_has_cores_for() {
        let limits = |cores| (SlotLimits::of(cores).large, SlotLimits::of(cores).all);
        assert_eq!([1, 2, 4, 64].map(limits), [(3, 6), (4, 8), (8, 16), (16, 16)]);
    }

    #[test]
    fn small_layers_get_through_beside_large_ones() {
        let slots = slots(2);
        let quota = slots.pull_quota();
        let large = fill(&quota, LARGE);
        assert_eq!(large.len(), 4);
        let small = fill(&quota, SMALL);
        assert_eq!(small.len(), 4);
        drop(small);
        assert_eq!(fill(&quota, LARGE).len(), 0);
        drop(large);
        assert_eq!(fill(&quota, SMALL).len(), 8);
    }

    #[test]
    fn the_bound_is_the_nodes_and_every_pull_has_one() {
        let slots = slots(2);
        let (stalled, other) = (slots.pull_quota(), slots.pull_quota());
        let held = fill(&stalled, LARGE);
        let few = fill(&other, LARGE);
        assert_eq!((held.len(), few.len()), (4, 3));
        let more: Vec<PullQuota> = (0..10).map(|_| slots.pull_quota()).collect();
        let more: Vec<Vec<UnpackSlot>> = more.iter().map(|quota| fill(quota, SMALL)).collect();
        let counts: Vec<usize> = more.iter().map(Vec::len).collect();
        assert_eq!(counts, [3, 3, 3, 1, 1, 1, 1, 1, 1, 1], "one each there always is");
        drop((held, few, more));
        let taken = *slots.in_use.lock().unwrap();
        assert_eq!((taken.all, taken.large), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_gets_the_next_slot_that_is_free() {
        let slots = slots(1);
        let quota = slots.pull_quota();
        let mut held = fill(&quota, LARGE);
        let waiting = tokio::spawn(async move { quota.acquire(LARGE).await });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(held.pop());
        let slot = tokio::time::timeout(std::time::Duration::from_secs(60), waiting).await.unwrap();
        assert!(slot.unwrap().large);
    }
}
