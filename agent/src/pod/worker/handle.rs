//! How others reach a worker. Owns the sending ends; never waits for an order to be carried out
//! unless asked to. Given out by [`super::Worker`].

use std::sync::Arc;
use std::time::Duration;

use gantry_model::clock::Clock;
use gantry_model::pod::Pod;
use tokio::sync::watch;

use crate::admission::Rejection;
use crate::events::{Event, Note};
use crate::pod::run::NoteSender;
use crate::pod::status::{Phase, PodStatus};
use crate::pod::{Life, Orders, PodFailure};

/// A pod in good hands.
#[derive(Debug, Clone)]
pub struct PodHandle {
    /// What runs, as it was described when this handle was given out.
    pub pod: Arc<Pod>,
    /// How it goes.
    pub status: watch::Receiver<PodStatus>,
    senders: Senders,
    clock: Arc<dyn Clock>,
    passed_over: Option<i64>,
}

/// What a worker listens to.
#[derive(Debug, Clone)]
pub(super) struct Senders {
    pub(super) orders: watch::Sender<Orders>,
    pub(super) pods: watch::Sender<Arc<Pod>>,
    pub(super) pokes: watch::Sender<u64>,
    pub(super) notes_out: NoteSender,
}

impl PodHandle {
    pub(super) fn new(
        pod: Arc<Pod>,
        status: watch::Receiver<PodStatus>,
        senders: Senders,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self { pod, status, senders, clock, passed_over: None }
    }

    /// One without a worker behind it: its word is the test's.
    #[cfg(test)]
    pub(crate) fn of_test(pod: Arc<Pod>, status: watch::Receiver<PodStatus>, clock: Arc<dyn Clock>) -> Self {
        let senders = Senders {
            orders: watch::channel(Orders::default()).0,
            pods: watch::channel(pod.clone()).0,
            pokes: watch::channel(0).0,
            notes_out: NoteSender::new().0,
        };
        Self::new(pod, status, senders, clock)
    }

    /// The pod is described anew: the handle to give out from now on. The same description wakes
    /// nobody.
    #[must_use]
    pub fn update(&self, pod: Arc<Pod>) -> Self {
        self.senders.pods.send_if_modified(|old| {
            let new = !Arc::ptr_eq(old, &pod) && *old != pod;
            if new {
                *old = pod;
            }
            new
        });
        // The very same as before where nothing is new: others compare by it.
        let pod = self.senders.pods.borrow().clone();
        Self { pod, ..self.clone() }
    }

    /// Whether both are of one worker and describe the pod by the same object.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.pod, &other.pod)
            && self.status.same_channel(&other.status)
            && self.passed_over == other.passed_over
    }

    /// Says once of each description that it cannot be followed.
    pub fn pass_over(&mut self, generation: i64, why: &Rejection) {
        if self.passed_over.replace(generation) != Some(generation) {
            let pod = self.pod.full_name();
            tracing::warn!(pod, generation, %why, "the new description is passed over: the pod goes on as it was");
        }
    }

    /// Whether it was looked at, and has not come to an end or been asked to.
    #[must_use]
    pub fn is_at_work(&self) -> bool {
        let status = self.status.borrow();
        let over = status.is_over() || matches!(status.phase, Phase::Succeeded | Phase::Failed);
        !over && status.life != Life::Waiting && !self.is_ending()
    }

    /// It uses what it was admitted for, or will.
    #[must_use]
    pub fn is_active(&self) -> bool {
        let status = self.status.borrow();
        !status.is_over() && !matches!(status.phase, Phase::Succeeded | Phase::Failed)
    }

    /// Ends the pod as Failed for this, within `grace` or its own grace period. The first verdict
    /// stays.
    pub fn evict(&self, verdict: PodFailure, grace: Option<Duration>) {
        let reason = verdict.reason.clone();
        self.senders.orders.send_modify(|orders| {
            orders.verdict.get_or_insert(verdict);
        });
        self.kill(grace, &reason);
    }

    /// Whether it was asked to end.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.senders.orders.borrow().kill.is_some()
    }

    /// Ends the pod within `grace`, or its own grace period; asking again only shortens.
    pub fn kill(&self, grace: Option<Duration>, reason: &str) {
        let (grace, now) = (grace.unwrap_or(self.pod.grace), self.clock.mono());
        // Asked again and again for the same end, it wakes nobody.
        self.senders.orders.send_if_modified(|orders| {
            let before = orders.kill.clone();
            orders.kill(grace, reason, now);
            orders.kill != before
        });
    }

    /// Forgets the pod once it is stopped, ending it first if need be; its worker ends then.
    pub fn remove(&self) {
        let (grace, now) = (self.pod.grace, self.clock.mono());
        // Asked again and again, it wakes nobody: what waits before the next try waits on.
        self.senders.orders.send_if_modified(|orders| {
            let new = !orders.remove || orders.kill.is_none();
            orders.remove = true;
            if orders.kill.is_none() {
                orders.kill(grace, "removed", now);
            }
            new
        });
    }

    /// Its containers give back what they hold once it is stopped: writable layers and logs.
    pub fn free(&self) {
        self.senders.orders.send_if_modified(|orders| !std::mem::replace(&mut orders.free, true));
    }

    /// Something of it has changed in the runtime: look now.
    pub fn poke(&self) {
        self.senders.pokes.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Something happened to it that its worker cannot see: one more event, unless there is a backlog.
    pub fn tell(&self, note: Note) {
        self.senders.notes_out.try_tell(note);
    }

    /// What happened to it so far, oldest first.
    #[must_use]
    pub fn events(&self) -> Arc<[Event]> {
        self.status.borrow().events.clone()
    }

    /// Whether it was asked to be forgotten: a pod of that UID may be wanted again.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.senders.orders.borrow().remove
    }

    /// Whether its worker has come to its end.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.status.has_changed().is_err()
    }

    /// Waits until `test` holds; the last status when the worker ended before.
    pub async fn wait(&self, test: impl FnMut(&PodStatus) -> bool) -> PodStatus {
        let mut status = self.status.clone();
        match status.wait_for(test).await {
            Ok(status) => status.clone(),
            Err(_) => self.status.borrow().clone(),
        }
    }
}
