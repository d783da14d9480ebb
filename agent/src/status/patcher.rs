//! Patches the status of one pod: compares the worker's status with the API's, sends the
//! difference, compares again. Owns the requests of its pod, one at a time, the latest status only; never
//! gives up while the pod is there. Started by [`super`].
//!
//! The API's pod comes from the watch, or from the answer to the last patch when that is newer: no
//! GET but after a conflict.

use std::sync::Arc;
use std::time::Duration;

use gantry_kube_client::backoff::Backoff;
use gantry_kube_client::identity::client::Token;
use gantry_kube_client::strategic_merge;
use gantry_model::pod::{self, PodUid};
use gantry_model::random;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, timeout};

use super::hold;
use super::merge::{self, PodEnd, merge};
use super::{Reported, StatusSources};
use crate::pod::status::PodStatus as Word;
use crate::pod::worker::PodHandle;
use crate::pod::{Life, StopStep};
use crate::pod_source;

/// After a failure.
const FIRST_WAIT: Duration = Duration::from_millis(200);
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// After a refusal that will most likely be repeated, unless there is something new to say.
const REFUSED_WAIT: Duration = Duration::from_secs(60);
/// When somebody else changed what was told, it is told again; a few times at once, as a readiness
/// gate may turn, but in the long run only every syncPeriod of upstream's, or two writers would
/// write for ever.
const AGAIN: Duration = Duration::from_secs(10);
const AT_ONCE: f64 = 5.0;
/// A pod that the server does not have, but the watch does.
const LOST_FOR: Duration = Duration::from_secs(60);
/// A pod that has no grace left is taken away by the API server itself, a moment after it said so. What is
/// still there then waits for its finalizers, or for us.
const GOING_FOR: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(30);
/// What all patchers share.
#[derive(Clone)]
pub(super) struct PatcherContext {
    pub(super) sources: StatusSources,
    pub(super) told: watch::Sender<Reported>,
    pub(super) permits: Arc<Semaphore>,
}

/// Leave for one request.
struct Leave {
    _permit: Option<OwnedSemaphorePermit>,
    token: Token,
}

impl PatcherContext {
    /// Waits until a request may be sent: not too many are under way, and the client's limit lets it pass. Cancel-safe.
    async fn leave(&self) -> Leave {
        // Nobody closes it.
        let permit = self.permits.clone().acquire_owned().await.ok();
        Leave { _permit: permit, token: self.sources.pace.reserve().await }
    }
}

/// ```text
///          ┌──────── news ────────┐
///          ▼                      │
///        Look ──difference──▶ Patch / Delete ──▶ Look …
///          │ the API has lost it, and the worker is done
///          ▼
///         Over
/// ```
enum SyncStep {
    /// Until something changes, or this long.
    Rest(Option<Duration>),
    Patch(Box<Pod>, Value),
    Delete(Box<Pod>),
    Over,
}

/// All that a decision was made from.
struct Looked {
    target: Arc<Pod>,
    pod: Arc<pod::Pod>,
    word: Word,
    until: Option<Instant>,
}

/// The watch has caught up with an answer by then.
const SHOWN_WITHIN: Duration = Duration::from_secs(10);

pub(super) struct StatusPatcher {
    shared: PatcherContext,
    handles: watch::Receiver<PodHandle>,
    /// The answer to the last patch.
    answered: Option<(Arc<Pod>, Instant)>,
    /// UID of an API pod that turned out not to be there any more, and when: the watch will say so, too.
    lost: Option<(Option<String>, Instant)>,
    /// UID of an API pod without any grace left, and since when.
    going: Option<(Option<String>, Instant)>,
    backoff: Backoff,
    /// Nothing is sent before.
    not_before: Option<Instant>,
    /// The word last told.
    last: Option<Word>,
    /// How often the same may be told again now, and since when.
    again: (f64, Instant),
    /// What was looked at last, and until when it says all there is to say.
    looked: Option<Looked>,
    /// The word that was refused.
    refused: Option<Word>,
    /// Since when there has been something to tell.
    changed: Option<Instant>,
    born: Instant,
}

impl StatusPatcher {
    pub(super) fn new(shared: PatcherContext, handles: watch::Receiver<PodHandle>) -> Self {
        Self {
            shared,
            handles,
            answered: None,
            lost: None,
            going: None,
            backoff: Backoff::new(FIRST_WAIT, LONGEST_WAIT),
            not_before: None,
            last: None,
            again: (AT_ONCE, Instant::now()),
            looked: None,
            refused: None,
            changed: None,
            born: Instant::now(),
        }
    }

    pub(super) async fn run(mut self) {
        let uid = self.handles.borrow().pod.uid.clone();
        let mut leave: Option<Leave> = None;
        loop {
            let handle = self.handles.borrow_and_update().clone();
            self.forget_answer(&handle);
            let mut status = handle.status.clone();
            let word = status.borrow_and_update().clone();
            let step = match self.nothing_new(&handle, &word) {
                Some(pause) => SyncStep::Rest(pause),
                None => self.step(&handle, &word),
            };
            let pause = match step {
                SyncStep::Over => break,
                SyncStep::Rest(pause) => {
                    leave = None;
                    self.look(&handle, &word, pause);
                    pause
                }
                // What is sent is what is so then: a status that is overtaken while it waits never leaves.
                step => match leave.take() {
                    Some(leave) => {
                        self.send(step, &word, leave).await;
                        continue;
                    }
                    None => {
                        leave = Some(self.shared.leave().await);
                        continue;
                    }
                },
            };
            // All arms are cancel-safe: a change stays marked until it is looked at.
            tokio::select! {
                () = super::changed(&mut status) => {}
                // Also when what the API or the folder has of the pod is another.
                changed = self.handles.changed() => if changed.is_err() { break },
                () = sleep(pause) => {}
            }
        }
        self.shared.told.send_modify(|told| {
            told.remove(&uid);
        });
    }

    /// How long to rest on when this pod is as it was.
    fn nothing_new(&self, handle: &PodHandle, word: &Word) -> Option<Option<Duration>> {
        let looked = self.looked.as_ref()?;
        let left = looked.until.map(|until| until.saturating_duration_since(Instant::now()));
        let same = Arc::ptr_eq(&looked.pod, &handle.pod)
            && self.target(handle).is_some_and(|target| Arc::ptr_eq(&looked.target, &target))
            && looked.word == *word
            && left != Some(Duration::ZERO);
        same.then_some(left)
    }

    fn look(&mut self, handle: &PodHandle, word: &Word, pause: Option<Duration>) {
        self.looked = self.target(handle).map(|target| Looked {
            target,
            pod: handle.pod.clone(),
            word: word.clone(),
            until: pause.map(|pause| Instant::now() + pause),
        });
    }

    /// The API's image of the pod: itself, or its mirror; the newest known.
    fn target(&self, handle: &PodHandle) -> Option<Arc<Pod>> {
        let seen = self.shared.sources.seen.borrow();
        let found = super::image_of(&seen, &handle.pod)?;
        // After a restore of the API server's store the watch's versions stay behind for good.
        let same = self.answered.as_ref().filter(|(answered, at)| {
            answered.metadata.uid == found.metadata.uid && at.elapsed() < SHOWN_WITHIN
        });
        let newer = same.filter(|(answered, _)| version(answered) > version(&found));
        Some(newer.map_or(found, |(answered, _)| answered.clone()))
    }

    /// The watch has caught up with it.
    fn forget_answer(&mut self, handle: &PodHandle) {
        let found = super::image_of(&self.shared.sources.seen.borrow(), &handle.pod);
        let shown = |found: &Pod, answered: &Pod| {
            found.metadata.uid != answered.metadata.uid || version(found) >= version(answered)
        };
        self.answered.take_if(|(answered, _)| found.is_some_and(|found| shown(&found, answered)));
    }

    /// How long a pod whose object is not there is still left alone.
    fn lost_for(&self, target: &Pod) -> Option<Duration> {
        let (_, at) = self.lost.as_ref().filter(|(uid, _)| *uid == target.metadata.uid)?;
        let left = (*at + LOST_FOR).saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    fn step(&mut self, handle: &PodHandle, word: &Word) -> SyncStep {
        let end = end_of(word, &handle.pod);
        let now = Timestamp::now();
        let target = self.target(handle);
        let base = target.clone().or_else(|| self.static_pod(handle));
        let Some(base) = base else {
            let synced = self.shared.sources.seen.borrow().synced;
            return if synced && handle.is_done() { SyncStep::Over } else { SyncStep::Rest(None) };
        };
        if word.life == Life::Waiting {
            // It has not been looked at yet: what an earlier agent told of it holds.
            self.show(&handle.pod.uid, self.static_pod(handle).unwrap_or(base));
            return SyncStep::Rest(None);
        }
        let old = base.status.clone().unwrap_or_default();
        let ours = (self.shared.sources.form)(&handle.pod, word, &old);
        let (full, difference) = with_status(&base, merge(&base, ours, end, now));
        // A static pod is shown as itself, whatever its image is called.
        let shown = match self.static_pod(handle) {
            Some(own) => Arc::new(Pod { status: full.status.clone(), ..(*own).clone() }),
            None => full,
        };
        self.show(&handle.pod.uid, shown);
        let Some(target) = target else {
            return if handle.is_done() { SyncStep::Over } else { SyncStep::Rest(None) };
        };
        if self.shared.sources.client.is_none() {
            return SyncStep::Rest(None);
        }
        if let Some(left) = self.lost_for(&target).or_else(|| self.going(&target)) {
            return SyncStep::Rest(Some(left));
        }
        if difference.is_some() {
            self.changed.get_or_insert_with(Instant::now);
        } else {
            self.changed = None;
        }
        let due = self.due(word, difference.is_some()).or_else(|| self.held(word, &target));
        if let Some(pause) = due {
            return SyncStep::Rest(Some(pause));
        }
        match difference {
            Some(patch) => SyncStep::Patch(Box::new((*target).clone()), patch),
            None if deletable(&target, end) => SyncStep::Delete(Box::new((*target).clone())),
            None => SyncStep::Rest(None),
        }
    }

    /// How long the API server has yet to take the pod away by itself: what is told of it meanwhile finds nothing.
    fn going(&mut self, target: &Pod) -> Option<Duration> {
        let uid = &target.metadata.uid;
        if target.metadata.deletion_grace_period_seconds != Some(0) {
            return None;
        }
        let since = match self.going.take() {
            Some((known, since)) if known == *uid => since,
            _ => Instant::now(),
        };
        self.going = Some((uid.clone(), since));
        Some((since + GOING_FOR).saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
    }

    /// How long a difference yet waits for the one that comes after it.
    fn held(&self, word: &Word, target: &Pod) -> Option<Duration> {
        let until = self.changed? + hold::hold(word.life, target)?;
        Some(until.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
    }

    /// How long nothing may be sent yet.
    fn due(&mut self, word: &Word, differs: bool) -> Option<Duration> {
        let now = Instant::now();
        if self.refused.as_ref().is_some_and(|refused| !same(refused, word)) {
            self.refused = None;
            self.not_before = None;
        }
        if let Some(at) = self.not_before.filter(|at| *at > now) {
            return Some(at - now);
        }
        let repeats = differs && self.last.as_ref().is_some_and(|told| same(told, word));
        let left = self.left(now);
        // A float that grows to one may stay a little below it: no rest is that short.
        (repeats && left < 0.999).then(|| AGAIN.mul_f64(1.0 - left))
    }

    /// How often the same may be told again now.
    fn left(&self, now: Instant) -> f64 {
        let (left, at) = self.again;
        (left + now.duration_since(at).as_secs_f64() / AGAIN.as_secs_f64()).min(AT_ONCE)
    }

    /// A static pod without an image in the API, as its file says.
    fn static_pod(&self, handle: &PodHandle) -> Option<Arc<Pod>> {
        self.shared.sources.statics.borrow().pods.get(&handle.pod.uid).cloned()
    }

    fn show(&self, uid: &PodUid, pod: Arc<Pod>) {
        self.shared.told.send_if_modified(|told| {
            let new = told.get(uid).is_none_or(|old| *old != pod);
            // One that is the API's own is held once.
            told.insert(uid.clone(), pod);
            new
        });
    }

    fn api(&self, pod: &Pod) -> Option<Api<Pod>> {
        let client = self.shared.sources.client.clone()?;
        Some(Api::namespaced(client, pod.metadata.namespace.as_deref().unwrap_or("default")))
    }

    async fn send(&mut self, step: SyncStep, word: &Word, leave: Leave) {
        let Leave { _permit, token } = leave;
        token.spend();
        match step {
            SyncStep::Patch(pod, patch) => self.patch(&pod, patch, word).await,
            SyncStep::Delete(pod) => self.delete(&pod).await,
            SyncStep::Rest(_) | SyncStep::Over => {}
        }
    }

    async fn patch(&mut self, pod: &Pod, patch: Value, word: &Word) {
        let Some(api) = self.api(pod) else { return };
        let name = pod.metadata.name.clone().unwrap_or_default();
        let (parameters, patch) = (PatchParams::default(), Patch::Strategic(patch));
        let asked = api.patch_status(&name, &parameters, &patch);
        match timeout(PATIENCE, asked).await {
            Ok(Ok(answer)) => {
                self.answered = Some(without_managed_fields(answer));
                if let Some(since) = self.changed.take() {
                    self.shared.sources.metrics.pod_status_sync_duration.took([], since.elapsed());
                }
                let (now, word) = (Instant::now(), bare(word));
                if self.last.as_ref() == Some(&word) {
                    self.again = (self.left(now) - 1.0, now);
                }
                self.last = Some(word);
                self.record_success();
            }
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => self.lose(pod),
            Ok(Err(kube::Error::Api(status))) if status.code == 409 => self.conflict(pod, &api, &name).await,
            Ok(Err(error)) => self.record_failure("patch the status", &error, word),
            Err(_) => self.wait("patch the status", "no answer"),
        }
    }

    /// Looks whom the name belongs to now.
    async fn conflict(&mut self, pod: &Pod, api: &Api<Pod>, name: &str) {
        self.shared.sources.pace.reserve().await.spend();
        match timeout(PATIENCE, api.get(name)).await {
            Ok(Ok(fresh)) if fresh.metadata.uid == pod.metadata.uid => {
                self.answered = Some(without_managed_fields(fresh));
                // At once the first time; a conflict that stays is none.
                self.not_before = Some(Instant::now() + self.pause());
            }
            // Another pod of that name (trap 2).
            Ok(Ok(_)) => self.lose(pod),
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => self.lose(pod),
            Ok(Err(error)) => self.wait("read the pod after a conflict", &error.to_string()),
            Err(_) => self.wait("read the pod after a conflict", "no answer"),
        }
    }

    /// The last thing that is done of a pod: only now may its name be used again.
    async fn delete(&mut self, pod: &Pod) {
        let Some(api) = self.api(pod) else { return };
        let name = pod.metadata.name.clone().unwrap_or_default();
        let preconditions = Preconditions { uid: pod.metadata.uid.clone(), resource_version: None };
        let options =
            DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default().grace_period(0) };
        match timeout(PATIENCE, api.delete(&name, &options)).await {
            Ok(Ok(_)) => {
                tracing::info!(
                    pod = name,
                    uid = pod.metadata.uid,
                    "deleted from the API: nothing of it is left"
                );
                self.lose(pod);
                self.record_success();
            }
            Ok(Err(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => {
                self.lose(pod);
            }
            Ok(Err(error)) => self.wait("delete the pod", &error.to_string()),
            Err(_) => self.wait("delete the pod", "no answer"),
        }
    }

    fn lose(&mut self, pod: &Pod) {
        self.lost = Some((pod.metadata.uid.clone(), Instant::now()));
    }

    fn record_success(&mut self) {
        self.backoff.reset();
        self.not_before = None;
        self.refused = None;
    }

    fn pause(&mut self) -> Duration {
        self.backoff.next(self.born.elapsed(), random::fraction())
    }

    fn record_failure(&mut self, what: &str, error: &kube::Error, word: &Word) {
        let refused = matches!(error, kube::Error::Api(status) if (400..500).contains(&status.code) && status.code != 429);
        if refused {
            tracing::error!(what, error = %error, "refused");
            self.refused = Some(bare(word));
            self.not_before = Some(Instant::now() + REFUSED_WAIT);
        } else {
            self.wait(what, &error.to_string());
        }
    }

    fn wait(&mut self, what: &str, error: &str) {
        let pause = self.pause();
        tracing::warn!(what, error, ?pause, "failed; trying again after a pause");
        self.not_before = Some(Instant::now() + pause);
    }
}

async fn sleep(pause: Option<Duration>) {
    match pause {
        Some(pause) => tokio::time::sleep(pause).await,
        None => std::future::pending().await,
    }
}

/// What DRA drivers have prepared for a pod is theirs again before its end is told: then others may be given it.
fn end_of(word: &Word, pod: &pod::Pod) -> PodEnd {
    match word.life {
        Life::Stopped | Life::Gone => PodEnd::Gone,
        Life::Stopping { step: StopStep::Sandbox | StopStep::Claims, .. }
            if !pod.resource_claims.is_empty() =>
        {
            PodEnd::Not
        }
        Life::Stopping { step, .. } if step != StopStep::Containers => PodEnd::Ended,
        Life::Stopping { .. } | Life::Waiting | Life::Starting | Life::Running => PodEnd::Not,
    }
}

/// The API's phase must be terminal first: whoever watches sees how the pod ended (trap 4).
fn deletable(pod: &Pod, end: PodEnd) -> bool {
    let marked = pod.metadata.deletion_timestamp.is_some();
    let left_alone = pod_source::is_mirror(pod) || pod_source::is_held(pod);
    end == PodEnd::Gone && marked && !left_alone && pod.status.as_ref().is_some_and(merge::terminal)
}

/// The pod with the status that it should have, and what is to be told of it. Nothing is copied of a pod that is told.
fn with_status(base: &Arc<Pod>, status: PodStatus) -> (Arc<Pod>, Option<Value>) {
    if base.status.as_ref() == Some(&status) {
        return (base.clone(), None);
    }
    let full = Pod { status: Some(status), ..(**base).clone() };
    let difference = difference(base, &full);
    (Arc::new(full), difference)
}

/// From what the API has to what it should have, guarded by the UID.
fn difference(base: &Pod, full: &Pod) -> Option<Value> {
    let of = |pod: &Pod| serde_json::to_value(&pod.status).unwrap_or_default();
    let (old, new) = (of(base), of(full));
    if merge::equal(&old, &new) {
        return None;
    }
    let empty = json!({});
    let old = if old.is_null() { &empty } else { &old };
    let mut patch =
        strategic_merge::diff(&json!({ "status": old }), &json!({ "status": new }), strategic_merge::POD)?;
    patch["metadata"] = json!({ "uid": base.metadata.uid });
    Some(patch)
}

/// What the API server says, as the watch brings it, and when.
fn without_managed_fields(mut answer: Pod) -> (Arc<Pod>, Instant) {
    answer.metadata.managed_fields = None;
    (Arc::new(answer), Instant::now())
}

/// Versions can be compared since 1.35.
fn version(pod: &Pod) -> u128 {
    pod.metadata.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(0)
}

/// What is told of a word.
fn bare(word: &Word) -> Word {
    Word { spans: Arc::from([]), events: Arc::from([]), ..word.clone() }
}

fn same(told: &Word, word: &Word) -> bool {
    *told == bare(word)
}
