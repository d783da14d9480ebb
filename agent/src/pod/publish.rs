//! Tells how a pod goes: status and stages through a watch channel. Owns the sender and
//! the timeline; never decides anything. Called by the worker, read by everybody.

use std::sync::Arc;

use tokio::sync::watch;

use super::Life;
use super::status::{ContainerState, PodStatus};
use crate::timeline::{Span, Timeline};

/// The telling half of a worker.
#[derive(Debug)]
pub(super) struct Publisher {
    sender: watch::Sender<PodStatus>,
    timeline: Timeline,
    /// Shared by all statuses until the next stage ends.
    spans: Arc<[Span]>,
    started_at: i64,
}

impl Publisher {
    /// Starts with `first`; the pod was taken up at `started_at`.
    pub(super) fn new(mut first: PodStatus, started_at: i64) -> (Self, watch::Receiver<PodStatus>) {
        let mut timeline = Timeline::default();
        timeline.mark("seen", started_at);
        let spans: Arc<[Span]> = timeline.spans().into();
        first.started_at = started_at;
        first.spans = spans.clone();
        let (sender, receiver) = watch::channel(first);
        (Self { sender, timeline, spans, started_at }, receiver)
    }

    /// A stage has ended. This is the story of the pod's start: of each stage the first success
    /// is kept, restarts add nothing, so it stays small however often a container crashes.
    pub(super) fn stage(&mut self, span: Span, inner: &[Span]) {
        if !self.timeline.has_stage(&span.name, &span.container) {
            self.timeline.add_with(span, inner);
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

    /// Sends the status if it differs from the last; `open` are the stages under way.
    pub(super) fn publish(&mut self, mut status: PodStatus, mut open: Vec<Span>, now_wall: i64) {
        open.retain(|span| !self.timeline.has_stage(&span.name, &span.container));
        let all_run = !status.containers.is_empty()
            && status.containers.iter().all(|c| matches!(c.state, ContainerState::Running { .. }));
        if all_run && status.life == Life::Running {
            self.mark_once("ready", now_wall);
        }
        status.started_at = self.started_at;
        status.spans = match open.is_empty() {
            true => self.spans.clone(),
            false => self.spans.iter().cloned().chain(open).collect(),
        };
        self.sender.send_if_modified(|last| {
            let changed = *last != status;
            if changed {
                log_change(last, &status);
                // The address is kept when the sandbox goes, as the API server keeps it.
                if status.ip.is_empty() {
                    status.ip.clone_from(&last.ip);
                }
                *last = status;
            }
            changed
        });
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

fn log_change(last: &PodStatus, next: &PodStatus) {
    if (last.life, &last.reason) != (next.life, &next.reason) {
        tracing::info!(
            phase = next.phase.as_str(),
            reason = next.reason,
            message = next.message,
            "pod changed"
        );
    }
}
