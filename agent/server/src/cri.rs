//! What the server asks of the runtime: who runs, where to stream, what a command says. Owns the
//! calls; statistics are in [`super::stats`]. Never changes anything in the runtime but by running a
//! command. Called by the handlers of [`super`].

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use gantry_metrics::Metrics;
use gantry_proto::cri as wire;
use gantry_proto::cri::image_service_client::ImageServiceClient;
use gantry_proto::cri::runtime_service_client::RuntimeServiceClient;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tonic::transport::Channel;
use tonic::{Request, Status};

use gantry_grpc::counted::Counted;
use gantry_grpc::status_in_go;

/// As the kubelet sets it.
const MAX_MESSAGE: usize = 16 << 20;

const POD_NAME: &str = "io.kubernetes.pod.name";
const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
pub(super) const POD_UID: &str = "io.kubernetes.pod.uid";
pub(super) const CONTAINER_NAME: &str = "io.kubernetes.container.name";

/// The way to the runtime.
#[derive(Debug, Clone)]
pub struct RuntimeConnection {
    /// Where it answers.
    pub channel: Channel,
    /// runtimeRequestTimeout.
    pub request_timeout: Duration,
}

/// The runtime.
#[derive(Debug)]
pub(super) struct Cri {
    pub(super) runtime: RuntimeServiceClient<Counted>,
    pub(super) images: ImageServiceClient<Counted>,
    pub(super) timeout: Duration,
}

/// Which streams are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "named as in CRI")]
pub(super) struct StreamRequest {
    pub(super) stdin: bool,
    pub(super) stdout: bool,
    pub(super) stderr: bool,
    pub(super) tty: bool,
}

/// A container as its log is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Logged {
    pub(super) path: String,
    pub(super) running: bool,
}

/// What a runtime said, as Go's gRPC prints it.
pub(super) fn said(status: &Status) -> String {
    status_in_go(status)
}

pub(super) fn timed<T>(message: T, timeout: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(timeout);
    request
}

impl Cri {
    pub(super) fn new(line: &RuntimeConnection, metrics: &Arc<Metrics>) -> Self {
        let channel = Counted::new(line.channel.clone(), metrics.clone());
        Self {
            runtime: RuntimeServiceClient::new(channel.clone()).max_decoding_message_size(MAX_MESSAGE),
            images: ImageServiceClient::new(channel).max_decoding_message_size(MAX_MESSAGE),
            timeout: line.request_timeout,
        }
    }

    /// The container of that name that runs; the newest, should there be two.
    pub(super) async fn running(
        &self,
        namespace: &str,
        pod: &str,
        container: &str,
    ) -> Result<Option<String>, Status> {
        let labels = [(POD_NAME, pod), (POD_NAMESPACE, namespace), (CONTAINER_NAME, container)];
        let filter = wire::ContainerFilter {
            state: Some(wire::ContainerStateValue { state: wire::ContainerState::ContainerRunning.into() }),
            label_selector: labels.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect(),
            ..wire::ContainerFilter::default()
        };
        let ask = wire::ListContainersRequest { filter: Some(filter) };
        let found =
            self.runtime.clone().list_containers(timed(ask, self.timeout)).await?.into_inner().containers;
        Ok(found.into_iter().max_by_key(|container| container.created_at).map(|container| container.id))
    }

    /// The newest sandbox of the pod.
    pub(super) async fn sandbox(&self, uid: &str) -> Result<Option<String>, Status> {
        let filter = wire::PodSandboxFilter {
            label_selector: BTreeMap::from([(POD_UID.to_owned(), uid.to_owned())]),
            ..wire::PodSandboxFilter::default()
        };
        let ask = wire::ListPodSandboxRequest { filter: Some(filter) };
        let found = self.runtime.clone().list_pod_sandbox(timed(ask, self.timeout)).await?.into_inner().items;
        Ok(found.into_iter().max_by_key(|sandbox| sandbox.created_at).map(|sandbox| sandbox.id))
    }

    /// Where to stream a command.
    pub(super) async fn exec(
        &self,
        id: String,
        cmd: Vec<String>,
        wanted: StreamRequest,
    ) -> Result<String, Status> {
        let StreamRequest { stdin, stdout, stderr, tty } = wanted;
        let ask = wire::ExecRequest { container_id: id, cmd, tty, stdin, stdout, stderr };
        Ok(self.runtime.clone().exec(timed(ask, self.timeout)).await?.into_inner().url)
    }

    /// Where to stream what already runs.
    pub(super) async fn attach(&self, id: String, wanted: StreamRequest) -> Result<String, Status> {
        let StreamRequest { stdin, stdout, stderr, tty } = wanted;
        let ask = wire::AttachRequest { container_id: id, stdin, tty, stdout, stderr };
        Ok(self.runtime.clone().attach(timed(ask, self.timeout)).await?.into_inner().url)
    }

    /// Where to stream connections.
    pub(super) async fn port_forward(&self, sandbox: String, port: Vec<i32>) -> Result<String, Status> {
        let ask = wire::PortForwardRequest { pod_sandbox_id: sandbox, port };
        Ok(self.runtime.clone().port_forward(timed(ask, self.timeout)).await?.into_inner().url)
    }

    /// Runs a command to its end; both outputs, one after the other, and the code.
    pub(super) async fn run(&self, id: String, cmd: Vec<String>) -> Result<(Vec<u8>, i32), Status> {
        // No deadline, as upstream: how long a command may take is the caller's business.
        let ask = wire::ExecSyncRequest { container_id: id, cmd, timeout: 0 };
        let answer = self.runtime.clone().exec_sync(ask).await?.into_inner();
        Ok(([answer.stdout, answer.stderr].concat(), answer.exit_code))
    }

    /// Writes a container into the archive `location`, in `seconds` at most, or in the time that calls have where
    /// that is longer, as upstream has it.
    pub(super) async fn checkpoint(&self, id: String, location: &str, seconds: i64) -> Result<(), Status> {
        let asked = Duration::from_secs(seconds.try_into().unwrap_or_default());
        let limit = asked.max(self.timeout);
        let ask = wire::CheckpointContainerRequest {
            container_id: id,
            location: location.to_owned(),
            timeout: limit.as_secs().try_into().unwrap_or(i64::MAX),
        };
        self.runtime.clone().checkpoint_container(timed(ask, limit)).await.map(drop)
    }

    /// Where a container's log is, and whether more will come.
    pub(super) async fn log_status(&self, id: &str) -> Result<Logged, Status> {
        let ask = wire::ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
        let status =
            self.runtime.clone().container_status(timed(ask, self.timeout)).await?.into_inner().status;
        let status = status.ok_or_else(|| Status::internal("container status is nil"))?;
        let running = status.state() == wire::ContainerState::ContainerRunning;
        Ok(Logged { path: status.log_path, running })
    }

    /// How many sandboxes are ready, and how many containers are in which state, by upstream's words.
    pub(super) async fn census(&self) -> Result<(usize, BTreeMap<&'static str, usize>), Status> {
        let ask = wire::ListPodSandboxRequest { filter: None };
        let sandboxes =
            self.runtime.clone().list_pod_sandbox(timed(ask, self.timeout)).await?.into_inner().items;
        let ready = sandboxes.iter().filter(|sandbox| sandbox.state() == wire::PodSandboxState::SandboxReady);
        let ask = wire::ListContainersRequest { filter: None };
        let found =
            self.runtime.clone().list_containers(timed(ask, self.timeout)).await?.into_inner().containers;
        let mut states = BTreeMap::new();
        for container in found {
            let state = match container.state() {
                wire::ContainerState::ContainerCreated => "created",
                wire::ContainerState::ContainerRunning => "running",
                wire::ContainerState::ContainerExited => "exited",
                wire::ContainerState::ContainerUnknown => "unknown",
            };
            *states.entry(state).or_default() += 1;
        }
        Ok((ready.count(), states))
    }

    /// What runs, as pods: the runtime's view, not the API's.
    pub(super) async fn running_pods(&self) -> Result<Vec<Pod>, Status> {
        let ready = wire::PodSandboxStateValue { state: wire::PodSandboxState::SandboxReady.into() };
        let filter = wire::PodSandboxFilter { state: Some(ready), ..wire::PodSandboxFilter::default() };
        let ask = wire::ListPodSandboxRequest { filter: Some(filter) };
        let sandboxes =
            self.runtime.clone().list_pod_sandbox(timed(ask, self.timeout)).await?.into_inner().items;
        let running = wire::ContainerStateValue { state: wire::ContainerState::ContainerRunning.into() };
        let filter = wire::ContainerFilter { state: Some(running), ..wire::ContainerFilter::default() };
        let ask = wire::ListContainersRequest { filter: Some(filter) };
        let containers = self.runtime.clone().list_containers(timed(ask, self.timeout)).await?.into_inner();
        let mut by_sandbox: HashMap<String, Vec<wire::Container>> = HashMap::new();
        for container in containers.containers {
            by_sandbox.entry(container.pod_sandbox_id.clone()).or_default().push(container);
        }
        let pods = sandboxes.into_iter().filter(|sandbox| sandbox.labels.contains_key(POD_UID));
        Ok(pods.map(|sandbox| pod(sandbox, &mut by_sandbox)).collect())
    }
}

fn pod(sandbox: wire::PodSandbox, containers: &mut HashMap<String, Vec<wire::Container>>) -> Pod {
    let metadata = sandbox.metadata.unwrap_or_default();
    let containers = containers.remove(&sandbox.id).unwrap_or_default().into_iter();
    let containers = containers.map(|container| Container {
        name: container.metadata.unwrap_or_default().name,
        image: container.image.map(|image| image.image),
        ..Container::default()
    });
    Pod {
        metadata: ObjectMeta {
            name: Some(metadata.name),
            namespace: Some(metadata.namespace),
            uid: Some(metadata.uid),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec { containers: containers.collect(), ..PodSpec::default() }),
        status: None,
    }
}
