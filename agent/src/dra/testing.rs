//! A DRA driver at the other end of a real socket, and pods with claims: for tests of who prepares, who tells and who makes
//! containers. Owns what it was asked; answers as it is told to.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gantry_model::clock::SystemClock;
use gantry_model::pod::claim::{ClaimObject, ContainerClaim, PodResourceClaim, ResourceClaims};
use gantry_model::pod::{Container, Pod, PodUid};
use gantry_model::testing::{container, pod};
use gantry_proto::dra as wire;
use gantry_proto::dra::dra_plugin_server::{DraPlugin, DraPluginServer};
use gantry_proto::dra_health as health;
use gantry_proto::dra_health::dra_resource_health_server::{DraResourceHealth, DraResourceHealthServer};
use tokio::net::UnixListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::codegen::BoxStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::DraManager;
use super::drivers::Drivers;
use crate::api::ResourceClaim;
use crate::api::fake::FakeApi;

pub(crate) const DRIVER: &str = "driver.example";
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// How it answers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Mood {
    #[default]
    Willing,
    /// Refuses calls as a whole.
    Fails,
    /// Refuses each claim.
    Refuses,
    /// Answers for no claim.
    Skips,
    /// Answers for a claim that nobody asked for.
    Lies,
    /// Answers when it is in another mood.
    Holds,
}

type HealthStream = mpsc::Receiver<Result<health::NodeWatchResourcesResponse, Status>>;

/// See the module.
#[derive(Debug)]
pub(crate) struct FakeDriver {
    pub(crate) prepares: watch::Sender<Mood>,
    pub(crate) unprepares: watch::Sender<Mood>,
    /// `prepare NAME` and `unprepare NAME`, as they came in.
    pub(crate) calls: watch::Sender<Vec<String>>,
    health: Mutex<Option<HealthStream>>,
}

impl FakeDriver {
    async fn ask(
        &self,
        call: &str,
        claims: &[wire::Claim],
        moods: &watch::Sender<Mood>,
    ) -> Result<Mood, Status> {
        let said = claims.iter().map(|claim| format!("{call} {}", claim.name));
        self.calls.send_modify(|calls| calls.extend(said));
        let mood = moods.subscribe().wait_for(|mood| *mood != Mood::Holds).await.unwrap().clone();
        if mood == Mood::Fails { Err(Status::internal("burnt")) } else { Ok(mood) }
    }

    /// Until it was asked for that.
    pub(crate) async fn asked(&self, what: &[&str]) {
        let mut calls = self.calls.subscribe();
        let waited = tokio::time::timeout(PATIENCE, calls.wait_for(|calls| calls == what)).await;
        assert!(waited.is_ok(), "{:?}", *self.calls.borrow());
    }
}

#[derive(Debug)]
struct Served(Arc<FakeDriver>);

#[tonic::async_trait]
impl DraPlugin for Served {
    async fn node_prepare_resources(
        &self,
        request: Request<wire::NodePrepareResourcesRequest>,
    ) -> Result<Response<wire::NodePrepareResourcesResponse>, Status> {
        let claims = request.into_inner().claims;
        let mood = self.0.ask("prepare", &claims, &self.0.prepares).await?;
        let device = |claim: &wire::Claim| wire::Device {
            request_names: vec!["gpu".into()],
            pool_name: "pool".into(),
            device_name: format!("dev-of-{}", claim.name),
            cdi_device_ids: vec![format!("vendor.example/gpu={}", claim.name)],
            share_id: Some("share".into()),
        };
        let answer = |claim: &wire::Claim| match mood {
            Mood::Refuses => wire::NodePrepareResourceResponse { devices: vec![], error: "too hot".into() },
            _ => wire::NodePrepareResourceResponse { devices: vec![device(claim)], error: String::new() },
        };
        let uid =
            |claim: &wire::Claim| if mood == Mood::Lies { "nobody".to_owned() } else { claim.uid.clone() };
        let answered = claims.iter().filter(|_| mood != Mood::Skips);
        let claims: BTreeMap<_, _> = answered.map(|claim| (uid(claim), answer(claim))).collect();
        Ok(Response::new(wire::NodePrepareResourcesResponse { claims }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<wire::NodeUnprepareResourcesRequest>,
    ) -> Result<Response<wire::NodeUnprepareResourcesResponse>, Status> {
        let claims = request.into_inner().claims;
        let mood = self.0.ask("unprepare", &claims, &self.0.unprepares).await?;
        let error = if mood == Mood::Refuses { "in use".to_owned() } else { String::new() };
        let uid =
            |claim: &wire::Claim| if mood == Mood::Lies { "nobody".to_owned() } else { claim.uid.clone() };
        let answered = claims.iter().filter(|_| mood != Mood::Skips);
        let answer = |claim| (uid(claim), wire::NodeUnprepareResourceResponse { error: error.clone() });
        Ok(Response::new(wire::NodeUnprepareResourcesResponse { claims: answered.map(answer).collect() }))
    }
}

#[tonic::async_trait]
impl DraResourceHealth for Served {
    async fn node_watch_resources(
        &self,
        _: Request<health::NodeWatchResourcesRequest>,
    ) -> Result<Response<BoxStream<health::NodeWatchResourcesResponse>>, Status> {
        match self.0.health.lock().unwrap().take() {
            Some(stream) => Ok(Response::new(Box::pin(ReceiverStream::new(stream)))),
            None => Err(Status::unimplemented("told once")),
        }
    }
}

/// A driver that serves; aborting its task closes its connections.
pub(crate) struct ServedDriver {
    pub(crate) driver: Arc<FakeDriver>,
    pub(crate) socket: PathBuf,
    pub(crate) tell: mpsc::Sender<Result<health::NodeWatchResourcesResponse, Status>>,
    pub(crate) task: JoinHandle<()>,
}

impl Drop for ServedDriver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// At that socket, which is made anew.
pub(crate) fn serve(socket: &Path) -> ServedDriver {
    let (tell, stream) = mpsc::channel(8);
    let driver = Arc::new(FakeDriver {
        prepares: watch::Sender::default(),
        unprepares: watch::Sender::default(),
        calls: watch::Sender::default(),
        health: Mutex::new(Some(stream)),
    });
    // Of one before.
    let _ = std::fs::remove_file(socket);
    let listener = UnixListener::bind(socket).unwrap();
    let served = driver.clone();
    let task = tokio::spawn(async move {
        let server = Server::builder()
            .add_service(DraPluginServer::new(Served(served.clone())))
            .add_service(DraResourceHealthServer::new(Served(served)));
        server.serve_with_incoming(UnixListenerStream::new(listener)).await.unwrap();
    });
    ServedDriver { driver, socket: socket.to_owned(), tell, task }
}

/// A pod of that UID with a claim for each name, which its container `web` has.
pub(crate) fn claiming(uid: &str, claims: &[&str]) -> Pod {
    let listed = |name: &&str| PodResourceClaim {
        name: format!("own-{name}"),
        object: ClaimObject::Named((*name).to_owned()),
    };
    let of = |name: &&str| ContainerClaim { name: format!("own-{name}"), request: String::new() };
    let web = Container { claims: claims.iter().map(of).collect(), ..container("web") };
    Pod {
        uid: PodUid::parse(uid).unwrap(),
        containers: vec![web],
        resource_claims: ResourceClaims { listed: claims.iter().map(listed).collect(), extended: None },
        ..pod()
    }
}

/// The object of a claim, allocated of these drivers, for these pods.
pub(crate) fn object(uid: &str, pods: &[&str], drivers: &[&str]) -> ResourceClaim {
    ResourceClaim {
        uid: uid.to_owned(),
        controller: String::new(),
        reserved_for: pods.iter().map(|pod| (*pod).to_owned()).collect(),
        drivers: Some(drivers.iter().map(|driver| (*driver).to_owned()).collect()),
    }
}

/// A manager of that root.
pub(crate) fn manager(root: &Path, api: &Arc<FakeApi>) -> DraManager {
    let metrics = Arc::default();
    let drivers = Drivers::with_patience(PATIENCE, Arc::clone(&metrics));
    DraManager::open_with(root, api.clone(), Arc::new(SystemClock::new()), metrics, drivers).unwrap()
}

/// One that serves and is registered.
pub(crate) async fn registered(manager: &DraManager, socket: &Path, name: &str) -> ServedDriver {
    let serving = serve(socket);
    manager.register(name, socket, &["v1.DRAPlugin".to_owned()]).await.unwrap();
    serving
}
