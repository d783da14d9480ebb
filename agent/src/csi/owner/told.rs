//! What the owner of volumes tells: what pods wait for and since when, and how long
//! a driver that failed is left alone. Owns these values; never calls a driver. Called by [`super`].

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gantry_model::pod::PodUid;
use tokio::time::Instant;

use super::{IN_USE, LONG_WAIT};
use crate::csi::label;
use crate::csi::steps::{EXPAND_IN_USE, OTHER_LABEL, StepError, WantedVolume};
use crate::csi::volume::Step;
use crate::timeline::Span;

/// The step of a pod that waits for others than a driver.
pub(super) const WAITS: &str = "VerifyControllerAttachedVolume";

/// Why a pod has not got its volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountError {
    /// In upstream's words; with the volume.
    pub(crate) message: String,
    /// Of the event that tells it.
    pub(crate) reason: &'static str,
    /// It was told before, or is no failure: no event.
    pub(crate) quiet: bool,
    /// The node does not have it yet.
    pub(crate) unattached: bool,
    /// And will not: it takes no more volumes.
    pub(crate) no_room: bool,
}

impl MountError {
    fn new(message: String, step: &str, quiet: bool) -> Self {
        Self { message, reason: event_reason(step), quiet, unattached: step == WAITS, no_room: false }
    }
}

/// Of the event that tells a failure, as upstream: by the operation that the step is of.
pub(crate) fn event_reason(step: &str) -> &'static str {
    match step {
        EXPAND_IN_USE => "VolumeResizeFailed",
        _ if step.starts_with("MapVolume.") => "FailedMapVolume",
        _ => "FailedMount",
    }
}

/// Why the pod does not get its volume.
pub(super) fn refusal(step: Step, wanted: &WantedVolume, key: &str) -> Result<(), StepError> {
    match step {
        Step::Refuse => Err(StepError::before(wanted.refuse_step(), IN_USE.to_owned())),
        Step::Wait => Err(StepError::before(OTHER_LABEL, label::waits(key))),
        _ => Ok(()),
    }
}

/// Steps of pods' volumes, for their timelines: those that are over, and those that are under way or are tried again.
#[derive(Debug, Default)]
pub(super) struct Stages(Mutex<BTreeMap<PodUid, Vec<Span>>>);

impl Stages {
    fn all(&self) -> MutexGuard<'_, BTreeMap<PodUid, Vec<Span>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A step begins, or is tried again.
    pub(super) fn begin(&self, pod: &PodUid, name: &str, detail: &str) {
        let mut all = self.all();
        let of_pod = all.entry(pod.clone()).or_default();
        match of_pod.iter().position(|span| span.name == name && span.detail == detail) {
            Some(index) if of_pod.get(index).is_some_and(|span| span.end == 0) => return,
            // It was done before, and is done anew.
            Some(index) => drop(of_pod.remove(index)),
            None => {}
        }
        let (name, detail) = (name.to_owned(), detail.to_owned());
        of_pod.push(Span { name, container: String::new(), start: now(), end: 0, detail });
    }

    /// It has come to its end.
    pub(super) fn end(&self, pod: &PodUid, name: &str, detail: &str) {
        let mut all = self.all();
        let mut spans = all.get_mut(pod).into_iter().flatten();
        if let Some(span) = spans.find(|span| span.name == name && span.detail == detail) {
            span.end = now();
        }
    }

    /// Those of a pod that are over.
    pub(super) fn of(&self, pod: &PodUid) -> Vec<Span> {
        self.all().get(pod).into_iter().flatten().filter(|span| span.end != 0).cloned().collect()
    }

    /// It has no volumes any more.
    pub(super) fn forget(&self, pod: &PodUid) {
        self.all().remove(pod);
    }
}

fn now() -> i64 {
    i64::try_from(jiff::Timestamp::now().as_nanosecond()).unwrap_or(i64::MAX)
}

/// What a pod waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wait {
    /// Of the pod, or the PersistentVolume.
    pub(crate) volume: String,
    pub(crate) driver: String,
    /// By upstream's name.
    pub(crate) step: &'static str,
    /// What came of it last.
    pub(crate) why: String,
    /// How long it has been so.
    pub(crate) since: Duration,
}

/// Waits of upstream between tries of what failed: half a second, doubled to two minutes and two seconds.
#[derive(Debug, Clone, Default)]
pub(crate) struct Retry {
    last: Duration,
}

const FIRST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(122);

impl Retry {
    /// The next one.
    pub(crate) fn next(&mut self) -> Duration {
        self.last = (self.last * 2).clamp(FIRST, LONGEST);
        self.last
    }
}

/// A pod's volume that is not there yet.
#[derive(Debug, Clone)]
struct Waiting {
    driver: String,
    step: &'static str,
    why: String,
    since: Instant,
    /// Since it was last told that it takes long.
    untold: Instant,
    /// No driver is asked before.
    until: Instant,
    retry: Retry,
    message: String,
}

/// By pod and volume.
pub(super) type Key = (PodUid, String);

/// Of all pods.
#[derive(Debug, Default)]
pub(super) struct Waits(Mutex<BTreeMap<Key, Waiting>>);

impl Waits {
    fn all(&self) -> MutexGuard<'_, BTreeMap<Key, Waiting>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Of that pod.
    pub(super) fn of(&self, pod: &PodUid) -> Vec<Wait> {
        let all = self.all();
        let of_pod = all.iter().filter(|((of, _), _)| of == pod);
        of_pod
            .map(|((_, volume), waiting)| Wait {
                volume: volume.clone(),
                driver: waiting.driver.clone(),
                step: waiting.step,
                why: waiting.why.clone(),
                since: waiting.since.elapsed(),
            })
            .collect()
    }

    /// It has come, or is not wanted any more.
    pub(super) fn over(&self, key: &Key) {
        self.all().remove(key);
    }

    /// Nothing of that pod is waited for any more.
    pub(super) fn forget(&self, pod: &PodUid) {
        self.all().retain(|(of, _), _| of != pod);
    }

    /// The last failure, while it is too early for another try.
    pub(super) fn too_early(&self, key: &Key) -> Option<MountError> {
        let all = self.all();
        let waiting = all.get(key).filter(|waiting| Instant::now() < waiting.until)?;
        Some(MountError::new(waiting.message.clone(), waiting.step, true))
    }

    /// Remembers a failure; how it is told.
    pub(super) fn failed(&self, key: &Key, wanted: &WantedVolume, error: StepError) -> MountError {
        let (now, own_name) = (Instant::now(), &wanted.own_name);
        let mut all = self.all();
        let waiting = all.entry(key.clone()).or_insert_with(|| Waiting {
            driver: wanted.source.driver.clone(),
            step: error.step,
            why: String::new(),
            since: now,
            untold: now,
            until: now,
            retry: Retry::default(),
            message: String::new(),
        });
        (waiting.step, waiting.why) = (error.step, error.why.clone());
        if error.step != WAITS {
            waiting.until = now + waiting.retry.next();
            waiting.message = error.message(&wanted.name, own_name);
            return MountError::new(waiting.message.clone(), error.step, false);
        }
        waiting.message.clone_from(&error.why);
        let long = waiting.untold.elapsed() >= LONG_WAIT;
        if long {
            waiting.untold = now;
            return MountError::new(timed_out(own_name), error.step, false);
        }
        MountError::new(error.why, error.step, true)
    }
}

/// As upstream tells it of a volume that is not attached for long.
pub(crate) fn timed_out(own_name: &str) -> String {
    format!(
        "Unable to attach or mount volumes: unmounted volumes=[{own_name}], unattached volumes=[{own_name}], failed to process volumes=[]: context deadline exceeded"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::CsiSource;

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_waits_long_for_others_is_told_of_its_own_name_for_the_volume() {
        let (waits, key) = (Waits::default(), (PodUid::parse("a").unwrap(), "pv".to_owned()));
        let wanted = WantedVolume {
            name: "pv".to_owned(),
            source: CsiSource::default(),
            read_only: false,
            one_pod: false,
            own_name: "data".to_owned(),
            label: None,
            block: false,
            ephemeral: false,
            claim: None,
        };
        let fails = || waits.failed(&key, &wanted, StepError::before(WAITS, "not yet".to_owned()));
        assert!(fails().quiet);
        tokio::time::advance(LONG_WAIT).await;
        let words = "Unable to attach or mount volumes: unmounted volumes=[data], unattached volumes=[data], failed to process volumes=[]: context deadline exceeded";
        let told = fails();
        assert_eq!((told.message.as_str(), told.reason, told.quiet), (words, "FailedMount", false));
        assert!(fails().quiet, "it is told once each time");
    }
}
