//! How many ranges of layers may be on their way at once, for all downloads that come in ranges. Owns who has how many
//! of the permits; sees no bytes and no network. Called by `ranges`.
//!
//! A download takes a quota, and a permit for each range while it is asked for and comes. One that has none always gets
//! one, and up to an equal share nobody takes a quota's permits; what is over goes to whoever asks.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Ranges on their way at a time; two more for as long as one download has all permits and two others begin.
const MAX_PERMITS: usize = 10;
/// Downloads in ranges at a time: with less than three permits each, one answer is as good.
const MAX_QUOTAS: usize = 3;

/// The limit of the node.
#[derive(Debug, Default)]
pub(super) struct RangeLimit {
    table: Mutex<QuotaTable>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct QuotaTable {
    last: u64,
    quotas: BTreeMap<u64, QuotaUsage>,
}

#[derive(Debug)]
struct QuotaUsage {
    permits: usize,
    /// Will ask for more. A quota is another's only when all of its permits are free, too.
    wants_more: bool,
}

/// One download's right to permits.
#[derive(Debug)]
pub(super) struct RangeQuota {
    limit: Arc<RangeLimit>,
    number: u64,
}

/// The permit of one range, free when it is dropped.
#[derive(Debug)]
pub(super) struct RangePermit {
    limit: Arc<RangeLimit>,
    number: u64,
}

impl RangeLimit {
    /// A quota, if one is free.
    pub(super) fn try_quota(self: &Arc<Self>) -> Option<RangeQuota> {
        let mut table = self.lock_table();
        if table.quotas.len() >= MAX_QUOTAS {
            return None;
        }
        table.last += 1;
        let number = table.last;
        table.quotas.insert(number, QuotaUsage { permits: 0, wants_more: true });
        Some(RangeQuota { limit: Arc::clone(self), number })
    }

    fn lock_table(&self) -> MutexGuard<'_, QuotaTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change_usage(&self, number: u64, change: impl FnOnce(&mut QuotaUsage)) {
        let mut table = self.lock_table();
        if let Some(usage) = table.quotas.get_mut(&number) {
            change(usage);
        }
        table.quotas.retain(|_, usage| usage.wants_more || usage.permits > 0);
        drop(table);
        self.freed.notify_waiters();
    }
}

impl QuotaTable {
    /// Whether a quota may have one more.
    fn is_allowed(&self, number: u64) -> bool {
        let own = self.quotas.get(&number).map_or(0, |usage| usage.permits);
        if own == 0 {
            return true;
        }
        let asking = self.quotas.values().filter(|usage| usage.wants_more).count().max(1);
        let share = MAX_PERMITS / asking;
        let others = self.quotas.iter().filter(|(other, usage)| **other != number && usage.wants_more);
        let owed: usize = match own < share {
            true => 0,
            false => others.map(|(_, usage)| share.saturating_sub(usage.permits)).sum(),
        };
        let taken: usize = self.quotas.values().map(|usage| usage.permits).sum();
        taken + owed < MAX_PERMITS
    }
}

impl RangeQuota {
    /// A permit for a range, as soon as there is one.
    pub(super) async fn acquire(&self) -> RangePermit {
        loop {
            let freed = self.limit.freed.notified();
            tokio::pin!(freed);
            // What is freed between the look and the wait counts.
            freed.as_mut().enable();
            if let Some(permit) = self.try_acquire() {
                return permit;
            }
            freed.await;
        }
    }

    fn try_acquire(&self) -> Option<RangePermit> {
        let mut table = self.limit.lock_table();
        if !table.is_allowed(self.number) {
            return None;
        }
        if let Some(usage) = table.quotas.get_mut(&self.number) {
            usage.permits += 1;
        }
        Some(RangePermit { limit: Arc::clone(&self.limit), number: self.number })
    }
}

impl Drop for RangeQuota {
    fn drop(&mut self) {
        self.limit.change_usage(self.number, |usage| usage.wants_more = false);
    }
}

impl Drop for RangePermit {
    fn drop(&mut self) {
        self.limit.change_usage(self.number, |usage| usage.permits = usage.permits.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(quota: &RangeQuota) -> Vec<RangePermit> {
        std::iter::from_fn(|| quota.try_acquire()).collect()
    }

    fn taken(limit: &RangeLimit) -> usize {
        limit.lock_table().quotas.values().map(|usage| usage.permits).sum()
    }

    #[test]
    fn one_alone_has_all_and_leaves_it() {
        let limit = Arc::new(RangeLimit::default());
        let quota = limit.try_quota().unwrap();
        let mut all = fill(&quota);
        assert_eq!(all.len(), 10);
        all.pop();
        assert_eq!(fill(&quota).len(), 1, "and was free again");
        drop(quota);
        assert_eq!(limit.lock_table().quotas.len(), 1, "its ranges are still on their way");
        drop(all);
        assert!(limit.lock_table().quotas.is_empty());
    }

    #[test]
    fn one_that_has_none_always_gets_one_and_its_share_next() {
        let limit = Arc::new(RangeLimit::default());
        let (first, second) = (limit.try_quota().unwrap(), limit.try_quota().unwrap());
        let mut firsts = fill(&first);
        assert_eq!(firsts.len(), 5, "five are the other's");
        let seconds = fill(&second);
        assert_eq!(seconds.len(), 5);
        let third = limit.try_quota().unwrap();
        let mut thirds = fill(&third);
        assert_eq!((thirds.len(), taken(&limit)), (1, 11), "over the limit by one");
        firsts.truncate(3);
        assert_eq!(fill(&first).len(), 0, "what was freed is the third's");
        thirds.extend(fill(&third));
        assert_eq!((thirds.len(), taken(&limit)), (2, 10));
        assert!(limit.try_quota().is_none(), "with a fourth each would have two");
        drop((second, seconds));
        let (more, rest) = (fill(&first), fill(&third));
        assert_eq!((more.len(), rest.len()), (2, 3), "its share each");
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_is_woken_by_another_quotas_permit() {
        let limit = Arc::new(RangeLimit::default());
        let (first, second) = (limit.try_quota().unwrap(), limit.try_quota().unwrap());
        let (firsts, seconds) = (fill(&first), fill(&second));
        let waiting = tokio::spawn(async move { second.acquire().await });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop((first, firsts));
        let permit =
            tokio::time::timeout(std::time::Duration::from_secs(60), waiting).await.unwrap().unwrap();
        assert_eq!(taken(&limit), 6);
        drop((permit, seconds));
        assert_eq!(taken(&limit), 0);
    }
}
