//! StopPodSandbox and RemovePodSandbox, and the undoing of a run that failed: containers, pause,
//! monitor, network, cgroups, in that order. Idempotent, goes on past errors, returns the first and
//! logs the rest. Called by the RPC handlers, `sandbox::run` and recovery.

use std::sync::Arc;
use std::time::Duration;

use gantry_base::error::chain;
use gantry_failpoint::failpoint;
use rustix::process::Signal;

use super::{monitor_launch, network, scope};
use crate::cgroup::Cgroup;
use crate::container::{self, end, process};
use crate::error::Error;
use crate::node::Node;
use crate::store::event_order::Kind;
use crate::store::record::SandboxRecord;
use crate::store::{Sandbox, SandboxState};

/// How long pause has to end after SIGKILL.
const PAUSE_END: Duration = Duration::from_secs(5);

/// How long a monitor without processes has to end.
const MONITOR_END: Duration = Duration::from_secs(2);

/// Keeps the first error, logs every later one.
#[derive(Default)]
struct FirstError(Option<Error>);

impl FirstError {
    fn push(&mut self, result: Result<(), Error>) {
        match (result, &self.0) {
            (Err(error), None) => self.0 = Some(error),
            (Err(error), Some(_)) => tracing::warn!("while tearing down: {}", chain(&error)),
            (Ok(()), _) => {}
        }
    }

    fn into_result(self) -> Result<(), Error> {
        self.0.map_or(Ok(()), Err)
    }
}

/// Stops everything of the sandbox; its record and its containers' records stay.
///
/// # Errors
/// What could not be stopped or freed; a retry goes on from there.
pub(crate) async fn stop(node: &Arc<Node>, sandbox: &Arc<Sandbox>) -> Result<(), Error> {
    let _operation = sandbox.begin_operation().await;
    teardown(node, sandbox).await
}

/// Stops the sandbox, removes its containers and itself.
///
/// # Errors
/// As `stop`; the sandbox stays listed then.
pub(crate) async fn remove(node: &Arc<Node>, sandbox: &Arc<Sandbox>) -> Result<(), Error> {
    let _operation = sandbox.begin_operation().await;
    teardown_and_forget(node, sandbox).await
}

/// `remove` for a caller that holds the operation.
pub(super) async fn teardown_and_forget(node: &Arc<Node>, sandbox: &Arc<Sandbox>) -> Result<(), Error> {
    if node.store.sandbox(&sandbox.id).is_err() {
        // The same was asked for before, and is done by now: it is told once.
        return Ok(());
    }
    teardown(node, sandbox).await?;
    for container in node.store.containers_of(&sandbox.id) {
        container::stop::remove(node, &container).await?;
    }
    failpoint!("remove.containers"?);
    let folder = sandbox.folder.clone();
    tokio::task::spawn_blocking(move || {
        gantry_image::remove::tree(&folder).map_err(|source| Error::Files {
            what: "remove",
            path: folder,
            source,
        })
    })
    .await??;
    failpoint!("remove.folder"?);
    if sandbox.record().complete {
        // While it can still be found: the event shows its last status.
        node.container_events.send_sandbox_event(&node.store, Kind::ContainerDeletedEvent, sandbox);
    }
    node.store.forget_sandbox(&sandbox.id);
    Ok(())
}

async fn teardown(node: &Arc<Node>, sandbox: &Arc<Sandbox>) -> Result<(), Error> {
    let record = sandbox.record();
    if record.stopped && node.store.containers_of(&sandbox.id).iter().all(|container| container.is_final()) {
        return Ok(());
    }
    let mut errors = FirstError::default();
    for container in node.store.containers_of(&sandbox.id) {
        errors.push(container::stop::kill(&container).await);
    }
    failpoint!("stop.containers"?);
    errors.push(end_pause(sandbox).await);
    failpoint!("stop.pause"?);
    if let Some(client) = sandbox.monitor() {
        // Let go first: the end of this monitor is no loss of a pod.
        sandbox.set_monitor(None);
        // One that hangs on a bad disk is killed with its cgroup below.
        match tokio::time::timeout(MONITOR_END, client.shut_down()).await {
            Ok(result) => errors.push(result.map_err(Error::from)),
            Err(_) => tracing::warn!(sandbox = sandbox.id, "the monitor does not answer, killing it"),
        }
    }
    failpoint!("stop.monitor"?);
    mark_lost(node, sandbox);
    if let Some(network) = record.network.clone() {
        let is_whole = network.result.is_some();
        match network::remove(node, &sandbox.id, network).await {
            // As containerd: a plugin that could not add may not know what to take away, and the pod waits for its
            // next attempt.
            Err(error @ Error::Network(_)) if !is_whole => {
                tracing::warn!(sandbox = sandbox.id, "{}", gantry_base::error::chain(&error));
            }
            result => errors.push(result),
        }
    }
    failpoint!("stop.network"?);
    // As it is by now: the run that is undone may have found its scope taken.
    let (owned, record) = (node.clone(), sandbox.record());
    errors.push(tokio::task::spawn_blocking(move || end_cgroups(&owned, &record)).await?);
    failpoint!("stop.cgroups"?);
    // Whatever nobody saw ending, say one that was being started: its monitor is gone, so is it.
    end::end_rest(node, &sandbox.id).await;
    let folder = sandbox.folder.clone();
    // Not on a thread that serves others: the disk may hang.
    let there = tokio::task::spawn_blocking(move || folder.exists()).await?;
    if errors.0.is_none() && there {
        errors.push(sandbox.update(|record| record.stopped = true).await.map_err(Error::from));
    }
    failpoint!("stop.recorded"?);
    errors.into_result()
}

/// Moves a sandbox to NotReady. One that nobody knew of yet goes silently.
pub(crate) fn mark_lost(node: &Node, sandbox: &Sandbox) {
    if sandbox.set_state(SandboxState::NotReady) == Some(SandboxState::Ready) {
        for kind in end::ENDED {
            node.container_events.send_sandbox_event(&node.store, kind, sandbox);
        }
    }
}

/// The monitor's, pause's, the pod's own, and its scope with what is left in it. Blocks.
fn end_cgroups(node: &Node, record: &SandboxRecord) -> Result<(), Error> {
    let mut errors = FirstError::default();
    errors.push(monitor_launch::clean_up(node, &record.id));
    if record.scope.as_ref().is_some_and(|scope| scope.is_anothers) {
        return errors.into_result();
    }
    let parent = record.owns_cgroup_parent.then(|| record.cgroup_parent.clone());
    for path in [Some(record.pause_cgroup()), parent].into_iter().flatten() {
        let removed = Cgroup::new(&node.layout, &path).and_then(|cgroup| cgroup.remove());
        errors.push(removed.map_err(Error::from));
    }
    // Of another boot: its units are gone with it.
    if let Some(scope) = record.scope.as_ref().filter(|_| record.boot_id == node.boot_id) {
        errors.push(scope::close(&node.layout, scope));
    }
    errors.into_result()
}

/// Pause has nothing to save: SIGKILL, by its pidfd, and a bounded wait for the monitor to see it.
async fn end_pause(sandbox: &Sandbox) -> Result<(), Error> {
    let Some(process) = sandbox.record().pause else { return Ok(()) };
    if sandbox.state() == SandboxState::NotReady && sandbox.monitor().is_none() {
        return Ok(());
    }
    let Ok(pidfd) = process::open(process) else { return Ok(()) };
    match rustix::process::pidfd_send_signal(&pidfd, Signal::KILL) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => {}
        Err(error) => {
            return Err(Error::Process { id: sandbox.id.clone(), pid: process.pid, source: error.into() });
        }
    }
    // Every arm is cancel-safe: they wait for what stays true.
    tokio::select! {
        () = sandbox.wait_lost() => Ok(()),
        () = container::stop::wait_dead_unreported(&pidfd) => Ok(()),
        () = tokio::time::sleep(PAUSE_END) => {
            Err(Error::Unkillable { id: sandbox.id.clone(), seconds: PAUSE_END.as_secs() })
        }
    }
}
