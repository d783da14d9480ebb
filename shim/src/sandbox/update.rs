//! UpdatePodSandboxResources. A pod cgroup that the caller named is the caller's to limit, as under
//! containerd; one that we made is ours. Called by the RPC handler, in a task of its own.

use std::sync::Arc;

use gantry_proto::cri::LinuxContainerResources;

use crate::cgroup::Cgroup;
use crate::error::Error;
use crate::node::Node;
use crate::spec::container::resources;
use crate::spec::resources::with_overhead;
use crate::store::{Sandbox, SandboxState};

/// Limits the pod as a whole.
///
/// # Errors
/// The file and value that the kernel refused.
pub(crate) async fn update(
    node: Arc<Node>,
    sandbox: Arc<Sandbox>,
    overhead: LinuxContainerResources,
    wanted: LinuxContainerResources,
) -> Result<(), Error> {
    let _operation = sandbox.begin_operation().await;
    let record = sandbox.record();
    if sandbox.state() != SandboxState::Ready || !record.owns_cgroup_parent {
        return Ok(());
    }
    let limits = resources(&with_overhead(&wanted, &overhead));
    tokio::task::spawn_blocking(move || Cgroup::new(&node.layout, &record.cgroup_parent)?.update(&limits))
        .await??;
    Ok(())
}
