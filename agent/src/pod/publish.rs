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

    /// A stage has ended.
    pub(super) fn stage(&mut self, span: Span, inner: &[Span]) {
        self.timeline.add_with(span, inner);
        self.spans = self.timeline.spans().into();
    }

    /// A moment, the first time it happens.
    pub(super) fn mark_once(&mut self, name: &str, at: i64) {
        if !self.timeline.has(name) {
            self.timeline.mark(name, at);
            self.spans = self.timeline.spans().into();
        }
    }

    /// Sends the status if it differs from the last.
    pub(super) fn publish(&mut self, mut status: PodStatus, now_wall: i64) {
        let all_run = !status.containers.is_empty()
            && status.containers.iter().all(|c| matches!(c.state, ContainerState::Running { .. }));
        if all_run && status.life == Life::Running {
            self.mark_once("ready", now_wall);
        }
        status.started_at = self.started_at;
        status.spans = self.spans.clone();
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
        tracing::info!(phase = next.phase.as_str(), reason = next.reason, message = next.message, "pod changed");
    }
}
