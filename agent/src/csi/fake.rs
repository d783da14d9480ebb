//! A CSI driver for tests, at the other end of a real socket. Owns what it was asked, how it is to answer, and a table of
//! what it has mounted, since it mounts nothing. Called by the tests of [`super`] and of [`crate::volumes`].

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gantry_proto::csi as wire;
use gantry_proto::csi::identity_server::{Identity, IdentityServer};
use gantry_proto::csi::node_server::{Node, NodeServer};
use gantry_proto::csi::node_service_capability::rpc::Type as Rpc;
use gantry_proto::csi::node_service_capability::{self as capability};
use gantry_proto::csi::volume_capability::AccessType;
use gantry_proto::csi::volume_usage::Unit;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status};

use super::files::Mounts;
use crate::block::BlockKernel;
use crate::block::fake::FakeBlocks;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// How a call is to end that does not succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Refused with this code, before anything is done.
    Refused(Code),
    /// Done, and answered with this code.
    Done(Code),
    /// Done, and never answered.
    Hangs,
}

/// Clones are the same driver.
#[derive(Debug, Clone)]
pub(crate) struct FakeDriver {
    state: Arc<Mutex<DriverState>>,
    calls: Arc<watch::Sender<Vec<String>>>,
}

#[derive(Debug)]
struct DriverState {
    name: String,
    node_id: String,
    max: i64,
    topology: BTreeMap<String, String>,
    capabilities: Vec<Rpc>,
    /// By the call's name; the first is the next.
    troubles: Vec<(String, Trouble)>,
    mounted: BTreeSet<PathBuf>,
    usage: Vec<wire::VolumeUsage>,
    staged: wire::NodeStageVolumeRequest,
    published: wire::NodePublishVolumeRequest,
    /// Calls that are under way, by volume.
    under_way: BTreeMap<String, usize>,
    overlapped: bool,
    /// Devices that it has made, and what was made of them.
    blocks: FakeBlocks,
}

impl FakeDriver {
    /// One that stages, and is well.
    pub(crate) fn new(name: &str) -> Self {
        let state = DriverState {
            name: name.to_owned(),
            node_id: "i-1".to_owned(),
            max: 0,
            topology: BTreeMap::new(),
            capabilities: vec![Rpc::StageUnstageVolume],
            troubles: Vec::new(),
            mounted: BTreeSet::new(),
            usage: Vec::new(),
            staged: wire::NodeStageVolumeRequest::default(),
            published: wire::NodePublishVolumeRequest::default(),
            under_way: BTreeMap::new(),
            overlapped: false,
            blocks: FakeBlocks::default(),
        };
        Self { state: Arc::new(Mutex::new(state)), calls: Arc::new(watch::channel(Vec::new()).0) }
    }

    fn state(&self) -> MutexGuard<'_, DriverState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it says of the node.
    pub(crate) fn says(&self, node_id: &str, max: i64, topology: &[(&str, &str)]) {
        let mut state = self.state();
        node_id.clone_into(&mut state.node_id);
        state.max = max;
        state.topology =
            topology.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    }

    /// The next call of that name ends so.
    pub(crate) fn fails(&self, call: &str, trouble: Trouble) {
        self.state().troubles.push((call.to_owned(), trouble));
    }

    /// Served there until the task is ended.
    pub(crate) fn serve(&self, socket: &Path) -> JoinHandle<()> {
        let listener = UnixListener::bind(socket).unwrap();
        let (identity, node) = (IdentityServer::new(self.clone()), NodeServer::new(self.clone()));
        tokio::spawn(async move {
            let server = Server::builder().add_service(identity).add_service(node);
            server.serve_with_incoming(UnixListenerStream::new(listener)).await.unwrap();
        })
    }

    /// It sees to the group of the files, or does not.
    pub(crate) fn can_set_group(&self, can: bool) {
        if can {
            self.state().capabilities.push(Rpc::VolumeMountGroup);
        }
    }

    /// It has nothing to do for all pods.
    pub(crate) fn cannot_stage(&self) {
        self.state().capabilities.retain(|can| *can != Rpc::StageUnstageVolume);
    }

    /// It makes volumes larger.
    pub(crate) fn can_expand(&self) {
        self.state().capabilities.push(Rpc::ExpandVolume);
    }

    /// It tells how full volumes are: available, total, used.
    pub(crate) fn tells_usage(&self, bytes: [i64; 3], inodes: [i64; 3]) {
        let part = |[available, total, used]: [i64; 3], unit: Unit| wire::VolumeUsage {
            available,
            total,
            used,
            unit: unit.into(),
        };
        let mut state = self.state();
        state.capabilities.push(Rpc::GetVolumeStats);
        state.usage = vec![part(bytes, Unit::Bytes), part(inodes, Unit::Inodes)];
    }

    /// Its devices.
    pub(crate) fn blocks(&self) -> FakeBlocks {
        self.state().blocks.clone()
    }

    /// What it was asked to do, in order.
    pub(crate) fn calls(&self) -> Vec<String> {
        self.calls.borrow().iter().filter(|call| *call != "info").cloned().collect()
    }

    /// How often it was asked what it says of the node.
    pub(crate) fn infos(&self) -> usize {
        self.calls.borrow().iter().filter(|call| call.starts_with("info")).count()
    }

    /// The last requests to stage and to publish.
    pub(crate) fn asked(&self) -> (wire::NodeStageVolumeRequest, wire::NodePublishVolumeRequest) {
        let state = self.state();
        (state.staged.clone(), state.published.clone())
    }

    /// Mount options that it was last asked for when it staged and published; none of a device.
    pub(crate) fn mount_flags(&self) -> [Vec<String>; 2] {
        let (staged, published) = self.asked();
        [staged.volume_capability, published.volume_capability].map(|capability| {
            match capability.and_then(|capability| capability.access_type) {
                Some(AccessType::Mount(mount)) => mount.mount_flags,
                Some(AccessType::Block(_)) | None => Vec::new(),
            }
        })
    }

    /// What it has mounted.
    pub(crate) fn mounted(&self) -> Vec<PathBuf> {
        self.state().mounted.iter().cloned().collect()
    }

    /// Whether two calls of one volume were under way at once.
    pub(crate) fn overlapped(&self) -> bool {
        self.state().overlapped
    }

    /// Until that holds.
    pub(crate) async fn until(&self, holds: impl Fn(&[String]) -> bool) {
        let look = async {
            while !holds(&self.calls()) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let seen = tokio::time::timeout(PATIENCE, look).await;
        seen.unwrap_or_else(|_| panic!("it does not come: {:?}", self.calls()));
    }

    /// Does the call, unless it is to fail.
    async fn call<T: Default>(
        &self,
        (name, volume, pod): (&str, &str, &str),
        act: impl FnOnce(&mut DriverState) -> io::Result<()>,
    ) -> Result<Response<T>, Status> {
        let told = [name, volume, pod].join(" ").trim_end().to_owned();
        let failed = |code| Err(Status::new(code, format!("{name} failed")));
        let trouble = {
            let mut state = self.state();
            let count = state.under_way.entry(volume.to_owned()).or_default();
            *count += 1;
            let others = *count > 1;
            state.overlapped |= others && !volume.is_empty();
            let index = state.troubles.iter().position(|(of, _)| of == name);
            index.map(|index| state.troubles.remove(index).1)
        };
        let _over = Over(self, volume.to_owned());
        if let Some(Trouble::Refused(code)) = trouble {
            self.calls.send_modify(|calls| calls.push(format!("{told} refused")));
            return failed(code);
        }
        // So that another call would be seen beside it.
        tokio::time::sleep(Duration::from_millis(5)).await;
        act(&mut self.state())?;
        self.calls.send_modify(|calls| calls.push(told));
        match trouble {
            Some(Trouble::Done(code)) => failed(code),
            Some(Trouble::Hangs) => std::future::pending().await,
            _ => Ok(Response::new(T::default())),
        }
    }
}

/// A call is over, also one whose client has gone.
struct Over<'a>(&'a FakeDriver, String);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        if let Some(count) = self.0.state().under_way.get_mut(&self.1) {
            *count -= 1;
        }
    }
}

impl Mounts for FakeDriver {
    fn is_mounted(&self, path: &Path) -> io::Result<bool> {
        let state = self.state();
        Ok(state.mounted.contains(path) || state.blocks.number(path)?.is_some())
    }

    fn copies(&self, _: &Path, folder: &Path) -> io::Result<Vec<PathBuf>> {
        Ok(self.state().mounted.iter().filter(|point| point.starts_with(folder)).cloned().collect())
    }
}

/// The pod of a mount below `ROOT/pods`, or of a device, which is a file of its name.
fn pod_of(target: &str) -> &str {
    target.rsplit('/').nth(if target.ends_with("/mount") { 4 } else { 0 }).unwrap_or_default()
}

#[tonic::async_trait]
impl Identity for FakeDriver {
    async fn get_plugin_info(
        &self,
        _: Request<wire::GetPluginInfoRequest>,
    ) -> Result<Response<wire::GetPluginInfoResponse>, Status> {
        let name = self.state().name.clone();
        Ok(Response::new(wire::GetPluginInfoResponse { name, ..Default::default() }))
    }
}

#[tonic::async_trait]
impl Node for FakeDriver {
    async fn node_get_info(
        &self,
        _: Request<wire::NodeGetInfoRequest>,
    ) -> Result<Response<wire::NodeGetInfoResponse>, Status> {
        let _: Response<()> = self.call(("info", "", ""), |_| Ok(())).await?;
        let state = self.state();
        Ok(Response::new(wire::NodeGetInfoResponse {
            node_id: state.node_id.clone(),
            max_volumes_per_node: state.max,
            accessible_topology: (!state.topology.is_empty())
                .then(|| wire::Topology { segments: state.topology.clone() }),
        }))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<wire::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<wire::NodeGetCapabilitiesResponse>, Status> {
        let one = |rpc: &Rpc| wire::NodeServiceCapability {
            r#type: Some(capability::Type::Rpc(capability::Rpc { r#type: (*rpc).into() })),
        };
        let capabilities = self.state().capabilities.iter().map(one).collect();
        Ok(Response::new(wire::NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<wire::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<wire::NodeGetVolumeStatsResponse>, Status> {
        let request = request.into_inner();
        let state = self.state();
        let path = Path::new(&request.volume_path);
        if !state.mounted.contains(path) && state.blocks.number(path)?.is_none() {
            return Err(Status::not_found("nothing is mounted there"));
        }
        Ok(Response::new(wire::NodeGetVolumeStatsResponse {
            usage: state.usage.clone(),
            volume_condition: None,
        }))
    }

    async fn node_expand_volume(
        &self,
        request: Request<wire::NodeExpandVolumeRequest>,
    ) -> Result<Response<wire::NodeExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        let bytes = request.capacity_range.unwrap_or_default().required_bytes.to_string();
        let act = |state: &mut DriverState| {
            let there = [&request.volume_path, &request.staging_target_path];
            match there.iter().all(|path| state.mounted.contains(Path::new(path))) {
                true => Ok(()),
                false => Err(io::ErrorKind::NotFound.into()),
            }
        };
        self.call(("expand", &request.volume_id, &bytes), act).await
    }

    async fn node_stage_volume(
        &self,
        request: Request<wire::NodeStageVolumeRequest>,
    ) -> Result<Response<wire::NodeStageVolumeResponse>, Status> {
        let request = request.into_inner();
        let volume = request.volume_id.clone();
        let act = |state: &mut DriverState| {
            state.mounted.insert(PathBuf::from(&request.staging_target_path));
            state.staged = request;
            Ok(())
        };
        self.call(("stage", &volume, ""), act).await
    }

    async fn node_unstage_volume(
        &self,
        request: Request<wire::NodeUnstageVolumeRequest>,
    ) -> Result<Response<wire::NodeUnstageVolumeResponse>, Status> {
        let request = request.into_inner();
        let act = |state: &mut DriverState| {
            state.mounted.remove(Path::new(&request.staging_target_path));
            Ok(())
        };
        self.call(("unstage", &request.volume_id, ""), act).await
    }

    async fn node_publish_volume(
        &self,
        request: Request<wire::NodePublishVolumeRequest>,
    ) -> Result<Response<wire::NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let (volume, target) = (request.volume_id.clone(), request.target_path.clone());
        let act = |state: &mut DriverState| {
            let is_block = request.volume_capability.as_ref().is_some_and(|of| {
                matches!(of.access_type, Some(wire::volume_capability::AccessType::Block(_)))
            });
            // As the specification has it, file or folder is the driver's to make, and its parent the kubelet's.
            match state.mounted.contains(Path::new(&target)) {
                true => {}
                false if is_block => {
                    fs::File::create_new(&target)?;
                    state.blocks.device(Path::new(&target), 7);
                }
                false => fs::create_dir(&target)?,
            }
            state.mounted.insert(PathBuf::from(&target));
            state.published = request;
            Ok(())
        };
        self.call(("publish", &volume, pod_of(&target)), act).await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<wire::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<wire::NodeUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let target = PathBuf::from(&request.target_path);
        let act = |state: &mut DriverState| {
            match (state.mounted.remove(&target), state.blocks.number(&target)?) {
                (false, _) => {}
                (true, Some(_)) => state.blocks.vanish(&target),
                (true, None) => fs::remove_dir(&target)?,
            }
            Ok(())
        };
        self.call(("unpublish", &request.volume_id, pod_of(&request.target_path)), act).await
    }
}
