//! Volumes of servers and targets that are not there yet. Owns what is known of each: whose it is, its step, and what came of
//! that last. Called by [`super::nfs`] and [`super::iscsi`].

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gantry_model::pod::PodUid;

use super::super::{VolumeOrigin, VolumeWait};

/// By pod and name; clones are the same.
#[derive(Debug, Clone, Default)]
pub(super) struct Waits(Arc<Mutex<BTreeMap<PodUid, BTreeMap<String, ServedWait>>>>);

/// One of them.
#[derive(Debug)]
struct ServedWait {
    from: VolumeOrigin,
    step: &'static str,
    why: String,
    since: Instant,
    /// Since it was last told that it takes long.
    untold: Instant,
}

impl Waits {
    fn all(&self) -> MutexGuard<'_, BTreeMap<PodUid, BTreeMap<String, ServedWait>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A step begins, or is tried again.
    pub(super) fn begin(&self, uid: &PodUid, name: &str, from: VolumeOrigin, step: &'static str) {
        let now = Instant::now();
        let why = "it has not ended yet".to_owned();
        let mut all = self.all();
        let of_pod = all.entry(uid.clone()).or_default();
        let wait =
            of_pod.entry(name.to_owned()).or_insert(ServedWait { from, step, why, since: now, untold: now });
        wait.step = step;
    }

    /// It has failed, and why.
    pub(super) fn fail(&self, uid: &PodUid, name: &str, why: &str) {
        if let Some(wait) = self.all().get_mut(uid).and_then(|of_pod| of_pod.get_mut(name)) {
            why.clone_into(&mut wait.why);
        }
    }

    /// The volume is there.
    pub(super) fn end(&self, uid: &PodUid, name: &str) {
        if let Some(of_pod) = self.all().get_mut(uid) {
            of_pod.remove(name);
        }
    }

    /// Whether it is time to tell that it takes long: once in each such time.
    pub(super) fn is_long(&self, uid: &PodUid, name: &str, each: Duration) -> bool {
        let mut all = self.all();
        let Some(wait) = all.get_mut(uid).and_then(|of_pod| of_pod.get_mut(name)) else { return false };
        let is_long = wait.untold.elapsed() >= each;
        if is_long {
            wait.untold = Instant::now();
        }
        is_long
    }

    /// It has no volumes any more.
    pub(super) fn forget(&self, uid: &PodUid) {
        self.all().remove(uid);
    }

    /// Of that pod.
    pub(super) fn of(&self, uid: &PodUid) -> Vec<VolumeWait> {
        let told = |(name, wait): (&String, &ServedWait)| VolumeWait {
            volume: name.clone(),
            from: wait.from.clone(),
            step: wait.step,
            why: wait.why.clone(),
            since: wait.since.elapsed(),
        };
        self.all().get(uid).into_iter().flatten().map(told).collect()
    }
}
