//! A pod update: a pod that should run, as its source describes it. Owns the type; never admits a pod. Made by
//! the sources, taken by [`crate::pod_workers`].

use std::sync::Arc;
use std::time::Duration;

use gantry_model::pod::Pod;

use crate::admission::Rejection;
use crate::pod::last::Last;

/// A pod that should run, with its last status and whether it was deleted or refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodUpdate {
    /// What should run.
    pub pod: Arc<Pod>,
    /// What the API's last status said.
    pub last: Last,
    /// It was deleted: the grace that its end has.
    pub ending: Option<Duration>,
    /// It asks for what this node does not do.
    pub refused: Option<Rejection>,
}

impl From<Pod> for PodUpdate {
    fn from(pod: Pod) -> Self {
        Arc::new(pod).into()
    }
}

impl From<Arc<Pod>> for PodUpdate {
    fn from(pod: Arc<Pod>) -> Self {
        Self { pod, last: Last::default(), ending: None, refused: None }
    }
}

impl PodUpdate {
    /// It runs since before this agent, and asks for what this agent does not do: nothing of it is
    /// touched until it is to end.
    pub(crate) fn is_foreign(&self) -> bool {
        let runs = self.last.started_at != 0 && self.last.end.is_none();
        self.refused.is_some() && runs && self.ending.is_none()
    }
}
