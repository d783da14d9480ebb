//! The end of a container: what is told of it, and where its exit code comes from. Owns the order of record, events,
//! cgroup and hooks. Called by `events`, `reconnect` and the operations that end containers.

#![expect(clippy::disallowed_methods, reason = "what is due after an end is done once, whoever has gone")]

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use super::{hooks, stop};
use crate::cgroup::Cgroup;
use crate::node::Node;
use crate::store::container::ContainerExit;
use crate::store::event_order::Kind;
use crate::store::{Container, ContainerState};
use gantry_monitor::exit::ExitRecord;
use gantry_sys::pidfd;

use crate::sys;
use gantry_base::timeline::unix_nanos;

/// How long a monitor may take from an end to its report: it drains the output for two seconds.
pub(crate) const REPORT: Duration = Duration::from_secs(3);

/// What has been heard of something that ran, once it has ended.
pub(crate) const ENDED: [Kind; 2] = [Kind::ContainerStartedEvent, Kind::ContainerStoppedEvent];

/// Moves a container to Exited; its cgroup goes in the background, after the record is on disk.
pub(crate) fn end(node: &Arc<Node>, container: &Arc<Container>, exit: &ExitRecord) {
    if container.set_state(ContainerState::Exited(ContainerExit::from_exit(exit))) {
        for kind in ENDED {
            node.container_events.send_container_event(&node.store, kind, container);
        }
    }
    let (node, container) = (Arc::clone(node), Arc::clone(container));
    tokio::task::spawn_blocking(move || {
        free_cgroup(&node, &container);
        hooks_after(&container);
    });
}

/// The poststop hooks of a container that has ended, by whoever has to run them. Blocks, for as long as they take
/// where they are ours. RemoveContainer does what this does not come to.
pub(crate) fn hooks_after(container: &Arc<Container>) {
    hooks::poststop(container);
    let container = container.clone();
    tokio::spawn(async move { stop::forget(&container).await });
}

/// Ends what is left of a container that has ended, and removes its cgroup. Blocks. Whatever stays is
/// reported, and removed, by RemoveContainer.
pub(crate) fn free_cgroup(node: &Node, container: &Container) {
    let path = container.record().cgroup.clone();
    if let Err(error) = Cgroup::new(&node.layout, &path).and_then(|cgroup| cgroup.remove()) {
        tracing::warn!(cgroup = path, "{}", gantry_base::error::chain(&error));
    }
}

/// Kills what is in these cgroups.
pub(crate) async fn kill(node: &Node, paths: Vec<String>) {
    let layout = node.layout.clone();
    let killed = tokio::task::spawn_blocking(move || {
        for path in paths {
            if let Ok(cgroup) = Cgroup::new(&layout, &path) {
                cgroup.kill();
            }
        }
    });
    if killed.await.is_err() {
        tracing::error!("killing a pod's processes ended early");
    }
}

/// Ends every container of a sandbox that has no monitor any more and that had begun to run.
pub(crate) async fn end_rest(node: &Arc<Node>, sandbox: &str) {
    let containers = node.store.containers_of(sandbox);
    kill(node, containers.iter().map(|container| container.record().cgroup.clone()).collect()).await;
    for container in containers {
        let pidfd = match container.state() {
            ContainerState::Running(pidfd) => Some(pidfd),
            ContainerState::Created if container.record().started.is_some() => None,
            _ => continue,
        };
        let exit = determine_exit(&container, pidfd.as_deref()).await;
        end(node, &container, &exit);
    }
}

/// Follows a container by its pidfd alone, none when it has ended already, and records its end.
pub(crate) async fn end_by_itself(node: Arc<Node>, container: Arc<Container>, pidfd: Option<Arc<OwnedFd>>) {
    match pidfd.as_ref().map(|pidfd| pidfd.try_clone().and_then(sys::watch)) {
        Some(Ok(watched)) => {
            // Readable once the process has ended; an error of the wait itself is no other answer.
            let _ = watched.readable().await;
        }
        Some(Err(error)) => tracing::warn!(container = container.id, "wait for its end: {error}"),
        None => {}
    }
    // A monitor that can be heard knows better.
    if tokio::time::timeout(REPORT, container.wait_for_end()).await.is_ok() {
        return;
    }
    let exit = determine_exit(&container, pidfd.as_deref()).await;
    end(&node, &container, &exit);
}

/// What the monitor has written of a container's end.
pub(crate) async fn read_exit_record(container: &Container) -> Option<ExitRecord> {
    let folder = container.folder.clone();
    match tokio::task::spawn_blocking(move || ExitRecord::read(&folder)).await {
        Ok(Ok(exit)) => exit,
        Ok(Err(error)) => {
            tracing::warn!(container = container.id, "{}", gantry_base::error::chain(&error));
            None
        }
        Err(error) => {
            tracing::warn!(container = container.id, "read its exit record: {error}");
            None
        }
    }
}

pub(crate) async fn determine_exit(container: &Container, pidfd: Option<&OwnedFd>) -> ExitRecord {
    if let Some(exit) = read_exit_record(container).await {
        return exit;
    }
    let exit = match pidfd {
        Some(pidfd) => exit_from_kernel(pidfd).await.unwrap_or_else(|| ExitRecord::unknown(unix_nanos())),
        None => ExitRecord::unknown(unix_nanos()),
    };
    let (folder, written) = (container.folder.clone(), exit.clone());
    match tokio::task::spawn_blocking(move || written.write(&folder)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(container = container.id, "{}", gantry_base::error::chain(&error)),
        Err(error) => tracing::warn!(container = container.id, "write its exit record: {error}"),
    }
    exit
}

/// The kernel knows the status once the process's new parent has reaped it, which takes a moment.
async fn exit_from_kernel(pidfd: &OwnedFd) -> Option<ExitRecord> {
    for _ in 0..50 {
        if let Ok(Some(status)) = pidfd::wait_status(pidfd.as_fd()) {
            let code = if status & 0x7f == 0 { status >> 8 & 0xff } else { 128 + (status & 0x7f) };
            return Some(ExitRecord::with_exit_code(code, unix_nanos(), 0));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    None
}
