//! The loop of one pod: wake, observe, plan, act, publish. Owns the worker's task and its
//! effects under way; never shares state but by channels. Started by [`crate::agent`],
//! one for each pod UID.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tracing::Instrument;

use super::history::{History, Trouble};
use super::plan::{Action, Op, Plan, plan};
use super::publish::Publisher;
use super::run::{Deps, Finished, open_stage, perform};
use super::spec::Pod;
use super::status::PodStatus;
use super::{Life, Orders, phase};
use crate::runtime::Observed;
use crate::timeline::Span;

/// While something is about to change.
const BUSY_POLL: Duration = Duration::from_millis(200);
/// Otherwise: how late an exit is seen at most.
const IDLE_POLL: Duration = Duration::from_millis(500);
/// After the runtime did not answer.
const DOWN_POLL: Duration = Duration::from_secs(1);

/// How others reach a worker.
#[derive(Debug, Clone)]
pub struct PodHandle {
    /// What runs.
    pub pod: Arc<Pod>,
    /// How it goes.
    pub status: watch::Receiver<PodStatus>,
    orders: watch::Sender<Orders>,
    clock: Arc<dyn crate::clock::Clock>,
}

impl PodHandle {
    /// Ends the pod within `grace`, or its own grace period; asking again only shortens.
    pub fn kill(&self, grace: Option<Duration>, reason: &str) {
        let grace = grace.unwrap_or(self.pod.grace);
        self.orders.send_modify(|orders| orders.kill(grace, reason, self.clock.mono()));
    }

    /// Forgets the pod once it is stopped; its worker ends then.
    pub fn remove(&self) {
        self.orders.send_modify(|orders| orders.remove = true);
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

/// A worker that has not begun.
#[derive(Debug)]
pub struct Worker {
    pod: Arc<Pod>,
    deps: Deps,
    orders: watch::Receiver<Orders>,
    publisher: Publisher,
    history: History,
    effects: JoinSet<Finished>,
    /// Which task carries out what.
    tasks: BTreeMap<Op, AbortHandle>,
    /// Stages under way.
    open: BTreeMap<Op, Span>,
}

impl Worker {
    /// Prepares a worker; nothing happens before [`Worker::run`].
    #[must_use]
    pub fn new(pod: Pod, deps: Deps) -> (Self, PodHandle) {
        let pod = Arc::new(pod);
        let (orders_in, orders) = watch::channel(Orders::default());
        let (observed, history) = (Observed::default(), History::default());
        let first =
            phase::status(&pod, &Orders::default(), Life::Waiting, &observed, &history, deps.clock.mono());
        let (publisher, status) = Publisher::new(first, deps.clock.wall_nanos());
        let handle = PodHandle { pod: pod.clone(), status, orders: orders_in, clock: deps.clock.clone() };
        let worker = Self {
            pod,
            deps,
            orders,
            publisher,
            history,
            effects: JoinSet::new(),
            tasks: BTreeMap::new(),
            open: BTreeMap::new(),
        };
        (worker, handle)
    }

    pub(super) fn deps(&self) -> &Deps {
        &self.deps
    }

    pub(super) fn pod(&self) -> &Pod {
        &self.pod
    }

    pub(super) fn orders(&mut self) -> &mut watch::Receiver<Orders> {
        &mut self.orders
    }

    pub(super) fn say(&mut self, message: String) {
        self.publisher.unreachable(message);
    }

    /// Lives the pod's life to its end: until it is gone, or everybody who could give
    /// orders is.
    pub async fn run(mut self) {
        let span = tracing::info_span!("pod", name = %self.pod.full_name(), uid = %self.pod.uid);
        async {
            self.publisher.mark_once("admitted", self.deps.clock.wall_nanos());
            self.recall_attempts().await;
            while let Some(pause) = self.turn().await {
                if !self.rest(pause).await {
                    break;
                }
            }
        }
        .instrument(span)
        .await;
    }

    /// The log folder remembers attempts that the runtime has forgotten.
    async fn recall_attempts(&mut self) {
        for container in &self.pod.containers {
            match self.deps.logs.highest_attempt(&self.pod, container).await {
                Ok(Some(attempt)) => self.history.know_attempt(&container.name, attempt),
                Ok(None) => {}
                Err(error) => tracing::warn!(error = error.chain(), "cannot read the log folder"),
            }
        }
    }

    /// Observe, plan, act, publish; how long to rest, or none when the pod is gone.
    async fn turn(&mut self) -> Option<Duration> {
        let observed = match self.deps.runtime.observe(&self.pod.uid).await {
            Ok(observed) => observed,
            Err(error) => {
                tracing::warn!(%error, detail = error.detail(), "the runtime does not answer");
                self.publisher.unreachable(format!("the runtime does not answer: {}", error.detail()));
                return Some(DOWN_POLL);
            }
        };
        let now = self.deps.clock.mono();
        let orders = self.orders.borrow_and_update().clone();
        self.history.absorb(&observed, now);
        let plan = plan(&self.pod, &orders, &observed, &self.history, now);
        self.history.finished |= plan.finished;
        self.history.started |= plan.started;
        if orders.kill.is_some() {
            self.abandon_pulls();
        }
        let Plan { life, actions, wake, .. } = plan;
        for action in actions {
            self.begin(action, now);
        }
        let status = phase::status(&self.pod, &orders, life, &observed, &self.history, now);
        let open = self.open.values().cloned().collect();
        self.publisher.publish(status, open, self.deps.clock.wall_nanos());
        let poll = match life {
            Life::Gone => return None,
            Life::Waiting | Life::Starting | Life::Stopping { .. } => BUSY_POLL,
            Life::Running | Life::Stopped if self.history.flights.is_empty() => IDLE_POLL,
            Life::Running | Life::Stopped => BUSY_POLL,
        };
        Some(wake.map_or(poll, |wake| wake.saturating_sub(now).min(poll)))
    }

    fn begin(&mut self, action: Action, now: Duration) {
        tracing::debug!(?action, "begin");
        let op = action.op();
        self.history.begin(&self.pod, &action, now);
        if let Some(stage) = open_stage(&self.pod, &action, self.deps.clock.wall_nanos()) {
            self.open.insert(op.clone(), stage);
        }
        let task = perform(self.deps.clone(), self.pod.clone(), action).in_current_span();
        // A stop with a shorter grace overtakes the one under way.
        if let Some(older) = self.tasks.insert(op, self.effects.spawn(task)) {
            older.abort();
        }
    }

    /// A pull that nobody waits for any more; the runtime ends it by itself.
    fn abandon_pulls(&mut self) {
        let pulls: Vec<Op> = self.tasks.keys().filter(|op| matches!(op, Op::Image(_))).cloned().collect();
        for op in pulls {
            if let Some(task) = self.tasks.remove(&op) {
                task.abort();
            }
            self.history.flights.remove(&op);
            self.open.remove(&op);
        }
    }

    /// Until an effect ends, orders come, or time is up; false when nobody can give
    /// orders any more. All three arms are cancel-safe: a finished task stays in the set,
    /// a change stays marked, a timer has no state worth keeping.
    async fn rest(&mut self, pause: Duration) -> bool {
        tokio::select! {
            Some(joined) = self.effects.join_next_with_id() => self.ended(joined),
            changed = self.orders.changed() => {
                if changed.is_err() {
                    return false;
                }
                self.history.forget_retries();
            }
            () = tokio::time::sleep(pause) => {}
        }
        while let Some(joined) = self.effects.try_join_next_with_id() {
            self.ended(joined);
        }
        true
    }

    fn ended(&mut self, joined: Result<(Id, Finished), JoinError>) {
        let now = self.deps.clock.mono();
        match joined {
            Ok((id, Finished { action, result, stage })) => {
                if !self.forget_task(id, &action.op()) {
                    return;
                }
                if let Err(trouble) = &result {
                    let Trouble { reason, message } = trouble;
                    tracing::warn!(?action, reason, message, "failed, will be tried again");
                }
                if let Some((span, inner)) = stage {
                    self.publisher.stage(span, &inner);
                }
                self.history.finish(&self.pod, &action, result, now);
            }
            Err(error) => {
                // Aborted ones were taken out already; a panic must not stay under way.
                let op =
                    self.tasks.iter().find(|(_, task)| task.id() == error.id()).map(|(op, _)| op.clone());
                if let Some(op) = op {
                    tracing::error!(%error, ?op, "an effect died");
                    self.tasks.remove(&op);
                    self.open.remove(&op);
                    self.history.flights.remove(&op);
                }
            }
        }
    }

    /// Whether the task was the current one for its op, not one that was overtaken.
    fn forget_task(&mut self, id: Id, op: &Op) -> bool {
        let current = self.tasks.get(op).is_some_and(|task| task.id() == id);
        if current {
            self.open.remove(op);
            self.tasks.remove(op);
        }
        current
    }
}

#[cfg(test)]
mod tests;
