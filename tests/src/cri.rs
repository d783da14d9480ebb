//! A blocking CRI client over the runtime's unix socket. Owns the connection, which comes back by
//! itself after a restart of the runtime; never retries a call. Called by tests and `pod`.

use std::future::Future;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use gantry_proto::cri;
use gantry_proto::cri::image_service_client::ImageServiceClient;
use gantry_proto::cri::runtime_service_client::RuntimeServiceClient;
use gantry_proto::runtime_ext::runtime_extensions_client::RuntimeExtensionsClient;
use gantry_proto::runtime_ext::{OutOfMemory, WatchOutOfMemoryRequest};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use crate::poll::bound;

/// What kubelet's client accepts too.
const MAX_MESSAGE: usize = 16 << 20;
const CALL_PATIENCE: Duration = Duration::from_secs(120);

/// Both CRI services of one runtime.
#[derive(Debug)]
pub struct Cri {
    tokio: tokio::runtime::Runtime,
    runtime: RuntimeServiceClient<Channel>,
    image: ImageServiceClient<Channel>,
    runtime_ext: RuntimeExtensionsClient<Channel>,
}

impl Cri {
    /// A client of the runtime behind a socket; connects with the first call.
    ///
    /// # Errors
    /// When no tokio runtime can be made.
    pub fn new(socket: &Path) -> Result<Self> {
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().context("tokio")?;
        let socket = socket.to_owned();
        let channel = {
            let _inside = tokio.enter();
            // The address is for the `:authority` header alone; the connector dials the socket.
            Endpoint::from_static("http://localhost").connect_with_connector_lazy(tower::service_fn(
                move |_| {
                    let socket = socket.clone();
                    async move { UnixStream::connect(socket).await.map(TokioIo::new) }
                },
            ))
        };
        Ok(Cri {
            tokio,
            runtime: RuntimeServiceClient::new(channel.clone()).max_decoding_message_size(MAX_MESSAGE),
            image: ImageServiceClient::new(channel.clone()).max_decoding_message_size(MAX_MESSAGE),
            runtime_ext: RuntimeExtensionsClient::new(channel),
        })
    }
}

impl Cri {
    /// Makes a call with the two clients, and gives it up when `gone` ends first: None then.
    pub fn until<T, F: Future<Output = T>>(
        &self,
        gone: impl Future<Output = ()>,
        call: impl FnOnce(RuntimeServiceClient<Channel>, ImageServiceClient<Channel>) -> F,
    ) -> Option<T> {
        let call = call(self.runtime.clone(), self.image.clone());
        self.tokio.block_on(async {
            tokio::select! {
                // Cancelling it is the purpose.
                answer = call => Some(answer),
                // Nobody asks for it again.
                () = gone => None,
            }
        })
    }
}

/// A stream of GetContainerEvents, or of WatchOutOfMemory.
#[derive(Debug)]
pub struct Events<'a, T = cri::ContainerEventResponse> {
    cri: &'a Cri,
    stream: tonic::Streaming<T>,
}

impl<T> Events<'_, T> {
    /// The next event; None when the stream has ended.
    ///
    /// # Errors
    /// The runtime's status, or `DeadlineExceeded` when nothing comes for 20 s.
    pub fn receive(&mut self) -> Result<Option<T>, Status> {
        let stream = &mut self.stream;
        self.cri.tokio.block_on(async {
            tokio::time::timeout(bound(Duration::from_secs(20)), stream.message())
                .await
                .unwrap_or_else(|_| Err(Status::deadline_exceeded("no event came")))
        })
    }
}

impl Cri {
    /// `GetContainerEvents`.
    ///
    /// # Errors
    /// The runtime's.
    pub fn events(&self) -> Result<Events<'_>, Status> {
        let mut client = self.runtime.clone();
        let answer = self
            .tokio
            .block_on(async move { client.get_container_events(cri::GetEventsRequest {}).await })?;
        Ok(Events { cri: self, stream: answer.into_inner() })
    }

    /// `WatchOutOfMemory`.
    ///
    /// # Errors
    /// The runtime's.
    pub fn out_of_memory(&self) -> Result<Events<'_, OutOfMemory>, Status> {
        let mut client = self.runtime_ext.clone();
        let answer = self
            .tokio
            .block_on(async move { client.watch_out_of_memory(WatchOutOfMemoryRequest {}).await })?;
        Ok(Events { cri: self, stream: answer.into_inner() })
    }
}

/// One method for each RPC: a request with a deadline in, its answer out.
macro_rules! calls {
    ($field:ident: $($name:ident($request:ident) -> $response:ident;)*) => {
        impl Cri {
            $(
                #[doc = concat!("`", stringify!($request), "` to its answer.")]
                ///
                /// # Errors
                /// The runtime's own status, or `Unavailable` when it is not there.
                pub fn $name(&self, message: cri::$request) -> Result<cri::$response, Status> {
                    let mut client = self.$field.clone();
                    let mut request = Request::new(message);
                    request.set_timeout(bound(CALL_PATIENCE));
                    self.tokio.block_on(async move { client.$name(request).await }).map(tonic::Response::into_inner)
                }
            )*
        }
    };
}

calls! { runtime:
    version(VersionRequest) -> VersionResponse;
    status(StatusRequest) -> StatusResponse;
    runtime_config(RuntimeConfigRequest) -> RuntimeConfigResponse;
    run_pod_sandbox(RunPodSandboxRequest) -> RunPodSandboxResponse;
    stop_pod_sandbox(StopPodSandboxRequest) -> StopPodSandboxResponse;
    remove_pod_sandbox(RemovePodSandboxRequest) -> RemovePodSandboxResponse;
    pod_sandbox_status(PodSandboxStatusRequest) -> PodSandboxStatusResponse;
    list_pod_sandbox(ListPodSandboxRequest) -> ListPodSandboxResponse;
    create_container(CreateContainerRequest) -> CreateContainerResponse;
    start_container(StartContainerRequest) -> StartContainerResponse;
    stop_container(StopContainerRequest) -> StopContainerResponse;
    remove_container(RemoveContainerRequest) -> RemoveContainerResponse;
    container_status(ContainerStatusRequest) -> ContainerStatusResponse;
    list_containers(ListContainersRequest) -> ListContainersResponse;
    exec_sync(ExecSyncRequest) -> ExecSyncResponse;
    exec(ExecRequest) -> ExecResponse;
    port_forward(PortForwardRequest) -> PortForwardResponse;
    reopen_container_log(ReopenContainerLogRequest) -> ReopenContainerLogResponse;
    attach(AttachRequest) -> AttachResponse;
    checkpoint_container(CheckpointContainerRequest) -> CheckpointContainerResponse;
    container_stats(ContainerStatsRequest) -> ContainerStatsResponse;
    list_container_stats(ListContainerStatsRequest) -> ListContainerStatsResponse;
    pod_sandbox_stats(PodSandboxStatsRequest) -> PodSandboxStatsResponse;
    list_pod_sandbox_stats(ListPodSandboxStatsRequest) -> ListPodSandboxStatsResponse;
    list_metric_descriptors(ListMetricDescriptorsRequest) -> ListMetricDescriptorsResponse;
    list_pod_sandbox_metrics(ListPodSandboxMetricsRequest) -> ListPodSandboxMetricsResponse;
    update_container_resources(UpdateContainerResourcesRequest) -> UpdateContainerResourcesResponse;
    update_pod_sandbox_resources(UpdatePodSandboxResourcesRequest) -> UpdatePodSandboxResourcesResponse;
}

calls! { image:
    pull_image(PullImageRequest) -> PullImageResponse;
    image_status(ImageStatusRequest) -> ImageStatusResponse;
    list_images(ListImagesRequest) -> ListImagesResponse;
    remove_image(RemoveImageRequest) -> RemoveImageResponse;
    image_fs_info(ImageFsInfoRequest) -> ImageFsInfoResponse;
}
