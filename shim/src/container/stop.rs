//! StopContainer and RemoveContainer. Signals go by pidfd from here, never through the monitor: one
//! that is stuck on a bad disk blocks nothing (runtime-traps 2.5). Called by the RPC handlers and
//! `sandbox::stop`.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gantry_failpoint::failpoint;
use gantry_proto::monitor::StartContainer;
use rustix::event::{PollFd, PollFlags, Timespec};

use super::{end, hooks};
use crate::cgroup::Cgroup;
use crate::error::Error;
use crate::handler::program;
use crate::node::Node;
use crate::store::event_order::Kind;
use crate::store::{Container, ContainerState};
use gantry_sys as sys;

/// How long a container has to be gone after SIGKILL, output drained and exit recorded.
const KILL_END: Duration = Duration::from_secs(10);

/// How often a dying process is looked at.
const LOOK: Duration = Duration::from_millis(50);

const SIGKILL: i32 = 9;

/// Asks the container to stop, once in its life as containerd does, and kills it after `grace`. One that does
/// not run is stopped.
///
/// # Errors
/// When it survives SIGKILL.
pub(crate) async fn stop(container: &Container, grace: Duration) -> Result<(), Error> {
    let ContainerState::Running(pidfd) = container.state() else { return Ok(()) };
    if !grace.is_zero() {
        if !container.told_to_stop.swap(true, Ordering::Relaxed) {
            send(container, &pidfd, container.record().stop_signal)
                .inspect_err(|_| container.told_to_stop.store(false, Ordering::Relaxed))?;
        }
        failpoint!("stop.asked"?);
        if tokio::time::timeout(grace, container.wait_for_end()).await.is_ok() {
            return Ok(());
        }
    }
    kill(container).await
}

/// Kills the container and waits for its end.
///
/// # Errors
/// When it survives.
pub(crate) async fn kill(container: &Container) -> Result<(), Error> {
    let ContainerState::Running(pidfd) = container.state() else { return Ok(()) };
    send(container, &pidfd, SIGKILL)?;
    failpoint!("stop.killed"?);
    // Both arms are cancel-safe: they wait for what stays true.
    tokio::select! {
        () = container.wait_for_end() => Ok(()),
        () = wait_dead_unreported(&pidfd) => {
            tracing::warn!(container = container.id, "it is dead, and its monitor does not say so");
            Ok(())
        }
        () = tokio::time::sleep(KILL_END) => {
            Err(Error::Unkillable { id: container.id.clone(), seconds: KILL_END.as_secs() })
        }
    }
}

/// Waits until the process is dead and its monitor has had the time to tell: one that hangs on a bad
/// disk holds up no stop (runtime-traps 2.5).
pub(crate) async fn wait_dead_unreported(pidfd: &OwnedFd) {
    while !is_dead(pidfd) {
        tokio::time::sleep(LOOK).await;
    }
    tokio::time::sleep(end::REPORT).await;
}

/// A pidfd is readable once its process has ended (pidfd_open(2)).
fn is_dead(pidfd: &OwnedFd) -> bool {
    let mut wanted = [PollFd::new(pidfd, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(rustix::event::poll(&mut wanted, Some(&now)), Ok(count) if count > 0)
}

fn send(container: &Container, pidfd: &OwnedFd, signal: i32) -> Result<(), Error> {
    match sys::pidfd::send_signal(pidfd.as_fd(), signal) {
        // Ended meanwhile: what was wanted.
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        result => result.map_err(|source| Error::Process {
            id: container.id.clone(),
            pid: container.record().started.map_or(0, |started| started.process.pid),
            source,
        }),
    }
}

/// Has the OCI runtime that has made the container, where one has, forget it, once it has ended: then its poststop
/// hooks run. What it says changes nothing any more: it is logged, and what is left of it goes with the cgroup and
/// the folder.
pub(crate) async fn forget(container: &Arc<Container>) {
    let _running = container.begin_after_end().await;
    let owned = container.clone();
    let planned = tokio::task::spawn_blocking(move || super::read_planned_start(&owned)).await;
    let Ok(Ok(StartContainer { external: Some(external), .. })) = planned else { return };
    if let Err(error) = program::delete(&external, &container.id).await {
        tracing::warn!(container = container.id, program = external.program, "{error}");
    }
}

/// Removes the container and all it wrote, killing it first if it runs.
///
/// # Errors
/// What could not be removed; the container stays listed then.
pub(crate) async fn remove(node: &Arc<Node>, container: &Arc<Container>) -> Result<(), Error> {
    let _operation = container.begin_operation().await;
    if node.store.container(&container.id).is_err() {
        // The same was asked for before, and is done by now: it is told once.
        return Ok(());
    }
    kill(container).await?;
    if matches!(container.state(), ContainerState::Exited(_)) {
        // Whoever took note of the end may not have told it yet.
        node.container_events.send_container_event(&node.store, Kind::ContainerStoppedEvent, container);
    }
    forget(container).await;
    let (owned, of) = (container.clone(), node.clone());
    tokio::task::spawn_blocking(move || {
        Cgroup::new(&of.layout, &owned.record().cgroup)?.remove()?;
        hooks::poststop(&owned);
        failpoint!("remove.cgroup"?);
        gantry_image::remove::tree(&owned.folder).map_err(|source| Error::Files {
            what: "remove",
            path: owned.folder.clone(),
            source,
        })?;
        failpoint!("remove.container-folder"?);
        of.images.unpin(&owned.id);
        Ok::<(), Error>(())
    })
    .await??;
    failpoint!("remove.unpinned"?);
    node.store.forget_container(&container.id);
    node.container_events.send_container_event(&node.store, Kind::ContainerDeletedEvent, container);
    Ok(())
}
