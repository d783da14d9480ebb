//! How others reach a worker. Owns the sending ends; never waits for an order to be carried out
//! unless asked to. Given out by [`super::Worker`].

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::clock::Clock;
use crate::events::Event;
use crate::pod::Orders;
use crate::pod::spec::Pod;
use crate::pod::status::PodStatus;

/// A pod in good hands.
#[derive(Debug, Clone)]
pub struct PodHandle {
    /// What runs.
    pub pod: Arc<Pod>,
    /// How it goes.
    pub status: watch::Receiver<PodStatus>,
    orders: watch::Sender<Orders>,
    pokes: watch::Sender<u64>,
    clock: Arc<dyn Clock>,
}

impl PodHandle {
    pub(super) fn new(
        pod: Arc<Pod>,
        status: watch::Receiver<PodStatus>,
        orders: watch::Sender<Orders>,
        pokes: watch::Sender<u64>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self { pod, status, orders, pokes, clock }
    }

    /// Ends the pod within `grace`, or its own grace period; asking again only shortens.
    pub fn kill(&self, grace: Option<Duration>, reason: &str) {
        let grace = grace.unwrap_or(self.pod.grace);
        self.orders.send_modify(|orders| orders.kill(grace, reason, self.clock.mono()));
    }

    /// Forgets the pod once it is stopped, ending it first if need be; its worker ends then.
    pub fn remove(&self) {
        let (grace, now) = (self.pod.grace, self.clock.mono());
        self.orders.send_modify(|orders| {
            orders.remove = true;
            if orders.kill.is_none() {
                orders.kill(grace, "removed", now);
            }
        });
    }

    /// Something of it has changed in the runtime: look now.
    pub fn poke(&self) {
        self.pokes.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// What happened to it so far, oldest first.
    #[must_use]
    pub fn events(&self) -> Arc<[Event]> {
        self.status.borrow().events.clone()
    }

    /// Whether it was asked to be forgotten: a pod of that UID may be wanted again.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.orders.borrow().remove
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
