//! The CRI v1 services, and what is told beyond them. Owns the edge: requests in, one module call, an answer or a Status out; never
//! logic. RPCs that are not here answer UNIMPLEMENTED (the generated default). Served by
//! `runtime::Runtime`.
//!
//! Each mutating call runs in a task of its own: tonic drops a handler's future when the client gives
//! up, and what was begun must be finished or undone all the same (runtime-traps §4).

#![expect(
    clippy::disallowed_methods,
    reason = "a call that changes something finishes or undoes, even when its client is gone"
)]

pub(crate) mod images;
mod runtime_status;
mod stats;
mod streams;
pub(crate) mod traced;
pub(crate) mod until_sent;
mod update;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use gantry_proto::cri::runtime_service_server::RuntimeService;
use gantry_proto::runtime_ext::runtime_extensions_server::RuntimeExtensions;
use gantry_proto::{cri, runtime_ext};
use streams::{ResponseChunks, chunk_responses};
use tokio::sync::oneshot;
use tonic::{Request, Response, Status};

use crate::error::Error;
use crate::node::Node;
use crate::sandbox::network;
use crate::store::LookupError;
use crate::{attach, checkpoint, container, exec, metrics, sandbox, status, streaming};
use gantry_base::timeline::unix_nanos;

/// Both services on one node.
#[derive(Debug, Clone)]
pub(crate) struct CriService {
    node: Arc<Node>,
    streaming: Arc<streaming::StreamingServer>,
}

impl CriService {
    pub(crate) fn new(node: Arc<Node>, streaming: Arc<streaming::StreamingServer>) -> Self {
        Self { node, streaming }
    }
}

type RpcResult<T> = Result<Response<T>, Status>;

/// Runs `work` to its end, whatever becomes of the caller.
async fn run_detached<T: Send + 'static>(
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Status> {
    let result = tokio::spawn(work).await.map_err(Error::from).and_then(|result| result);
    result.map_err(|error| {
        tracing::debug!("{}", gantry_base::error::chain(&error));
        Status::from(error)
    })
}

/// None for an object that is not there: stopping and removing it is done already.
fn ignore_not_found<T>(found: Result<T, LookupError>) -> Result<Option<T>, Status> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(LookupError::NotFound { .. }) => Ok(None),
        Err(error) => Err(Error::from(error).into()),
    }
}

#[tonic::async_trait]
impl RuntimeExtensions for CriService {
    async fn watch_out_of_memory(
        &self,
        _: Request<runtime_ext::WatchOutOfMemoryRequest>,
    ) -> RpcResult<crate::event_stream::ResponseStream<runtime_ext::OutOfMemory>> {
        Ok(Response::new(self.node.oom_events.subscribe()?))
    }

    async fn load_images(
        &self,
        request: Request<tonic::Streaming<runtime_ext::LoadImagesRequest>>,
    ) -> RpcResult<runtime_ext::LoadImagesResponse> {
        images::load(&self.node.images, request.into_inner()).await
    }

    async fn tag_image(
        &self,
        request: Request<runtime_ext::TagImageRequest>,
    ) -> RpcResult<runtime_ext::TagImageResponse> {
        images::tag(&self.node.images, request.into_inner()).await
    }

    async fn check_store(
        &self,
        _: Request<runtime_ext::CheckStoreRequest>,
    ) -> RpcResult<runtime_ext::CheckStoreResponse> {
        images::check(&self.node.images).await
    }
}

#[tonic::async_trait]
impl RuntimeService for CriService {
    async fn get_container_events(
        &self,
        _: Request<cri::GetEventsRequest>,
    ) -> RpcResult<crate::event_stream::ResponseStream<cri::ContainerEventResponse>> {
        Ok(Response::new(self.node.container_events.subscribe()?))
    }

    async fn version(&self, _: Request<cri::VersionRequest>) -> RpcResult<cri::VersionResponse> {
        Ok(Response::new(cri::VersionResponse {
            version: "0.1.0".into(),
            runtime_name: "gantry".into(),
            runtime_version: env!("CARGO_PKG_VERSION").into(),
            runtime_api_version: "v1".into(),
        }))
    }

    async fn status(&self, request: Request<cri::StatusRequest>) -> RpcResult<cri::StatusResponse> {
        let verbose = request.into_inner().verbose;
        let folders = if verbose { self.node.config.cdi.spec_dirs.clone() } else { Vec::new() };
        let bad =
            tokio::task::spawn_blocking(move || crate::cdi::errors(&folders)).await.map_err(Error::from)?;
        Ok(Response::new(runtime_status::of(&self.node, network::status(&self.node).await, verbose, &bad)))
    }

    /// Of no effect, as with containerd without a template of a CNI configuration: the address range of
    /// pods is what the CNI configuration says.
    async fn update_runtime_config(
        &self,
        request: Request<cri::UpdateRuntimeConfigRequest>,
    ) -> RpcResult<cri::UpdateRuntimeConfigResponse> {
        let network = request.into_inner().runtime_config.and_then(|config| config.network_config);
        let cidr = network.map(|network| network.pod_cidr).unwrap_or_default();
        tracing::info!(cidr, "the pods' range stays what the CNI configuration says");
        Ok(Response::new(cri::UpdateRuntimeConfigResponse {}))
    }

    async fn runtime_config(
        &self,
        _: Request<cri::RuntimeConfigRequest>,
    ) -> RpcResult<cri::RuntimeConfigResponse> {
        let driver = match self.node.config.systemd_cgroup {
            true => cri::CgroupDriver::Systemd,
            false => cri::CgroupDriver::Cgroupfs,
        };
        let linux = cri::LinuxRuntimeConfiguration { cgroup_driver: driver.into() };
        Ok(Response::new(cri::RuntimeConfigResponse { linux: Some(linux) }))
    }

    async fn run_pod_sandbox(
        &self,
        request: Request<cri::RunPodSandboxRequest>,
    ) -> RpcResult<cri::RunPodSandboxResponse> {
        let begun = unix_nanos();
        let pod_sandbox_id = run_detached(sandbox::run::run(self.node.clone(), request.into_inner())).await?;
        // Removed meanwhile, it has no stages to tell; the call went well all the same.
        if let Ok(sandbox) = self.node.store.sandbox(&pod_sandbox_id) {
            traced::tell_stages(&sandbox.spans, begun);
        }
        Ok(Response::new(cri::RunPodSandboxResponse { pod_sandbox_id }))
    }

    async fn stop_pod_sandbox(
        &self,
        request: Request<cri::StopPodSandboxRequest>,
    ) -> RpcResult<cri::StopPodSandboxResponse> {
        if let Some(sandbox) =
            ignore_not_found(self.node.store.sandbox(&request.into_inner().pod_sandbox_id))?
        {
            let node = self.node.clone();
            run_detached(async move { sandbox::stop::stop(&node, &sandbox).await }).await?;
        }
        Ok(Response::new(cri::StopPodSandboxResponse {}))
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<cri::RemovePodSandboxRequest>,
    ) -> RpcResult<cri::RemovePodSandboxResponse> {
        if let Some(sandbox) =
            ignore_not_found(self.node.store.sandbox(&request.into_inner().pod_sandbox_id))?
        {
            let node = self.node.clone();
            run_detached(async move { sandbox::stop::remove(&node, &sandbox).await }).await?;
        }
        Ok(Response::new(cri::RemovePodSandboxResponse {}))
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<cri::PodSandboxStatusRequest>,
    ) -> RpcResult<cri::PodSandboxStatusResponse> {
        let request = request.into_inner();
        let sandbox = self.node.store.sandbox(&request.pod_sandbox_id).map_err(Error::from)?;
        Ok(Response::new(status::sandbox_status(&self.node.store, &sandbox, unix_nanos(), request.verbose)))
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<cri::ListPodSandboxRequest>,
    ) -> RpcResult<cri::ListPodSandboxResponse> {
        let filter = request.into_inner().filter.unwrap_or_default();
        Ok(Response::new(cri::ListPodSandboxResponse { items: status::sandboxes(&self.node.store, &filter) }))
    }

    async fn create_container(
        &self,
        request: Request<cri::CreateContainerRequest>,
    ) -> RpcResult<cri::CreateContainerResponse> {
        let container_id =
            run_detached(container::create::create(self.node.clone(), request.into_inner())).await?;
        Ok(Response::new(cri::CreateContainerResponse { container_id }))
    }

    async fn start_container(
        &self,
        request: Request<cri::StartContainerRequest>,
    ) -> RpcResult<cri::StartContainerResponse> {
        let container = self.node.store.container(&request.into_inner().container_id).map_err(Error::from)?;
        let (stages, begun) = (container.spans.clone(), unix_nanos());
        let started = run_detached(container::start::start(self.node.clone(), container)).await;
        traced::tell_stages(&stages, begun);
        started?;
        Ok(Response::new(cri::StartContainerResponse {}))
    }

    async fn stop_container(
        &self,
        request: Request<cri::StopContainerRequest>,
    ) -> RpcResult<cri::StopContainerResponse> {
        let request = request.into_inner();
        if let Some(container) = ignore_not_found(self.node.store.container(&request.container_id))? {
            let grace = Duration::from_secs(u64::try_from(request.timeout).unwrap_or(0));
            run_detached(async move { container::stop::stop(&container, grace).await }).await?;
        }
        Ok(Response::new(cri::StopContainerResponse {}))
    }

    async fn remove_container(
        &self,
        request: Request<cri::RemoveContainerRequest>,
    ) -> RpcResult<cri::RemoveContainerResponse> {
        if let Some(container) =
            ignore_not_found(self.node.store.container(&request.into_inner().container_id))?
        {
            let node = self.node.clone();
            run_detached(async move { container::stop::remove(&node, &container).await }).await?;
        }
        Ok(Response::new(cri::RemoveContainerResponse {}))
    }

    async fn container_status(
        &self,
        request: Request<cri::ContainerStatusRequest>,
    ) -> RpcResult<cri::ContainerStatusResponse> {
        let request = request.into_inner();
        let container = self.node.store.container(&request.container_id).map_err(Error::from)?;
        Ok(Response::new(status::container_status(&container, request.verbose)))
    }

    async fn stream_pod_sandboxes(
        &self,
        request: Request<cri::StreamPodSandboxesRequest>,
    ) -> RpcResult<ResponseChunks<cri::StreamPodSandboxesResponse>> {
        let filter = request.into_inner().filter.unwrap_or_default();
        let items = status::sandboxes(&self.node.store, &filter);
        Ok(chunk_responses(items, |pod_sandboxes| cri::StreamPodSandboxesResponse { pod_sandboxes }))
    }

    async fn stream_containers(
        &self,
        request: Request<cri::StreamContainersRequest>,
    ) -> RpcResult<ResponseChunks<cri::StreamContainersResponse>> {
        let filter = request.into_inner().filter.unwrap_or_default();
        let items = status::containers(&self.node.store, &filter);
        Ok(chunk_responses(items, |containers| cri::StreamContainersResponse { containers }))
    }

    async fn stream_container_stats(
        &self,
        request: Request<cri::StreamContainerStatsRequest>,
    ) -> RpcResult<ResponseChunks<cri::StreamContainerStatsResponse>> {
        let list = cri::ListContainerStatsRequest { filter: request.into_inner().filter };
        let items = stats::containers(&self.node, list).await?.stats;
        Ok(chunk_responses(items, |container_stats| cri::StreamContainerStatsResponse { container_stats }))
    }

    async fn stream_pod_sandbox_stats(
        &self,
        request: Request<cri::StreamPodSandboxStatsRequest>,
    ) -> RpcResult<ResponseChunks<cri::StreamPodSandboxStatsResponse>> {
        let list = cri::ListPodSandboxStatsRequest { filter: request.into_inner().filter };
        let items = stats::sandboxes(&self.node, list).await?.stats;
        Ok(chunk_responses(items, |pod_sandbox_stats| cri::StreamPodSandboxStatsResponse {
            pod_sandbox_stats,
        }))
    }

    async fn update_container_resources(
        &self,
        request: Request<cri::UpdateContainerResourcesRequest>,
    ) -> RpcResult<cri::UpdateContainerResourcesResponse> {
        Ok(Response::new(update::container(&self.node, request.into_inner()).await?))
    }

    async fn update_pod_sandbox_resources(
        &self,
        request: Request<cri::UpdatePodSandboxResourcesRequest>,
    ) -> RpcResult<cri::UpdatePodSandboxResourcesResponse> {
        Ok(Response::new(update::sandbox(&self.node, request.into_inner()).await?))
    }

    async fn container_stats(
        &self,
        request: Request<cri::ContainerStatsRequest>,
    ) -> RpcResult<cri::ContainerStatsResponse> {
        Ok(Response::new(stats::container(&self.node, request.into_inner()).await?))
    }

    async fn list_container_stats(
        &self,
        request: Request<cri::ListContainerStatsRequest>,
    ) -> RpcResult<cri::ListContainerStatsResponse> {
        Ok(Response::new(stats::containers(&self.node, request.into_inner()).await?))
    }

    async fn pod_sandbox_stats(
        &self,
        request: Request<cri::PodSandboxStatsRequest>,
    ) -> RpcResult<cri::PodSandboxStatsResponse> {
        Ok(Response::new(stats::sandbox(&self.node, request.into_inner()).await?))
    }

    async fn list_pod_sandbox_stats(
        &self,
        request: Request<cri::ListPodSandboxStatsRequest>,
    ) -> RpcResult<cri::ListPodSandboxStatsResponse> {
        Ok(Response::new(stats::sandboxes(&self.node, request.into_inner()).await?))
    }

    async fn checkpoint_container(
        &self,
        request: Request<cri::CheckpointContainerRequest>,
    ) -> RpcResult<cri::CheckpointContainerResponse> {
        run_detached(checkpoint::checkpoint(self.node.clone(), request.into_inner())).await?;
        Ok(Response::new(cri::CheckpointContainerResponse {}))
    }

    async fn list_metric_descriptors(
        &self,
        _: Request<cri::ListMetricDescriptorsRequest>,
    ) -> RpcResult<cri::ListMetricDescriptorsResponse> {
        Ok(Response::new(cri::ListMetricDescriptorsResponse { descriptors: metrics::descriptors() }))
    }

    async fn list_pod_sandbox_metrics(
        &self,
        _: Request<cri::ListPodSandboxMetricsRequest>,
    ) -> RpcResult<cri::ListPodSandboxMetricsResponse> {
        let pod_metrics = stats::metrics(&self.node).await?;
        Ok(Response::new(cri::ListPodSandboxMetricsResponse { pod_metrics }))
    }

    async fn stream_pod_sandbox_metrics(
        &self,
        _: Request<cri::StreamPodSandboxMetricsRequest>,
    ) -> RpcResult<ResponseChunks<cri::StreamPodSandboxMetricsResponse>> {
        let items = stats::metrics(&self.node).await?;
        Ok(chunk_responses(items, |pod_sandbox_metrics| cri::StreamPodSandboxMetricsResponse {
            pod_sandbox_metrics,
        }))
    }

    async fn list_containers(
        &self,
        request: Request<cri::ListContainersRequest>,
    ) -> RpcResult<cri::ListContainersResponse> {
        let filter = request.into_inner().filter.unwrap_or_default();
        Ok(Response::new(cri::ListContainersResponse {
            containers: status::containers(&self.node.store, &filter),
        }))
    }

    async fn exec(&self, request: Request<cri::ExecRequest>) -> RpcResult<cri::ExecResponse> {
        Ok(Response::new(self.streaming.exec(&self.node, request.into_inner())?))
    }

    async fn attach(&self, request: Request<cri::AttachRequest>) -> RpcResult<cri::AttachResponse> {
        Ok(Response::new(self.streaming.attach(&self.node, request.into_inner())?))
    }

    async fn port_forward(
        &self,
        request: Request<cri::PortForwardRequest>,
    ) -> RpcResult<cri::PortForwardResponse> {
        Ok(Response::new(self.streaming.port_forward(&self.node, request.into_inner())?))
    }

    async fn reopen_container_log(
        &self,
        request: Request<cri::ReopenContainerLogRequest>,
    ) -> RpcResult<cri::ReopenContainerLogResponse> {
        let container = self.node.store.container(&request.into_inner().container_id).map_err(Error::from)?;
        run_detached(attach::reopen_log(self.node.clone(), container)).await?;
        Ok(Response::new(cri::ReopenContainerLogResponse {}))
    }

    async fn exec_sync(&self, request: Request<cri::ExecSyncRequest>) -> RpcResult<cri::ExecSyncResponse> {
        // Its drop, when the caller has gone, is what the task hears.
        let (_caller, gone) = oneshot::channel();
        let (answer, room) =
            run_detached(exec::exec_sync(self.node.clone(), request.into_inner(), gone)).await?;
        Ok(until_sent::hold_until_sent(answer, room))
    }
}
