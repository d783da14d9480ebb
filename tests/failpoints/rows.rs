//! The places, and which step of a pod's life comes to each. Owns the table; a test holds it against the
//! source. Called by the matrix.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use gantry_tests::place;

use crate::life::{Kind, Step};

/// A place, and the step of which pod's life that is made to come there.
#[derive(Debug)]
pub(crate) struct FailpointRow {
    pub(crate) site: &'static str,
    pub(crate) step: Step,
    pub(crate) kind: Kind,
}

const fn row(site: &'static str, step: Step) -> FailpointRow {
    FailpointRow { site, step, kind: Kind::Plain }
}

/// With users of the pod's own.
const fn users(site: &'static str) -> FailpointRow {
    FailpointRow { site, step: Step::Run, kind: Kind::Users }
}

/// As `users`, with its container.
const fn users_of(site: &'static str, step: Step) -> FailpointRow {
    FailpointRow { site, step, kind: Kind::Users }
}

/// With containers that runc makes.
const fn handler_row(site: &'static str, step: Step) -> FailpointRow {
    FailpointRow { site, step, kind: Kind::Handled }
}

/// With a device whose file has hooks.
const fn hook_row(site: &'static str, step: Step) -> FailpointRow {
    FailpointRow { site, step, kind: Kind::Hooked }
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
    row("layer.moved", Step::Pull),
    row("pull.layers", Step::Pull),
    row("journal.written", Step::Pull),
    row("journal.renamed", Step::Pull),
    row("flush.synced", Step::Pull),
    row("disk.written", Step::Pull),
    row("disk.committed", Step::Pull),
    row("flush.applied", Step::Pull),
    row("image.dropped", Step::RemoveImage),
    row("run.named", Step::Run),
    row("run.folder", Step::Run),
    row("run.record", Step::Run),
    row("run.files", Step::Run),
    row("run.network-planned", Step::Run),
    row("run.netns", Step::Run),
    row("run.attached", Step::Run),
    row("run.network-recorded", Step::Run),
    users("monitor.users-made"),
    users("run.users-held"),
    users("run.netns"),
    users("run.pause-started"),
    row("launch.bound", Step::Run),
    row("launch.cgroup", Step::Run),
    row("launch.spawned", Step::Run),
    row("run.monitor-started", Step::Run),
    row("run.monitor-recorded", Step::Run),
    row("scope.slice", Step::Run),
    row("scope.seeded", Step::Run),
    row("scope.made", Step::Run),
    row("scope.entered", Step::Run),
    row("run.cgroups", Step::Run),
    row("run.pause-started", Step::Run),
    row("run.pause-recorded", Step::Run),
    row("run.complete", Step::Run),
    row("create.named", Step::Create),
    row("create.folders", Step::Create),
    row("create.labelled", Step::Create),
    hook_row("create.bundle", Step::Create),
    row("create.planned", Step::Create),
    row("create.record", Step::Create),
    row("create.kept", Step::Create),
    row("start.cgroup", Step::Start),
    row("monitor.cloned", Step::Start),
    row("monitor.ready", Step::Start),
    users_of("child.users-move", Step::Start),
    handler_row("child.program-moves", Step::Start),
    handler_row("start.cgroup", Step::Start),
    handler_row("monitor.cloned", Step::Start),
    handler_row("monitor.ready", Step::Start),
    handler_row("start.cloned", Step::Start),
    row("start.cloned", Step::Start),
    row("record.written", Step::Start),
    row("start.recorded", Step::Start),
    hook_row("start.answered", Step::Start),
    hook_row("start.poststart", Step::Start),
    row("update.cgroup", Step::Update),
    row("update.recorded", Step::Update),
    row("checkpoint.folder", Step::Checkpoint),
    row("checkpoint.dumped", Step::Checkpoint),
    row("checkpoint.packed", Step::Checkpoint),
    row("checkpoint.archive", Step::Checkpoint),
    row("stop.asked", Step::Stop),
    row("exit.written", Step::Stop),
    row("monitor.recorded", Step::Stop),
    row("stop.killed", Step::Kill),
    handler_row("monitor.recorded", Step::Kill),
    hook_row("stop.poststop-begun", Step::Stop),
    hook_row("stop.poststop", Step::Stop),
    row("remove.cgroup", Step::Remove),
    handler_row("remove.cgroup", Step::Remove),
    row("remove.container-folder", Step::Remove),
    row("remove.unpinned", Step::Remove),
    row("stop.containers", Step::StopPod),
    row("stop.pause", Step::StopPod),
    row("stop.monitor", Step::StopPod),
    row("network.deleted", Step::StopPod),
    row("stop.network", Step::StopPod),
    row("scope.killed", Step::StopPod),
    row("scope.stopped", Step::StopPod),
    row("stop.cgroups", Step::StopPod),
    row("stop.recorded", Step::StopPod),
    row("remove.containers", Step::RemovePod),
    row("remove.folder", Step::RemovePod),
    row("recover.loaded", Step::Restart),
    row("recover.greeted", Step::Restart),
    row("recover.found", Step::Restart),
    row("recover.done", Step::Restart),
    row("lost.killed", Step::Loss),
    row("lost.ended", Step::Loss),
    row("reboot.freed", Step::Reboot),
];

/// A task that nobody waits for, and how it is made to come to its place.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) site: &'static str,
    pub(crate) wake: Wake,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Wake {
    /// A step of a pod's life.
    Step(Step),
    /// A question about a container's disk.
    Stats,
    /// A connection to the streaming server.
    Stream,
}

const fn task(site: &'static str, wake: Wake) -> Task {
    Task { site, wake }
}

/// Those that live as long as the runtime or a pod: what one of them does would be done by nobody any more.
pub(crate) const TASKS: &[Task] = &[
    task("task.events", Wake::Step(Step::Kill)),
    task("task.reconnect", Wake::Step(Step::Loss)),
    task("task.monitor", Wake::Step(Step::Run)),
    task("task.monitor-process", Wake::Step(Step::StopPod)),
    task("task.streaming", Wake::Stream),
    task("task.image-sync", Wake::Step(Step::RemoveImage)),
    task("task.walker", Wake::Stats),
    task("task.ooms", Wake::Step(Step::Start)),
    task("task.prepull", Wake::Step(Step::Restart)),
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
