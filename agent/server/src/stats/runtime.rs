//! The runtime's statistics as the summary API's. Owns the mapping; never measures anything. Called
//! by [`super`].

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use gantry_proto::cri as wire;
use tonic::{Code, Status};

use super::summary::{
    ContainerStats, CpuStats, FsStats, InterfaceStats, IoStats, MemoryStats, NetworkStats, PodReference,
    PodStats, ProcessStats, PsiData, PsiStats, SwapStats,
};
use super::{disk, now};
use crate::cri::{CONTAINER_NAME, Cri, POD_UID, timed};

/// The runtime's file systems.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ImageFs {
    pub(crate) images: FsStats,
    pub(crate) containers: FsStats,
    /// A folder on it, as the runtime sees it; may be empty.
    pub(crate) image_place: PathBuf,
    /// The same.
    pub(crate) container_place: PathBuf,
}

impl Cri {
    /// Every pod that runs. Of two sandboxes of one pod the newest counts, and only containers that
    /// run.
    pub(crate) async fn usage(&self) -> Result<Vec<PodStats>, Status> {
        let ready = wire::PodSandboxStateValue { state: wire::PodSandboxState::SandboxReady.into() };
        let filter = wire::PodSandboxFilter { state: Some(ready), ..wire::PodSandboxFilter::default() };
        let ask = wire::ListPodSandboxRequest { filter: Some(filter) };
        let sandboxes =
            self.runtime.clone().list_pod_sandbox(timed(ask, self.timeout)).await?.into_inner().items;
        let running = wire::ContainerStateValue { state: wire::ContainerState::ContainerRunning.into() };
        let filter = wire::ContainerFilter { state: Some(running), ..wire::ContainerFilter::default() };
        let ask = wire::ListContainersRequest { filter: Some(filter) };
        let containers =
            self.runtime.clone().list_containers(timed(ask, self.timeout)).await?.into_inner().containers;
        let mut of_pods = self.pod_usage().await?;
        let ask = wire::ListContainerStatsRequest { filter: None };
        let found =
            self.runtime.clone().list_container_stats(timed(ask, self.timeout)).await?.into_inner().stats;
        let mut of_containers: HashMap<String, wire::ContainerStats> = found
            .into_iter()
            .filter_map(|stats| Some((stats.attributes.as_ref()?.id.clone(), stats)))
            .collect();

        let mut newest: HashMap<String, wire::PodSandbox> = HashMap::new();
        for sandbox in sandboxes {
            let Some(uid) = sandbox.labels.get(POD_UID).cloned() else { continue };
            let later = newest.get(&uid).is_none_or(|known| known.created_at < sandbox.created_at);
            if later {
                newest.insert(uid, sandbox);
            }
        }
        let mut pods = Vec::new();
        for (uid, sandbox) in newest {
            let mine = containers.iter().filter(|container| container.pod_sandbox_id == sandbox.id);
            let mine = mine.filter_map(|container| {
                let stats = of_containers.remove(&container.id)?;
                Some(self::container(container, stats))
            });
            let mine: Vec<ContainerStats> = mine.collect();
            let linux = of_pods.remove(&sandbox.id).unwrap_or_default();
            pods.push(pod(uid, sandbox, mine, linux));
        }
        pods.sort_by(|a, b| {
            (&a.pod_ref.namespace, &a.pod_ref.name).cmp(&(&b.pod_ref.namespace, &b.pod_ref.name))
        });
        Ok(pods)
    }

    /// By sandbox; nothing from a runtime that has no such call.
    async fn pod_usage(&self) -> Result<HashMap<String, wire::LinuxPodSandboxStats>, Status> {
        let ask = wire::ListPodSandboxStatsRequest { filter: None };
        let stats = match self.runtime.clone().list_pod_sandbox_stats(timed(ask, self.timeout)).await {
            Err(status) if status.code() == Code::Unimplemented => return Ok(HashMap::new()),
            answer => answer?.into_inner().stats,
        };
        Ok(stats.into_iter().filter_map(|stats| Some((stats.attributes?.id, stats.linux?))).collect())
    }

    /// Where images and containers are, and how full that is.
    pub(crate) async fn image_fs(&self) -> Result<ImageFs, Status> {
        let ask = wire::ImageFsInfoRequest {};
        let answer = self.images.clone().image_fs_info(timed(ask, self.timeout)).await?.into_inner();
        let images = answer.image_filesystems.into_iter().next();
        let containers = answer.container_filesystems.into_iter().next().or_else(|| images.clone());
        let place = |usage: &Option<wire::FilesystemUsage>| {
            let mount =
                usage.as_ref().and_then(|usage| usage.fs_id.as_ref()).map(|id| id.mountpoint.as_str());
            PathBuf::from(mount.unwrap_or_default())
        };
        Ok(ImageFs {
            image_place: place(&images),
            container_place: place(&containers),
            images: images.map(file_system).unwrap_or_default(),
            containers: containers.map(file_system).unwrap_or_default(),
        })
    }
}

fn value(value: Option<wire::UInt64Value>) -> Option<u64> {
    value.map(|value| value.value)
}

fn file_system(usage: wire::FilesystemUsage) -> FsStats {
    let mount = usage.fs_id.map(|id| id.mountpoint).unwrap_or_default();
    // A runtime in a mount namespace of its own names a path that is not here.
    let space = disk::space(Path::new(&mount), usage.timestamp).unwrap_or_default();
    FsStats {
        time: if usage.timestamp > 0 { usage.timestamp } else { now() },
        used_bytes: value(usage.used_bytes),
        inodes_used: value(usage.inodes_used),
        ..space
    }
}

fn pod(
    uid: String,
    sandbox: wire::PodSandbox,
    containers: Vec<ContainerStats>,
    linux: wire::LinuxPodSandboxStats,
) -> PodStats {
    let metadata = sandbox.metadata.unwrap_or_default();
    PodStats {
        hosts_file: None,
        pod_ref: PodReference { name: metadata.name, namespace: metadata.namespace, uid },
        start_time: sandbox.created_at,
        swap: sum_swap(&containers),
        containers,
        cpu: linux.cpu.map(cpu),
        memory: linux.memory.map(memory),
        io: linux.io.map(io),
        network: linux.network.map(network),
        process_stats: linux
            .process
            .map(|process| ProcessStats { process_count: value(process.process_count) }),
        volume: Vec::new(),
        ephemeral_storage: None,
    }
}

fn sum_swap(containers: &[ContainerStats]) -> Option<SwapStats> {
    let all: Vec<&SwapStats> = containers.iter().filter_map(|container| container.swap.as_ref()).collect();
    let time = all.iter().map(|swap| swap.time).max()?;
    let used = all.iter().filter_map(|swap| swap.swap_usage_bytes).fold(0, u64::saturating_add);
    let free = all.iter().filter_map(|swap| swap.swap_available_bytes).fold(0, u64::saturating_add);
    Some(SwapStats { time, swap_available_bytes: Some(free), swap_usage_bytes: Some(used) })
}

fn container(known: &wire::Container, stats: wire::ContainerStats) -> ContainerStats {
    let name = known.labels.get(CONTAINER_NAME).cloned();
    let rootfs = stats.writable_layer.map(|layer| FsStats {
        time: layer.timestamp,
        used_bytes: value(layer.used_bytes),
        inodes_used: value(layer.inodes_used),
        ..FsStats::default()
    });
    ContainerStats {
        name: name.or_else(|| known.metadata.as_ref().map(|m| m.name.clone())).unwrap_or_default(),
        id: known.id.clone(),
        start_time: known.created_at,
        cpu: stats.cpu.map(cpu),
        memory: stats.memory.map(memory),
        io: stats.io.map(io),
        rootfs,
        logs: None,
        swap: stats.swap.map(|swap| SwapStats {
            time: swap.timestamp,
            swap_available_bytes: value(swap.swap_available_bytes),
            swap_usage_bytes: value(swap.swap_usage_bytes),
        }),
    }
}

fn psi(stats: wire::PsiStats) -> PsiStats {
    let data = |data: Option<wire::PsiData>| {
        let wire::PsiData { total, avg10, avg60, avg300 } = data.unwrap_or_default();
        PsiData { total, avg10, avg60, avg300 }
    };
    PsiStats { full: data(stats.full), some: data(stats.some) }
}

fn cpu(usage: wire::CpuUsage) -> CpuStats {
    CpuStats {
        time: usage.timestamp,
        // Runtimes that have seen it once only say 0: no rate is known then.
        usage_nano_cores: value(usage.usage_nano_cores).filter(|rate| *rate > 0),
        usage_core_nano_seconds: value(usage.usage_core_nano_seconds),
        psi: usage.psi.map(psi),
    }
}

fn memory(usage: wire::MemoryUsage) -> MemoryStats {
    MemoryStats {
        time: usage.timestamp,
        // Without a limit containerd says 0: then there is nothing to say.
        available_bytes: value(usage.available_bytes).filter(|left| *left > 0),
        usage_bytes: value(usage.usage_bytes),
        working_set_bytes: value(usage.working_set_bytes),
        rss_bytes: value(usage.rss_bytes),
        page_faults: value(usage.page_faults),
        major_page_faults: value(usage.major_page_faults),
        psi: usage.psi.map(psi),
    }
}

fn io(usage: wire::IoUsage) -> IoStats {
    IoStats { time: usage.timestamp, psi: usage.psi.map(psi) }
}

fn interface(usage: wire::NetworkInterfaceUsage) -> InterfaceStats {
    InterfaceStats {
        name: usage.name,
        rx_bytes: value(usage.rx_bytes),
        rx_errors: value(usage.rx_errors),
        tx_bytes: value(usage.tx_bytes),
        tx_errors: value(usage.tx_errors),
        ..InterfaceStats::default()
    }
}

fn network(usage: wire::NetworkUsage) -> NetworkStats {
    let default = usage.default_interface.map(interface).unwrap_or_default();
    let mut interfaces: Vec<InterfaceStats> = usage.interfaces.into_iter().map(interface).collect();
    // Upstream lists the default one among all.
    if !default.name.is_empty() && interfaces.iter().all(|known| known.name != default.name) {
        interfaces.insert(0, default.clone());
    }
    NetworkStats { time: usage.timestamp, default, interfaces }
}
