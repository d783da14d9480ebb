//! The span of a pod's work under way, by upstream's names. Owns when one begins and ends; never what is done. Called by
//! [`super::Worker`].

use gantry_model::pod::Pod;
use gantry_trace::span::{TraceSpan, Tracer};

use crate::pod::Life;

/// Upstream works in one call of a name until all is done or has failed. Here steps go side by side over several turns: a
/// span begins with the first of them, and ends when none is under way.
///
/// ```text
/// none ──first step──▶ of a name ──step of another name──▶ of that name
///   ◀── none under way ────┘
/// ```
#[derive(Debug)]
pub(super) struct WorkSpan {
    tracer: Option<Tracer>,
    open: Option<(&'static str, TraceSpan)>,
    /// What the turn is about, in upstream's word.
    pub(super) why: &'static str,
}

impl WorkSpan {
    pub(super) fn new(tracer: Option<Tracer>) -> Self {
        Self { tracer, open: None, why: "create" }
    }

    /// What a step belongs to that begins now.
    pub(super) fn begin_step(&mut self, pod: &Pod, life: Life) -> Option<&TraceSpan> {
        let tracer = self.tracer.as_ref()?;
        let name = match life {
            Life::Waiting | Life::Starting | Life::Running => "syncPod",
            Life::Stopping { .. } => "syncTerminatingPod",
            Life::Stopped | Life::Gone => "syncTerminatedPod",
        };
        if self.open.as_ref().is_none_or(|(open, _)| *open != name) {
            // The one before ends first.
            self.open = None;
            let mut span = tracer.root(name)?;
            span.set("k8s.pod.uid", pod.uid.as_str());
            span.set("k8s.pod", &pod.full_name());
            span.set("k8s.pod.name", &pod.name);
            if name == "syncPod" {
                span.set("k8s.pod.update_type", self.why);
            }
            span.set("k8s.namespace.name", &pod.namespace);
            self.open = Some((name, span));
        }
        self.open.as_ref().map(|(_, span)| span)
    }

    /// A step failed.
    pub(super) fn fail(&mut self, message: &str) {
        if let Some((_, span)) = &mut self.open {
            span.fail(message);
        }
    }

    /// No step is under way.
    pub(super) fn end(&mut self) {
        self.open = None;
    }
}
