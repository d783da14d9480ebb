//! A monitor that this runtime is not connected to: at a start, and after a connection was lost. Owns what its word
//! makes of the pod's containers, and what becomes of a pod whose monitor does not answer. Called by `recover` and `events`.

#![expect(
    clippy::disallowed_methods,
    reason = "what a dead monitor left is followed to its end, and nobody waits for it"
)]

use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gantry_base::error::chain;
use gantry_failpoint::failpoint;

use crate::container::{end, process, start};
use crate::error::Error;
use crate::monitor_client::{self, MonitorClient};
use crate::node::Node;
use crate::oom_counts;
use crate::sandbox::monitor_launch;
use crate::store::{ContainerState, Sandbox, SandboxState, record};
use gantry_sys as sys;

/// How long a monitor may take to answer. One that writes to a slow disk answers later, and is asked
/// again in the background.
const GREETING: Duration = Duration::from_secs(5);

/// How often an exit record is looked for.
const LOOK: Duration = Duration::from_millis(20);

const SIGKILL: i32 = 9;

/// From this protocol on a container may go on as another process than the one that its monitor has cloned. Before,
/// a start could not be asked for twice.
const MOVES: u32 = 3;

/// Connects to the monitor and takes its word on what runs; false when there is no monitor, or it
/// holds no pause.
///
/// # Errors
/// When a monitor is there and can't be talked to: its pod must not be ended for that.
pub(crate) async fn reconnect(node: &Arc<Node>, sandbox: &Arc<Sandbox>) -> Result<bool, Error> {
    let stream = match monitor_launch::reconnect(node, &sandbox.id).await {
        Ok(stream) => stream,
        Err(error) if matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound) => {
            return Ok(false);
        }
        Err(source) => {
            return Err(Error::Files {
                what: "connect to the monitor of",
                path: sandbox.folder.clone(),
                source,
            });
        }
    };
    let greeting = MonitorClient::connect(stream, &sandbox.id, node.events.clone());
    let (client, welcome) = match tokio::time::timeout(GREETING, greeting).await {
        Ok(Ok(connected)) => connected,
        // It ended while it was greeted.
        Ok(Err(monitor_client::Error::Gone { .. })) => return Ok(false),
        Ok(Err(error)) => return Err(error.into()),
        Err(_) => return Err(Error::MonitorStuck { id: sandbox.id.clone(), seconds: GREETING.as_secs() }),
    };
    failpoint!("recover.greeted");
    sandbox.set_monitor(Some(client));
    for running in &welcome.running {
        let Ok(container) = node.store.container(&running.id) else { continue };
        let started = record::Started::of(running);
        let process = started.process;
        if container.record().start_failure.is_some() {
            // Its caller was told that it did not start, and starts another one.
            if let Ok(pidfd) = process::open(process) {
                // It has ended: what was wanted.
                let _ = sys::pidfd::send_signal(pidfd.as_fd(), SIGKILL);
            }
            continue;
        }
        if container.record().started.is_none() && welcome.protocol_version >= MOVES {
            tokio::spawn(start::resume(node.clone(), sandbox.clone(), container));
            continue;
        }
        if container.record().started.is_none() {
            // The start's answer was lost with the last runtime.
            if let Err(error) = container.update(|record| record.started = Some(started)).await {
                tracing::warn!(container = container.id, "{}", chain(&error));
            }
        }
        if let Ok(pidfd) = process::open(process) {
            container.set_state(ContainerState::Running(Arc::new(pidfd)));
            oom_counts::watch_container(node, &container, None);
        }
    }
    let is_held = |id: &str| welcome.running.iter().any(|running| running.id == id);
    settle(node, sandbox, is_held).await;
    follow_unreported(node, sandbox, is_held);
    Ok(is_held(&sandbox.id))
}

/// The monitor speaks a protocol of the future, after a downgrade say, or does not answer. To leave the
/// pod out would let the kubelet start a twin beside it; to refuse to serve would take every other pod
/// along (runtime-traps 7.3). So it is listed, runs on, and can be stopped, by signals and cgroups alone.
/// The monitor goes on writing logs and exit records. Ready is a pod whose monitor may answer yet: a slow
/// disk is no reason to have it killed.
pub(crate) async fn hold_without_monitor(node: &Arc<Node>, sandbox: &Sandbox, state: SandboxState) {
    sandbox.set_state(state);
    for container in node.store.containers_of(&sandbox.id) {
        let Some(started) = container.record().started else { continue };
        if let (ContainerState::Created, Ok(pidfd)) = (container.state(), process::open(started.process)) {
            let pidfd = Arc::new(pidfd);
            container.set_state(ContainerState::Running(pidfd.clone()));
            oom_counts::watch_container(node, &container, None);
            tokio::spawn(end::end_by_itself(node.clone(), container, Some(pidfd)));
        }
    }
    // Whatever has ended, the monitor may not have said its last word of it.
    settle(node, sandbox, |_| true).await;
}

/// Containers that ended while nobody listened: the monitor, which tells each end once, holds them no
/// more.
fn follow_unreported(node: &Arc<Node>, sandbox: &Sandbox, is_held: impl Fn(&str) -> bool) {
    for container in node.store.containers_of(&sandbox.id) {
        if let ContainerState::Running(pidfd) = container.state()
            && !is_held(&container.id)
        {
            tokio::spawn(end::end_by_itself(node.clone(), container, Some(pidfd)));
        }
    }
}

/// Containers that had started and whose process is gone. Of one that the monitor holds no more the exit
/// is on disk. One that it holds is drained of its output first, two seconds at most, and its exit is
/// waited for: nobody shall see it as never started, and its code is not unknown. An end that comes later
/// still, from a monitor that hangs, say, or over the connection because the disk is full, is followed.
async fn settle(node: &Arc<Node>, sandbox: &Sandbox, is_held: impl Fn(&str) -> bool) {
    let deadline = Instant::now() + end::REPORT;
    for container in node.store.containers_of(&sandbox.id) {
        if !matches!(container.state(), ContainerState::Created) || container.record().started.is_none() {
            continue;
        }
        let held = is_held(&container.id);
        let mut exit = end::read_exit_record(&container).await;
        while held && exit.is_none() && Instant::now() < deadline {
            tokio::time::sleep(LOOK).await;
            exit = end::read_exit_record(&container).await;
        }
        match exit {
            Some(exit) => end::end(node, &container, &exit),
            None if held => drop(tokio::spawn(end::end_by_itself(node.clone(), container, None))),
            None => {
                let exit = end::determine_exit(&container, None).await;
                end::end(node, &container, &exit);
            }
        }
    }
}
