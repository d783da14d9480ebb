//! How often containers and sandboxes were made, by this agent and those before it. Pure: owns the counts; never makes
//! anything. A part of [`super::WorkerState`].

use std::collections::BTreeMap;

/// The highest attempts that are known.
#[derive(Debug, Clone, Default)]
pub struct Attempts {
    containers: BTreeMap<String, u32>,
    sandbox: Option<u32>,
    /// How often all containers were started anew.
    pub resets: u32,
}

impl Attempts {
    /// An attempt of a container: observed, or known from somewhere else, such as the log folder.
    pub fn know(&mut self, container: &str, attempt: u32) {
        let known = self.containers.entry(container.to_owned()).or_insert(attempt);
        *known = attempt.max(*known);
    }

    /// The same of a sandbox.
    pub(super) fn know_sandbox(&mut self, attempt: Option<u32>) {
        self.sandbox = self.sandbox.max(attempt);
    }

    /// Last known attempt + 1, else 0.
    #[must_use]
    pub fn next(&self, container: &str) -> u32 {
        self.containers.get(container).map_or(0, |attempt| attempt.saturating_add(1))
    }

    /// Whether any attempt of the container is known.
    #[must_use]
    pub fn was_created(&self, container: &str) -> bool {
        self.containers.contains_key(container)
    }

    /// Last known attempt + 1, else 0.
    #[must_use]
    pub fn next_sandbox(&self) -> u32 {
        self.sandbox.map_or(0, |attempt| attempt.saturating_add(1))
    }
}
