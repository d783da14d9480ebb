//! What the end of an effect means to the worker's state. Pure. The second half of [`WorkerState`].

use std::time::Duration;

use gantry_model::allocation::Allocation;
use gantry_model::cgroup::limits::{Limits, Rules};
use gantry_model::pod::{Pod, Requirements};

use super::{Ended, PodResources, Rejection, WaitReason, WorkerState};
use crate::pod::plan::Action;
use crate::pod::restart;
use crate::probe::ProbeResult;
use crate::runtime::Image;
use crate::volumes::VOLUME_LIMIT;

/// What an effect brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// A usable image.
    Image(Image),
    /// What a try of a probe came to.
    ProbeResult(ProbeResult),
    /// A text: a cgroup's name, last words.
    Text(String),
    /// A pod's cgroup: its name, and what it was made with.
    Cgroup { parent: String, pod: Option<Requirements>, limits: Limits, rules: Rules },
    /// A container that was made with these amounts.
    Container(Requirements),
    /// A resize: what the pod is held to now, and those containers that were updated.
    Resized { actuated: Allocation, cgroup: Limits },
    /// Nothing that the next observation does not show.
    Done,
}

impl WorkerState {
    /// An action has come to its end.
    pub fn finish(&mut self, pod: &Pod, action: &Action, result: Result<Output, WaitReason>, now: Duration) {
        let op = action.op();
        self.flights.remove(&op);
        match result {
            Ok(output) => {
                self.backoffs.forget_retry(&op);
                self.record_success(pod, action, output, now);
            }
            Err(trouble) => {
                self.backoffs.delay_retry(op, now);
                self.record_failure(pod, action, trouble, now);
            }
        }
    }

    fn record_success(&mut self, pod: &Pod, action: &Action, output: Output, now: Duration) {
        match (action, output) {
            (Action::EnsureImage { container, attempt }, Output::Image(image)) => {
                // One of the container itself stays until it is overcome.
                if self.containers.troubles.get(container).is_some_and(|(trouble, _)| trouble.is_of_image()) {
                    self.containers.troubles.remove(container);
                }
                self.containers.images.insert(container.clone(), (*attempt, image));
            }
            (Action::StartContainer { container, id, .. }, _) => {
                self.containers.note_start(container, id, now);
            }
            (Action::PostStart { id, .. }, _) => self.containers.hooks.record_post_start(id, true, now),
            (Action::PreStop { id, .. }, _) => self.containers.hooks.record_pre_stop(id),
            (Action::Probe { container, id, kind, .. }, Output::ProbeResult(verdict)) => {
                let good = match verdict {
                    ProbeResult::Success(_) | ProbeResult::Warning(_) => Some(true),
                    ProbeResult::Failure(_) => Some(false),
                    ProbeResult::Unknown(_) => None,
                };
                if let Some(spec) = pod.container(container) {
                    self.probing.record(spec, *kind, id, good, now);
                }
            }
            (Action::ReadLastWords { id, .. }, Output::Text(words)) => {
                self.containers.words.insert(id.clone(), words);
            }
            (Action::Remember { marks }, _) => self.checkpoint.remembered.clone_from(marks),
            (Action::StopSandbox { id }, _) => {
                self.sandboxes.stopped.insert(id.clone());
                self.pod_trouble = None;
            }
            (Action::CreateContainer { container, .. }, Output::Container(with)) => {
                self.resizing.note_container(container, with);
                self.pod_trouble = None;
            }
            (Action::Resize { .. }, Output::Resized { actuated, cgroup }) => {
                self.resizing.note_steps(actuated, cgroup);
            }
            (
                Action::RunSandbox { .. }
                | Action::CreateContainer { .. }
                | Action::StopContainer { .. }
                | Action::RemoveContainer { .. }
                | Action::RemoveSandbox { .. },
                _,
            ) => self.pod_trouble = None,
            (
                Action::Resize { .. }
                | Action::EnsureImage { .. }
                | Action::Probe { .. }
                | Action::ReadLastWords { .. },
                _,
            ) => {}
            (_, output) => self.record_resources(action, output),
        }
    }

    /// Of what a pod has beside its sandbox: devices, claims, cgroup, volumes.
    fn record_resources(&mut self, action: &Action, output: Output) {
        match (action, output) {
            (Action::AllocateDevices { .. }, _) => {
                self.resources = PodResources::Devices;
                return;
            }
            (Action::SetUpCgroup { .. }, Output::Cgroup { parent, pod, limits, rules }) => {
                self.resizing.rules = rules;
                self.resizing.note_cgroup(pod, limits);
                self.resources = PodResources::Cgroup { parent };
            }
            (Action::SetUpVolumes, _) => {
                if let PodResources::Cgroup { parent } = &self.resources {
                    self.resources = PodResources::Ready { parent: parent.clone() };
                }
            }
            (Action::PrepareClaims, _) => self.claims_prepared = true,
            (Action::UnprepareClaims, _) => self.resources = PodResources::NoClaims,
            (Action::TearDownVolumes, _) => self.resources = PodResources::NoVolumes,
            (Action::TearDownCgroup, _) => self.resources = PodResources::Gone,
            (Action::RefreshVolumes, _) => {}
            _ => return,
        }
        self.pod_trouble = None;
    }

    fn record_failure(&mut self, pod: &Pod, action: &Action, trouble: WaitReason, now: Duration) {
        match action {
            Action::EnsureImage { container, .. } => {
                let key = pod.container(container).map(|spec| restart::pull_key(pod, spec));
                // Another container's failure with the same image counts once.
                if let Some(key) = key.filter(|key| self.backoffs.pull.blocked_until(key, now).is_none()) {
                    self.backoffs.pull.next(&key, now, now);
                }
                self.containers.troubles.insert(container.clone(), (trouble, now));
            }
            Action::CreateContainer { container, .. } => {
                // The image may be what is missing: look again before the next try.
                self.containers.images.remove(container);
                self.containers.troubles.insert(container.clone(), (trouble, now));
            }
            Action::StartContainer { container, .. } => {
                self.containers.troubles.insert(container.clone(), (trouble, now));
            }
            Action::PostStart { container, id, .. } => {
                self.containers.hooks.record_post_start(id, false, now);
                self.containers.troubles.insert(container.clone(), (trouble, now));
            }
            // It is not tried again: the stop goes on.
            Action::PreStop { id, .. } => self.containers.hooks.record_pre_stop(id),
            // Said once, where it happened; what it was about is tried again.
            Action::Probe { .. } | Action::ReadLastWords { .. } | Action::Remember { .. } => {}
            // What was there stays in use; the event has told.
            Action::RefreshVolumes => self.volumes_stale = true,
            // It was admitted, and does not get what it was admitted with: it never starts, as upstream.
            Action::AllocateDevices { .. } => self.refuse(&trouble.reason, trouble.message, now),
            // Its volume finds no room on the node, and it has not begun: likewise.
            Action::SetUpVolumes if trouble.reason == VOLUME_LIMIT => {
                self.refuse(&trouble.reason, trouble.message, now);
            }
            Action::Resize { .. } => self.resizing.fail(pod, trouble.message),
            Action::SetUpCgroup { .. }
            | Action::PrepareClaims
            | Action::SetUpVolumes
            | Action::UnprepareClaims
            | Action::TearDownVolumes
            | Action::TearDownCgroup
            | Action::RunSandbox { .. }
            | Action::StopContainer { .. }
            | Action::RemoveContainer { .. }
            | Action::StopSandbox { .. }
            | Action::RemoveSandbox { .. } => self.pod_trouble = Some(trouble.message),
        }
    }

    fn refuse(&mut self, reason: &str, message: String, now: Duration) {
        self.api.refused = Some(Rejection::new(reason, message));
        self.stage.end(Ended::Refused, now);
    }
}
