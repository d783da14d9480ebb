//! The RPCs of the stats family: requests in, one blocking job, messages out. Called by `cri`.

use std::sync::Arc;

use gantry_proto::cri;
use tonic::Status;

use crate::error::Error;
use crate::node::Node;
use crate::{metrics, stats};

async fn blocking<T: Send + 'static>(
    node: &Arc<Node>,
    job: impl FnOnce(&Node) -> Result<T, Error> + Send + 'static,
) -> Result<T, Status> {
    let node = node.clone();
    let result = tokio::task::spawn_blocking(move || job(&node)).await.map_err(Error::from);
    Ok(result.and_then(|result| result)?)
}

pub(super) async fn container(
    node: &Arc<Node>,
    request: cri::ContainerStatsRequest,
) -> Result<cri::ContainerStatsResponse, Status> {
    let found = node.store.container(&request.container_id).map_err(Error::from)?;
    let stats = blocking(node, move |node| stats::container(node, &found)).await?;
    Ok(cri::ContainerStatsResponse { stats: Some(stats) })
}

pub(super) async fn containers(
    node: &Arc<Node>,
    request: cri::ListContainerStatsRequest,
) -> Result<cri::ListContainerStatsResponse, Status> {
    let filter = request.filter.unwrap_or_default();
    let stats = blocking(node, move |node| Ok(stats::containers(node, &filter))).await?;
    Ok(cri::ListContainerStatsResponse { stats })
}

pub(super) async fn sandbox(
    node: &Arc<Node>,
    request: cri::PodSandboxStatsRequest,
) -> Result<cri::PodSandboxStatsResponse, Status> {
    let found = node.store.sandbox(&request.pod_sandbox_id).map_err(Error::from)?;
    let stats = blocking(node, move |node| stats::sandbox(node, &found)).await?;
    Ok(cri::PodSandboxStatsResponse { stats: Some(stats) })
}

pub(super) async fn sandboxes(
    node: &Arc<Node>,
    request: cri::ListPodSandboxStatsRequest,
) -> Result<cri::ListPodSandboxStatsResponse, Status> {
    let filter = request.filter.unwrap_or_default();
    let stats = blocking(node, move |node| Ok(stats::sandboxes(node, &filter))).await?;
    Ok(cri::ListPodSandboxStatsResponse { stats })
}

pub(super) async fn metrics(node: &Arc<Node>) -> Result<Vec<cri::PodSandboxMetrics>, Status> {
    blocking(node, |node| Ok(metrics::sandboxes(node))).await
}
