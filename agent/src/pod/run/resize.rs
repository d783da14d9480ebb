//! A resize in place, step by step. Owns what must be known before the first and after the last of them, and upstream's
//! words where one fails; never decides which are due. Called by [`super::effect`].

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use gantry_base::error::chain;
use gantry_model::allocation::{Allocation, amount, held};
use gantry_model::cgroup::limits::Limits;
use gantry_model::resize::Step;

use super::{Output, Task, WaitReason, find, wait_reason};

/// As [`crate::pod::plan::Action::Resize`].
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) sandbox: &'a str,
    pub(super) steps: &'a [Step],
    pub(super) ids: &'a BTreeMap<String, String>,
    pub(super) before: &'a Allocation,
    pub(super) cgroup: Limits,
}

/// All steps, or an error; then all are done again, which harms nothing.
pub(super) async fn resize(task: Task<'_>, request: Request<'_>) -> Result<Output, WaitReason> {
    let begun = task.deps.clock.mono();
    let done = all(task, request).await;
    let took = task.deps.clock.mono().saturating_sub(begun);
    let success = if done.is_ok() { "true" } else { "false" };
    task.deps.metrics.pod_resize_duration.observe([success], millis(took));
    done.map_err(|message| wait_reason("Error", message))
}

fn millis(took: Duration) -> f64 {
    (took.as_secs_f64() * 1000.0).floor()
}

async fn all(task: Task<'_>, request: Request<'_>) -> Result<Output, String> {
    let Task { deps, pod, .. } = task;
    // An agent that comes after a crash must know what the steps lead to.
    let allocated = deps.checkpoints.allocate(&pod.uid, &Allocation::of(pod)).await;
    allocated.map_err(|error| chain(&error))?;
    check_memory(task, request).await?;
    let mut cgroup = request.cgroup;
    if request.steps.iter().any(|step| matches!(step, Step::HoldPod(_))) {
        let told = deps.runtime.update_sandbox_resources(request.sandbox, pod).await;
        told.map_err(|error| {
            let why = error.detail();
            format!("failed to notify runtime for UpdatePodSandboxResources; resize rejected: {why}")
        })?;
    }
    for step in request.steps {
        match step {
            Step::HoldPod(limits) => {
                deps.cgroups.update(pod, limits).await.map_err(|error| error.message)?;
                cgroup = *limits;
            }
            Step::Update(name) => update(task, request, name).await?,
            // The planner ends those.
            Step::Restart(_) => {}
        }
    }
    // No other container: one may be made anew meanwhile, with more or less than `before` says.
    let changed = pod.all_containers().filter(|container| request.ids.contains_key(&container.name));
    let containers = changed.map(|container| (container.name.clone(), held(pod, container))).collect();
    let actuated = Allocation { pod: pod.resources.clone(), containers };
    let told = deps.checkpoints.actuate(&pod.uid, &actuated).await;
    told.map_err(|error| chain(&error))?;
    Ok(Output::Resized { actuated, cgroup })
}

async fn update(task: Task<'_>, request: Request<'_>, name: &str) -> Result<(), String> {
    let Some(id) = request.ids.get(name) else { return Ok(()) };
    let container = find(task.pod, name).map_err(|trouble| trouble.message)?;
    let affinity = task.deps.managers.affinity(&task.pod.uid, name);
    let updated = task.deps.runtime.update_container_resources(id, task.pod, container, &affinity).await;
    updated.map_err(|error| error.detail())
}

/// The kernel would take memory away from what uses it, or end it: a limit must be above what is in use.
async fn check_memory(task: Task<'_>, request: Request<'_>) -> Result<(), String> {
    let Task { deps, pod, .. } = task;
    let mut problems = Vec::new();
    if let Some(limit) = pod_shrinks(request) {
        let usage = deps.cgroups.memory_in_use(pod).await;
        let usage =
            usage.map_err(|_| format!("unable to read memory usage for pod {:?}", pod.formatted()))?;
        problems.extend(problem(usage, limit, "pod"));
    }
    for step in request.steps {
        let Step::Update(name) = step else { continue };
        let Some((id, limit)) = container_shrinks(task, request, name) else { continue };
        let usage = deps.runtime.memory_in_use(id).await;
        let usage =
            usage.map_err(|_| format!("unable to read memory usage for pod {:?}", pod.formatted()))?;
        problems.extend(problem(usage, limit, &format!("container {name:?}")));
    }
    match &problems[..] {
        [] => Ok(()),
        // As Go joins them.
        [one] => Err(format!("cannot decrease memory limits: {one}")),
        all => Err(format!("cannot decrease memory limits: [{}]", all.join(", "))),
    }
}

fn problem(usage: Option<u64>, limit: i64, whose: &str) -> Option<String> {
    let mut text = String::new();
    match usage {
        None => {
            let _ = write!(text, "missing {whose} memory usage");
        }
        Some(usage) if usage >= u64::try_from(limit).unwrap_or(0) => {
            let _ = write!(
                text,
                "attempting to set {whose} memory limit ({limit}) below current usage ({usage})"
            );
        }
        Some(_) => return None,
    }
    Some(text)
}

/// To which limit the pod's cgroup is to shrink.
fn pod_shrinks(request: Request<'_>) -> Option<i64> {
    let last = request.steps.iter().rev().find_map(|step| match step {
        Step::HoldPod(limits) => Some(limits.memory),
        Step::Update(_) | Step::Restart(_) => None,
    })??;
    request.cgroup.memory.is_none_or(|before| last < before).then_some(last)
}

/// The container, and to which limit it is to shrink.
fn container_shrinks<'a>(task: Task<'_>, request: Request<'a>, name: &str) -> Option<(&'a str, i64)> {
    let limit = |list: &BTreeMap<String, String>| list.get("memory").map(|text| amount("memory", text));
    let new = limit(&held(task.pod, task.pod.container(name)?).limits)?;
    let old = limit(&request.before.containers.get(name)?.limits);
    let id = request.ids.get(name)?;
    old.is_none_or(|old| new < old).then_some((id.as_str(), new))
}
