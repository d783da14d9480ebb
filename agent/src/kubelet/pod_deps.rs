//! What pods are run with: volumes, cgroups, probes and all else that a pod's worker uses, made of a few settings.
//! Owns what is made, in which order; never a pod. Called by [`super::run`] and [`super::session`].

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gantry_metrics::Metrics;
use gantry_model::cgroup::limits::Rules;
use gantry_model::cgroup::names::Driver;
use gantry_model::clock::SystemClock;
use gantry_model::pod::PodUid;
use tokio::sync::watch;
use tonic::transport::Channel;

use super::error::Error;
use crate::api::Api;
use crate::block::Kernel;
use crate::cgroups::tree::Tree;
use crate::checkpoint::CheckpointDir;
use crate::csi::drivers::Drivers;
use crate::csi::files::Table;
use crate::csi::owner::CsiVolumes;
use crate::devices::DeviceManager;
use crate::dra::DraManager;
use crate::images::Images;
use crate::logs::dir::LogDir;
use crate::node::{self, Allocatable, HostIps, NodeInfo, NodeLabels, ToldLabels};
use crate::pod::restart::LONGEST_WAIT;
use crate::pod::run::Deps;
use crate::probe::net::NetProbe;
use crate::resource_managers::ResourceManagers;
use crate::root::Root;
use crate::runtime::cri::{CriRuntime, Features, NodeConfig, REQUEST_TIMEOUT, driver};
use crate::runtime_ext::RuntimeExtensions;
use crate::users::{Range, UserRanges};
use crate::volumes::host::HostVolumes;

/// Where an agent keeps things, and what its pods get.
#[derive(Debug)]
pub(super) struct Setup<'a> {
    pub(super) agent_socket: PathBuf,
    pub(super) pod_logs_dir: PathBuf,
    /// Of volumes. The caller holds it to the end: what is in it is this agent's alone.
    pub(super) root: &'a Root,
    pub(super) cgroup_root: String,
    /// Who makes cgroups; the runtime is asked when nobody said so.
    pub(super) driver: Option<Driver>,
    /// RuntimeDefault for pods that name no profile.
    pub(super) seccomp_default: bool,
    /// Read where it says nothing.
    pub(super) given: node::NodeOverrides,
    /// For pods with a user namespace.
    pub(super) users: Range,
    pub(super) tuning: Tuning,
}

/// Numbers that a kubelet's configuration has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tuning {
    /// By what CPU and processes are held.
    pub(super) rules: Rules,
    /// For an answer of the runtime.
    pub(super) request_timeout: Duration,
    /// Of a container that crashes.
    pub(super) longest_wait: Duration,
}

impl Default for Tuning {
    fn default() -> Self {
        Self { rules: Rules::default(), request_timeout: REQUEST_TIMEOUT, longest_wait: LONGEST_WAIT }
    }
}

/// What pods are run with.
#[derive(Debug)]
pub(super) struct BuiltPodDeps {
    pub(super) deps: Deps,
    /// For what is asked of it beside pods.
    pub(super) runtime: CriRuntime,
    /// Where pods learn the node's addresses, which are as given until then.
    pub(super) ips: watch::Sender<Vec<String>>,
    /// Where volumes learn the node's labels.
    pub(super) labels: watch::Sender<ToldLabels>,
    /// Volumes of CSI.
    pub(super) csi: CsiVolumes,
}

/// Volumes of pods, and the owner of those that drivers make.
fn volumes(
    root: &Path,
    api: &Arc<dyn Api>,
    node: &Arc<NodeInfo>,
    metrics: &Arc<Metrics>,
) -> (HostVolumes, CsiVolumes) {
    let volumes = HostVolumes::new(root, api.clone(), node.clone(), node.recursive_read_only);
    let (places, mounts) = (volumes.csi_places(), Arc::new(Table));
    let (drivers, kernel) = (Drivers::new(metrics.clone()), Arc::new(Kernel));
    let csi = CsiVolumes::open(api.clone(), drivers, mounts, kernel, places, &node.name);
    let volumes = volumes.with_csi(csi.clone()).counted_in(metrics.clone());
    if let Err(why) = volumes.begin() {
        tracing::error!(why, "disks that an earlier kubelet has left stay");
    }
    (volumes, csi)
}

impl Setup<'_> {
    /// `api` has the objects that pods refer to.
    pub(super) async fn make(
        self,
        channel: Channel,
        api: Arc<dyn Api>,
        metrics: Arc<Metrics>,
    ) -> Result<BuiltPodDeps, Error> {
        let driver = self.driver(&channel).await?;
        let root_dir = self.root.path().to_owned();
        let facts = self.facts()?;
        let (info, cpu) = self.info(&facts)?;
        let (ips_in, ips) = HostIps::channel(node::addresses(self.given.ips.as_deref()));
        let (labels_in, labels) = NodeLabels::channel();
        let resolver = facts.resolver.clone();
        let runtime = CriRuntime::new(channel.clone(), facts, metrics.clone());
        let Features { runtime_name, recursive_read_only, strict_groups, user_namespaces } =
            runtime.features().await?;
        let runtime_ext = RuntimeExtensions::of(&runtime_name, &channel);
        let runtime = runtime.telling(runtime_ext.pulls.clone());
        let told = async |uid: &PodUid| runtime.users_of(uid).await;
        let users = UserRanges::load(root_dir.clone(), self.users, told).await.map_err(Error::UserRanges)?;
        let node = Arc::new(NodeInfo {
            runtime_name,
            recursive_read_only,
            strict_groups,
            user_namespaces,
            resolver,
            ips,
            labels,
            ..info
        });
        let (volumes, csi) = volumes(&root_dir, &api, &node, &metrics);
        let deps = Deps {
            volumes: Arc::new(volumes),
            cgroups: Arc::new(Tree::new(&self.cgroup_root, cpu, driver)?.with_rules(self.tuning.rules)),
            api,
            probe_io: Arc::new(NetProbe::new()?),
            devices: DeviceManager::default(),
            dra: DraManager::default(),
            managers: ResourceManagers::default(),
            checkpoints: Arc::new(self.checkpoints()?),
            logs: Arc::new(LogDir::new(self.pod_logs_dir)),
            clock: Arc::new(SystemClock::new()),
            users: Arc::new(users),
            sweeps: Arc::default(),
            longest_wait: self.tuning.longest_wait,
            metrics,
            tracer: None,
            probe_metrics: Arc::default(),
            // Without a kubelet nobody asks for it: a try tells.
            network: watch::channel(None).1,
            recorder: None,
            images: Arc::new(Images::plain()),
            runtime_ext,
            node,
            runtime: Arc::new(runtime.clone()),
        };
        Ok(BuiltPodDeps { deps, runtime, ips: ips_in, labels: labels_in, csi })
    }

    async fn driver(&self, channel: &Channel) -> Result<Driver, Error> {
        if let Some(driver) = self.driver {
            return Ok(driver);
        }
        let told = driver::of(channel.clone(), self.tuning.request_timeout).await;
        Ok(told.map_err(Error::Driver)?.unwrap_or_default())
    }

    /// What the runtime's client puts into every pod.
    fn facts(&self) -> Result<NodeConfig, Error> {
        Ok(NodeConfig {
            seccomp_root: self.root.path().join("seccomp"),
            seccomp_default: self.seccomp_default,
            rules: self.tuning.rules,
            request_timeout: self.tuning.request_timeout,
            ..node::facts(self.pod_logs_dir.clone(), &self.given)?
        })
    }

    /// The node as pods see it, and the CPU that the machine has.
    fn info(&self, facts: &NodeConfig) -> Result<(NodeInfo, i64), Error> {
        let mut info = node::info(self.root.path())?;
        if let Some(name) = &self.given.name {
            info.name.clone_from(name);
        }
        let cpu = info.cpu;
        if let Some(Allocatable { cpu, memory, ephemeral }) = self.given.allocatable {
            (info.cpu, info.memory, info.ephemeral) = (cpu, memory, ephemeral);
        }
        info.cluster_domain.clone_from(&facts.cluster_domain);
        info.no_pod_level = self.given.no_pod_level;
        Ok((info, cpu))
    }

    /// Beside the socket: as long-lived as what runs here, and one per agent.
    fn checkpoints(&self) -> Result<CheckpointDir, Error> {
        let beside = self.agent_socket.parent().unwrap_or(Path::new("/run/gantry"));
        let opened = CheckpointDir::open(beside.join("checkpoints"), self.root.claims(), self.root.path());
        opened.map_err(Error::Restore)
    }
}
