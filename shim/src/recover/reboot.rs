//! What an earlier boot left: nothing of it runs, and nobody has told the network (runtime-traps 7.1).
//! Owns what is freed at once; records stay until the caller of CRI removes them. Called by
//! `recover::run`.

#![expect(
    clippy::disallowed_methods,
    reason = "what an earlier boot left is collected once, and nobody waits for it"
)]

use std::path::PathBuf;
use std::sync::Arc;

use gantry_base::error::chain;
use gantry_failpoint::failpoint;
use tokio::task::JoinSet;

use crate::error::Error;
use crate::node::Node;
use crate::sandbox::network;
use crate::store::{Container, Sandbox};

/// Folders that only a container's processes needed.
const WRITTEN: [&str; 4] = ["upper", "work", "root", "empty"];

/// Frees addresses of pods, each in a task of its own: a DEL may take two minutes, and the node has other
/// pods to serve. Starts to delete what their containers wrote.
pub(super) fn settle(node: &Arc<Node>) -> JoinSet<()> {
    for container in node.store.containers() {
        if container.record().boot_id != node.boot_id {
            tokio::spawn(collect(container));
        }
    }
    let mut releases = JoinSet::new();
    for sandbox in node.store.sandboxes() {
        let record = sandbox.record();
        if record.boot_id != node.boot_id && record.complete {
            let node = node.clone();
            releases.spawn(async move {
                if let Err(error) = release(&node, &sandbox).await {
                    // StopPodSandbox tries again, and tells its caller.
                    tracing::warn!(sandbox = sandbox.id, "after a reboot: {}", chain(&error));
                }
            });
        }
    }
    releases
}

/// CNI DEL with the conflist of ADD. The namespace went with the boot: plugins are told so by an empty
/// path, and free what they hold outside of it.
async fn release(node: &Arc<Node>, sandbox: &Arc<Sandbox>) -> Result<(), Error> {
    // Stop and remove do the same.
    let _operation = sandbox.begin_operation().await;
    let Some(mut attached) = sandbox.record().network.clone() else { return Ok(()) };
    let path = attached.netns.clone();
    if gantry_cni::netns::open(&path).is_err() {
        attached.netns = PathBuf::new();
    }
    network::remove(node, &sandbox.id, attached).await?;
    tokio::task::spawn_blocking(move || gantry_cni::netns::remove(&path)).await?.map_err(Error::Netns)?;
    failpoint!("reboot.freed"?);
    sandbox.update(|record| record.network = None).await?;
    tracing::info!(sandbox = sandbox.id, "freed the network of a pod of an earlier boot");
    Ok(())
}

/// An upper is never mounted twice (runtime-traps P5, 7.5).
async fn collect(container: Arc<Container>) {
    // RemoveContainer deletes the same.
    let _operation = container.begin_operation().await;
    let folder = container.folder.clone();
    let job = move || {
        for path in WRITTEN.map(|name| folder.join(name)) {
            if let Err(error) = gantry_image::remove::tree(&path) {
                tracing::warn!(folder = %path.display(), "after a reboot: {error}");
            }
        }
    };
    if tokio::task::spawn_blocking(job).await.is_err() {
        tracing::error!(
            container = container.id,
            "stopped deleting what an earlier boot left: its task has died"
        );
    }
}
