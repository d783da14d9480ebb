//! The loop of one pod: wake, observe, plan, act, publish. Owns the worker's task and its
//! effects under way; never shares state but by channels. Started by [`crate::pod_workers`],
//! one for each pod UID.

mod handle;
mod spans;
mod turns;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gantry_base::error::chain;
use gantry_model::pod::{Pod, RestartPolicy};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tracing::Instrument;

use super::count;
use super::phase::{self, StatusInputs};
use super::plan::{Action, Ended, Op, Plan, Wait, plan};
use super::publish::Publisher;
use super::resize;
use super::restart::Backoff;
use super::run::{Deps, Finished, NoteSender, add_runtime_spans, open_stage, perform};
use super::status::{ConditionKind, PodStatus};
use super::worker_state::{WaitReason, WorkerState};
use super::{Life, Orders};
use crate::events::{Kind, Note};
use crate::node::HostIps;
use crate::pod::update::PodUpdate;
use crate::runtime::Observed;
use crate::timeline::Span;
use gantry_trace::current;
pub use handle::PodHandle;
use handle::Senders;
use spans::WorkSpan;
use turns::Turns;

/// How late a change is seen at most. While something is about to change; otherwise; and while something is about to
/// change though the runtime tells by itself, so that looking is only the safety net.
const BUSY_POLL: Duration = Duration::from_millis(200);
const IDLE_POLL: Duration = Duration::from_millis(500);
const BUSY_NET: Duration = Duration::from_secs(1);
/// Of a pod of which nothing is about to change where the runtime tells: one look at all pods, by
/// [`crate::pod_workers::watcher`], makes up for events that are lost. Nothing of a stopped pod changes any more but by us.
const REST_NET: Duration = Duration::from_secs(300);
/// After the runtime did not answer.
const DOWN_POLL: Duration = Duration::from_secs(1);

/// A worker that has not begun.
#[derive(Debug)]
pub struct Worker {
    pod: Arc<Pod>,
    /// The pod as it is described now.
    pods: watch::Receiver<Arc<Pod>>,
    deps: Deps,
    orders: watch::Receiver<Orders>,
    /// Rises when an object that the pod refers to has changed.
    objects: watch::Receiver<u64>,
    /// Counts the runtime's events about this pod.
    pokes: watch::Receiver<u64>,
    /// Whether the runtime's events arrive.
    told: watch::Receiver<bool>,
    /// The node's addresses, which are in the status.
    ips: HostIps,
    /// Whether it gives pods a network.
    network: watch::Receiver<Option<String>>,
    /// Rises when a device that a container has is well no longer, or again.
    health: watch::Receiver<u64>,
    /// The same of devices that it has by claims.
    claimed_health: watch::Receiver<u64>,
    publisher: Publisher,
    history: WorkerState,
    /// As last observed, and when to look again at the latest; none when nothing is known.
    seen: Option<(Observed, Duration)>,
    effects: JoinSet<Finished>,
    /// Which task carries out what.
    tasks: BTreeMap<Op, AbortHandle>,
    /// Stages under way.
    open: BTreeMap<Op, Span>,
    /// What the runtime says of stages that have ended.
    details: JoinSet<(Span, Vec<Span>)>,
    turns: Turns,
    work: WorkSpan,
    /// When the pod was taken up, by the wall clock.
    seen_at: i64,
    /// It has not had its turn yet.
    is_first: bool,
    notes_out: NoteSender,
    notes: mpsc::Receiver<Note>,
}

/// Of a pod that nothing was done for yet.
fn new_history(deps: &Deps, pod: &Pod, now: Duration) -> WorkerState {
    let mut history = WorkerState::new(now);
    history.backoffs.crash = Backoff::up_to(deps.longest_wait);
    history.resizing.rules = deps.cgroups.rules();
    history.is_managed = deps.managers.could_give(pod);
    history
}

/// From one time to another of the wall clock.
fn span_of(from: i64, to: i64) -> Duration {
    Duration::from_nanos(u64::try_from(to.saturating_sub(from)).unwrap_or(0))
}

impl Worker {
    /// Prepares a worker; nothing happens before [`Worker::run`].
    #[must_use]
    pub fn new(pod: Pod, deps: Deps) -> (Self, PodHandle) {
        let (_, silent) = watch::channel(false);
        Self::start_watched(pod, deps, silent)
    }

    /// The same, with the news whether the runtime's events arrive: they come as pokes of the handle.
    #[must_use]
    pub fn start_watched(
        pod: impl Into<PodUpdate>,
        deps: Deps,
        told: watch::Receiver<bool>,
    ) -> (Self, PodHandle) {
        let PodUpdate { pod, last, ending: _, refused } = pod.into();
        let (now, wall) = (deps.clock.mono(), deps.clock.wall_nanos());
        let ((orders_in, orders), (pods_in, pods)) =
            (watch::channel(Orders::default()), watch::channel(pod.clone()));
        let (pokes_in, pokes) = watch::channel(0);
        let (observed, mut history) = (Observed::default(), new_history(&deps, &pod, now));
        // Told once: what the API has as ended was told by an agent before.
        let (rejection, taken_up) = (refused.clone().filter(|_| last.end.is_none()), last.started_at);
        history.inherit(last, refused, now, wall);
        let first = phase::status(StatusInputs {
            pod: &pod,
            orders: &Orders::default(),
            life: Life::Waiting,
            observed: &observed,
            history: &history,
            now,
            node: &deps.node,
        });
        let (mut publisher, status) = Publisher::new(pod.clone(), first, wall);
        publisher.tell_first(taken_up, rejection, wall);
        let (notes_out, notes) = NoteSender::new();
        let senders =
            Senders { orders: orders_in, pods: pods_in, pokes: pokes_in, notes_out: notes_out.clone() };
        let handle = PodHandle::new(pod.clone(), status, senders, deps.clock.clone());
        let worker = Self {
            health: deps.devices.health_changes(&pod),
            claimed_health: deps.dra.health_changes(&pod),
            pod,
            pods,
            ips: deps.node.ips.clone(),
            network: deps.network.clone(),
            objects: watch::channel(0).1,
            orders,
            pokes,
            told,
            publisher,
            history,
            seen: None,
            effects: JoinSet::new(),
            tasks: BTreeMap::new(),
            open: BTreeMap::new(),
            details: JoinSet::new(),
            turns: Turns::new(wall),
            work: WorkSpan::new(deps.tracer.clone()),
            seen_at: wall,
            is_first: true,
            notes_out,
            notes,
            deps,
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

    /// A pod that ran before with the same UID goes on counting its starts, as upstream, where the
    /// ended containers are still known; one that never restarts begins anew.
    pub(super) fn count_on(&mut self, before: &PodStatus) {
        if self.pod.restart_policy == RestartPolicy::Never {
            return;
        }
        for container in before.containers.iter().filter(|container| !container.id.is_empty()) {
            self.history.attempts.know(&container.name, container.restart_count);
        }
    }

    pub(super) fn say(&mut self, message: String) {
        self.publisher.unreachable(message);
    }

    /// Lives the pod's life to its end: until it is gone, or everybody who could give
    /// orders is.
    pub async fn run(mut self) {
        let span = tracing::info_span!("pod", name = %self.pod.full_name(), uid = %self.pod.uid);
        async {
            let admitted = self.deps.clock.wall_nanos();
            let metrics = self.deps.metrics.clone();
            metrics.pod_worker_start_duration.took([], span_of(self.seen_at, admitted));
            #[expect(clippy::cast_precision_loss, reason = "a number of containers")]
            metrics.containers_per_pod.observe([], self.pod.containers.len() as f64);
            // Until now it looked for earlier pods of its name, and waited for them.
            self.tell_own("agent.predecessors", self.seen_at, admitted);
            self.publisher.mark_once("admitted", admitted);
            self.recall().await;
            // One that the API has as ended, or that is refused, never starts.
            if !self.pod.containers.is_empty() && self.history.stage.ended().is_none() {
                self.objects = self.deps.api.follow(&self.pod);
            }
            let recalled = self.deps.clock.wall_nanos();
            self.tell_own("agent.recall", admitted, recalled);
            self.turns.wake(recalled);
            while let Some(pause) = self.turn().await {
                if !self.rest(pause).await {
                    break;
                }
            }
        }
        .instrument(span)
        .await;
    }

    fn tell_turn(&mut self, mut led_to: Vec<String>, ready: bool, until: i64) {
        if ready {
            led_to.push("ready".to_owned());
        }
        if let Some(span) = self.turns.end(until, &led_to) {
            self.publisher.turn(span);
        }
    }

    fn tell_own(&mut self, name: &str, start: i64, end: i64) {
        let (name, container, detail) = (name.to_owned(), String::new(), String::new());
        self.publisher.turn(Span { name, container, start, end, detail });
    }

    /// The log folder remembers attempts that the runtime has forgotten, the checkpoint what the
    /// agent before this one knew of probes.
    async fn recall(&mut self) {
        for container in self.pod.every_container() {
            match self.deps.logs.highest_attempt(&self.pod, container).await {
                Ok(Some(attempt)) => self.history.attempts.know(&container.name, attempt),
                Ok(None) => {}
                Err(error) => tracing::warn!(error = chain(&error), "cannot read the log folder"),
            }
        }
        self.history.resizing.recall(self.deps.checkpoints.actuated(&self.pod.uid).await);
        match self.deps.checkpoints.load(&self.pod.uid).await {
            Ok(marks) => self.history.recall(marks),
            Err(error) => tracing::warn!(error = chain(&error), "probes begin anew"),
        }
    }

    /// Looks at the pod, unless what is known of it is new enough; none when nobody answers.
    async fn look(&mut self) -> Option<Observed> {
        if let Some((observed, until)) = &self.seen
            && self.deps.clock.mono() < *until
        {
            return Some(observed.clone());
        }
        self.pokes.mark_unchanged();
        let (begun, since) = (self.deps.clock.wall_nanos(), self.deps.clock.mono());
        let observed = self.deps.runtime.observe(&self.pod.uid).await;
        let took = self.deps.clock.mono().saturating_sub(since);
        self.deps.metrics.pleg_pod_relist_duration.took([], took);
        match observed {
            Ok(mut observed) => {
                let ends = observed.containers.iter().filter_map(|c| Some(c.exit()?.finished_at));
                self.turns.record_observation(begun, self.deps.clock.wall_nanos(), ends);
                if self.pod.namespaces.host_network {
                    // The runtime tells none: the node's are the pod's, for probes, hooks and the
                    // downward API, too.
                    let ips = self.deps.node.ips.now();
                    observed.sandboxes.iter_mut().for_each(|s| s.ips.clone_from(&ips));
                }
                if let Some(oldest) =
                    observed.sandboxes.iter().map(|s| s.created_at).filter(|at| *at > 0).min()
                {
                    self.publisher.began(oldest);
                }
                Some(observed)
            }
            Err(error) => {
                tracing::warn!(%error, detail = error.detail(), "the runtime does not answer");
                self.publisher.unreachable(format!("the runtime does not answer: {}", error.detail()));
                self.seen = None;
                None
            }
        }
    }

    /// A round, by upstream's word for what it is about; how long it takes is without what it begins.
    async fn turn(&mut self) -> Option<Duration> {
        let (life, first) = (self.publisher.last().life, std::mem::take(&mut self.is_first));
        let what = match life {
            _ if first => "create",
            Life::Stopped | Life::Gone => "terminated",
            _ if self.orders.borrow().kill.is_some() => "kill",
            _ if self.pods.has_changed().unwrap_or(false) => "update",
            _ => "sync",
        };
        self.work.why = what;
        let begun = self.deps.clock.mono();
        let rest = self.round().await;
        if self.tasks.keys().all(|op| matches!(op, Op::Probe(..))) {
            self.work.end();
        }
        let took = self.deps.clock.mono().saturating_sub(begun);
        self.deps.metrics.pod_worker_duration.took([what], took);
        rest
    }

    /// Observe, plan, act, publish; how long to rest, or none when the pod is gone.
    async fn round(&mut self) -> Option<Duration> {
        let Some(observed) = self.look().await else { return Some(DOWN_POLL) };
        let now = self.deps.clock.mono();
        // What is told now was so before anything new begins.
        let wall = self.deps.clock.wall_nanos();
        self.take_over();
        self.history.absorb(&self.pod, &observed, now, wall);
        let orders = self.orders.borrow_and_update().clone();
        let plan = plan(&self.pod, &orders, &observed, &self.history, now);
        if self.history.stage.ended().is_none() && plan.ended == Some(Ended::DeadlineExceeded) {
            let message = "Pod was active on the node longer than the specified deadline";
            self.event(Note::pod(Kind::Normal, "DeadlineExceeded", message));
        }
        self.history.settle(&plan, now);
        self.tell_resize(plan.resizing);
        let Plan { life, actions, abandon, waits, wake, .. } = plan;
        abandon.iter().for_each(|op| self.abandon(op));
        self.tell_waits(&waits);
        let begun = self.deps.clock.wall_nanos();
        let led_to: Vec<String> =
            actions.into_iter().filter_map(|action| self.begin(action, life, now, begun)).collect();
        self.drain_notes();
        let mut status = phase::status(StatusInputs {
            pod: &self.pod,
            orders: &orders,
            life,
            observed: &observed,
            history: &self.history,
            now,
            node: &self.deps.node,
        });
        status.devices = Arc::new(self.deps.device_health(&self.pod));
        status.held = observed.containers.len();
        if matches!(life, Life::Stopped | Life::Gone) {
            self.deps.api.forget(&self.pod.uid);
            self.deps.devices.forget(&self.pod.uid).await;
            self.deps.managers.forget(&self.pod.uid).await;
        }
        if life == Life::Gone {
            // Before it is told: a new pod of this UID counts attempts by the logs it finds.
            self.forget_logs().await;
            count::record_removal(&self.deps, &self.pod);
        }
        let since = span_of(self.seen_at, wall);
        count::record_phase_change(&self.deps.metrics, &self.publisher.last(), &status, since);
        self.tell_turn(led_to, status.holds(ConditionKind::Ready), begun);
        let open = self.open.values().cloned().collect();
        self.publisher.publish(status, open, wall);
        if life == Life::Gone {
            return None;
        }
        let rest = self.keep_observation(observed, life, now);
        Some(wake.map_or(rest, |wake| wake.saturating_sub(now).min(rest)))
    }

    /// What came of a resize; whether the pod is held to other resources than it was allocated.
    fn tell_resize(&mut self, differs: Option<bool>) {
        let resizing = &mut self.history.resizing;
        let error = resizing.take_error().filter(|_| differs.is_some());
        let done = differs.and_then(|differs| resizing.settle(&self.pod, differs));
        if let Some(change) = resizing.count(differs.is_some()) {
            self.deps.metrics.pod_in_progress_resizes.add([], change);
        }
        if let Some((generation, error)) = error {
            self.event(resize::failed(&self.pod, generation, &error));
        }
        if let Some(generation) = done {
            self.event(resize::completed(&self.pod, generation));
        }
    }

    /// Until the runtime is asked again.
    fn keep_observation(&mut self, observed: Observed, life: Life, now: Duration) -> Duration {
        let next = now + self.poll(life);
        let until = match self.seen.take() {
            Some((_, until)) if now < until => until.min(next),
            _ => next,
        };
        self.seen = Some((observed, until));
        until.saturating_sub(now)
    }

    /// The pod may be described anew while it runs: images, ephemeral containers, deadline, labels.
    fn take_over(&mut self) {
        if !self.pods.has_changed().unwrap_or(false) {
            return;
        }
        let new = self.pods.borrow_and_update().clone();
        self.history.redescribe(&self.pod, &new);
        self.publisher.describe(new.clone());
        if self.pod.ephemeral_containers != new.ephemeral_containers {
            self.objects = self.deps.api.follow(&new);
        }
        self.pod = new;
    }

    /// Nobody can ask for them by the pod's name any more.
    async fn forget_logs(&self) {
        if let Err(error) = self.deps.logs.remove(&self.pod).await {
            // The agent's own end tries again and tells.
            tracing::error!(error = chain(&error), "logs of a pod that is gone are left");
        }
    }

    /// How soon to look again when nothing tells.
    fn poll(&self, life: Life) -> Duration {
        let under_way = || self.history.flights.keys().any(Op::changes_runtime);
        let busy = match life {
            Life::Waiting | Life::Starting | Life::Stopping { .. } | Life::Gone => true,
            Life::Running => under_way(),
            Life::Stopped if under_way() => true,
            Life::Stopped => return REST_NET,
        };
        match (*self.told.borrow(), busy) {
            (false, true) => BUSY_POLL,
            (false, false) => IDLE_POLL,
            (true, true) => BUSY_NET,
            (true, false) => REST_NET,
        }
    }

    fn event(&mut self, note: Note) {
        self.publisher.event(note, self.deps.clock.wall_nanos());
    }

    fn drain_notes(&mut self) {
        while let Ok(note) = self.notes.try_recv() {
            self.event(note);
        }
    }

    fn tell_waits(&mut self, waits: &[Wait]) {
        for Wait { container, image, .. } in self.history.backoffs.new_waits(waits) {
            if image {
                let Some(name) = self.history.containers.image_of(&self.pod, &container) else { continue };
                let message = format!("Back-off pulling image {name:?}");
                self.event(Note::container(Kind::Normal, "BackOff", &container, message));
                let message = "Error: ImagePullBackOff";
                self.event(Note::container(Kind::Warning, "Failed", &container, message));
            } else {
                let pod = self.pod.formatted();
                let message = format!("Back-off restarting failed container {container} in pod {pod}");
                self.event(Note::container(Kind::Warning, "BackOff", &container, message));
            }
        }
    }

    /// The name of the stage that it is, if it is one.
    fn begin(&mut self, action: Action, life: Life, now: Duration, wall: i64) -> Option<String> {
        tracing::debug!(?action, "begin");
        let op = action.op();
        self.history.begin(&self.pod, &action, now);
        let stage = open_stage(&self.pod, &action, wall);
        if let Some(stage) = &stage {
            self.open.insert(op.clone(), stage.clone());
        }
        let name = stage.as_ref().map(Span::label);
        let task = perform(self.deps.clone(), self.pod.clone(), action, self.notes_out.clone(), stage);
        // Upstream's probes are no part of a sync.
        let is_work = !matches!(op, Op::Probe(..));
        let span = if is_work { self.work.begin_step(&self.pod, life) } else { None };
        let task = current::within(span, task);
        // A stop with a shorter grace overtakes the one under way.
        if let Some(older) = self.tasks.insert(op, self.effects.spawn(task.in_current_span())) {
            older.abort();
        }
        name
    }

    /// Nobody waits for it any more; what it asked of the runtime ends by itself.
    fn abandon(&mut self, op: &Op) {
        if let Some(task) = self.tasks.remove(op) {
            task.abort();
        }
        self.history.abandon(op);
        self.open.remove(op);
    }

    /// Until an effect ends, orders or events come, or time is up; false when nobody can give
    /// orders any more. All arms are cancel-safe: a finished task stays in the set, a note in its
    /// channel, a change stays marked, a timer has no state worth keeping.
    async fn rest(&mut self, pause: Duration) -> bool {
        tokio::select! {
            Some(joined) = self.effects.join_next_with_id() => self.finish_task(joined),
            Some(note) = self.notes.recv() => self.event(note),
            changed = self.orders.changed() => {
                if changed.is_err() {
                    return false;
                }
                self.history.backoffs.forget_retries();
            }
            Ok(()) = self.pokes.changed() => self.seen = None,
            // On the host's network they are in what was seen, too.
            Ok(()) = self.ips.changed() => self.seen = None,
            // Who waited for it need not any more.
            Ok(()) = self.network.changed() => self.history.backoffs.forget_retries(),
            Ok(()) = self.health.changed() => {}
            Ok(()) = self.claimed_health.changed() => {}
            Ok(()) = self.pods.changed() => self.pods.mark_changed(),
            Ok(()) = self.objects.changed() => self.history.volumes_stale = true,
            Some(detailed) = self.details.join_next() => match detailed {
                Ok((stage, inner)) => {
                    count::record_stages(&self.deps.metrics, &stage, &inner);
                    self.publisher.within(&stage, &inner);
                }
                Err(error) => tracing::error!(%error, "asking for the stages within a stage died"),
            },
            () = tokio::time::sleep(pause) => {}
        }
        while let Some(joined) = self.effects.try_join_next_with_id() {
            self.finish_task(joined);
        }
        // Unless an effect did before.
        self.turns.wake(self.deps.clock.wall_nanos());
        true
    }

    fn finish_task(&mut self, joined: Result<(Id, Finished), JoinError>) {
        let now = self.deps.clock.mono();
        match joined {
            Ok((id, Finished { action, result, end, stage, made })) => {
                let op = action.op();
                if !self.forget_task(id, &op) {
                    return;
                }
                self.turns.wake(end);
                // It told these before it ended.
                self.drain_notes();
                if let Err(WaitReason { reason, message, .. }) = &result {
                    tracing::warn!(?op, reason, message, "a step of the pod failed");
                    if !matches!(op, Op::Probe(..)) {
                        self.work.fail(message);
                    }
                }
                if let Some(stage) = stage.filter(|stage| self.publisher.stage(stage.clone())) {
                    let (deps, pod) = (self.deps.clone(), self.pod.clone());
                    self.details.spawn(add_runtime_spans(deps, pod, action.clone(), made, stage));
                }
                if op.changes_runtime() {
                    self.seen = None;
                }
                self.history.finish(&self.pod, &action, result, now);
            }
            Err(error) => {
                // Aborted ones were taken out already; a panic must not stay under way.
                let op =
                    self.tasks.iter().find(|(_, task)| task.id() == error.id()).map(|(op, _)| op.clone());
                if let Some(op) = op {
                    tracing::error!(%error, ?op, "an effect died");
                    self.abandon(&op);
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
