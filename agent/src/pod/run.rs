//! Carries out one action. Owns the effects and the wording of their failures; never
//! decides what to do next. Called by the worker, each action in a task of its own.

use std::fmt;
use std::sync::Arc;

use super::configure::configure;
use super::history::{Output, Trouble};
use super::plan::Action;
use super::spec::{Container, Pod, PullPolicy};
use crate::clock::Clock;
use crate::logs::PodLogs;
use crate::manifest::names::parse_image;
use crate::runtime::{NewContainer, NewSandbox, Runtime, Subject};
use crate::timeline::Span;
use crate::volumes::PodFacts;

/// The outside world, as the workers see it.
#[derive(Clone)]
pub struct Deps {
    /// Runs containers.
    pub runtime: Arc<dyn Runtime>,
    /// Folders of pod logs.
    pub logs: Arc<dyn PodLogs>,
    /// Both clocks.
    pub clock: Arc<dyn Clock>,
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
    pub(super) result: Result<Output, Trouble>,
    /// The stage and the runtime's own stages within it.
    pub(super) stage: Option<(Span, Vec<Span>)>,
}

/// Carries out `action` and measures it.
pub(super) async fn perform(deps: Deps, pod: Arc<Pod>, action: Action) -> Finished {
    let start = deps.clock.wall_nanos();
    let mut made = String::new();
    let result = effect(&deps, &pod, &action, &mut made).await;
    let end = deps.clock.wall_nanos();
    let mut stage = None;
    if let (Ok(_), Some(open)) = (&result, open_stage(&pod, &action, start)) {
        let inner = inner_stages(&deps, &pod, &action, &made).await;
        stage = Some((Span { end, ..open }, inner));
    }
    Finished { action, result, stage }
}

/// The stage that `action` begins at `start`, still open.
pub(super) fn open_stage(pod: &Pod, action: &Action, start: i64) -> Option<Span> {
    let (name, container) = stage_of(action)?;
    Some(Span { name: name.to_owned(), container, start, end: 0, detail: detail_of(pod, action) })
}

/// The stages people ask about; cleaning up is not one.
fn stage_of(action: &Action) -> Option<(&'static str, String)> {
    match action {
        Action::EnsureImage { container, .. } => Some(("image", container.clone())),
        Action::RunSandbox { .. } => Some(("sandbox", String::new())),
        Action::CreateContainer { container, .. } => Some(("container.create", container.clone())),
        Action::StartContainer { container, .. } => Some(("container.start", container.clone())),
        Action::StopContainer { .. }
        | Action::RemoveContainer { .. }
        | Action::StopSandbox { .. }
        | Action::RemoveSandbox { .. } => None,
    }
}

fn detail_of(pod: &Pod, action: &Action) -> String {
    match action {
        Action::EnsureImage { container, .. } => {
            pod.container(container).map(|c| c.image.clone()).unwrap_or_default()
        }
        _ => String::new(),
    }
}

/// A runtime without a timeline leaves out detail, not the pod.
async fn inner_stages(deps: &Deps, pod: &Pod, action: &Action, made: &str) -> Vec<Span> {
    let image;
    let of = match action {
        Action::EnsureImage { container, .. } => {
            let name = pod.container(container).and_then(|c| parse_image(&c.image));
            image = name.map(|n| n.full).unwrap_or_default();
            Subject::Image(&image)
        }
        Action::RunSandbox { .. } => Subject::Sandbox(made),
        Action::CreateContainer { .. } => Subject::Container(made),
        Action::StartContainer { id, .. } => Subject::Container(id),
        _ => return Vec::new(),
    };
    match deps.runtime.timeline(of).await {
        Ok(spans) => spans,
        Err(error) => {
            tracing::debug!(%error, detail = error.detail(), "no stages from the runtime");
            Vec::new()
        }
    }
}

async fn effect(deps: &Deps, pod: &Pod, action: &Action, made: &mut String) -> Result<Output, Trouble> {
    let runtime = &deps.runtime;
    match action {
        Action::EnsureImage { container, .. } => {
            return image(deps, pod, find(pod, container)?).await.map(Output::Image);
        }
        Action::RunSandbox { attempt } => {
            let wrap = |message| {
                trouble("CreatePodSandboxError", format!("Failed to create pod sandbox: {message}"))
            };
            deps.logs.prepare(pod, None).await.map_err(|error| wrap(error.chain()))?;
            *made = runtime
                .run_sandbox(NewSandbox { pod, attempt: *attempt, cgroup_parent: "" })
                .await
                .map_err(|error| wrap(error.detail()))?;
        }
        Action::CreateContainer { container, attempt, sandbox, sandbox_attempt, image_id, .. } => {
            let container = find(pod, container)?;
            deps.logs
                .prepare(pod, Some(container))
                .await
                .map_err(|error| trouble("CreateContainerConfigError", error.chain()))?;
            let new = NewContainer {
                pod,
                container,
                attempt: *attempt,
                sandbox,
                sandbox_attempt: *sandbox_attempt,
                image_id,
                cgroup_parent: "",
                setup: &configure(deps, pod, container, &PodFacts::default()).await?,
            };
            let created = runtime.create_container(new).await;
            *made = created.map_err(|error| trouble("CreateContainerError", error.detail()))?;
        }
        Action::StartContainer { id, .. } => {
            runtime
                .start_container(id)
                .await
                .map_err(|error| trouble("RunContainerError", error.detail()))?;
        }
        Action::StopContainer { id, deadline } => {
            let grace = deadline.saturating_sub(deps.clock.mono());
            let stopped = runtime.stop_container(id, grace).await;
            stopped.map_err(|error| trouble("KillContainerError", format!("{error}: {}", error.detail())))?;
        }
        Action::RemoveContainer { id } => {
            let removed = runtime.remove_container(id).await;
            removed
                .map_err(|error| trouble("RemoveContainerError", format!("{error}: {}", error.detail())))?;
        }
        Action::StopSandbox { id } => {
            let stopped = runtime.stop_sandbox(id).await;
            stopped
                .map_err(|error| trouble("KillPodSandboxError", format!("{error}: {}", error.detail())))?;
        }
        Action::RemoveSandbox { id } => {
            let removed = runtime.remove_sandbox(id).await;
            removed
                .map_err(|error| trouble("KillPodSandboxError", format!("{error}: {}", error.detail())))?;
        }
    }
    Ok(Output::Done)
}

/// The image's ID, after asking the registry when the policy says so.
async fn image(deps: &Deps, pod: &Pod, container: &Container) -> Result<String, Trouble> {
    let written = &container.image;
    let Some(name) = parse_image(written) else {
        return Err(trouble(
            "InvalidImageName",
            format!(
                "Failed to apply default image tag {written:?}: couldn't parse image name {written:?}: invalid reference format"
            ),
        ));
    };
    let present = deps.runtime.image_id(&name.full).await.map_err(|error| {
        trouble("ImageInspectError", format!("Failed to inspect image {written:?}: {}", error.detail()))
    })?;
    match (container.pull_policy, present) {
        (PullPolicy::IfNotPresent | PullPolicy::Never, Some(id)) => Ok(id),
        (PullPolicy::Never, None) => Err(trouble(
            "ErrImageNeverPull",
            format!("Container image {written:?} is not present with pull policy of Never"),
        )),
        (PullPolicy::Always, _) | (PullPolicy::IfNotPresent, None) => {
            let pulled = deps.runtime.pull_image(&name.full, pod).await;
            pulled.map_err(|error| trouble("ErrImagePull", error.detail()))
        }
    }
}

/// A plan only names containers of its pod; one that is not there is reported, not
/// assumed away.
fn find<'a>(pod: &'a Pod, name: &str) -> Result<&'a Container, Trouble> {
    pod.container(name)
        .ok_or_else(|| trouble("CreateContainerConfigError", format!("pod has no container {name:?}")))
}

fn trouble(reason: &str, message: String) -> Trouble {
    Trouble { reason: reason.to_owned(), message }
}
