//! UpdateContainerResources: what is set replaces, what is unset stays. A running container's cgroup
//! changes at once, any other's record only, as in containerd. Called by the RPC handler, in a task
//! of its own.

use std::sync::Arc;

use gantry_failpoint::failpoint;
use gantry_proto::cri::LinuxContainerResources;
use prost::Message;

use crate::cgroup::Cgroup;
use crate::error::Error;
use crate::node::Node;
use crate::spec::container::resources;
use crate::spec::resources::merge;
use crate::store::{Container, ContainerState, record};

/// Changes limits; all of them, or none.
///
/// # Errors
/// The file and value that were refused, or a memory limit below what is in use.
pub(crate) async fn update(
    node: Arc<Node>,
    container: Arc<Container>,
    wanted: LinuxContainerResources,
) -> Result<(), Error> {
    let _operation = container.begin_operation().await;
    let old = container.record().linux_resources()?;
    let merged = merge(&old, &wanted);
    let limits = resources(&merged);
    limits.check(node.layout.is_unified())?;
    if let ContainerState::Running(_) = container.state() {
        let (layout, path) = (node.layout.clone(), container.record().cgroup.clone());
        let job = move || Cgroup::new(&layout, &path)?.update(&limits);
        match tokio::task::spawn_blocking(job).await? {
            // It ended meanwhile, and its cgroup with it: what is stored is all there is to change.
            Err(_) if container.is_final() => {}
            result => result?,
        }
    }
    failpoint!("update.cgroup"?);
    container.update(|record| record.resources = record::to_hex(&merged.encode_to_vec())).await?;
    failpoint!("update.recorded"?);
    Ok(())
}
