//! What is remembered of a resize in place: what the pod is held to, and how far it is from what it was allocated. Pure:
//! owns the bookkeeping; never decides a step. A part of [`super::WorkerState`].

use std::collections::BTreeMap;
use std::time::Duration;

use gantry_model::allocation::Allocation;
use gantry_model::cgroup::limits::{Limits, Rules};
use gantry_model::pod::{Pod, Requirements};

use crate::runtime::Observed;

/// As the condition PodResizeInProgress has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InProgress {
    /// The version of the spec that was allocated.
    pub generation: i64,
    /// Why the last try failed; may be empty.
    pub error: String,
    /// That has not been told.
    pub untold: bool,
}

/// Of one pod.
#[derive(Debug, Clone, Default)]
pub struct Resizing {
    /// By what the node holds its pods.
    pub rules: Rules,
    /// What containers were made with or updated to last, and the pod was.
    pub actuated: Allocation,
    /// As the pod's cgroup was last written; none before it was.
    pub cgroup: Option<Limits>,
    /// It was allocated what it is not held to.
    pub in_progress: Option<InProgress>,
    /// Container ID → since when it is to start again for its new resources.
    pub restarts: BTreeMap<String, Duration>,
    /// It is among those that go on, as they are counted.
    counted: bool,
}

impl Resizing {
    /// An agent before this one has held it to this.
    pub fn recall(&mut self, actuated: Option<Allocation>) {
        self.actuated = actuated.unwrap_or_default();
    }

    /// The pod is described anew. What came of an earlier allocation is not asked any more.
    pub(super) fn redescribe(&mut self, old: &Pod, new: &Pod) -> bool {
        let allocated = Allocation::of(new);
        let other = Allocation::of(old).differs(&allocated, |_| true);
        if other {
            self.in_progress = Some(InProgress { generation: new.generation, ..InProgress::default() });
        }
        other
    }

    /// Of what is gone.
    pub(super) fn absorb(&mut self, observed: &Observed) {
        self.restarts.retain(|id, _| observed.containers.iter().any(|c| c.id == *id));
    }

    /// A container was made with this.
    pub(super) fn note_container(&mut self, name: &str, with: Requirements) {
        self.actuated.containers.insert(name.to_owned(), with);
    }

    /// The pod's cgroup was made. What an agent before this one held the pod to stays known.
    pub(super) fn note_cgroup(&mut self, pod: Option<Requirements>, limits: Limits) {
        self.actuated.pod = pod;
        self.cgroup = Some(limits);
    }

    /// The steps were done: `actuated` has the containers that were updated.
    pub(super) fn note_steps(&mut self, actuated: Allocation, cgroup: Limits) {
        self.actuated.pod = actuated.pod;
        self.actuated.containers.extend(actuated.containers);
        self.cgroup = Some(cgroup);
        if let Some(in_progress) = &mut self.in_progress {
            in_progress.error.clear();
        }
    }

    /// One of them could not be.
    pub(super) fn fail(&mut self, pod: &Pod, error: String) {
        let fresh = InProgress { generation: pod.generation, ..InProgress::default() };
        let in_progress = self.in_progress.get_or_insert(fresh);
        in_progress.untold |= in_progress.error != error;
        in_progress.error = error;
    }

    /// An error that is to be told, with the generation that it is about.
    pub fn take_error(&mut self) -> Option<(i64, String)> {
        let in_progress = self.in_progress.as_mut().filter(|now| now.untold)?;
        in_progress.untold = false;
        Some((in_progress.generation, in_progress.error.clone()))
    }

    /// By how much the number of those that go on changes; a pod that ends is none of them.
    pub fn count(&mut self, lives: bool) -> Option<f64> {
        let counts = lives && self.in_progress.is_some();
        (std::mem::replace(&mut self.counted, counts) != counts).then_some(if counts { 1.0 } else { -1.0 })
    }

    /// Whether the pod is held to less or more than it was allocated; the generation that has come about just now.
    pub fn settle(&mut self, pod: &Pod, differs: bool) -> Option<i64> {
        if differs {
            let fresh = InProgress { generation: pod.generation, ..InProgress::default() };
            self.in_progress.get_or_insert(fresh);
            return None;
        }
        self.in_progress.take().map(|done| done.generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_that_is_made_while_the_pods_cgroup_shrinks_is_not_held_to_what_it_was_before() {
        let of = |memory: &str| Requirements {
            limits: BTreeMap::from([("memory".to_owned(), memory.to_owned())]),
            ..Requirements::default()
        };
        let mut resizing = Resizing::default();
        resizing.note_container("a", of("45Mi"));
        resizing.note_container("b", of("45Mi"));
        // The cgroup's steps began before this and end after it.
        resizing.note_container("a", of("40Mi"));
        let updated = Allocation { containers: BTreeMap::from([("b".to_owned(), of("50Mi"))]), pod: None };
        resizing.note_steps(updated, Limits::default());
        assert_eq!(
            resizing.actuated.containers,
            BTreeMap::from([("a".to_owned(), of("40Mi")), ("b".to_owned(), of("50Mi")),])
        );
    }
}
