//! The manager with real plugins at the other ends of real sockets.

use std::sync::atomic::{AtomicUsize, Ordering};

use gantry_model::clock::SystemClock;
use gantry_model::pod::{Container, Requirements};
use gantry_model::testing::{container, pod};
use gantry_proto::deviceplugin as wire;
use gantry_proto::deviceplugin::device_plugin_server::{DevicePlugin, DevicePluginServer};
use gantry_proto::deviceplugin::registration_client::RegistrationClient;
use hyper_util::rt::TokioIo;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::codegen::BoxStream;
use tonic::transport::{Endpoint, Server};
use tonic::{Request as GrpcRequest, Response, Status};

use super::*;

mod lies;

const GPU: &str = "vendor.com/gpu";
const PATIENCE: Duration = Duration::from_secs(30);

type Lists = mpsc::Sender<Result<wire::ListAndWatchResponse, Status>>;

/// A plugin that offers what it is told to.
#[derive(Debug, Default)]
struct Fake {
    options: wire::DevicePluginOptions,
    lists: Mutex<Option<mpsc::Receiver<Result<wire::ListAndWatchResponse, Status>>>>,
    started: AtomicUsize,
    /// Answers Allocate with this error.
    refuses: Option<String>,
    /// Never answers Allocate.
    hangs: bool,
    /// Answers Allocate for no container.
    gives_nothing: bool,
    /// Answers the question for its options with this error.
    has_no_options: Option<String>,
    /// Prefers these, whatever is available.
    prefers: Option<Vec<String>>,
    /// Each Allocate, by what it was asked for.
    asked: Mutex<Vec<Vec<String>>>,
}

/// What its server has of it.
#[derive(Debug)]
struct Served(Arc<Fake>);

#[tonic::async_trait]
impl DevicePlugin for Served {
    async fn get_device_plugin_options(
        &self,
        _: GrpcRequest<wire::Empty>,
    ) -> Result<Response<wire::DevicePluginOptions>, Status> {
        match &self.0.has_no_options {
            Some(why) => Err(Status::unknown(why.clone())),
            None => Ok(Response::new(self.0.options)),
        }
    }

    async fn list_and_watch(
        &self,
        _: GrpcRequest<wire::Empty>,
    ) -> Result<Response<BoxStream<wire::ListAndWatchResponse>>, Status> {
        let lists = self.0.lists.lock().unwrap().take().expect("watched once");
        Ok(Response::new(Box::pin(ReceiverStream::new(lists))))
    }

    async fn get_preferred_allocation(
        &self,
        request: GrpcRequest<wire::PreferredAllocationRequest>,
    ) -> Result<Response<wire::PreferredAllocationResponse>, Status> {
        let mut ids = request.into_inner().container_requests.remove(0).available_device_i_ds;
        ids.reverse();
        let ids = self.0.prefers.clone().unwrap_or(ids);
        let container_responses = vec![wire::ContainerPreferredAllocationResponse { device_i_ds: ids }];
        Ok(Response::new(wire::PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(
        &self,
        request: GrpcRequest<wire::AllocateRequest>,
    ) -> Result<Response<wire::AllocateResponse>, Status> {
        if self.0.hangs {
            std::future::pending::<()>().await;
        }
        if let Some(why) = &self.0.refuses {
            return Err(Status::internal(why.clone()));
        }
        if self.0.gives_nothing {
            return Ok(Response::new(wire::AllocateResponse::default()));
        }
        let ids = request.into_inner().container_requests.remove(0).devices_ids;
        self.0.asked.lock().unwrap().push(ids.clone());
        let response = wire::ContainerAllocateResponse {
            envs: [("GPUS".to_owned(), ids.join(","))].into(),
            devices: vec![wire::DeviceSpec {
                container_path: "/dev/gpu".to_owned(),
                host_path: "/dev/null".to_owned(),
                permissions: "rw".to_owned(),
            }],
            cdi_devices: vec![wire::CdiDevice { name: "vendor.com/gpu=0".to_owned() }],
            ..wire::ContainerAllocateResponse::default()
        };
        Ok(Response::new(wire::AllocateResponse { container_responses: vec![response] }))
    }

    async fn pre_start_container(
        &self,
        _: GrpcRequest<wire::PreStartContainerRequest>,
    ) -> Result<Response<wire::PreStartContainerResponse>, Status> {
        self.0.started.fetch_add(1, Ordering::Relaxed);
        Ok(Response::new(wire::PreStartContainerResponse {}))
    }
}

/// A plugin that serves; aborting its task closes its connections.
struct Serving {
    fake: Arc<Fake>,
    lists: Lists,
    task: JoinHandle<()>,
}

fn list(ids: &[(&str, &str)]) -> Result<wire::ListAndWatchResponse, Status> {
    let device = |(id, health): &(&str, &str)| wire::Device {
        id: (*id).to_owned(),
        health: (*health).to_owned(),
        topology: None,
    };
    Ok(wire::ListAndWatchResponse { devices: ids.iter().map(device).collect() })
}

fn plugin(root: &Path, name: &str, fake: Fake) -> Serving {
    let (lists, receiver) = mpsc::channel(8);
    let fake = Arc::new(Fake { lists: Mutex::new(Some(receiver)), ..fake });
    let listener = UnixListener::bind(root.join(FOLDER).join(name)).unwrap();
    let service = DevicePluginServer::new(Served(fake.clone()));
    let task = tokio::spawn(async move {
        let server = Server::builder().add_service(service);
        server.serve_with_incoming(UnixListenerStream::new(listener)).await.unwrap();
    });
    Serving { fake, lists, task }
}

async fn register(root: &Path, endpoint: &str) -> Result<(), Status> {
    register_version(root, endpoint, registration::VERSION).await
}

async fn register_version(root: &Path, endpoint: &str, version: &str) -> Result<(), Status> {
    let socket = root.join(FOLDER).join(registration::SOCKET);
    let dial = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    let channel = Endpoint::from_static("http://kubelet").connect_with_connector(dial).await.unwrap();
    let request = wire::RegisterRequest {
        version: version.to_owned(),
        endpoint: endpoint.to_owned(),
        resource_name: GPU.to_owned(),
        options: None,
    };
    RegistrationClient::new(channel).register(request).await.map(drop)
}

fn manager(root: &Path) -> DeviceManager {
    let manager = DeviceManager::open(root, Arc::new(SystemClock::new()), Arc::new(Metrics::default()));
    manager.serve().unwrap();
    manager
}

async fn offers(manager: &DeviceManager, capacity: i64, allocatable: i64) {
    let wanted = Amount { capacity, allocatable };
    let mut amounts = manager.amounts();
    let seen = amounts.wait_for(|amounts| amounts.get(GPU) == Some(&wanted));
    tokio::time::timeout(PATIENCE, seen).await.unwrap().unwrap();
}

/// A pod that asks for so many.
fn asking(name: &str, count: &str) -> Pod {
    let limits = [(GPU.to_owned(), count.to_owned()), ("cpu".to_owned(), "1".to_owned())].into();
    let container =
        Container { written: Requirements { limits, ..Requirements::default() }, ..container("main") };
    Pod { uid: PodUid::parse(name).unwrap(), containers: vec![container], ..pod() }
}

async fn allocate(manager: &DeviceManager, pod: &Pod) -> Result<(), String> {
    let mut reusable = Reusable::new();
    for container in pod.all_containers() {
        manager.allocate_next(pod, container, &mut reusable, None).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_plugin_registers_offers_gives_and_goes() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let manager = manager(root);
    let options =
        wire::DevicePluginOptions { pre_start_required: true, get_preferred_allocation_available: true };
    let serving = plugin(root, "gpu.sock", Fake { options, ..Fake::default() });
    register(root, "gpu.sock").await.unwrap();
    serving.lists.send(list(&[("a", "Healthy"), ("b", "Healthy"), ("c", "Unhealthy")])).await.unwrap();
    offers(&manager, 3, 2).await;

    let first = asking("one", "1");
    allocate(&manager, &first).await.unwrap();
    let got = manager.options(&first, &first.containers[0]).await.unwrap();
    // The plugin would rather give the last.
    assert_eq!(got.env, [("GPUS".to_owned(), "b".to_owned())]);
    assert_eq!(got.devices, [("/dev/gpu".to_owned(), "/dev/null".to_owned(), "rw".to_owned())]);
    assert_eq!(got.cdi, ["vendor.com/gpu=0"]);
    assert_eq!(serving.fake.started.load(Ordering::Relaxed), 1);
    let second = asking("two", "2");
    assert_eq!(
        allocate(&manager, &second).await.unwrap_err(),
        "requested number of devices unavailable for vendor.com/gpu. Requested: 2, Available: 1"
    );

    serving.lists.send(list(&[("a", "Healthy"), ("b", "Unhealthy")])).await.unwrap();
    offers(&manager, 2, 1).await;
    assert_eq!(manager.healthy()[GPU].keys().collect::<Vec<_>>(), ["a"]);
    manager.options(&first, &first.containers[0]).await.unwrap();

    drop(serving.lists);
    serving.task.abort();
    offers(&manager, 2, 0).await;
    manager.forget(&first.uid).await;
    assert_eq!(manager.of_container(&first.uid, "main"), DevicesOf::new());
}

#[tokio::test]
async fn a_kubelet_that_follows_knows_who_has_what_and_plugins_register_again() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let before = manager(root);
    let serving = plugin(root, "gpu.sock", Fake::default());
    register(root, "gpu.sock").await.unwrap();
    serving.lists.send(list(&[("a", "Healthy"), ("b", "Healthy")])).await.unwrap();
    offers(&before, 2, 2).await;
    let pod = asking("one", "1");
    allocate(&before, &pod).await.unwrap();

    let after = manager(root);
    // Its socket was taken away: that is how a plugin knows.
    assert!(!root.join(FOLDER).join("gpu.sock").exists());
    offers(&after, 0, 0).await;
    let has = [(GPU.to_owned(), [("a".to_owned(), Vec::new())].into())].into();
    assert_eq!(after.of_container(&pod.uid, "main"), has);
    assert_eq!(
        allocate(&after, &pod).await.unwrap_err(),
        "no healthy devices present; cannot allocate unhealthy devices vendor.com/gpu"
    );
    let serving = plugin(root, "gpu.sock", Fake::default());
    register(root, "gpu.sock").await.unwrap();
    serving.lists.send(list(&[("a", "Healthy"), ("b", "Healthy")])).await.unwrap();
    offers(&after, 2, 2).await;
    allocate(&after, &pod).await.unwrap();
    let got = after.options(&pod, &pod.containers[0]).await.unwrap();
    assert_eq!(got.env, [("GPUS".to_owned(), "a".to_owned())]);
    after.retain(&BTreeSet::new()).await;
    assert_eq!(after.of_container(&pod.uid, "main"), DevicesOf::new());
}

#[tokio::test]
async fn a_plugin_that_refuses_or_hangs_keeps_no_device() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let manager = manager(root);
    let serving = plugin(root, "bad.sock", Fake { refuses: Some("burnt".to_owned()), ..Fake::default() });
    register(root, "bad.sock").await.unwrap();
    serving.lists.send(list(&[("a", "Healthy")])).await.unwrap();
    offers(&manager, 1, 1).await;
    let pod = asking("one", "1");
    let refused = allocate(&manager, &pod).await.unwrap_err();
    assert_eq!(refused, "rpc error: code = Internal desc = burnt");

    let hanging = plugin(root, "hung.sock", Fake { hangs: true, ..Fake::default() });
    register(root, "hung.sock").await.unwrap();
    hanging.lists.send(list(&[("a", "Healthy")])).await.unwrap();
    offers(&manager, 1, 1).await;
    let asked = tokio::time::timeout(Duration::from_millis(200), allocate(&manager, &pod)).await;
    assert!(asked.is_err());
    // Whoever waited has gone: the device is free, and so is the turn.
    let good = plugin(root, "good.sock", Fake::default());
    register(root, "good.sock").await.unwrap();
    good.lists.send(list(&[("a", "Healthy")])).await.unwrap();
    offers(&manager, 1, 1).await;
    let other = asking("two", "1");
    let given = tokio::time::timeout(PATIENCE, allocate(&manager, &other)).await;
    given.unwrap().unwrap();
}

#[tokio::test]
async fn a_request_that_names_no_plugin_is_refused_with_the_reason() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let manager = manager(root);
    let refused = register(root, "nobody.sock").await.unwrap_err();
    assert!(refused.message().starts_with("failed to dial device plugin: "), "{refused}");
    assert_eq!(refused.code(), tonic::Code::Unknown);
    assert!(manager.amounts().borrow().is_empty());
    // Without a plugin the resource is somebody else's to count.
    allocate(&manager, &asking("one", "1")).await.unwrap();
}

#[tokio::test]
async fn a_checkpoint_that_cannot_be_read_stops_nobody() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join(FOLDER)).unwrap();
    std::fs::write(root.path().join(FOLDER).join(CHECKPOINT), "{").unwrap();
    let manager = manager(root.path());
    allocate(&manager, &asking("one", "1")).await.unwrap();
    assert!(manager.healthy().is_empty());
}
