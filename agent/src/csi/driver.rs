//! One CSI driver at the other end of its socket. Owns the calls of CSI v1, their time limit and the wording of what fails;
//! never decides what is called when. Called by [`super::drivers`] and by the owner of volumes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gantry_grpc::{dial, in_go, status_in_go};
use gantry_metrics::Metrics;
use gantry_model::pod::usage::VolumeUsage;
use gantry_proto::csi as wire;
use gantry_proto::csi::identity_client::IdentityClient;
use gantry_proto::csi::node_client::NodeClient;
use gantry_proto::csi::node_service_capability::rpc::Type as Rpc;
use gantry_proto::csi::volume_capability::AccessType;
use gantry_proto::csi::volume_capability::access_mode::Mode;
use gantry_proto::csi::volume_usage::Unit;
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Code, Response, Status};

/// `csiTimeout`: of one call.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);
/// Of the connection: a socket is on this machine.
const DIAL: Duration = Duration::from_secs(10);

/// Why a call did not succeed, as Go's gRPC prints it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CallError {
    /// The driver has refused: nothing of it is under way.
    Final(String),
    /// Nobody knows: it may be done, or be done yet.
    Uncertain(String),
}

impl CallError {
    /// The words.
    pub(crate) fn why(&self) -> &str {
        match self {
            Self::Final(why) | Self::Uncertain(why) => why,
        }
    }
}

/// What a driver says of this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NodeFacts {
    /// What it calls this node; never empty when it is of use.
    pub(crate) node_id: String,
    /// Volumes that it can have here; 0 when it does not say.
    pub(crate) max_volumes: i64,
    /// Where this node is, by key.
    pub(crate) topology: BTreeMap<String, String>,
}

/// What a driver can do on a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Capabilities {
    /// STAGE_UNSTAGE_VOLUME.
    pub(crate) stage: bool,
    /// SINGLE_NODE_MULTI_WRITER.
    pub(crate) multi_writer: bool,
    /// VOLUME_MOUNT_GROUP.
    pub(crate) mount_group: bool,
    /// EXPAND_VOLUME.
    pub(crate) expand: bool,
    /// GET_VOLUME_STATS.
    pub(crate) usage: bool,
}

/// How a volume is to be mounted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Access {
    /// As the API spells it: `ReadWriteOnce`.
    pub(crate) mode: String,
    /// May be empty: the driver's own choice.
    pub(crate) fs_type: String,
    pub(crate) mount_options: Vec<String>,
    /// It is a device: what is said of a file system and its files counts for nothing.
    pub(crate) block: bool,
    /// Whom the files are to belong to, of a driver that sees to that.
    pub(crate) group: Option<i64>,
}

/// By key.
pub(crate) type Map = BTreeMap<String, String>;

/// NodeStageVolume.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct StageCall {
    pub(crate) handle: String,
    pub(crate) staging: PathBuf,
    pub(crate) publish_context: Map,
    pub(crate) volume_context: Map,
    pub(crate) secrets: Map,
    pub(crate) access: Access,
}

/// NodePublishVolume.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct PublishCall {
    pub(crate) handle: String,
    /// None of a driver that does not stage.
    pub(crate) staging: Option<PathBuf>,
    pub(crate) target: PathBuf,
    pub(crate) read_only: bool,
    pub(crate) publish_context: Map,
    pub(crate) volume_context: Map,
    pub(crate) secrets: Map,
    pub(crate) access: Access,
}

/// NodeExpandVolume.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ExpandCall {
    pub(crate) handle: String,
    pub(crate) target: PathBuf,
    /// None of a driver that does not stage.
    pub(crate) staging: Option<PathBuf>,
    /// At least so large.
    pub(crate) bytes: i64,
    pub(crate) secrets: Map,
    pub(crate) access: Access,
}

/// Why a volume has not grown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExpandError {
    pub(crate) why: String,
    /// What the driver answered; none when it was not asked, or has not answered.
    pub(crate) code: Option<Code>,
}

/// A driver's socket. Each call has a connection of its own: drivers come and go.
#[derive(Debug, Clone)]
pub(crate) struct Driver {
    pub(super) name: String,
    pub(super) socket: PathBuf,
    /// Of one call.
    pub(super) patience: Duration,
    pub(super) metrics: Arc<Metrics>,
}

impl Driver {
    async fn connect(&self) -> Result<Channel, CallError> {
        dial(&self.socket, DIAL).await.map_err(|why| {
            CallError::Uncertain(format!(
                "rpc error: code = Unavailable desc = connection error: desc = \"transport: Error while dialing: {why}\""
            ))
        })
    }

    /// Within the time that a call has, and counted. A driver that takes longer may come to its end yet.
    async fn answered<T>(
        &self,
        method: &str,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, CallError> {
        let begun = Instant::now();
        let late = |_| Err(Status::deadline_exceeded("context deadline exceeded"));
        let answer = timeout(self.patience, call).await.unwrap_or_else(late);
        let code = in_go(answer.as_ref().err().map_or(Code::Ok, Status::code));
        let labels = [self.name.as_str(), code, &format!("/csi.v1.{method}"), "false"];
        self.metrics.csi_operations.took(labels, begun.elapsed());
        answer.map(Response::into_inner).map_err(|status| match is_final(status.code()) {
            true => CallError::Final(status_in_go(&status)),
            false => CallError::Uncertain(status_in_go(&status)),
        })
    }

    async fn call<T, F>(
        &self,
        method: &str,
        call: impl FnOnce(NodeClient<Channel>) -> F,
    ) -> Result<T, CallError>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        self.answered(&format!("Node/{method}"), call(NodeClient::new(self.connect().await?))).await
    }

    /// How it calls itself; none of one that does not say.
    ///
    /// # Errors
    /// When it cannot be asked.
    pub(crate) async fn name(&self) -> Result<Option<String>, CallError> {
        let mut client = IdentityClient::new(self.connect().await?);
        match self
            .answered("Identity/GetPluginInfo", client.get_plugin_info(wire::GetPluginInfoRequest {}))
            .await
        {
            Ok(info) => Ok(Some(info.name).filter(|name| !name.is_empty())),
            Err(CallError::Final(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What it says of this node.
    ///
    /// # Errors
    /// When it does not answer in two minutes, or refuses.
    pub(crate) async fn node_facts(&self) -> Result<NodeFacts, CallError> {
        let request = wire::NodeGetInfoRequest {};
        let info = self.call("NodeGetInfo", async |mut client| client.node_get_info(request).await).await?;
        let topology = info.accessible_topology.map(|topology| topology.segments).unwrap_or_default();
        Ok(NodeFacts { node_id: info.node_id, max_volumes: info.max_volumes_per_node, topology })
    }

    /// What it can do.
    ///
    /// # Errors
    /// Likewise.
    pub(crate) async fn capabilities(&self) -> Result<Capabilities, CallError> {
        let request = wire::NodeGetCapabilitiesRequest {};
        let answer = self
            .call("NodeGetCapabilities", async |mut client| client.node_get_capabilities(request).await)
            .await?;
        let has = |wanted: Rpc| {
            answer.capabilities.iter().any(|one| match &one.r#type {
                Some(wire::node_service_capability::Type::Rpc(rpc)) => rpc.r#type() == wanted,
                None => false,
            })
        };
        Ok(Capabilities {
            stage: has(Rpc::StageUnstageVolume),
            multi_writer: has(Rpc::SingleNodeMultiWriter),
            mount_group: has(Rpc::VolumeMountGroup),
            expand: has(Rpc::ExpandVolume),
            usage: has(Rpc::GetVolumeStats),
        })
    }

    /// Mounts the volume once for all pods.
    ///
    /// # Errors
    /// When it refuses, or nobody knows what came of it.
    pub(crate) async fn stage(&self, call: StageCall, can: Capabilities) -> Result<(), CallError> {
        let request = wire::NodeStageVolumeRequest {
            volume_id: call.handle,
            publish_context: call.publish_context,
            staging_target_path: text(&call.staging),
            volume_capability: Some(capability(call.access, can)),
            secrets: call.secrets,
            volume_context: call.volume_context,
        };
        self.call("NodeStageVolume", async |mut client| client.node_stage_volume(request).await)
            .await
            .map(drop)
    }

    /// Mounts the volume for a pod.
    ///
    /// # Errors
    /// Likewise.
    pub(crate) async fn publish(&self, call: PublishCall, can: Capabilities) -> Result<(), CallError> {
        let request = wire::NodePublishVolumeRequest {
            volume_id: call.handle,
            publish_context: call.publish_context,
            staging_target_path: call.staging.as_deref().map(text).unwrap_or_default(),
            target_path: text(&call.target),
            volume_capability: Some(capability(call.access, can)),
            readonly: call.read_only,
            secrets: call.secrets,
            volume_context: call.volume_context,
        };
        self.call("NodePublishVolume", async |mut client| client.node_publish_volume(request).await)
            .await
            .map(drop)
    }

    /// Takes a pod's mount back.
    ///
    /// # Errors
    /// Likewise.
    pub(crate) async fn unpublish(&self, handle: &str, target: &Path) -> Result<(), CallError> {
        let request =
            wire::NodeUnpublishVolumeRequest { volume_id: handle.to_owned(), target_path: text(target) };
        self.call("NodeUnpublishVolume", async |mut client| client.node_unpublish_volume(request).await)
            .await
            .map(drop)
    }

    /// Makes a volume larger.
    ///
    /// # Errors
    /// When it refuses, or nobody knows what came of it.
    pub(crate) async fn expand(&self, call: ExpandCall, can: Capabilities) -> Result<(), ExpandError> {
        let request = wire::NodeExpandVolumeRequest {
            volume_id: call.handle,
            volume_path: text(&call.target),
            capacity_range: Some(wire::CapacityRange { required_bytes: call.bytes, limit_bytes: 0 }),
            staging_target_path: call.staging.as_deref().map(text).unwrap_or_default(),
            volume_capability: Some(capability(call.access, can)),
            secrets: call.secrets,
        };
        let mut answered = None;
        let sent = self.call("NodeExpandVolume", async |mut client| {
            let answer = client.node_expand_volume(request).await;
            answered = answer.as_ref().err().map(Status::code);
            answer
        });
        let done = sent.await;
        done.map(drop).map_err(|error| ExpandError {
            why: error.why().to_owned(),
            code: answered.filter(|_| matches!(error, CallError::Final(_))),
        })
    }

    /// How full the volume is that is mounted there; none of a driver that does not tell.
    ///
    /// # Errors
    /// When it refuses or does not answer.
    pub(crate) async fn usage(&self, handle: &str, target: &Path) -> Result<Option<VolumeUsage>, CallError> {
        if !self.capabilities().await?.usage {
            return Ok(None);
        }
        let request = wire::NodeGetVolumeStatsRequest {
            volume_id: handle.to_owned(),
            volume_path: text(target),
            staging_target_path: String::new(),
        };
        let answer = self
            .call("NodeGetVolumeStats", async |mut client| client.node_get_volume_stats(request).await)
            .await?;
        let mut usage = VolumeUsage { driver: self.name.clone(), ..VolumeUsage::default() };
        for part in answer.usage {
            let [available, total, used] =
                [part.available, part.total, part.used].map(|amount| u64::try_from(amount).ok());
            match part.unit() {
                Unit::Bytes => {
                    (usage.available_bytes, usage.capacity_bytes, usage.used_bytes) =
                        (available, total, used);
                }
                Unit::Inodes => {
                    (usage.inodes_free, usage.inodes, usage.inodes_used) = (available, total, used);
                }
                Unit::Unknown => {}
            }
        }
        Ok(Some(usage))
    }

    /// Takes the mount for all pods back.
    ///
    /// # Errors
    /// Likewise.
    pub(crate) async fn unstage(&self, handle: &str, staging: &Path) -> Result<(), CallError> {
        let request = wire::NodeUnstageVolumeRequest {
            volume_id: handle.to_owned(),
            staging_target_path: text(staging),
        };
        self.call("NodeUnstageVolume", async |mut client| client.node_unstage_volume(request).await)
            .await
            .map(drop)
    }
}

/// A kubelet's own paths, and names that the API server lets through.
fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn capability(access: Access, can: Capabilities) -> wire::VolumeCapability {
    let Access { mode, fs_type, mount_options, block, group } = access;
    let mode = match (mode.as_str(), can.multi_writer) {
        ("ReadWriteOnce", false) | ("ReadWriteOncePod", false) => Mode::SingleNodeWriter,
        ("ReadWriteOnce", true) => Mode::SingleNodeMultiWriter,
        ("ReadWriteOncePod", true) => Mode::SingleNodeSingleWriter,
        ("ReadOnlyMany", _) => Mode::MultiNodeReaderOnly,
        ("ReadWriteMany", _) => Mode::MultiNodeMultiWriter,
        _ => Mode::Unknown,
    };
    let kind = match block {
        true => AccessType::Block(wire::volume_capability::BlockVolume {}),
        false => AccessType::Mount(wire::volume_capability::MountVolume {
            fs_type,
            mount_flags: mount_options,
            volume_mount_group: group.map(|group| group.to_string()).unwrap_or_default(),
        }),
    };
    wire::VolumeCapability {
        access_mode: Some(wire::volume_capability::AccessMode { mode: mode.into() }),
        access_type: Some(kind),
    }
}

/// By the specification's codes: after the others the driver may still be at it.
fn is_final(code: Code) -> bool {
    !matches!(
        code,
        Code::Cancelled
            | Code::DeadlineExceeded
            | Code::Unavailable
            | Code::ResourceExhausted
            | Code::Aborted
    )
}
