//! What waits before it is tried again: containers that end, images that cannot be pulled, effects that failed. Pure:
//! owns the waits and which of them were told; time is an argument. A part of [`super::WorkerState`].

use std::collections::BTreeMap;
use std::time::Duration;

use crate::pod::plan::{Op, Wait};
use crate::pod::restart::Backoff;

const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(10);

/// A failed effect waits before it is tried again.
#[derive(Debug, Clone, Copy)]
struct Retry {
    delay: Duration,
    until: Duration,
}

/// All of one pod.
#[derive(Debug, Clone, Default)]
pub struct Backoffs {
    /// Of containers that end.
    pub crash: Backoff,
    /// Of images that cannot be pulled.
    pub pull: Backoff,
    retries: BTreeMap<Op, Retry>,
    /// Waits as they were told, by container and whether it is for its image.
    told: BTreeMap<(String, bool), Duration>,
}

impl Backoffs {
    /// Until when an effect that failed waits.
    #[must_use]
    pub fn retry_at(&self, op: &Op, now: Duration) -> Option<Duration> {
        self.retries.get(op).map(|retry| retry.until).filter(|until| now < *until)
    }

    /// The effect failed: the next try waits longer than this one did.
    pub(super) fn delay_retry(&mut self, op: Op, now: Duration) {
        let delay = self.retries.get(&op).map_or(RETRY_FIRST, |retry| (retry.delay * 2).min(RETRY_MAX));
        self.retries.insert(op, Retry { delay, until: now + delay });
    }

    /// The effect came about, or is about something else now.
    pub(super) fn forget_retry(&mut self, op: &Op) {
        self.retries.remove(op);
    }

    /// New orders make waiting pointless.
    pub fn forget_retries(&mut self) {
        self.retries.clear();
    }

    /// Those of the waits that have not been told.
    pub fn new_waits(&mut self, waits: &[Wait]) -> Vec<Wait> {
        let told = std::mem::take(&mut self.told);
        let key = |wait: &Wait| (wait.container.clone(), wait.image);
        self.told = waits.iter().map(|wait| (key(wait), wait.until)).collect();
        waits.iter().filter(|wait| told.get(&key(wait)) != Some(&wait.until)).cloned().collect()
    }
}
