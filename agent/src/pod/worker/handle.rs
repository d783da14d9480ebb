//! How others reach a worker. Owns the sending ends; never waits for an order to be carried out
//! unless asked to. Given out by [`super::Worker`].

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::clock::Clock;
use crate::events::Event;
use crate::pod::spec::Pod;
use crate::pod::status::PodStatus;
use crate::pod::{Orders, Verdict};

/// A pod in good hands.
#[derive(Debug, Clone)]
pub struct PodHandle {
    /// What runs, as it was described when this handle was given out.
    pub pod: Arc<Pod>,
    /// How it goes.
    pub status: watch::Receiver<PodStatus>,
    senders: Senders,
    clock: Arc<dyn Clock>,
}

/// What a worker listens to.
#[derive(Debug, Clone)]
pub(super) struct Senders {
    pub(super) orders: watch::Sender<Orders>,
    pub(super) pods: watch::Sender<Arc<Pod>>,
    pub(super) pokes: watch::Sender<u64>,
}

impl PodHandle {
    pub(super) fn new(
        pod: Arc<Pod>,
        status: watch::Receiver<PodStatus>,
        senders: Senders,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self { pod, status, senders, clock }
    }

    /// One without a worker behind it: its word is the test's.
    #[cfg(test)]
    pub(crate) fn of_test(pod: Arc<Pod>, status: watch::Receiver<PodStatus>, clock: Arc<dyn Clock>) -> Self {
        let senders = Senders {
            orders: watch::channel(Orders::default()).0,
            pods: watch::channel(pod.clone()).0,
            pokes: watch::channel(0).0,
        };
        Self::new(pod, status, senders, clock)
    }

    /// The pod is described anew: the handle to give out from now on. The same description wakes
    /// nobody.
    #[must_use]
    pub fn update(&self, pod: Arc<Pod>) -> Self {
        self.senders.pods.send_if_modified(|old| {
            let new = *old != pod;
            if new {
                old.clone_from(&pod);
            }
            new
        });
        Self { pod, ..self.clone() }
    }

    /// Ends the pod as Failed for this, within `grace` or its own grace period. The first verdict
    /// stays.
    pub fn evict(&self, verdict: Verdict, grace: Option<Duration>) {
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
        self.senders.orders.send_modify(|orders| {
            orders.remove = true;
            if orders.kill.is_none() {
                orders.kill(grace, "removed", now);
            }
        });
    }

    /// Something of it has changed in the runtime: look now.
    pub fn poke(&self) {
        self.senders.pokes.send_modify(|count| *count = count.wrapping_add(1));
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
