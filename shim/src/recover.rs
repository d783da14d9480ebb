//! What a starting runtime finds on disk: pods that run on, pods that ended meanwhile, and leftovers
//! of a crash. Owns the decision which is which. Called by `runtime::Runtime::start` before anything
//! is served.

#![expect(
    clippy::disallowed_methods,
    reason = "what an earlier runtime left is ended once, and nobody waits for it"
)]

mod reboot;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use gantry_base::error::chain;
use gantry_failpoint::failpoint;
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

use crate::container::{self, end, process};
use crate::error::Error;
use crate::monitor_client;
use crate::node::Node;
use crate::sandbox::{stop, stuck_monitor};
use crate::store::container::ContainerExit;
use crate::store::record::{self, ContainerRecord, SandboxRecord};
use crate::store::{Container, ContainerState, Sandbox, SandboxState};
use crate::{checkpoint, events, reconnect};
use gantry_base::timeline::unix_nanos;
use gantry_image::trash;
use gantry_monitor::exit;
use gantry_monitor::exit::ExitRecord;

/// How long what earlier lives left may keep this one from serving; the rest is freed beside it.
const LEFTOVERS: Duration = Duration::from_secs(10);

/// Between attempts to undo a sandbox.
const AGAIN: Duration = Duration::from_secs(30);

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
    if let Err(error) = stuck_monitor::resume(node) {
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
            end::free_cgroup(node, &container);
            // Beside the others: nothing says how long they take.
            tokio::task::spawn_blocking(move || end::hooks_after(&container));
        }
    }
}

/// What became of one sandbox that ran when its record was written.
async fn find(node: Arc<Node>, sandbox: Arc<Sandbox>) {
    if sandbox.state() != SandboxState::Starting {
        return;
    }
    let complete = sandbox.record().complete;
    match reconnect::reconnect(&node, &sandbox).await {
        Ok(true) if complete => {
            sandbox.set_state(SandboxState::Ready);
        }
        Ok(_) => events::handle_monitor_loss(node, sandbox).await,
        Err(Error::Monitor(error @ monitor_client::Error::Version { .. })) => {
            tracing::error!("listing the sandbox as not ready: {error}");
            reconnect::hold_without_monitor(&node, &sandbox, SandboxState::NotReady).await;
        }
        Err(error) => {
            tracing::error!(sandbox = sandbox.id, "serving without its monitor: {}", chain(&error));
            let pause = sandbox.record().pause.is_some_and(|pause| process::open(pause).is_ok());
            let state = if complete && pause { SandboxState::Ready } else { SandboxState::NotReady };
            reconnect::hold_without_monitor(&node, &sandbox, state).await;
            if state == SandboxState::Ready {
                tokio::spawn(events::handle_connection_loss(node, sandbox));
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
        let name = record.pod.reserved_name();
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
        let name = container::reserved_name(&record.name, record.attempt, &record.sandbox_id);
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
        Err(exit::Error::Parse { .. }) if node.first_start_of_boot => Some(ExitRecord::unknown(unix_nanos())),
        exit => exit?,
    };
    if let Some(exit) = exit {
        return Ok(ContainerState::Exited(ContainerExit::from_exit(&exit)));
    }
    if record.boot_id != node.boot_id && record.started.is_some() {
        let exit = ExitRecord::unknown(unix_nanos());
        // Or its end would be another at every start, as it is while the disk is full.
        if let Err(error) = exit.write(folder) {
            tracing::warn!(container = record.id, "{}", chain(&error));
        }
        return Ok(ContainerState::Exited(ContainerExit::from_exit(&exit)));
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
