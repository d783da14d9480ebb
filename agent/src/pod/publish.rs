//! Tells how a pod goes: status, stages and events through a watch channel. Owns the sender, the
//! timeline and the list of events; never decides anything. Called by the worker, read by
//! everybody.

use std::sync::Arc;

use gantry_model::pod::{Pod, Role};
use tokio::sync::watch;

use super::status::{Condition, ConditionKind, ContainerState, PodStatus};
use crate::admission::Rejection;
use crate::events::{Event, Journal, Kind, Note};
use crate::timeline::{Span, Timeline};

/// The telling half of a worker.
#[derive(Debug)]
pub(super) struct Publisher {
    pod: Arc<Pod>,
    sender: watch::Sender<PodStatus>,
    timeline: Timeline,
    /// Shared by all statuses until the next stage ends.
    spans: Arc<[Span]>,
    journal: Journal,
    /// Shared by all statuses until the next event.
    events: Arc<[Event]>,
    started_at: i64,
    /// Of the agent's own that are told.
    turns: usize,
}

/// A pod that never becomes ready tells of so many turns at most.
const MOST_TURNS: usize = 64;

impl Publisher {
    /// Starts with `first`; the pod was taken up at `started_at`.
    pub(super) fn new(
        pod: Arc<Pod>,
        mut first: PodStatus,
        started_at: i64,
    ) -> (Self, watch::Receiver<PodStatus>) {
        let mut timeline = Timeline::default();
        timeline.mark("seen", started_at);
        let spans: Arc<[Span]> = timeline.spans().into();
        first.started_at = started_at;
        first.spans = spans.clone();
        first.conditions.iter_mut().for_each(|condition| condition.since = started_at);
        let (sender, receiver) = watch::channel(first);
        let (journal, events) = (Journal::default(), Arc::from([]));
        (Self { pod, sender, timeline, spans, journal, events, started_at, turns: 0 }, receiver)
    }

    /// What was told last.
    pub(super) fn last(&self) -> watch::Ref<'_, PodStatus> {
        self.sender.borrow()
    }

    /// What the status is about is described anew.
    pub(super) fn describe(&mut self, pod: Arc<Pod>) {
        self.pod = pod;
    }

    /// Told once: since when an earlier agent has had the pod, 0 if none has, and why the node does not take it in.
    pub(super) fn tell_first(&mut self, taken_up: i64, rejection: Option<Rejection>, wall: i64) {
        if taken_up != 0 {
            self.began(taken_up);
        }
        if let Some(Rejection { reason, message }) = rejection {
            self.event(Note::pod(Kind::Warning, reason, message), wall);
        }
    }

    /// An earlier agent took the pod up before this one did.
    pub(super) fn began(&mut self, at: i64) {
        self.started_at = self.started_at.min(at);
    }

    /// A stage has ended. This is the story of the pod's start: of each stage the first success
    /// is kept, restarts add nothing, so it stays small however often a container crashes. Whether
    /// it was kept.
    pub(super) fn stage(&mut self, span: Span) -> bool {
        let new = !self.timeline.has_stage(&span.name, &span.container);
        if new {
            self.timeline.add(span);
            self.spans = self.timeline.spans().into();
        }
        new
    }

    /// What the runtime says of a stage that was kept.
    pub(super) fn within(&mut self, stage: &Span, inner: &[Span]) {
        self.timeline.add_within(stage, inner);
        self.spans = self.timeline.spans().into();
    }

    /// The agent itself was what the pod waited for: one span each time, until it is ready.
    pub(super) fn turn(&mut self, span: Span) {
        if span.end > span.start && self.turns < MOST_TURNS && !self.timeline.has("ready") {
            self.turns += 1;
            self.timeline.add(span);
            self.spans = self.timeline.spans().into();
        }
    }

    /// A moment, the first time it happens.
    pub(super) fn mark_once(&mut self, name: &str, at: i64) {
        if !self.timeline.has(name) {
            self.timeline.mark(name, at);
            self.spans = self.timeline.spans().into();
        }
    }

    /// An event; it is seen with the next status.
    pub(super) fn event(&mut self, note: Note, now_wall: i64) {
        tracing::debug!(reason = %note.reason, container = note.container, text = note.message, "event");
        self.journal.add(note, now_wall);
        self.events = self.journal.events().into();
    }

    /// Sends the status if it differs from the last; `open` are the stages under way.
    pub(super) fn publish(&mut self, mut status: PodStatus, mut open: Vec<Span>, now_wall: i64) {
        self.container_stages(&status, now_wall);
        if status.holds(ConditionKind::Ready) {
            self.mark_once("ready", now_wall);
        }
        open.retain(|span| !self.timeline.has_stage(&span.name, &span.container));
        status.started_at = self.started_at;
        status.events = self.events.clone();
        status.spans = match open.is_empty() {
            true => self.spans.clone(),
            false => self.spans.iter().cloned().chain(open).collect(),
        };
        self.sender.send_if_modified(|last| {
            keep(last, &mut status, now_wall);
            let changed = *last != status;
            if changed {
                log_change(last, &status);
                *last = status;
            }
            changed
        });
    }

    /// How long each container's probes took to succeed for the first time, and how long an init
    /// container ran: the others waited for that.
    fn container_stages(&mut self, status: &PodStatus, now_wall: i64) {
        let pod = self.pod.clone();
        for (container, status) in pod.all_containers().zip(status.all_containers()) {
            if let ContainerState::Terminated(exit) = &status.state
                && container.role == Role::Init
                && exit.initialized()
            {
                let (name, container) = ("container.run".to_owned(), container.name.clone());
                let (start, end) = (exit.started_at, exit.finished_at.max(exit.started_at));
                self.stage(Span { name, container, start, end, detail: String::new() });
            }
            let ContainerState::Running { started_at } = status.state else { continue };
            let reached = [
                ("probe.startup", container.probes.startup.is_some() && status.started),
                ("probe.readiness", container.probes.readiness.is_some() && status.ready),
            ];
            for (name, _) in reached.into_iter().filter(|(_, reached)| *reached) {
                let (name, container) = (name.to_owned(), container.name.clone());
                let span = Span { name, container, start: started_at, end: now_wall, detail: String::new() };
                self.stage(span);
            }
        }
    }

    /// The runtime does not answer: what was known stays, with a word of why.
    pub(super) fn unreachable(&mut self, message: String) {
        self.sender.send_if_modified(|last| {
            let changed = last.message != message;
            last.message = message;
            changed
        });
    }
}

/// What a new status takes over from the last: since when a condition holds, and the addresses, which
/// stay when the sandbox goes; and how its devices were when it gave them back.
fn keep(last: &PodStatus, next: &mut PodStatus, now_wall: i64) {
    for condition in &mut next.conditions {
        let before = last.conditions.iter().find(|other| other.kind == condition.kind);
        let same = |other: &&Condition| {
            other.holds == condition.holds
                && (other.reason == condition.reason || !condition.kind.counts_by_reason())
        };
        condition.since = before.filter(same).map_or(now_wall, |other| other.since);
    }
    if next.ips.is_empty() {
        next.ip.clone_from(&last.ip);
        next.ips.clone_from(&last.ips);
    }
    if next.devices.is_empty() {
        next.devices.clone_from(&last.devices);
    }
}

fn log_change(last: &PodStatus, next: &PodStatus) {
    if (last.life, &last.reason) != (next.life, &next.reason) {
        tracing::info!(
            phase = next.phase.as_str(),
            reason = next.reason,
            // Not `message`: that is the name of the words below.
            text = next.message,
            "pod changed"
        );
    }
}
