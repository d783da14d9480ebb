//! What others knew of a pod before this worker: the API server by its last status, the agent before this one by its
//! checkpoint. Pure: owns what was told; never asks. A part of [`super::WorkerState`].

use crate::admission::Rejection;
use crate::checkpoint::Marks;
use crate::pod::last::Last;

/// What the API knew when the pod was taken up.
#[derive(Debug, Clone, Default)]
pub struct ApiMemory {
    /// What its last status said.
    pub last: Last,
    /// Why the node does not take the pod in.
    pub refused: Option<Rejection>,
}

/// What probes had found.
#[derive(Debug, Clone, Default)]
pub struct CheckpointMemory {
    /// As it is written.
    pub remembered: Marks,
    /// As the API and the agent before this one left it.
    pub(super) recalled: Marks,
}

impl CheckpointMemory {
    /// Of the agent before this one: what was written down is newer than what the API got to know.
    pub(super) fn recall(&mut self, marks: Marks) {
        self.remembered.clone_from(&marks);
        self.recalled.extend(marks);
    }
}
