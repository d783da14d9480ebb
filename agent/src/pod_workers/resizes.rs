//! Resizes that are asked for: which wait, in which order they are tried, and when again. Owns the queue; never judges
//! one (that is [`super::PodWorkers`], by the node) and never carries one out (the pod's worker does). Called by
//! [`super::PodWorkers`].

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use gantry_metrics::Metrics;
use gantry_model::allocation::{Allocation, amount, is_resizable, larger};
use gantry_model::pod::qos::{Qos, qos};
use gantry_model::pod::{PendingResize, Pod, PodUid};
use gantry_model::requests::requests;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::pod::status::ConditionKind;
use crate::pod::worker::PodHandle;

/// Before the first try of an agent, and after one that came too early.
const FIRST: Duration = Duration::from_secs(30);
/// After each other.
const AGAIN: Duration = Duration::from_secs(180);

/// Why resizes that wait are tried, by the label of the metric.
pub(super) type Trigger = &'static str;

/// A pod that is described with other resources than it was allocated.
#[derive(Debug)]
pub(super) struct Wish {
    /// As it is described.
    pub(super) pod: Arc<Pod>,
    /// Why it does not get them; none before the first try.
    pub(super) verdict: Option<PendingResize>,
    /// Of that reason.
    since: Instant,
}

/// All of a node.
#[derive(Debug)]
pub(super) struct Resizes {
    wishes: BTreeMap<PodUid, Wish>,
    /// Pods on their way to what they were allocated: what they count as.
    settling: BTreeMap<PodUid, Arc<Pod>>,
    /// CPU and memory that pods had when it was looked last; only while some wait.
    used: BTreeMap<PodUid, (i64, i64)>,
    /// There is one that was not tried.
    new: Option<Trigger>,
    next: Instant,
}

impl Default for Resizes {
    fn default() -> Self {
        let next = Instant::now() + FIRST;
        let (wishes, settling, used) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { wishes, settling, used, new: None, next }
    }
}

impl Resizes {
    /// A pod is described, which was allocated what `allocated` says: as it is to run from now on.
    pub(super) fn describe(
        &mut self,
        allocated: &Allocation,
        before: &Pod,
        wanted: Arc<Pod>,
        metrics: &Metrics,
    ) -> Arc<Pod> {
        let kept = allocated.apply(wanted.clone());
        let old = self.wishes.get(&wanted.uid).map(|wish| Allocation::of(&wish.pod));
        let same = |old: &Allocation| Arc::ptr_eq(&old.apply(wanted.clone()), &wanted);
        if !same(old.as_ref().unwrap_or(&Allocation::of(before))) {
            let old = self
                .wishes
                .get(&wanted.uid)
                .map_or_else(|| Arc::new(before.clone()), |wish| wish.pod.clone());
            count_requested(metrics, &old, &wanted);
        }
        if Arc::ptr_eq(&kept, &wanted) {
            self.wishes.remove(&wanted.uid);
            return wanted;
        }
        match self.wishes.get_mut(&wanted.uid).filter(|wish| same(&Allocation::of(&wish.pod))) {
            Some(wish) => wish.pod = wanted,
            None => self.ask(wanted, "pod_updated"),
        }
        self.pending(kept)
    }

    /// A pod is taken up that an agent before this one has allocated something.
    pub(super) fn recall(&mut self, allocated: &Allocation, wanted: Arc<Pod>) -> Arc<Pod> {
        let kept = allocated.apply(wanted.clone());
        if !Arc::ptr_eq(&kept, &wanted) {
            self.ask(wanted, "pods_added");
        }
        kept
    }

    fn ask(&mut self, pod: Arc<Pod>, trigger: Trigger) {
        let (uid, since) = (pod.uid.clone(), Instant::now());
        self.wishes.insert(uid, Wish { pod, verdict: None, since });
        self.new.get_or_insert(trigger);
    }

    /// `kept`, with why its wish is not fulfilled.
    fn pending(&self, kept: Arc<Pod>) -> Arc<Pod> {
        let verdict = self.wishes.get(&kept.uid).and_then(|wish| wish.verdict.clone());
        if kept.resize_pending == verdict {
            return kept;
        }
        Arc::new(Pod { resize_pending: verdict, ..Arc::unwrap_or_clone(kept) })
    }

    /// What a pod counts as beside others.
    pub(super) fn counted<'a>(&'a self, handle: &'a PodHandle) -> &'a Pod {
        self.settling.get(&handle.pod.uid).map_or(&*handle.pod, |both| both)
    }

    pub(super) fn wish(&self, uid: &PodUid) -> Option<&Wish> {
        self.wishes.get(uid)
    }

    /// The pod gets what it wants: as it is to run from now on. Whether it had to wait.
    pub(super) fn allocate(&mut self, old: &Pod) -> Option<(Arc<Pod>, bool)> {
        let Wish { pod, verdict, .. } = self.wishes.remove(&old.uid)?;
        self.settling.insert(pod.uid.clone(), Arc::new(larger(old, &pod)));
        Some((pod, verdict.is_some_and(|why| !why.infeasible)))
    }

    /// The pod does not get what it wants, for now or for good. Returns the pod as it runs on, and whether the verdict is new.
    pub(super) fn refuse(&mut self, kept: Arc<Pod>, why: &PendingResize) -> (Arc<Pod>, bool) {
        let mut news = false;
        if let Some(wish) = self.wishes.get_mut(&kept.uid) {
            let old = wish.verdict.replace(why.clone());
            let reason = old.as_ref().map(|old| old.infeasible);
            news = reason != Some(why.infeasible) || old.is_some_and(|old| old.generation != why.generation);
            if reason != Some(why.infeasible) {
                wish.since = Instant::now();
            }
        }
        (self.pending(kept), news)
    }

    /// Those to be tried: what frees something first, then by priority, class and age.
    pub(super) fn order(&self, handles: &[PodHandle]) -> Vec<PodUid> {
        let waits = |wish: &&Wish| wish.verdict.as_ref().is_none_or(|why| !why.infeasible);
        let rank = |wish: &Wish| {
            let handle = handles.iter().find(|handle| handle.pod.uid == wish.pod.uid && !handle.is_leaving());
            let more = handle.is_some_and(|handle| asks_for_more(&handle.pod, &wish.pod));
            let guaranteed = qos(&wish.pod) == Qos::Guaranteed;
            let new = wish.verdict.is_none();
            let priority = wish.pod.placement.priority.unwrap_or(0);
            (more, Reverse(priority), !guaranteed, new, wish.since)
        };
        let mut all: Vec<&Wish> = self.wishes.values().filter(waits).collect();
        all.sort_by_key(|wish| rank(wish));
        all.into_iter().map(|wish| wish.pod.uid.clone()).collect()
    }

    /// Takes in how pods are now; why those that wait are to be tried, if they are.
    pub(super) fn due(&mut self, handles: &[PodHandle], named: impl Fn(&PodUid) -> bool) -> Option<Trigger> {
        let active =
            |uid: &PodUid| handles.iter().find(|handle| handle.pod.uid == *uid && handle.is_active());
        self.wishes.retain(|uid, _| active(uid).is_some_and(|handle| !handle.is_leaving()));
        self.settling.retain(|uid, _| active(uid).is_some_and(|handle| !has_settled(handle)));
        if self.order(handles).is_empty() {
            self.used.clear();
            self.new = None;
            return None;
        }
        let used = self.used_by(handles);
        let freed = self.used.iter().find_map(|(uid, before)| match used.get(uid) {
            None if named(uid) => Some("pod_terminated"),
            None => Some("pods_removed"),
            Some(now) => (now.0 < before.0 || now.1 < before.1).then_some("pod_resized"),
        });
        self.used = used;
        let late = (self.next <= Instant::now()).then_some("periodic_retry");
        self.new.or(freed).or(late)
    }

    fn used_by(&self, handles: &[PodHandle]) -> BTreeMap<PodUid, (i64, i64)> {
        let counts = |handle: &&PodHandle| handle.is_active() && !handle.is_leaving();
        let one = |handle: &PodHandle| {
            let all = requests(self.counted(handle));
            let of = |name: &str| all.get(name).copied().unwrap_or(0);
            (handle.pod.uid.clone(), (of("cpu"), of("memory")))
        };
        handles.iter().filter(counts).map(one).collect()
    }

    /// They have been tried.
    pub(super) fn tried(&mut self) {
        self.new = None;
        self.next = Instant::now() + AGAIN;
    }

    /// They could not be: not all pods are known.
    pub(super) fn put_off(&mut self) {
        self.next = Instant::now() + FIRST;
    }

    /// Waits until some are to be tried: there may be room now, or it is time. Cancel-safe: nothing is taken out.
    pub(super) async fn wait(&self, handles: &[PodHandle]) {
        if self.order(handles).is_empty() {
            return std::future::pending().await;
        }
        // Those that are told while it is looked at what they led to are seen by the next look.
        let mut all: Vec<_> = handles.iter().map(|handle| handle.status.clone()).collect();
        all.iter_mut().for_each(watch::Receiver::mark_unchanged);
        loop {
            if self.has_room(handles) {
                return;
            }
            let mut changes: FuturesUnordered<_> = all.iter_mut().map(watch::Receiver::changed).collect();
            tokio::select! {
                () = tokio::time::sleep_until(self.next) => return,
                Some(change) = changes.next() => if change.is_err() { return },
            }
        }
    }

    /// Whether pods use less than when it was looked last.
    fn has_room(&self, handles: &[PodHandle]) -> bool {
        let used = self.used_by(handles);
        let settled = |handle: &PodHandle| self.settling.contains_key(&handle.pod.uid) && has_settled(handle);
        self.used.keys().any(|uid| !used.contains_key(uid)) || handles.iter().any(settled)
    }

    /// As the gauge has it.
    pub(super) fn count(&self, metrics: &Metrics) {
        let mut counts = BTreeMap::<String, f64>::new();
        for why in self.wishes.values().filter_map(|wish| wish.verdict.as_ref()) {
            *counts.entry(why.reason().to_lowercase()).or_default() += 1.0;
        }
        metrics.pod_pending_resizes.replace(counts.into_iter().map(|(reason, count)| ([reason], count)));
    }
}

/// Whether the pod is held to what it was allocated, as far as its worker has told.
fn has_settled(handle: &PodHandle) -> bool {
    let status = handle.status.borrow();
    status.observed_generation >= handle.pod.generation && !status.holds(ConditionKind::PodResizeInProgress)
}

fn asks_for_more(allocated: &Pod, wanted: &Pod) -> bool {
    let (old, new) = (requests(allocated), requests(wanted));
    ["cpu", "memory"].iter().any(|name| new.get(*name) > old.get(*name))
}

/// By container, resource, requests or limits, and what becomes of it.
fn count_requested(metrics: &Metrics, old: &Pod, new: &Pod) {
    for container in new.all_containers() {
        let Some(before) = old.container(&container.name) else { continue };
        if !is_resizable(container) {
            continue;
        }
        for resource in ["memory", "cpu"] {
            for (word, old, new) in [
                ("requests", &before.written.requests, &container.written.requests),
                ("limits", &before.written.limits, &container.written.limits),
            ] {
                let of = |list: &BTreeMap<String, String>| {
                    list.get(resource).map_or(0, |text| amount(resource, text))
                };
                let operation = match (of(old), of(new)) {
                    (old, new) if old == new => continue,
                    (_, 0) => "remove",
                    (0, _) => "add",
                    (old, new) if new < old => "decrease",
                    _ => "increase",
                };
                metrics.container_requested_resizes.inc([resource, word, operation]);
            }
        }
    }
}
