//! A device plugin of the tests' own on a real node: registered, offered, given to a pod, gone and back. Owns the plugin's
//! server; the device is the node's /dev/null under another name.

use std::path::PathBuf;
use std::sync::Mutex;

use anyhow::{Context, Result, ensure};
use gantry_proto::deviceplugin as wire;
use gantry_proto::deviceplugin::device_plugin_server::{DevicePlugin, DevicePluginServer};
use gantry_proto::deviceplugin::registration_client::RegistrationClient;
use gantry_proto::podresources::ListPodResourcesRequest;
use gantry_proto::podresources::pod_resources_lister_client::PodResourcesListerClient;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::codegen::BoxStream;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

use crate::spec::{IDLE, Spec, pod};

const FOLDER: &str = "/var/lib/kubelet/device-plugins";
const POD_RESOURCES: &str = "/var/lib/kubelet/pod-resources/kubelet.sock";
const RESOURCE: &str = "gantry.test/gpu";

type List = Result<wire::ListAndWatchResponse, Status>;

/// What the kubelet asks.
#[derive(Debug)]
struct PluginService(Mutex<Option<mpsc::Receiver<List>>>);

#[tonic::async_trait]
impl DevicePlugin for PluginService {
    async fn get_device_plugin_options(
        &self,
        _: Request<wire::Empty>,
    ) -> Result<Response<wire::DevicePluginOptions>, Status> {
        Ok(Response::new(wire::DevicePluginOptions::default()))
    }

    async fn list_and_watch(
        &self,
        _: Request<wire::Empty>,
    ) -> Result<Response<BoxStream<wire::ListAndWatchResponse>>, Status> {
        let lists = self.0.lock().ok().and_then(|mut lists| lists.take());
        let lists = lists.ok_or_else(|| Status::failed_precondition("watched before"))?;
        Ok(Response::new(Box::pin(ReceiverStream::new(lists))))
    }

    async fn allocate(
        &self,
        request: Request<wire::AllocateRequest>,
    ) -> Result<Response<wire::AllocateResponse>, Status> {
        let of = |request: wire::ContainerAllocateRequest| wire::ContainerAllocateResponse {
            envs: [("GPUS".to_owned(), request.devices_ids.join(","))].into(),
            devices: vec![wire::DeviceSpec {
                container_path: "/dev/gpu".to_owned(),
                host_path: "/dev/null".to_owned(),
                permissions: "rw".to_owned(),
            }],
            ..wire::ContainerAllocateResponse::default()
        };
        let container_responses = request.into_inner().container_requests.into_iter().map(of).collect();
        Ok(Response::new(wire::AllocateResponse { container_responses }))
    }
}

/// A plugin that serves; it goes when it is dropped, and its socket with it.
struct ServedPlugin {
    /// Its end ends the server and all connections.
    _runtime: Runtime,
    lists: mpsc::Sender<List>,
    socket: PathBuf,
}

impl ServedPlugin {
    /// Serves on a socket of that name, registers, and offers these devices.
    fn start(name: &str, devices: &[&str]) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let socket = PathBuf::from(FOLDER).join(name);
        let (lists, receiver) = mpsc::channel(4);
        let listener = {
            let _runtime = runtime.enter();
            UnixListener::bind(&socket).with_context(|| format!("listen on {}", socket.display()))?
        };
        let service = DevicePluginServer::new(PluginService(Mutex::new(Some(receiver))));
        runtime.spawn(async move {
            let server = Server::builder().add_service(service);
            if let Err(error) = server.serve_with_incoming(UnixListenerStream::new(listener)).await {
                eprintln!("the plugin: {error}");
            }
        });
        let plugin = Self { _runtime: runtime, lists, socket };
        let request = wire::RegisterRequest {
            version: "v1beta1".to_owned(),
            endpoint: name.to_owned(),
            resource_name: RESOURCE.to_owned(),
            options: None,
        };
        plugin._runtime.block_on(async {
            let channel = dial(format!("{FOLDER}/kubelet.sock")).await?;
            RegistrationClient::new(channel).register(request).await.context("register")
        })?;
        plugin.offer(devices, "Healthy")?;
        Ok(plugin)
    }

    fn offer(&self, devices: &[&str], health: &str) -> Result<()> {
        let device =
            |id: &&str| wire::Device { id: (*id).to_owned(), health: health.to_owned(), topology: None };
        let list = wire::ListAndWatchResponse { devices: devices.iter().map(device).collect() };
        self.lists.blocking_send(Ok(list)).context("nobody takes the list")
    }
}

impl Drop for ServedPlugin {
    fn drop(&mut self) {
        // A kubelet that has started meanwhile has taken it away.
        let _ = std::fs::remove_file(&self.socket);
    }
}

async fn dial(socket: String) -> Result<Channel> {
    let connect = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    Endpoint::from_static("http://localhost").connect_with_connector(connect).await.context("dial")
}

/// Pods and IDs of devices, as the kubelet tells monitoring agents.
fn pod_resources() -> Result<Vec<(String, Vec<String>)>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let listed = runtime.block_on(async {
        let mut client = PodResourcesListerClient::new(dial(POD_RESOURCES.to_owned()).await?);
        client.list(ListPodResourcesRequest {}).await.context("list pod resources")
    })?;
    let ids = |pod: gantry_proto::podresources::PodResources| {
        let devices = pod.containers.into_iter().flat_map(|container| container.devices);
        let own = devices.filter(|device| device.resource_name == RESOURCE);
        (pod.name, own.flat_map(|device| device.device_ids).collect::<Vec<_>>())
    };
    Ok(listed.into_inner().pod_resources.into_iter().map(ids).filter(|(_, ids)| !ids.is_empty()).collect())
}

fn asking(name: &str, count: u32) -> Value {
    let mut pod = pod(name, IDLE);
    pod["spec"]["containers"][0]["resources"] = json!({ "limits": { RESOURCE: count.to_string() } });
    pod
}

/// Waits for the node to tell so many devices, all of them and those that can be given.
fn offers(spec: &Spec<'_>, capacity: &str, allocatable: &str) -> Result<()> {
    let path = r"{.status.capacity.gantry\.test/gpu} {.status.allocatable.gantry\.test/gpu}";
    spec.await_value(&["node/gantry-node"], path, &format!("{capacity} {allocatable}")).map(drop)
}

/// Waits for the status of the pod to tell each device so.
fn are(spec: &Spec<'_>, pod: &str, health: &str) -> Result<()> {
    let path = "{.status.containerStatuses[*].allocatedResourcesStatus[*].resources[*].health}";
    spec.await_value(&[&format!("pod/{pod}")], path, health).map(drop)
}

pub(crate) fn device_plugin(spec: &Spec<'_>) -> Result<()> {
    let plugin = ServedPlugin::start("gantry-test.sock", &["first", "second"])?;
    offers(spec, "2", "2")?;
    spec.start_pod(asking("has", 2))?;
    let seen = spec.shell("has", "echo $GPUS; test -c /dev/gpu && echo x >/dev/gpu && echo written")?;
    ensure!(seen == "first,second\nwritten\n" || seen == "second,first\nwritten\n", "{seen:?}");
    let mut told = pod_resources()?;
    told.iter_mut().for_each(|(_, ids)| ids.sort());
    let expected = vec![("has".to_owned(), vec!["first".to_owned(), "second".to_owned()])];
    ensure!(told == expected, "{told:?}");
    are(spec, "has", "Healthy Healthy")?;
    plugin.offer(&["first", "second"], "Unhealthy")?;
    offers(spec, "2", "0")?;
    are(spec, "has", "Unhealthy Unhealthy")?;
    plugin.offer(&["first", "second"], "Healthy")?;
    offers(spec, "2", "2")?;
    are(spec, "has", "Healthy Healthy")?;
    // Past the scheduler, which knows that none is left.
    let mut late = asking("late", 1);
    late["spec"]["nodeName"] = "gantry-node".into();
    spec.apply(late)?;
    spec.await_value(&["pod/late"], "{.status.phase} {.status.reason}", "Failed UnexpectedAdmissionError")?;
    drop(plugin);
    offers(spec, "2", "0")?;
    ensure!(spec.value(&["pod/has"], "{.status.phase}")? == "Running");
    let _plugin = ServedPlugin::start("gantry-test-again.sock", &["first", "second"])?;
    offers(spec, "2", "2")?;
    spec.kubectl(&["delete", "pod", "has", "late", "--timeout=60s"])?;
    spec.start_pod(asking("next", 1))?;
    let seen = spec.shell("next", "echo $GPUS")?;
    ensure!(seen == "first\n" || seen == "second\n", "{seen:?}");
    Ok(())
}
