//! CheckpointContainer: criu writes what a container is into files, the container goes on, and all of it ends up in
//! one archive of the form that containerd, podman and checkpointctl know. Owns the order, the work folder and that no
//! container stays frozen. `plan` and `documents` decide, `criu`, `process`, `writable` and `archive` do, `error::checkpoint` tells.
//! There is no restore (docs/adr/0032). Called by the RPC handler in a task of its own, and at a start of the runtime.

mod archive;
mod criu;
mod documents;
mod job;
mod plan;
mod process;
mod writable;

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use gantry_base::error::chain;
use gantry_proto::cri;

use job::CheckpointJob;

use crate::cgroup::Cgroup;
use crate::error::Error as Failed;
use crate::error::checkpoint::{Error, file};
use crate::node::Node;
use crate::store::{Container, ContainerState};
use gantry_image::remove;

/// Below the container's folder, for as long as a checkpoint is being made. What it is called in it is what it is
/// called in the archive.
const WORK: &str = "checkpoint";

/// For callers who say no timeout: some end there must be, the container is stopped meanwhile.
const UNSAID: Duration = Duration::from_secs(600);

/// Writes a checkpoint of a running container, which goes on running.
///
/// # Errors
/// Why not. Nothing is left of the attempt but criu's log.
pub(crate) async fn checkpoint(
    node: Arc<Node>,
    request: cri::CheckpointContainerRequest,
) -> Result<(), Failed> {
    // First of all, as containerd.
    let criu = criu::find().await;
    let criu = criu.map_err(|source| Error::Criu { id: request.container_id.clone(), source })?;
    let container = node.store.container(&request.container_id)?;
    let location = archive::location(&request.location)?;
    let time = match u64::try_from(request.timeout) {
        Ok(0) => UNSAID,
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => return Err(Error::Timeout(request.timeout).into()),
    };
    // Whoever removes or updates it waits; whoever stops it does not.
    let _operation = container.begin_operation().await;
    if !matches!(container.state(), ContainerState::Running(_)) {
        return Err(Error::NotRunning { id: container.id.clone(), state: container.cri_state() }.into());
    }
    let sandbox = node.store.sandbox(&container.sandbox_id)?.record();
    let work = container.folder.join(WORK);
    let made = CheckpointJob {
        node,
        criu,
        container: container.clone(),
        sandbox,
        work: work.clone(),
        location,
        time,
    }
    .make()
    .await;
    let removed =
        tokio::task::spawn_blocking(move || remove::tree(&work).map_err(file("remove", &work))).await?;
    made.and(removed.map_err(Into::into))
}

/// What an end of the runtime in the midst of a checkpoint has left: a work folder, and perhaps a container that
/// nobody thaws. criu, where it still runs, holds the processes by other means.
pub(crate) fn settle(node: &Node) {
    for container in node.store.containers() {
        let work = container.folder.join(WORK);
        if fs::symlink_metadata(&work).is_err() {
            continue;
        }
        tracing::warn!(container = container.id, "a checkpoint of it was interrupted");
        thaw(node, &container);
        if let Err(error) = remove::tree(&work) {
            tracing::warn!(folder = %work.display(), "cannot remove the work folder: {error}");
        }
    }
}

fn thaw(node: &Node, container: &Container) {
    let thawed = Cgroup::new(&node.layout, &container.record().cgroup).and_then(|cgroup| cgroup.thaw());
    if let Err(error) = thawed
        && !container.is_final()
    {
        tracing::error!(container = container.id, "it may be frozen: {}", chain(&error));
    }
}
