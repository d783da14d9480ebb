//! What the worker remembers of a pod between observations: effects under way, failures,
//! back-offs, the last record of each container. Pure: owns the bookkeeping, time is an
//! argument; never survives the agent, which recovers from the runtime. Called by the
//! worker (to write) and the planner and publisher (to read).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::plan::{Action, Op};
use super::restart::{self, Backoff};
use super::spec::Pod;
use crate::runtime::{Instance, InstanceState, Observed};

const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(10);

/// Why a container does not start, as `kubectl` would show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// As in ContainerStateWaiting.
    pub reason: String,
    /// Details.
    pub message: String,
}

impl Trouble {
    fn is_of_image(&self) -> bool {
        matches!(
            self.reason.as_str(),
            "ErrImagePull" | "ImageInspectError" | "InvalidImageName" | "ErrImageNeverPull"
        )
    }
}

/// A failed effect waits before it is tried again.
#[derive(Debug, Clone, Copy)]
struct Retry {
    delay: Duration,
    until: Duration,
}

/// The memory of one worker.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// Effects under way; stops with their deadline.
    pub flights: BTreeMap<Op, Option<Duration>>,
    /// Of containers that end.
    pub crash: Backoff,
    /// Of images that cannot be pulled.
    pub pull: Backoff,
    /// Troubles by container, with when they began.
    pub troubles: BTreeMap<String, (Trouble, Duration)>,
    /// Why there is no sandbox, or why stopping fails.
    pub pod_trouble: Option<String>,
    /// Container name → attempt it was fetched for, image ID.
    pub images: BTreeMap<String, (u32, String)>,
    /// Container ID → when its end was first seen.
    pub exits: BTreeMap<String, Duration>,
    /// The newest record ever seen of each container.
    pub last: BTreeMap<String, Instance>,
    /// Sandboxes whose stop succeeded.
    pub stopped_sandboxes: BTreeSet<String>,
    /// All containers are done for good; sticky.
    pub finished: bool,
    /// Each container has run; sticky.
    pub started: bool,
    attempts: BTreeMap<String, u32>,
    sandbox_attempt: Option<u32>,
    retries: BTreeMap<Op, Retry>,
}

/// What an effect brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// The ID of a usable image.
    Image(String),
    /// Nothing that the next observation does not show.
    Done,
}

impl History {
    /// Takes in what was observed.
    pub fn absorb(&mut self, observed: &Observed, now: Duration) {
        for instance in &observed.containers {
            if instance.exit().is_some() {
                self.exits.entry(instance.id.clone()).or_insert(now);
            }
            self.know_attempt(&instance.name, instance.attempt);
        }
        self.exits.retain(|id, _| observed.containers.iter().any(|c| c.id == *id));
        let names: BTreeSet<&str> = observed.containers.iter().map(|c| c.name.as_str()).collect();
        for newest in names.into_iter().filter_map(|name| observed.newest(name)) {
            if matches!(newest.state, InstanceState::Running { .. }) {
                self.troubles.remove(&newest.name);
            }
            self.last.insert(newest.name.clone(), newest.clone());
        }
        self.sandbox_attempt = self.sandbox_attempt.max(observed.sandboxes.iter().map(|s| s.attempt).max());
        self.stopped_sandboxes.retain(|id| observed.sandboxes.iter().any(|s| s.id == *id));
    }

    /// An attempt that is known from somewhere else, such as the log folder.
    pub fn know_attempt(&mut self, container: &str, attempt: u32) {
        let known = self.attempts.entry(container.to_owned()).or_insert(attempt);
        *known = attempt.max(*known);
    }

    /// Last known attempt + 1, else 0.
    #[must_use]
    pub fn next_attempt(&self, container: &str) -> u32 {
        self.attempts.get(container).map_or(0, |attempt| attempt + 1)
    }

    /// Whether any attempt of the container is known.
    #[must_use]
    pub fn was_created(&self, container: &str) -> bool {
        self.attempts.contains_key(container)
    }

    /// Last known attempt + 1, else 0.
    #[must_use]
    pub fn next_sandbox_attempt(&self) -> u32 {
        self.sandbox_attempt.map_or(0, |attempt| attempt + 1)
    }

    /// Until when an effect that failed waits.
    #[must_use]
    pub fn retry_at(&self, op: &Op, now: Duration) -> Option<Duration> {
        self.retries.get(op).map(|retry| retry.until).filter(|until| now < *until)
    }

    /// New orders make waiting pointless.
    pub fn forget_retries(&mut self) {
        self.retries.clear();
    }

    /// An action is about to be carried out.
    pub fn begin(&mut self, pod: &Pod, action: &Action, now: Duration) {
        let deadline = match action {
            Action::StopContainer { deadline, .. } => Some(*deadline),
            _ => None,
        };
        if let Action::CreateContainer { container, ended: Some(ended), .. } = action
            && let Some(spec) = pod.container(container)
        {
            self.crash.next(&restart::crash_key(pod, spec), *ended, now);
        }
        self.flights.insert(action.op(), deadline);
    }

    /// An action has come to its end.
    pub fn finish(&mut self, pod: &Pod, action: &Action, result: Result<Output, Trouble>, now: Duration) {
        let op = action.op();
        self.flights.remove(&op);
        match result {
            Ok(output) => {
                self.retries.remove(&op);
                self.succeeded(action, output);
            }
            Err(trouble) => {
                let delay = self.retries.get(&op).map_or(RETRY_FIRST, |r| (r.delay * 2).min(RETRY_MAX));
                self.retries.insert(op, Retry { delay, until: now + delay });
                self.failed(pod, action, trouble, now);
            }
        }
    }

    fn succeeded(&mut self, action: &Action, output: Output) {
        match action {
            Action::EnsureImage { container, attempt } => {
                // One of the container itself stays until it is overcome.
                if self.troubles.get(container).is_some_and(|(trouble, _)| trouble.is_of_image()) {
                    self.troubles.remove(container);
                }
                if let Output::Image(id) = output {
                    self.images.insert(container.clone(), (*attempt, id));
                }
            }
            Action::RunSandbox { .. } => self.pod_trouble = None,
            Action::StartContainer { container, .. } => {
                self.troubles.remove(container);
            }
            Action::StopSandbox { id } => {
                self.stopped_sandboxes.insert(id.clone());
                self.pod_trouble = None;
            }
            Action::CreateContainer { .. }
            | Action::StopContainer { .. }
            | Action::RemoveContainer { .. }
            | Action::RemoveSandbox { .. } => self.pod_trouble = None,
        }
    }

    fn failed(&mut self, pod: &Pod, action: &Action, trouble: Trouble, now: Duration) {
        match action {
            Action::EnsureImage { container, .. } => {
                if let Some(spec) = pod.container(container) {
                    self.pull.next(&restart::pull_key(pod, spec), now, now);
                }
                self.troubles.insert(container.clone(), (trouble, now));
            }
            Action::CreateContainer { container, .. } => {
                // The image may be what is missing: look again before the next try.
                self.images.remove(container);
                self.troubles.insert(container.clone(), (trouble, now));
            }
            Action::StartContainer { container, .. } => {
                self.troubles.insert(container.clone(), (trouble, now));
            }
            Action::RunSandbox { .. }
            | Action::StopContainer { .. }
            | Action::RemoveContainer { .. }
            | Action::StopSandbox { .. }
            | Action::RemoveSandbox { .. } => self.pod_trouble = Some(trouble.message),
        }
    }
}
