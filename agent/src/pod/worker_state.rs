//! The state that a pod worker keeps between observations: effects under way, failures,
//! back-offs, the last record of each container, the pod's resources. Pure: owns the
//! bookkeeping, time is an argument; never survives the agent, which recovers from the runtime and
//! its checkpoint. Called by the worker (to write) and the planner and publisher (to read).

pub mod hooks;
mod outcome;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gantry_model::pod::{Pod, RestartPolicy, Role};
pub use hooks::Hooks;
pub use outcome::Output;

use super::last::Last;
use super::plan::{Action, Ended, Op, Plan, UNKNOWN_CODE, Wait, restart_all};
use super::probing::{ProbeKind, Probing, Runner};
use super::restart::{self, Backoff};
use crate::admission::Rejection;
use crate::checkpoint::Marks;
use crate::runtime::{Exit, Image, Instance, InstanceState, Observed};

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

/// The resources of a pod outside its sandbox: cgroup and volumes.
///
/// ```text
/// Unknown ──devices──▶ Devices ──cgroup──▶ Cgroup ──volumes──▶ Ready ──end──▶ NoVolumes ──▶ Gone
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
    /// The volumes were taken back.
    NoVolumes,
    /// The cgroup, too.
    Gone,
}

/// A failed effect waits before it is tried again.
#[derive(Debug, Clone, Copy)]
struct Retry {
    delay: Duration,
    until: Duration,
}

/// A container when it was first seen running.
#[derive(Debug, Clone, Copy)]
struct Sighting {
    at: Duration,
    /// How old it was.
    age: Duration,
    adopted: bool,
}

/// The memory of one worker.
#[derive(Debug, Clone, Default)]
pub struct WorkerState {
    /// Effects under way; stops with their deadline.
    pub flights: BTreeMap<Op, Option<Duration>>,
    /// Of containers that end.
    pub crash: Backoff,
    /// Of images that cannot be pulled.
    pub pull: Backoff,
    /// Troubles by container, with when they began.
    pub troubles: BTreeMap<String, (WaitReason, Duration)>,
    /// Why there is no sandbox, or why stopping fails.
    pub pod_trouble: Option<String>,
    /// Container name → attempt it was fetched for, image.
    pub images: BTreeMap<String, (u32, Image)>,
    /// Container ID → when its end was first seen.
    pub exits: BTreeMap<String, Duration>,
    /// Container ID → what it left to say.
    pub words: BTreeMap<String, String>,
    /// Container IDs whose end was begun and told.
    pub killing: BTreeSet<String>,
    /// The newest record ever seen of each container.
    pub last: BTreeMap<String, Instance>,
    /// Sandboxes whose stop succeeded.
    pub stopped_sandboxes: BTreeSet<String>,
    /// Why the pod ends by itself, and since when; sticky.
    pub ended: Option<(Ended, Duration)>,
    /// Each container has run; sticky.
    pub started: bool,
    /// Cgroup and volumes.
    pub resources: PodResources,
    /// What is in the volumes may be older than what it is made from.
    pub stale: bool,
    /// Of containers.
    pub hooks: Hooks,
    /// Of running containers.
    pub probing: Probing,
    /// The checkpoint as it is written.
    pub remembered: Marks,
    /// The checkpoint as the agent before this one left it.
    recalled: Marks,
    running: BTreeMap<String, Sighting>,
    lost_sandboxes: BTreeMap<String, Duration>,
    waits: BTreeMap<(String, bool), Duration>,
    /// Container ID → since when its description is another than it was made from.
    pub redefined: BTreeMap<String, Duration>,
    /// Those that a probe has found bad and whose policy starts them again: they are ended to be
    /// made anew, whatever code they end with.
    pub condemned: BTreeSet<String>,
    /// All containers are being started anew.
    pub resetting: bool,
    /// How often they were.
    pub resets: u32,
    /// How those ended that were removed for it, by name.
    pub removed: BTreeMap<String, Exit>,
    /// What the API's last status said.
    pub api: Last,
    /// Why the node does not take the pod in.
    pub refused: Option<Rejection>,
    /// How long the pod was active before this agent, and when it was taken up.
    active_before: Duration,
    begun: Duration,
    looked: bool,
    attempts: BTreeMap<String, u32>,
    sandbox_attempt: Option<u32>,
    retries: BTreeMap<Op, Retry>,
}

impl WorkerState {
    /// Of a pod taken up at `now`.
    #[must_use]
    pub fn new(now: Duration) -> Self {
        Self { begun: now, ..Self::default() }
    }

    /// What the agent before this one left.
    pub fn recall(&mut self, marks: Marks) {
        self.remembered.clone_from(&marks);
        // What was written down is newer than what the API got to know.
        self.recalled.extend(marks);
    }

    /// What the API said of the pod when it was taken up, and whether the node takes it in.
    pub fn inherit(&mut self, api: Last, refused: Option<Rejection>, now: Duration, wall: i64) {
        for (name, container) in &api.containers {
            let ran = !container.id.is_empty() || container.restart_count > 0;
            if ran {
                self.know_attempt(name, container.restart_count);
            }
        }
        if api.started_at != 0 {
            self.active_before = age(api.started_at, wall);
        }
        self.resetting = api.restarting;
        self.ended = match (&api.end, &refused) {
            (Some(_), _) => Some((Ended::Before, now)),
            (None, Some(_)) => Some((Ended::Refused, now)),
            (None, None) => None,
        };
        self.recalled = api.marks();
        self.api = api;
        self.refused = refused;
    }

    /// The pod is described anew: what was found out about its images may be of others.
    pub fn redescribe(&mut self, old: &Pod, new: &Pod) {
        // The downward API shows these.
        self.stale |= (&old.labels, &old.annotations) != (&new.labels, &new.annotations);
        for container in new.every_container() {
            if old.container(&container.name).is_some_and(|before| before.image != container.image) {
                self.images.remove(&container.name);
                self.troubles.remove(&container.name);
                self.retries.remove(&Op::Image(container.name.clone()));
            }
        }
    }

    /// Whether this start of a container is ended to be made anew, whatever code it ends with.
    #[must_use]
    pub fn makes_anew(&self, id: &str) -> bool {
        self.redefined.contains_key(id) || self.condemned.contains(id)
    }

    /// Takes in what was observed; `wall` is the wall clock's time, for ages only.
    pub fn absorb(&mut self, pod: &Pod, observed: &Observed, now: Duration, wall: i64) {
        for instance in &observed.containers {
            if instance.exit().is_some() {
                self.exits.entry(instance.id.clone()).or_insert(now);
            }
            self.know_attempt(&instance.name, instance.attempt);
        }
        let there: BTreeSet<&str> = observed.containers.iter().map(|c| c.id.as_str()).collect();
        self.exits.retain(|id, _| there.contains(id.as_str()));
        self.words.retain(|id, _| there.contains(id.as_str()) || self.last.values().any(|l| l.id == *id));
        self.killing.retain(|id| there.contains(id.as_str()));
        self.hooks.retain(|id| there.contains(id));
        let names: BTreeSet<&str> = observed.containers.iter().map(|c| c.name.as_str()).collect();
        for newest in names.into_iter().filter_map(|name| observed.newest(name)) {
            if matches!(newest.state, InstanceState::Running { .. }) && !self.hooks.is_failed(&newest.id) {
                self.troubles.remove(&newest.name);
            }
            self.last.insert(newest.name.clone(), newest.clone());
        }
        self.absorb_definitions(pod, observed, now);
        self.absorb_verdicts(pod, observed);
        self.absorb_sandboxes(pod, observed, now, wall);
        self.absorb_runners(pod, observed, now, wall);
        self.looked = true;
    }

    /// Only what runs is ended for it; an init container has done its work.
    fn absorb_definitions(&mut self, pod: &Pod, observed: &Observed, now: Duration) {
        self.redefined.retain(|id, _| observed.containers.iter().any(|c| c.id == *id));
        for container in pod.containers.iter().chain(&pod.init_containers) {
            let Some(newest) = observed.newest(&container.name) else { continue };
            let runs = matches!(newest.state, InstanceState::Running { .. });
            let other = !newest.hash.is_empty() && newest.hash != container.hash;
            if runs && other && container.role != Role::Init {
                self.redefined.entry(newest.id.clone()).or_insert(now);
            }
        }
    }

    /// While the verdict is still there: a probe is forgotten with what it asked.
    fn absorb_verdicts(&mut self, pod: &Pod, observed: &Observed) {
        self.condemned.retain(|id| observed.containers.iter().any(|c| c.id == *id));
        for container in pod.containers.iter().filter(|c| c.restart_policy != RestartPolicy::Never) {
            let Some(newest) = observed.newest(&container.name) else { continue };
            let bad = |kind| self.probing.bad(container, kind, &newest.id).is_some();
            if bad(ProbeKind::Liveness) || bad(ProbeKind::Startup) {
                self.condemned.insert(newest.id.clone());
            }
        }
    }

    fn absorb_sandboxes(&mut self, pod: &Pod, observed: &Observed, now: Duration, wall: i64) {
        self.sandbox_attempt = self.sandbox_attempt.max(observed.sandboxes.iter().map(|s| s.attempt).max());
        let there = |id: &String| observed.sandboxes.iter().any(|s| s.id == *id);
        self.stopped_sandboxes.retain(there);
        self.lost_sandboxes.retain(|id, _| there(id));
        for sandbox in observed.sandboxes.iter().filter(|s| !s.serves(pod.namespaces.host_network)) {
            self.lost_sandboxes.entry(sandbox.id.clone()).or_insert(now);
        }
        if !self.looked && self.active_before.is_zero() {
            let oldest = observed.sandboxes.iter().map(|s| s.created_at).filter(|at| *at > 0).min();
            self.active_before = oldest.map_or(Duration::ZERO, |at| age(at, wall));
        }
    }

    fn absorb_runners(&mut self, pod: &Pod, observed: &Observed, now: Duration, wall: i64) {
        let newest = pod.all_containers().filter_map(|c| Some((c, observed.newest(&c.name)?)));
        let running: Vec<_> = newest
            .filter_map(|(container, instance)| match instance.state {
                InstanceState::Running { started_at } => Some((container, instance, started_at)),
                _ => None,
            })
            .collect();
        self.running.retain(|id, _| running.iter().any(|(_, instance, _)| instance.id == *id));
        let adopted = !self.looked;
        let mut runners = Vec::with_capacity(running.len());
        for (container, instance, started_at) in &running {
            let first = Sighting { at: now, age: age(*started_at, wall), adopted };
            let seen = *self.running.entry(instance.id.clone()).or_insert(first);
            // Nothing is asked of a container before its own hook is done.
            if self.hooks.is_done(&instance.id) {
                let Sighting { at, age, adopted } = seen;
                runners.push(Runner { container, id: &instance.id, since: at, age, adopted });
            }
        }
        self.probing.absorb(pod, &runners, &self.recalled);
    }

    /// An attempt that is known from somewhere else, such as the log folder.
    pub fn know_attempt(&mut self, container: &str, attempt: u32) {
        let known = self.attempts.entry(container.to_owned()).or_insert(attempt);
        *known = attempt.max(*known);
    }

    /// Last known attempt + 1, else 0.
    #[must_use]
    pub fn next_attempt(&self, container: &str) -> u32 {
        self.attempts.get(container).map_or(0, |attempt| attempt.saturating_add(1))
    }

    /// Whether any attempt of the container is known.
    #[must_use]
    pub fn was_created(&self, container: &str) -> bool {
        self.attempts.contains_key(container)
    }

    /// Last known attempt + 1, else 0.
    #[must_use]
    pub fn next_sandbox_attempt(&self) -> u32 {
        self.sandbox_attempt.map_or(0, |attempt| attempt.saturating_add(1))
    }

    /// How long the pod has been active, over restarts of the agent.
    #[must_use]
    pub fn active(&self, now: Duration) -> Duration {
        self.active_before + now.saturating_sub(self.begun)
    }

    /// When the sandbox was first seen not to serve.
    #[must_use]
    pub fn lost_at(&self, sandbox: &str, now: Duration) -> Duration {
        self.lost_sandboxes.get(sandbox).copied().unwrap_or(now)
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

    /// Keeps what a plan has found out for good.
    pub fn settle(&mut self, plan: &Plan, now: Duration) {
        self.started |= plan.started;
        if let (None, Some(ended)) = (self.ended, plan.ended) {
            self.ended = Some((ended, now));
        }
        match plan.reset {
            None => {}
            Some(false) => self.resetting = true,
            Some(true) => self.forget_containers(),
        }
    }

    /// All containers begin anew, as in a new sandbox; what they were stays for the status.
    fn forget_containers(&mut self) {
        self.resetting = false;
        self.resets += 1;
        self.last.clear();
        self.images.clear();
    }

    /// How those end that are removed to start all containers anew: the one that was why by itself.
    fn note_removal(&mut self, pod: &Pod, id: &str) {
        if !self.resetting {
            return;
        }
        let Some(instance) = self.last.values().find(|last| last.id == id) else { return };
        let own = instance.exit().filter(|_| restart_all::is_source_of(pod, instance));
        let exit = own.cloned().unwrap_or_else(|| Exit {
            code: UNKNOWN_CODE,
            reason: restart_all::RESTARTING_ALL.to_owned(),
            message: restart_all::REMOVED.to_owned(),
            started_at: 0,
            finished_at: 0,
        });
        self.removed.insert(instance.name.clone(), exit);
    }

    /// The image whose pull a container waits for: its own, or that of a volume that it has mounted.
    /// None when it was not pulled: of such a wait upstream says nothing.
    pub(super) fn image_of(&self, pod: &Pod, container: &str) -> Option<String> {
        let own = pod.container(container).map(|c| c.image.as_str()).unwrap_or_default();
        let trouble = self.troubles.get(container).map(|(trouble, _)| trouble);
        let image = match trouble {
            Some(trouble) if trouble.is_of_image() && !trouble.is_of_pull() => return None,
            Some(trouble) => trouble.image_or(own),
            None => own,
        };
        Some(image.to_owned())
    }

    /// Those of the waits that have not been told.
    pub fn new_waits(&mut self, waits: &[Wait]) -> Vec<Wait> {
        let told = std::mem::take(&mut self.waits);
        let key = |wait: &Wait| (wait.container.clone(), wait.image);
        self.waits = waits.iter().map(|wait| (key(wait), wait.until)).collect();
        waits.iter().filter(|wait| told.get(&key(wait)) != Some(&wait.until)).cloned().collect()
    }

    /// An action is about to be carried out.
    pub fn begin(&mut self, pod: &Pod, action: &Action, now: Duration) {
        let mut until = None;
        match action {
            Action::StopContainer { id, deadline, .. } | Action::PreStop { id, deadline, .. } => {
                self.killing.insert(id.clone());
                until = Some(*deadline);
            }
            Action::CreateContainer { container, ended: Some(ended), .. } => {
                if let Some(spec) = pod.container(container) {
                    self.crash.next(&restart::crash_key(pod, spec), *ended, now);
                }
            }
            // Known before the start: its answer may be lost, the hook must not be.
            Action::StartContainer { container, id, .. }
                if pod.container(container).is_some_and(|spec| spec.lifecycle.post_start.is_some()) =>
            {
                self.hooks.record_start(id);
            }
            Action::SetUpVolumes | Action::RefreshVolumes => self.stale = false,
            Action::RemoveContainer { id } => self.note_removal(pod, id),
            Action::Probe { container, kind, .. } => {
                if let Some(spec) = pod.container(container) {
                    self.probing.begin(spec, *kind, now);
                }
            }
            _ => {}
        }
        self.flights.insert(action.op(), until);
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
