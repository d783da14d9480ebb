//! The RPCs that change limits. Called by `cri`.

use std::sync::Arc;

use gantry_proto::cri;
use tonic::Status;

use super::run_detached;
use crate::error::Error;
use crate::node::Node;
use crate::{container, sandbox, spec};

pub(super) async fn container(
    node: &Arc<Node>,
    request: cri::UpdateContainerResourcesRequest,
) -> Result<cri::UpdateContainerResourcesResponse, Status> {
    let found = node.store.container(&request.container_id).map_err(Error::from)?;
    let wanted = request.linux.ok_or(spec::Error::Missing("linux")).map_err(Error::from)?;
    run_detached(container::update::update(node.clone(), found, wanted)).await?;
    Ok(cri::UpdateContainerResourcesResponse {})
}

pub(super) async fn sandbox(
    node: &Arc<Node>,
    request: cri::UpdatePodSandboxResourcesRequest,
) -> Result<cri::UpdatePodSandboxResourcesResponse, Status> {
    let found = node.store.sandbox(&request.pod_sandbox_id).map_err(Error::from)?;
    let (overhead, resources) = (request.overhead.unwrap_or_default(), request.resources.unwrap_or_default());
    run_detached(sandbox::update::update(node.clone(), found, overhead, resources)).await?;
    Ok(cri::UpdatePodSandboxResourcesResponse {})
}
