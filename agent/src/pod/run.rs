//! Carries out one action. Owns what the effects have in common: the outside world, the telling,
//! the measuring; never decides what to do next. Called by the worker, each action in a task of its
//! own.

mod claims;
mod container;
mod hook;
mod image;
mod pod_resources;
mod probe;
mod resize;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use gantry_metrics::{Metrics, ProbeMetrics};
use gantry_model::allocation::held;
use gantry_model::cgroup::limits::Rules;
use gantry_model::clock::Clock;
use gantry_model::names::parse_image;
use gantry_model::pod::{Container, Pod};
use gantry_trace::span::Tracer;
use tokio::sync::{mpsc, watch};

use super::count;
use super::plan::Action;
use super::worker_state::{Output, WaitReason};
use crate::api::Api;
use crate::cgroups::Cgroups;
use crate::checkpoint::Checkpoints;
use crate::devices::{DeviceHealth, DeviceManager};
use crate::dra::DraManager;
use crate::events::sink::Recorder;
use crate::events::{Kind, Note};
use crate::images::Images;
use crate::logs::PodLogs;
use crate::node::NodeInfo;
use crate::pod::sweeps::Sweeps;
use crate::probe::ProbeIo;
use crate::resource_managers::ResourceManagers;
use crate::runtime::{Error, Runtime, Subject};
use crate::runtime_ext::RuntimeExtensions;
use crate::timeline::Span;
use crate::users::UserRanges;
use crate::volumes::{Volumes, WordsOf};

/// The outside world, as the workers see it.
#[derive(Clone)]
pub struct Deps {
    /// Runs containers.
    pub runtime: Arc<dyn Runtime>,
    /// Folders of pod logs.
    pub logs: Arc<dyn PodLogs>,
    /// Both clocks.
    pub clock: Arc<dyn Clock>,
    /// ConfigMaps and Secrets.
    pub api: Arc<dyn Api>,
    /// Folders and mounts.
    pub volumes: Arc<dyn Volumes>,
    /// Of plugins.
    pub devices: DeviceManager,
    /// Of DRA drivers.
    pub dra: DraManager,
    /// CPUs and memory of NUMA nodes, and what is aligned with them.
    pub managers: ResourceManagers,
    /// The tree of pods.
    pub cgroups: Arc<dyn Cgroups>,
    /// Reaches containers from outside.
    pub probe_io: Arc<dyn ProbeIo>,
    /// Remembers over a restart of the agent.
    pub checkpoints: Arc<dyn Checkpoints>,
    /// What pods may learn of their node.
    pub node: Arc<NodeInfo>,
    /// Why pods can get no network just now, in upstream's words.
    pub network: watch::Receiver<Option<String>>,
    /// Events of the node; nobody hears them without a kubelet.
    pub recorder: Option<Recorder>,
    /// Credentials for them, who may use them, and whose turn it is to pull.
    pub images: Arc<Images>,
    /// Ranges of user IDs for pods with a user namespace of their own.
    pub users: Arc<UserRanges>,
    /// What earlier pods left that is being taken back.
    pub sweeps: Arc<Sweeps>,
    /// crashLoopBackOff.maxContainerRestartPeriod.
    pub longest_wait: Duration,
    /// Makes spans; none without a configured collector.
    pub tracer: Option<Tracer>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// The same of probes.
    pub probe_metrics: Arc<ProbeMetrics>,
    /// What the runtime tells that no call of [`Runtime`] asks for.
    pub runtime_ext: RuntimeExtensions,
}

impl Deps {
    /// By what the pod's cgroup is held: CPUs of its own are no quota's.
    pub(in crate::pod) fn rules_of(&self, pod: &Pod) -> Rules {
        let rules = self.cgroups.rules();
        Rules { quota: rules.quota && !self.managers.lifts_quota(&pod.uid), ..rules }
    }

    /// How the devices are that the pod's containers have, of plugins and of DRA drivers.
    pub(in crate::pod) fn device_health(&self, pod: &Pod) -> DeviceHealth {
        let mut all = self.devices.health(&pod.uid);
        for (container, resources) in self.dra.health(pod) {
            all.entry(container).or_default().extend(resources);
        }
        all
    }
}

/// How an effect tells what it is about, while it still runs.
#[derive(Debug, Clone)]
pub struct NoteSender {
    sender: mpsc::Sender<Note>,
}

/// Notes that the worker has not taken yet.
const BACKLOG: usize = 64;

impl NoteSender {
    pub(in crate::pod) fn new() -> (Self, mpsc::Receiver<Note>) {
        let (sender, receiver) = mpsc::channel(BACKLOG);
        (Self { sender }, receiver)
    }

    /// The same for those who cannot wait: lost when the worker has a backlog.
    pub(in crate::pod) fn try_tell(&self, note: Note) {
        if let Err(error) = self.sender.try_send(note) {
            tracing::debug!(%error, "an event found no listener");
        }
    }

    /// Puts the event on the pod's list.
    pub async fn tell(&self, note: Note) {
        // A worker that is gone has nobody to tell.
        if self.sender.send(note).await.is_err() {
            tracing::debug!("an event came after its pod");
        }
    }
}

impl fmt::Debug for Deps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deps").field("runtime", &self.runtime).finish_non_exhaustive()
    }
}

/// An action that has come to its end.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) action: Action,
    pub(super) result: Result<Output, WaitReason>,
    /// When, by the wall clock.
    pub(super) end: i64,
    /// The stage that it was, if it was one that succeeded.
    pub(super) stage: Option<Span>,
    /// The ID of what was made.
    pub(super) made: String,
}

/// What an effect works with.
#[derive(Clone, Copy)]
struct Task<'a> {
    deps: &'a Deps,
    pod: &'a Pod,
    notes_out: &'a NoteSender,
}

impl Task<'_> {
    /// About the pod.
    async fn tell(self, kind: Kind, reason: &'static str, message: impl Into<String>) {
        self.notes_out.tell(Note::pod(kind, reason, message)).await;
    }

    /// About one of its containers; its ID would make each restart an event of its own.
    async fn tell_of(self, container: &Container, id: &str, kind: Kind, reason: &'static str, message: &str) {
        let message = if id.is_empty() { message.to_owned() } else { message.replace(id, &container.name) };
        self.notes_out.tell(Note::container(kind, reason, &container.name, message)).await;
    }
}

/// Carries out `action`, and measures it when it is the stage `open`.
pub(super) async fn perform(
    deps: Deps,
    pod: Arc<Pod>,
    action: Action,
    notes_out: NoteSender,
    open: Option<Span>,
) -> Finished {
    let mut made = String::new();
    let task = Task { deps: &deps, pod: &pod, notes_out: &notes_out };
    let begun = deps.clock.mono();
    count::record_begin(&deps, &pod, &action);
    let result = effect(task, &action, &mut made).await;
    count::record_end(&deps, &pod, &action, &result, deps.clock.mono().saturating_sub(begun));
    let end = deps.clock.wall_nanos();
    let stage = open.filter(|_| result.is_ok()).map(|open| Span { end, ..open });
    Finished { action, result, end, stage, made }
}

/// The stage that `action` begins at `start`, still open.
pub(super) fn open_stage(pod: &Pod, action: &Action, start: i64) -> Option<Span> {
    let (name, container) = stage_of(action)?;
    let detail = match action {
        Action::EnsureImage { container, .. } => {
            pod.container(container).map(|c| c.image.clone()).unwrap_or_default()
        }
        _ => String::new(),
    };
    Some(Span { name: name.to_owned(), container: container.to_owned(), start, end: 0, detail })
}

/// The stages people ask about; cleaning up is not one.
fn stage_of(action: &Action) -> Option<(&'static str, &str)> {
    match action {
        Action::AllocateDevices { .. } => Some(("devices", "")),
        Action::PrepareClaims => Some(("claims", "")),
        Action::SetUpCgroup { .. } => Some(("cgroup", "")),
        Action::SetUpVolumes => Some(("volumes", "")),
        Action::EnsureImage { container, .. } => Some(("image", container)),
        Action::RunSandbox { .. } => Some(("sandbox", "")),
        Action::CreateContainer { container, .. } => Some(("container.create", container)),
        Action::StartContainer { container, .. } => Some(("container.start", container)),
        Action::PostStart { container, .. } => Some(("container.poststart", container)),
        Action::Probe { .. }
        | Action::PreStop { .. }
        | Action::StopContainer { .. }
        | Action::ReadLastWords { .. }
        | Action::RemoveContainer { .. }
        | Action::Resize { .. }
        | Action::StopSandbox { .. }
        | Action::RemoveSandbox { .. }
        | Action::UnprepareClaims
        | Action::TearDownVolumes
        | Action::RefreshVolumes
        | Action::TearDownCgroup
        | Action::Remember { .. } => None,
    }
}

/// A stage, and the stages within it, the runtime's own or those of drivers. Asked for beside the pod's way to ready, not on
/// it; a runtime without a timeline leaves out detail, not the pod.
pub(super) async fn add_runtime_spans(
    deps: Deps,
    pod: Arc<Pod>,
    action: Action,
    made: String,
    stage: Span,
) -> (Span, Vec<Span>) {
    let image;
    let of = match &action {
        Action::EnsureImage { container, .. } => {
            let name = pod.container(container).and_then(|c| parse_image(&c.image));
            image = name.map(|n| n.full).unwrap_or_default();
            Subject::Image(&image)
        }
        Action::RunSandbox { .. } => Subject::Sandbox(&made),
        Action::CreateContainer { .. } => Subject::Container(&made),
        Action::StartContainer { id, .. } => Subject::Container(id),
        Action::SetUpVolumes => return (stage, deps.volumes.stages(&pod.uid)),
        _ => return (stage, Vec::new()),
    };
    let inner = deps.runtime.timeline(of).await.unwrap_or_else(|error| {
        tracing::debug!(%error, detail = error.detail(), "no stages from the runtime");
        Vec::new()
    });
    (stage, inner)
}

async fn effect(task: Task<'_>, action: &Action, made: &mut String) -> Result<Output, WaitReason> {
    match action {
        Action::AllocateDevices { runs } => pod_resources::devices(task, *runs).await,
        Action::PrepareClaims => claims::prepare(task).await,
        Action::UnprepareClaims => claims::unprepare(task).await,
        Action::SetUpCgroup { actuated } => pod_resources::cgroup(task, actuated).await,
        Action::SetUpVolumes => pod_resources::volumes(task).await,
        Action::RefreshVolumes => pod_resources::refresh(task).await,
        Action::TearDownVolumes => pod_resources::no_volumes(task).await,
        Action::TearDownCgroup => pod_resources::no_cgroup(task).await,
        Action::Remember { marks } => pod_resources::remember(task, marks).await,
        Action::RunSandbox { attempt, cgroup_parent, replaces } => {
            *made = pod_resources::sandbox(task, *attempt, cgroup_parent, *replaces).await?;
            Ok(Output::Done)
        }
        Action::StopSandbox { id } => pod_resources::stop_sandbox(task, id).await,
        Action::RemoveSandbox { id } => pod_resources::remove_sandbox(task, id).await,
        Action::EnsureImage { container, .. } => image::ensure(task, find(task.pod, container)?).await,
        Action::CreateContainer { container, attempt, place, image, .. } => {
            let container = find(task.pod, container)?;
            *made = container::create(task, container, *attempt, place, image).await?;
            Ok(Output::Container(held(task.pod, container)))
        }
        Action::StartContainer { container, attempt, id } => {
            container::start(task, find(task.pod, container)?, *attempt, id).await
        }
        Action::PostStart { container, id, address } => {
            hook::post_start(task, find(task.pod, container)?, id, address).await
        }
        Action::Probe { container, id, kind, address } => {
            probe::run(task, find(task.pod, container)?, id, *kind, address).await
        }
        Action::PreStop { container, id, address, deadline, why } => {
            container::tell_end(task, container, id, why.as_deref()).await;
            hook::pre_stop(task, find(task.pod, container)?, id, address, *deadline).await
        }
        Action::StopContainer { container, id, deadline, why } => {
            container::tell_end(task, container, id, why.as_deref()).await;
            container::stop(task, container, id, *deadline).await
        }
        Action::ReadLastWords { container, id: _, attempt, file, log } => {
            let of = WordsOf { uid: &task.pod.uid, container, attempt: *attempt, file: file.as_deref() };
            container::last_words(task, of, log.as_deref()).await
        }
        Action::RemoveContainer { id } => container::remove(task, id).await,
        Action::Resize { sandbox, steps, ids, before, cgroup } => {
            resize::resize(task, resize::Request { sandbox, steps, ids, before, cgroup: *cgroup }).await
        }
    }
}

/// A plan only names containers of its pod; one that is not there is reported, not
/// assumed away.
fn find<'a>(pod: &'a Pod, name: &str) -> Result<&'a Container, WaitReason> {
    pod.container(name)
        .ok_or_else(|| wait_reason("CreateContainerConfigError", format!("pod has no container {name:?}")))
}

fn wait_reason(reason: &str, message: String) -> WaitReason {
    WaitReason { reason: reason.to_owned(), message, image: String::new() }
}

/// Upstream's event of a pod that does not end: the step that failed, on what, and the whole answer.
fn kill_error(step: &str, target: &str, error: &Error) -> String {
    format!("error killing pod: failed to {step:?} for {target:?} with {step}Error: {:?}", error.in_go())
}

/// Which call failed and what the runtime said.
fn both(error: &Error) -> String {
    format!("{error}: {}", error.detail())
}
