//! The lifecycle hooks of each container, by its ID. Pure. Kept by [`super::WorkerState`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Of the hook after the start.
///
/// ```text
/// start begun by us ──▶ Pending ──▶ Done
///                          └──────▶ Failed: the container is ended
/// ```
/// One that an earlier agent has started counts as done, as upstream: nobody knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PostStart {
    Pending,
    Done,
    Failed { at: Duration },
}

/// All containers of a pod.
#[derive(Debug, Clone, Default)]
pub struct Hooks {
    post_start: BTreeMap<String, PostStart>,
    /// Whose preStop hook has come to an end, good or bad.
    stopped: BTreeSet<String>,
}

impl Hooks {
    /// The container is being started and has such a hook.
    pub fn record_start(&mut self, id: &str) {
        self.post_start.insert(id.to_owned(), PostStart::Pending);
    }

    /// The hook after the start has come to its end.
    pub fn record_post_start(&mut self, id: &str, good: bool, at: Duration) {
        let end = if good { PostStart::Done } else { PostStart::Failed { at } };
        self.post_start.insert(id.to_owned(), end);
    }

    /// The hook before the stop has come to its end.
    pub fn record_pre_stop(&mut self, id: &str) {
        self.stopped.insert(id.to_owned());
    }

    /// Whether the hook after the start is still to be run.
    #[must_use]
    pub fn is_pending(&self, id: &str) -> bool {
        self.post_start.get(id) == Some(&PostStart::Pending)
    }

    /// Whether nothing of the start is awaited any more, and it went well.
    #[must_use]
    pub fn is_done(&self, id: &str) -> bool {
        matches!(self.post_start.get(id), None | Some(PostStart::Done))
    }

    /// Since when the container is to be ended for its hook.
    #[must_use]
    pub fn failed(&self, id: &str) -> Option<Duration> {
        match self.post_start.get(id) {
            Some(PostStart::Failed { at }) => Some(*at),
            Some(PostStart::Pending | PostStart::Done) | None => None,
        }
    }

    /// Whether the hook after the start went wrong.
    #[must_use]
    pub fn is_failed(&self, id: &str) -> bool {
        self.failed(id).is_some()
    }

    /// Whether the hook before the stop needs no more waiting.
    #[must_use]
    pub fn has_stopped(&self, id: &str) -> bool {
        self.stopped.contains(id)
    }

    /// Forgets all others.
    pub fn retain(&mut self, there: impl Fn(&str) -> bool) {
        self.post_start.retain(|id, _| there(id));
        self.stopped.retain(|id| there(id));
    }
}
