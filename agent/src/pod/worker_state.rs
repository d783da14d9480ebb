//! The state that a pod worker keeps between observations: effects under way, failures,
//! back-offs, the last record of each container, the pod's resources. Pure: owns the
//! bookkeeping, time is an argument; never survives the agent, which recovers from the runtime and
//! its checkpoint. Called by the worker (to write) and the planner and publisher (to read).

mod api_memory;
mod attempts;
mod backoffs;
mod containers;
pub mod hooks;
mod outcome;
mod resizing;
mod sandboxes;
mod stage;

use std::collections::BTreeMap;
use std::time::Duration;

pub use api_memory::{ApiMemory, CheckpointMemory};
pub use attempts::Attempts;
pub use backoffs::Backoffs;
pub use containers::ContainerMemory;
use gantry_model::pod::Pod;
pub use hooks::Hooks;
pub use outcome::Output;
pub use resizing::{InProgress, Resizing};
pub use sandboxes::SandboxMemory;
pub use stage::{ActiveTime, Progress, Stage};

use super::last::Last;
use super::plan::{Action, Ended, Op, Plan};
use super::probing::Probing;
use super::restart;
use crate::admission::Rejection;
use crate::checkpoint::Marks;
use crate::runtime::Observed;

/// Why a container does not start, as `kubectl` would show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitReason {
    /// As in ContainerStateWaiting.
    pub reason: String,
    /// Details.
    pub message: String,
    /// The image of a volume that it is about, else empty.
    pub image: String,
}

impl WaitReason {
    /// The image that it is about; `own` unless it is a volume's.
    pub(super) fn image_or<'a>(&'a self, own: &'a str) -> &'a str {
        if self.image.is_empty() { own } else { &self.image }
    }

    fn is_of_image(&self) -> bool {
        let others = ["ImageInspectError", "InvalidImageName", "ErrImageNeverPull"];
        self.is_of_pull() || others.contains(&self.reason.as_str())
    }

    /// A pull has failed, which is tried again.
    pub(super) fn is_of_pull(&self) -> bool {
        ["ErrImagePull", "RegistryUnavailable", "SignatureValidationFailed"].contains(&self.reason.as_str())
    }
}

/// The resources of a pod outside its sandbox: cgroup and volumes. Claims to devices are taken back first, where it has any.
///
/// ```text
/// Unknown ──devices──▶ Devices ──cgroup──▶ Cgroup ──volumes──▶ Ready ──end──▶ NoClaims ──▶ NoVolumes ──▶ Gone
///    └───────────────────┴───────────────────┴──────────── end ─────────────────▲
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum PodResources {
    /// Nothing, or what an earlier agent made.
    #[default]
    Unknown,
    /// It has the devices of plugins that it asks for.
    Devices,
    /// Its cgroup is there.
    Cgroup {
        /// As the runtime is told it.
        parent: String,
    },
    /// Its volumes, too.
    Ready {
        /// As the runtime is told it.
        parent: String,
    },
    /// Drivers were told that it is over.
    NoClaims,
    /// The volumes were taken back.
    NoVolumes,
    /// The cgroup, too.
    Gone,
}

/// The memory of one worker, in parts that each have one owner.
#[derive(Debug, Clone, Default)]
pub struct WorkerState {
    /// How far the pod's life has come.
    pub stage: Stage,
    /// How long it has lasted.
    pub active: ActiveTime,
    /// Effects under way; stops with their deadline.
    pub flights: BTreeMap<Op, Option<Duration>>,
    /// How often things were made.
    pub attempts: Attempts,
    /// What waits.
    pub backoffs: Backoffs,
    /// Of containers.
    pub containers: ContainerMemory,
    /// Of running containers.
    pub probing: Probing,
    /// Of sandboxes.
    pub sandboxes: SandboxMemory,
    /// Cgroup and volumes.
    pub resources: PodResources,
    /// Whether a manager could give it CPUs or memory of NUMA nodes.
    pub is_managed: bool,
    /// Its claims to devices are ready for its next sandbox.
    pub claims_prepared: bool,
    /// What is in the volumes may be older than what it is made from.
    pub volumes_stale: bool,
    /// Between two sizes.
    pub resizing: Resizing,
    /// Why there is no sandbox, or why stopping fails.
    pub pod_trouble: Option<String>,
    /// What the API knew.
    pub api: ApiMemory,
    /// What was written down.
    pub checkpoint: CheckpointMemory,
    /// The pod was observed at least once.
    looked: bool,
}

impl WorkerState {
    /// Of a pod taken up at `now`.
    #[must_use]
    pub fn new(now: Duration) -> Self {
        Self { active: ActiveTime::since(now), ..Self::default() }
    }

    /// What the agent before this one left.
    pub fn recall(&mut self, marks: Marks) {
        self.checkpoint.recall(marks);
    }

    /// What the API said of the pod when it was taken up, and whether the node takes it in.
    pub fn inherit(&mut self, last: Last, refused: Option<Rejection>, now: Duration, wall: i64) {
        for (name, container) in &last.containers {
            let ran = !container.id.is_empty() || container.restart_count > 0;
            if ran {
                self.attempts.know(name, container.restart_count);
            }
        }
        if last.started_at != 0 {
            self.active.inherit(age(last.started_at, wall));
        }
        if last.restarting {
            self.stage.begin_restart();
        }
        match (&last.end, &refused) {
            (Some(_), _) => self.stage.end(Ended::Before, now),
            (None, Some(_)) => self.stage.end(Ended::Refused, now),
            (None, None) => {}
        }
        self.checkpoint.recalled = last.marks();
        self.api = ApiMemory { last, refused };
    }

    /// The pod is described anew: what was found out about its images may be of others.
    pub fn redescribe(&mut self, old: &Pod, new: &Pod) {
        // The downward API shows these.
        self.volumes_stale |= (&old.labels, &old.annotations) != (&new.labels, &new.annotations);
        if self.resizing.redescribe(old, new) {
            self.backoffs.forget_retry(&Op::Resize);
        }
        for container in new.every_container() {
            if old.container(&container.name).is_some_and(|before| before.image != container.image) {
                self.containers.forget_image(&container.name);
                self.backoffs.forget_retry(&Op::Image(container.name.clone()));
            }
        }
    }

    /// Takes in what was observed; `wall` is the wall clock's time, for ages only.
    pub fn absorb(&mut self, pod: &Pod, observed: &Observed, now: Duration, wall: i64) {
        for instance in &observed.containers {
            self.attempts.know(&instance.name, instance.attempt);
        }
        self.attempts.know_sandbox(observed.sandboxes.iter().map(|s| s.attempt).max());
        self.containers.absorb(pod, observed, now, self.stage.is_restarting_all());
        self.containers.absorb_verdicts(pod, observed, &self.probing);
        self.sandboxes.absorb(pod, observed, now);
        self.resizing.absorb(observed);
        if !self.looked && self.active.is_new() {
            let oldest = observed.sandboxes.iter().map(|s| s.created_at).filter(|at| *at > 0).min();
            self.active.inherit(oldest.map_or(Duration::ZERO, |at| age(at, wall)));
        }
        let runners = self.containers.runners(pod, observed, now, wall, !self.looked);
        self.probing.absorb(pod, &runners, &self.checkpoint.recalled);
        self.looked = true;
    }

    /// Keeps what a plan has found out for good.
    pub fn settle(&mut self, plan: &Plan, now: Duration) {
        if plan.started {
            self.stage.note_started();
        }
        if let (None, Some(ended)) = (self.stage.ended(), plan.ended) {
            self.stage.end(ended, now);
        }
        for id in &plan.restarts {
            self.resizing.restarts.entry(id.clone()).or_insert(now);
        }
        match plan.reset {
            None => {}
            Some(false) => self.stage.begin_restart(),
            Some(true) => {
                self.stage.finish_restart();
                self.attempts.resets += 1;
                self.containers.forget_records();
            }
        }
    }

    /// An action is about to be carried out.
    pub fn begin(&mut self, pod: &Pod, action: &Action, now: Duration) {
        let mut until = None;
        match action {
            Action::StopContainer { id, deadline, .. } | Action::PreStop { id, deadline, .. } => {
                self.containers.killing.insert(id.clone());
                until = Some(*deadline);
            }
            Action::CreateContainer { container, ended: Some(ended), .. } => {
                if let Some(spec) = pod.container(container) {
                    self.backoffs.crash.next(&restart::crash_key(pod, spec), *ended, now);
                }
            }
            // Known before the start: its answer may be lost, the hook must not be.
            Action::StartContainer { container, id, .. }
                if pod.container(container).is_some_and(|spec| spec.lifecycle.post_start.is_some()) =>
            {
                self.containers.hooks.record_start(id);
            }
            Action::SetUpVolumes | Action::RefreshVolumes => self.volumes_stale = false,
            Action::RunSandbox { .. } => self.claims_prepared = false,
            Action::RemoveContainer { id } if self.stage.is_restarting_all() => {
                self.containers.note_removal(pod, id);
            }
            Action::Probe { container, kind, .. } => {
                if let Some(spec) = pod.container(container) {
                    self.probing.begin(spec, *kind, now);
                }
            }
            _ => {}
        }
        self.flights.insert(action.op(), until);
    }

    /// Whether this start of a container is ended to be made anew, whatever code it ends with.
    #[must_use]
    pub fn makes_anew(&self, id: &str) -> bool {
        self.containers.makes_anew(id) || self.resizing.restarts.contains_key(id)
    }

    /// An effect was given up: what it was about is free again.
    pub fn abandon(&mut self, op: &Op) {
        self.flights.remove(op);
    }
}

/// A clock that was set back, or a start that lies ahead, makes nothing old.
fn age(since: i64, wall: i64) -> Duration {
    u64::try_from(wall.saturating_sub(since)).map_or(Duration::ZERO, Duration::from_nanos)
}
