//! What a starting runtime finds on disk: pods that run on, pods that ended meanwhile, and leftovers
//! of a crash. Owns the decision which is which. Called by `runtime::Runtime::start` before anything
//! is served.

mod reboot;

use std::fs;
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gantry_base::error::chain;
use gantry_base::failpoint;
use rustix::process::{Pid, PidfdFlags};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

use crate::error::Error;
use crate::exit::ExitRecord;
use crate::monitor_client::{self, MonitorClient};
use crate::node::Node;
use crate::sandbox::{launch, stop, stuck};
use crate::store::container::Ended;
use crate::store::record::{self, ContainerRecord, Process, SandboxRecord};
use crate::store::{Container, ContainerState, Sandbox, SandboxState};
use crate::timeline::unix_nanos;
use crate::{checkpoint, container, events, exit, ooms, sys, trash};

/// How long a monitor may take to answer. One that writes to a slow disk answers later, and is asked
/// again in the background.
const GREETING: Duration = Duration::from_secs(5);

/// How long what earlier lives left may keep this one from serving; the rest is freed beside it.
const LEFTOVERS: Duration = Duration::from_secs(10);

/// Between attempts to undo a sandbox.
const AGAIN: Duration = Duration::from_secs(30);

/// How often an exit record is looked for.
const LOOK: Duration = Duration::from_millis(20);

const SIGKILL: i32 = 9;

/// From this protocol on a container may go on as another process than the one that its monitor has cloned. Before,
/// a start could not be asked for twice.
const MOVES: u32 = 3;

/// Loads every record, reconnects to monitors, and undoes what never became a sandbox. What is wrong
/// with one pod keeps no other from being served, but for a mistake in this program: a panic ends the process,
/// as everywhere.
///
/// # Errors
/// A record that can't be read: serving without it would let the kubelet start a twin.
pub(crate) async fn run(node: &Arc<Node>) -> Result<(), Error> {
    let owned = Arc::clone(node);
    tokio::task::spawn_blocking(move || load(&owned)).await??;
    failpoint!("recover.loaded");
    if let Err(error) = stuck::resume(node) {
        tracing::warn!("look for monitors that hung: {error}");
    }
    let mut found = JoinSet::new();
    for sandbox in node.store.sandboxes() {
        found.spawn(find(node.clone(), sandbox));
    }
    while let Some(ended) = found.join_next().await {
        ended?;
    }
    failpoint!("recover.found");
    let mut leftovers = reboot::settle(node);
    let owned = Arc::clone(node);
    leftovers.spawn_blocking(move || end_stragglers(&owned));
    let owned = Arc::clone(node);
    leftovers.spawn_blocking(move || checkpoint::settle(&owned));
    for sandbox in node.store.sandboxes().into_iter().filter(|sandbox| !sandbox.record().complete) {
        leftovers.spawn(undo(node.clone(), sandbox));
    }
    let all = async { while leftovers.join_next().await.is_some() {} };
    if tokio::time::timeout(LEFTOVERS, all).await.is_err() {
        tracing::warn!("serving while {} leftovers of earlier lives are being freed", leftovers.len());
    }
    leftovers.detach_all();
    failpoint!("recover.done");
    Ok(())
}

/// Containers that ended while nobody was there to be told: what their first processes left running in a
/// pid namespace that is not their own must not stand in the way of the next attempt, and their poststop hooks
/// are due.
fn end_stragglers(node: &Node) {
    for container in node.store.containers() {
        if matches!(container.state(), ContainerState::Exited(_))
            && container.record().boot_id == node.boot_id
        {
            events::free_cgroup(node, &container);
            // Beside the others: nothing says how long they take.
            tokio::task::spawn_blocking(move || events::hooks_after(&container));
        }
    }
}

/// What became of one sandbox that ran when its record was written.
async fn find(node: Arc<Node>, sandbox: Arc<Sandbox>) {
    if sandbox.state() != SandboxState::Starting {
        return;
    }
    let complete = sandbox.record().complete;
    match reconnect(&node, &sandbox).await {
        Ok(true) if complete => {
            sandbox.set_state(SandboxState::Ready);
        }
        Ok(_) => events::monitor_gone(node, sandbox).await,
        Err(Error::Monitor(error @ monitor_client::Error::Version { .. })) => {
            tracing::error!("listing the sandbox as not ready: {error}");
            hold_without_monitor(&node, &sandbox, SandboxState::NotReady).await;
        }
        Err(error) => {
            tracing::error!(sandbox = sandbox.id, "serving without its monitor: {}", chain(&error));
            let pause = sandbox.record().pause.is_some_and(|pause| open(pause).is_ok());
            let state = if complete && pause { SandboxState::Ready } else { SandboxState::NotReady };
            hold_without_monitor(&node, &sandbox, state).await;
            if state == SandboxState::Ready {
                tokio::spawn(events::connection_lost(node, sandbox));
            }
        }
    }
}

/// Its caller never learned the id, so maybe nobody else will clean up. When that fails the sandbox is
/// listed as not ready, and this goes on in the background until it is done, or somebody removes it.
async fn undo(node: Arc<Node>, sandbox: Arc<Sandbox>) {
    tracing::warn!(sandbox = sandbox.id, "undoing a sandbox that was never finished");
    let Err(error) = stop::remove(&node, &sandbox).await else { return };
    tracing::warn!(sandbox = sandbox.id, "undoing it again later: {}", chain(&error));
    sandbox.set_state(SandboxState::NotReady);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(AGAIN).await;
            if node.store.sandbox(&sandbox.id).is_err() {
                return;
            }
            match stop::remove(&node, &sandbox).await {
                Ok(()) => return,
                Err(error) => tracing::warn!(sandbox = sandbox.id, "undoing it: {}", chain(&error)),
            }
        }
    });
}

fn load(node: &Arc<Node>) -> Result<(), Error> {
    for folder in folders(&node.config.root.join("sandboxes"))? {
        let Some(record) = read::<SandboxRecord>(node, &folder)? else {
            drop_leftover(node, &folder);
            continue;
        };
        let live = record.boot_id == node.boot_id && !record.stopped;
        let state = if live { SandboxState::Starting } else { SandboxState::NotReady };
        let name = record.pod.reserved();
        node.store.names.restore("sandbox", &name, &record.id, &record.request)?;
        node.store.add_sandbox(Arc::new(Sandbox::new(record, folder, state)));
    }
    for folder in folders(&node.config.root.join("containers"))? {
        let record = match read::<ContainerRecord>(node, &folder)? {
            Some(record) if node.store.sandbox(&record.sandbox_id).is_ok() => record,
            _ => {
                drop_leftover(node, &folder);
                continue;
            }
        };
        let state = state_on_disk(node, &folder, &record)?;
        let name = container::reserved(&record.name, record.attempt, &record.sandbox_id);
        node.store.names.restore("container", &name, &record.id, &record.request)?;
        node.store.add_container(Arc::new(Container::new(record, folder, state)));
    }
    if let Err(error) = trash::empty(&node.trash()) {
        tracing::warn!(folder = %node.trash().display(), "what nobody needs stays: {error}");
    }
    Ok(())
}

/// A record that does not parse stops the start, unless the machine has been restarted since: then a
/// power cut may have emptied it (records are not synced), and nothing of it can run any more.
fn read<T: DeserializeOwned>(node: &Node, folder: &Path) -> Result<Option<T>, Error> {
    match record::read(folder) {
        Err(error @ record::Error::Parse { .. }) if node.first_start_of_boot => {
            tracing::warn!("{}", chain(&error));
            Ok(None)
        }
        result => Ok(result?),
    }
}

fn state_on_disk(node: &Node, folder: &Path, record: &ContainerRecord) -> Result<ContainerState, Error> {
    if let Some(failure) = &record.start_failure {
        return Ok(ContainerState::Exited(container::start_error(failure)));
    }
    let exit = match ExitRecord::read(folder) {
        // As for records: cut off by a power cut.
        Err(exit::Error::Parse { .. }) if node.first_start_of_boot => Some(ExitRecord::unseen(unix_nanos())),
        exit => exit?,
    };
    if let Some(exit) = exit {
        return Ok(ContainerState::Exited(Ended::from_exit(&exit)));
    }
    if record.boot_id != node.boot_id && record.started.is_some() {
        let exit = ExitRecord::unseen(unix_nanos());
        // Or its end would be another at every start, as it is while the disk is full.
        if let Err(error) = exit.write(folder) {
            tracing::warn!(container = record.id, "{}", chain(&error));
        }
        return Ok(ContainerState::Exited(Ended::from_exit(&exit)));
    }
    Ok(ContainerState::Created)
}

fn folders(of: &Path) -> Result<Vec<std::path::PathBuf>, Error> {
    let wrap = |source| Error::Files { what: "list", path: of.to_owned(), source };
    fs::read_dir(of).map_err(wrap)?.map(|entry| entry.map(|entry| entry.path()).map_err(wrap)).collect()
}

/// A crash between folder and record, in whichever direction: nothing runs from it. It may hold what the
/// container wrote, and is deleted in the background. One that can't be moved costs its space until the
/// next start.
fn drop_leftover(node: &Node, folder: &Path) {
    tracing::warn!(folder = %folder.display(), "removing a folder without a record");
    if let Err(error) = trash::take(folder, &node.trash()) {
        tracing::warn!(folder = %folder.display(), "it stays: {error}");
    }
}

/// Connects to the monitor and takes its word on what runs; false when there is no monitor, or it
/// holds no pause.
///
/// # Errors
/// When a monitor is there and can't be talked to: its pod must not be ended for that.
pub(crate) async fn reconnect(node: &Arc<Node>, sandbox: &Arc<Sandbox>) -> Result<bool, Error> {
    let stream = match launch::reconnect(node, &sandbox.id).await {
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
            if let Ok(pidfd) = open(process) {
                // It has ended: what was wanted.
                let _ = sys::pidfd::send_signal(pidfd.as_fd(), SIGKILL);
            }
            continue;
        }
        if container.record().started.is_none() && welcome.protocol_version >= MOVES {
            tokio::spawn(container::start::resume(node.clone(), sandbox.clone(), container));
            continue;
        }
        if container.record().started.is_none() {
            // The start's answer was lost with the last runtime.
            if let Err(error) = container.update(|record| record.started = Some(started)).await {
                tracing::warn!(container = container.id, "{}", chain(&error));
            }
        }
        if let Ok(pidfd) = open(process) {
            container.set_state(ContainerState::Running(Arc::new(pidfd)));
            ooms::follow(node, &container, None);
        }
    }
    let is_held = |id: &str| welcome.running.iter().any(|running| running.id == id);
    settle(node, sandbox, is_held).await;
    follow_unheld(node, sandbox, is_held);
    Ok(is_held(&sandbox.id))
}

/// The monitor speaks a protocol of the future, after a downgrade say, or does not answer. To leave the
/// pod out would let the kubelet start a twin beside it; to refuse to serve would take every other pod
/// along (runtime-traps 7.3). So it is listed, runs on, and can be stopped, by signals and cgroups alone.
/// The monitor goes on writing logs and exit records. Ready is a pod whose monitor may answer yet: a slow
/// disk is no reason to have it killed.
async fn hold_without_monitor(node: &Arc<Node>, sandbox: &Sandbox, state: SandboxState) {
    sandbox.set_state(state);
    for container in node.store.containers_of(&sandbox.id) {
        let Some(started) = container.record().started else { continue };
        if let (ContainerState::Created, Ok(pidfd)) = (container.state(), open(started.process)) {
            let pidfd = Arc::new(pidfd);
            container.set_state(ContainerState::Running(pidfd.clone()));
            ooms::follow(node, &container, None);
            tokio::spawn(events::end_by_itself(node.clone(), container, Some(pidfd)));
        }
    }
    // Whatever has ended, the monitor may not have said its last word of it.
    settle(node, sandbox, |_| true).await;
}

/// Containers that ended while nobody listened: the monitor, which tells each end once, holds them no
/// more.
fn follow_unheld(node: &Arc<Node>, sandbox: &Sandbox, is_held: impl Fn(&str) -> bool) {
    for container in node.store.containers_of(&sandbox.id) {
        if let ContainerState::Running(pidfd) = container.state()
            && !is_held(&container.id)
        {
            tokio::spawn(events::end_by_itself(node.clone(), container, Some(pidfd)));
        }
    }
}

/// Containers that had started and whose process is gone. Of one that the monitor holds no more the exit
/// is on disk. One that it holds is drained of its output first, two seconds at most, and its exit is
/// waited for: nobody shall see it as never started, and its code is not unknown. An end that comes later
/// still, from a monitor that hangs, say, or over the connection because the disk is full, is followed.
async fn settle(node: &Arc<Node>, sandbox: &Sandbox, is_held: impl Fn(&str) -> bool) {
    let deadline = Instant::now() + events::REPORT;
    for container in node.store.containers_of(&sandbox.id) {
        if !matches!(container.state(), ContainerState::Created) || container.record().started.is_none() {
            continue;
        }
        let held = is_held(&container.id);
        let mut exit = events::recorded(&container).await;
        while held && exit.is_none() && Instant::now() < deadline {
            tokio::time::sleep(LOOK).await;
            exit = events::recorded(&container).await;
        }
        match exit {
            Some(exit) => events::end(node, &container, &exit),
            None if held => drop(tokio::spawn(events::end_by_itself(node.clone(), container, None))),
            None => {
                let exit = events::last_words(&container, None).await;
                events::end(node, &container, &exit);
            }
        }
    }
}

/// A pidfd of exactly this process: the pid may have been given to another since.
///
/// # Errors
/// `ESRCH` when the process is gone.
pub(crate) fn open(process: Process) -> std::io::Result<OwnedFd> {
    let pid = Pid::from_raw(process.pid).ok_or(rustix::io::Errno::SRCH)?;
    let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
    let ticks = crate::monitor::start_time_ticks(process.pid).map_err(|error| error.source)?;
    if ticks == process.start_time_ticks { Ok(pidfd) } else { Err(rustix::io::Errno::SRCH.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rt_7_4_a_pid_that_was_given_to_another_is_not_the_process() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let ticks = crate::monitor::start_time_ticks(pid).unwrap();
        assert!(open(Process { pid, start_time_ticks: ticks }).is_ok());
        let other = open(Process { pid, start_time_ticks: ticks - 1 }).unwrap_err();
        assert_eq!(other.raw_os_error(), Some(libc::ESRCH));
    }
}
