//! The event task: what monitors tell becomes the state of containers and sandboxes. Owns no state
//! of its own. Started by `runtime::Runtime::start`; `monitor_gone` is also recovery's.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use gantry_base::failpoint;
use gantry_proto::monitor::Exited;
use tokio::sync::mpsc;

use crate::cgroup::Cgroup;
use crate::container::{hooks, stop};
use crate::exit::ExitRecord;
use crate::feed;
use crate::monitor_client::Event;
use crate::node::Node;
use crate::recover;
use crate::store::container::Ended;
use crate::store::{Container, ContainerState, Sandbox, SandboxState};
use crate::sys;
use crate::timeline::unix_nanos;

/// Between attempts to reach a monitor that does not answer; doubled each time.
const RECONNECT: Duration = Duration::from_secs(1);
const RECONNECT_AT_MOST: Duration = Duration::from_secs(30);

/// How long a monitor may take from an end to its report: it drains the output for two seconds.
pub(crate) const REPORT: Duration = Duration::from_secs(3);

/// Runs as long as the runtime: `node` holds a sender itself.
pub(crate) async fn run(node: Arc<Node>, mut events: mpsc::UnboundedReceiver<Event>) {
    while let Some(event) = events.recv().await {
        failpoint!("task.events");
        match event {
            Event::Exited { sandbox, exited } => exit_seen(&node, &sandbox, &exited),
            Event::Gone { sandbox } => {
                let Ok(sandbox) = node.store.sandbox(&sandbox) else { continue };
                // A stop lets go of its monitor first: that is no loss.
                if sandbox.monitor().is_some() {
                    tokio::spawn(connection_lost(node.clone(), sandbox));
                }
            }
        }
    }
}

/// A connection can be lost while its monitor lives, which drops a runtime that does not read, and a
/// monitor that lives may not answer yet. Only one that is gone ends its pod.
pub(crate) async fn connection_lost(node: Arc<Node>, sandbox: Arc<Sandbox>) {
    // News of connections that this makes in vain is not news of a loss.
    sandbox.set_monitor(None);
    let mut pause = RECONNECT;
    loop {
        failpoint!("task.reconnect");
        match recover::reconnect(&node, &sandbox).await {
            Ok(true) => {
                tracing::warn!(sandbox = sandbox.id, "connected to the monitor again");
                return;
            }
            Ok(false) => {
                tracing::warn!(sandbox = sandbox.id, "the monitor is gone, ending the pod");
                return monitor_gone(node, sandbox).await;
            }
            Err(error) => {
                tracing::warn!(
                    sandbox = sandbox.id,
                    "connecting again: {}",
                    gantry_base::error::chain(&error)
                );
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RECONNECT_AT_MOST);
        if sandbox.state() == SandboxState::NotReady {
            // Stopped: there is no monitor to come back to.
            return;
        }
    }
}

fn exit_seen(node: &Arc<Node>, sandbox: &str, exited: &Exited) {
    if exited.id == sandbox {
        if let Ok(sandbox) = node.store.sandbox(sandbox) {
            lost(node, &sandbox);
        }
        return;
    }
    let Ok(container) = node.store.container(&exited.id) else { return };
    let exit = ExitRecord::seen(exited.exit_code, exited.finished_at_unix_nanos, exited.oom_kills)
        .started(exited.started_at_unix_nanos);
    tracing::info!(container = container.id, code = exit.exit_code, "container ended");
    end(node, &container, &exit);
}

/// What has been heard of something that ran, once it has ended.
const ENDED: [feed::Kind; 2] = [feed::Kind::ContainerStartedEvent, feed::Kind::ContainerStoppedEvent];

/// Moves a sandbox to NotReady. One that nobody knew of yet goes silently.
pub(crate) fn lost(node: &Node, sandbox: &Sandbox) {
    if sandbox.set_state(SandboxState::NotReady) == Some(SandboxState::Ready) {
        for kind in ENDED {
            feed::of_sandbox(node, kind, sandbox);
        }
    }
}

/// Moves a container to Exited; its cgroup goes in the background, after the record is on disk.
pub(crate) fn end(node: &Arc<Node>, container: &Arc<Container>, exit: &ExitRecord) {
    if container.set_state(ContainerState::Exited(Ended::from_exit(exit))) {
        for kind in ENDED {
            feed::of_container(node, kind, container);
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
    let path = container.record().cgroup;
    if let Err(error) = Cgroup::new(&node.layout, &path).and_then(|cgroup| cgroup.remove()) {
        tracing::warn!(cgroup = path, "{}", gantry_base::error::chain(&error));
    }
}

/// Without its monitor nobody writes a pod's logs or sees its exits: the pod is ended. Exit codes come
/// from the records, from the kernel where it keeps them (Linux 6.15), else 255.
pub(crate) async fn monitor_gone(node: Arc<Node>, sandbox: Arc<Sandbox>) {
    sandbox.set_monitor(None);
    // First whoever it had running an OCI runtime: that one would go on, and make anew what is ended here.
    kill(&node, vec![node.monitor_cgroup(&sandbox.id), sandbox.record().pause_cgroup()]).await;
    failpoint!("lost.killed");
    end_rest(&node, &sandbox.id).await;
    failpoint!("lost.ended");
    lost(&node, &sandbox);
    // A start that the monitor had still answered moves its container on, and then looks at the sandbox:
    // it finds it lost, or is found here.
    end_rest(&node, &sandbox.id).await;
}

async fn kill(node: &Node, paths: Vec<String>) {
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
    kill(node, containers.iter().map(|container| container.record().cgroup).collect()).await;
    for container in containers {
        let pidfd = match container.state() {
            ContainerState::Running(pidfd) => Some(pidfd),
            ContainerState::Created if container.record().started.is_some() => None,
            _ => continue,
        };
        let exit = last_words(&container, pidfd.as_deref()).await;
        end(node, &container, &exit);
    }
}

/// Follows a container by its pidfd alone, none when it has ended already, and records its end.
pub(crate) async fn end_by_itself(node: Arc<Node>, container: Arc<Container>, pidfd: Option<Arc<OwnedFd>>) {
    match pidfd.as_ref().map(|pidfd| pidfd.try_clone().and_then(sys::poll::watch)) {
        Some(Ok(watched)) => {
            // Readable once the process has ended; an error of the wait itself is no other answer.
            let _ = watched.readable().await;
        }
        Some(Err(error)) => tracing::warn!(container = container.id, "wait for its end: {error}"),
        None => {}
    }
    // A monitor that can be heard knows better.
    if tokio::time::timeout(REPORT, container.ended()).await.is_ok() {
        return;
    }
    let exit = last_words(&container, pidfd.as_deref()).await;
    end(&node, &container, &exit);
}

/// What the monitor has written of a container's end.
pub(crate) async fn recorded(container: &Container) -> Option<ExitRecord> {
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

pub(crate) async fn last_words(container: &Container, pidfd: Option<&OwnedFd>) -> ExitRecord {
    if let Some(exit) = recorded(container).await {
        return exit;
    }
    let exit = match pidfd {
        Some(pidfd) => from_kernel(pidfd).await.unwrap_or_else(|| ExitRecord::unseen(unix_nanos())),
        None => ExitRecord::unseen(unix_nanos()),
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
async fn from_kernel(pidfd: &OwnedFd) -> Option<ExitRecord> {
    for _ in 0..50 {
        if let Ok(Some(status)) = sys::pidfd::wait_status(pidfd.as_fd()) {
            let code = if status & 0x7f == 0 { status >> 8 & 0xff } else { 128 + (status & 0x7f) };
            return Some(ExitRecord::seen(code, unix_nanos(), 0));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    None
}
