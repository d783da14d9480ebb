//! What is known of a pod's sandboxes beyond what the runtime tells. Pure: owns the bookkeeping; time is an argument. A part
//! of [`super::WorkerState`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gantry_model::pod::Pod;

use crate::runtime::Observed;

/// By sandbox ID.
#[derive(Debug, Clone, Default)]
pub struct SandboxMemory {
    /// Whose stop succeeded.
    pub stopped: BTreeSet<String>,
    /// When it was first seen not to serve.
    lost: BTreeMap<String, Duration>,
}

impl SandboxMemory {
    /// When the sandbox was first seen not to serve.
    #[must_use]
    pub fn lost_at(&self, sandbox: &str, now: Duration) -> Duration {
        self.lost.get(sandbox).copied().unwrap_or(now)
    }

    pub(super) fn absorb(&mut self, pod: &Pod, observed: &Observed, now: Duration) {
        let there = |id: &String| observed.sandboxes.iter().any(|s| s.id == *id);
        self.stopped.retain(there);
        self.lost.retain(|id, _| there(id));
        for sandbox in observed.sandboxes.iter().filter(|s| !s.serves(pod.namespaces.host_network)) {
            self.lost.entry(sandbox.id.clone()).or_insert(now);
        }
    }
}
