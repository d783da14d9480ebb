//! The places, and which step of a pod's life comes to each. Owns the table; a test holds it against the
//! source. Called by the matrix.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use gantry_tests::place;

use crate::life::{LifeStep, PodKind};

/// A place, and the step of which pod's life that is made to come there.
#[derive(Debug)]
pub(crate) struct FailpointRow {
    pub(crate) site: &'static str,
    pub(crate) step: LifeStep,
    pub(crate) kind: PodKind,
}

const fn row(site: &'static str, step: LifeStep) -> FailpointRow {
    FailpointRow { site, step, kind: PodKind::Plain }
}

/// With users of the pod's own.
const fn users(site: &'static str) -> FailpointRow {
    FailpointRow { site, step: LifeStep::Run, kind: PodKind::Users }
}

/// As `users`, with its container.
const fn users_of(site: &'static str, step: LifeStep) -> FailpointRow {
    FailpointRow { site, step, kind: PodKind::Users }
}

/// With containers that runc makes.
const fn handler_row(site: &'static str, step: LifeStep) -> FailpointRow {
    FailpointRow { site, step, kind: PodKind::Handled }
}

/// With a device whose file has hooks.
const fn hook_row(site: &'static str, step: LifeStep) -> FailpointRow {
    FailpointRow { site, step, kind: PodKind::Hooked }
}

impl FailpointRow {
    /// Whether it is a child of the monitor that comes there: the monitor goes on beside it.
    pub(crate) fn is_in_child(&self) -> bool {
        self.site.starts_with("child.")
    }

    /// Whether somebody comes there: scopes are for nodes on which systemd makes the cgroups.
    pub(crate) fn is_of_this_node(&self) -> bool {
        place::with_systemd() || !self.site.starts_with("scope.")
    }
}

pub(crate) const ROWS: &[FailpointRow] = &[
    row("layer.moved", LifeStep::Pull),
    row("pull.layers", LifeStep::Pull),
    row("journal.written", LifeStep::Pull),
    row("journal.renamed", LifeStep::Pull),
    row("flush.synced", LifeStep::Pull),
    row("disk.written", LifeStep::Pull),
    row("disk.committed", LifeStep::Pull),
    row("flush.applied", LifeStep::Pull),
    row("image.dropped", LifeStep::RemoveImage),
    row("run.named", LifeStep::Run),
    row("run.folder", LifeStep::Run),
    row("run.record", LifeStep::Run),
    row("run.files", LifeStep::Run),
    row("run.network-planned", LifeStep::Run),
    row("run.netns", LifeStep::Run),
    row("run.attached", LifeStep::Run),
    row("run.network-recorded", LifeStep::Run),
    users("monitor.users-made"),
    users("run.users-held"),
    users("run.netns"),
    users("run.pause-started"),
    row("launch.bound", LifeStep::Run),
    row("launch.cgroup", LifeStep::Run),
    row("launch.spawned", LifeStep::Run),
    row("run.monitor-started", LifeStep::Run),
    row("run.monitor-recorded", LifeStep::Run),
    row("scope.slice", LifeStep::Run),
    row("scope.seeded", LifeStep::Run),
    row("scope.made", LifeStep::Run),
    row("scope.entered", LifeStep::Run),
    row("run.cgroups", LifeStep::Run),
    row("run.pause-started", LifeStep::Run),
    row("run.pause-recorded", LifeStep::Run),
    row("run.complete", LifeStep::Run),
    row("create.named", LifeStep::Create),
    row("create.folders", LifeStep::Create),
    row("create.labelled", LifeStep::Create),
    hook_row("create.bundle", LifeStep::Create),
    row("create.planned", LifeStep::Create),
    row("create.record", LifeStep::Create),
    row("create.kept", LifeStep::Create),
    row("start.cgroup", LifeStep::Start),
    row("monitor.cloned", LifeStep::Start),
    row("monitor.ready", LifeStep::Start),
    users_of("child.users-move", LifeStep::Start),
    handler_row("child.program-moves", LifeStep::Start),
    handler_row("start.cgroup", LifeStep::Start),
    handler_row("monitor.cloned", LifeStep::Start),
    handler_row("monitor.ready", LifeStep::Start),
    handler_row("start.cloned", LifeStep::Start),
    row("start.cloned", LifeStep::Start),
    row("record.written", LifeStep::Start),
    row("start.recorded", LifeStep::Start),
    hook_row("start.answered", LifeStep::Start),
    hook_row("start.poststart", LifeStep::Start),
    row("update.cgroup", LifeStep::Update),
    row("update.recorded", LifeStep::Update),
    row("checkpoint.folder", LifeStep::Checkpoint),
    row("checkpoint.dumped", LifeStep::Checkpoint),
    row("checkpoint.packed", LifeStep::Checkpoint),
    row("checkpoint.archive", LifeStep::Checkpoint),
    row("stop.asked", LifeStep::Stop),
    row("exit.written", LifeStep::Stop),
    row("monitor.recorded", LifeStep::Stop),
    row("stop.killed", LifeStep::Kill),
    handler_row("monitor.recorded", LifeStep::Kill),
    hook_row("stop.poststop-begun", LifeStep::Stop),
    hook_row("stop.poststop", LifeStep::Stop),
    row("remove.cgroup", LifeStep::Remove),
    handler_row("remove.cgroup", LifeStep::Remove),
    row("remove.container-folder", LifeStep::Remove),
    row("remove.unpinned", LifeStep::Remove),
    row("stop.containers", LifeStep::StopPod),
    row("stop.pause", LifeStep::StopPod),
    row("stop.monitor", LifeStep::StopPod),
    row("network.deleted", LifeStep::StopPod),
    row("stop.network", LifeStep::StopPod),
    row("scope.killed", LifeStep::StopPod),
    row("scope.stopped", LifeStep::StopPod),
    row("stop.cgroups", LifeStep::StopPod),
    row("stop.recorded", LifeStep::StopPod),
    row("remove.containers", LifeStep::RemovePod),
    row("remove.folder", LifeStep::RemovePod),
    row("recover.loaded", LifeStep::Restart),
    row("recover.greeted", LifeStep::Restart),
    row("recover.found", LifeStep::Restart),
    row("recover.done", LifeStep::Restart),
    row("lost.killed", LifeStep::Loss),
    row("lost.ended", LifeStep::Loss),
    row("reboot.freed", LifeStep::Reboot),
];

/// A task that nobody waits for, and how it is made to come to its place.
#[derive(Debug)]
pub(crate) struct BackgroundTask {
    pub(crate) site: &'static str,
    pub(crate) wake: Wake,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Wake {
    /// A step of a pod's life.
    Step(LifeStep),
    /// A question about a container's disk.
    Stats,
    /// A connection to the streaming server.
    Stream,
}

const fn task(site: &'static str, wake: Wake) -> BackgroundTask {
    BackgroundTask { site, wake }
}

/// Those that live as long as the runtime or a pod: what one of them does would be done by nobody any more.
pub(crate) const TASKS: &[BackgroundTask] = &[
    task("task.events", Wake::Step(LifeStep::Kill)),
    task("task.reconnect", Wake::Step(LifeStep::Loss)),
    task("task.monitor", Wake::Step(LifeStep::Run)),
    task("task.monitor-process", Wake::Step(LifeStep::StopPod)),
    task("task.streaming", Wake::Stream),
    task("task.image-sync", Wake::Step(LifeStep::RemoveImage)),
    task("task.walker", Wake::Stats),
    task("task.ooms", Wake::Step(LifeStep::Start)),
    task("task.prepull", Wake::Step(LifeStep::Restart)),
];

/// Every place in the source, and whether it can have its step fail.
pub(crate) fn sites() -> Result<BTreeMap<String, bool>> {
    let mut found = BTreeMap::new();
    // A machine that was not built on has a copy.
    let copied = std::env::var_os(place::SOURCES).map(PathBuf::from);
    let source = copied.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).join("shim");
    let mut folders = vec![source.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
                for place in text.split("failpoint!(\"").skip(1) {
                    let (name, rest) = place.split_once('"').context("a name that does not end")?;
                    ensure!(
                        found.insert(name.to_owned(), rest.starts_with('?')).is_none(),
                        "{name} is twice"
                    );
                }
            }
        }
    }
    Ok(found)
}
