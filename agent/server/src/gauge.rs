//! What eviction goes by, from the same measurements as the summary. Owns the mapping; keeps nothing. Called by
//! eviction in the agent.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use gantry_base::error::chain;
use gantry_model::observation::{ContainerUse, Disks, Observation, PodUse, Reading, Readings, Usage, Used};
use gantry_model::pod::PodUid;
use gantry_model::signal::Signal;

use super::cri::{self, Cri};
use super::server::Server;
use super::stats::summary::{ContainerStats, FsStats, MemoryStats, NodeStats, PodStats, VolumeStats};
use super::stats::{Depth, disk, now};

impl Server {
    /// What is left of the machine.
    ///
    /// # Errors
    /// When the machine or the runtime cannot be asked.
    pub async fn observe(&self) -> Result<Observation, String> {
        let (sources, stats) = (&self.inner.sources, &self.inner.sources.stats);
        let mut node = stats.node(Depth::All).await.map_err(|error| chain(&error))?;
        let fs = Cri::new(&sources.runtime, &sources.metrics).image_fs().await;
        let mut fs = fs.map_err(|status| format!("failed to get imageFs stats: {}", cri::said(&status)))?;
        let root = stats.settings.root_dir.clone();
        let look = move || {
            let room = disk::space(&root, now());
            node.fs = Some(room.map_err(|error| format!("failed to get rootFs stats: {error}"))?);
            // The runtime's times say when it counted its files. The room that is left is read at this call.
            (fs.images.time, fs.containers.time) = (now(), now());
            let disks = disks(&root, &fs.image_place, &fs.container_place);
            Ok(Observation { readings: readings(&node, &fs.images, &fs.containers), disks })
        };
        tokio::task::spawn_blocking(look).await.map_err(|error| error.to_string())?
    }

    /// What pods use.
    ///
    /// # Errors
    /// When the machine or the runtime cannot be asked.
    pub async fn usage(&self) -> Result<Usage, String> {
        let sources = &self.inner.sources;
        let summary = sources.stats.summary(sources.stats_sources(), Depth::All).await;
        let one = |pod: PodStats| Some((PodUid::parse(&pod.pod_ref.uid)?, pod_use(pod)));
        Ok(summary.map_err(|error| chain(&error))?.pods.into_iter().filter_map(one).collect())
    }
}

/// A runtime in a mount namespace of its own names paths that are not here: then all is on one.
fn disks(root: &Path, images: &Path, containers: &Path) -> Disks {
    let device = |path: &Path| std::fs::metadata(path).map(|data| data.dev()).ok();
    let (root, images, containers) = (device(root), device(images), device(containers));
    Disks { images_apart: images.is_some() && images != root, layers_apart: containers != images }
}

fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn readings(node: &NodeStats, images: &FsStats, containers: &FsStats) -> Readings {
    let mut found = Readings::new();
    let pods = node.system_containers.iter().find(|group| group.name == "pods");
    let memory = |of: Option<&MemoryStats>| {
        let of = of?;
        let (left, used) = (of.available_bytes?, of.working_set_bytes?);
        Some(Reading { available: number(left), capacity: number(left.saturating_add(used)), at: of.time })
    };
    let of_pods = pods.and_then(|pods| memory(pods.memory.as_ref()));
    found.extend(memory(node.memory.as_ref()).map(|reading| (Signal::Memory, reading)));
    found.extend(of_pods.map(|reading| (Signal::AllocatableMemory, reading)));
    let disks = [
        (node.fs.as_ref(), Signal::NodeFs, Signal::NodeFsInodes),
        (Some(images), Signal::ImageFs, Signal::ImageFsInodes),
        (Some(containers), Signal::ContainerFs, Signal::ContainerFsInodes),
    ];
    for (fs, room, inodes) in disks {
        let Some(fs) = fs else { continue };
        let reading = |left: Option<u64>, all: Option<u64>| {
            Some(Reading { available: number(left?), capacity: number(all?), at: fs.time })
        };
        found.extend(reading(fs.available_bytes, fs.capacity_bytes).map(|reading| (room, reading)));
        // A file system that makes inodes as it needs them counts none: it never runs out of them.
        let counted = fs.inodes.filter(|all| *all > 0);
        found.extend(reading(fs.inodes_free, counted).map(|reading| (inodes, reading)));
    }
    if let Some(limits) = &node.rlimit
        && let (Some(most), Some(here)) = (limits.max_pid, limits.processes)
    {
        let available = most.saturating_sub(here);
        found.insert(Signal::Pids, Reading { available, capacity: most, at: limits.time });
    }
    found
}

fn convert_usage(fs: &FsStats) -> Used {
    Used { bytes: fs.used_bytes.unwrap_or_default(), inodes: fs.inodes_used.unwrap_or_default() }
}

fn pod_use(pod: PodStats) -> PodUse {
    let container = |container: ContainerStats| ContainerUse {
        memory: container.memory.as_ref().and_then(|memory| memory.working_set_bytes),
        layer: container.rootfs.as_ref().map(convert_usage),
        logs: container.logs.as_ref().map(convert_usage),
        name: container.name,
    };
    let volume = |volume: VolumeStats| (volume.name.clone(), convert_usage(&volume.fs));
    PodUse {
        memory: pod.memory.and_then(|memory| memory.working_set_bytes).unwrap_or_default(),
        processes: pod.process_stats.and_then(|processes| processes.process_count).unwrap_or_default(),
        containers: pod.containers.into_iter().map(container).collect(),
        hosts_file: pod.hosts_file.as_ref().map(convert_usage).unwrap_or_default(),
        volumes: pod.volume.into_iter().map(volume).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::summary::RlimitStats;

    #[test]
    fn signals_come_of_the_summarys_numbers() {
        let fs = |left, all, free, inodes| FsStats {
            time: 9,
            available_bytes: Some(left),
            capacity_bytes: Some(all),
            inodes_free: Some(free),
            inodes: Some(inodes),
            ..FsStats::default()
        };
        let memory = |left, used| {
            Some(MemoryStats {
                time: 7,
                available_bytes: Some(left),
                working_set_bytes: Some(used),
                ..MemoryStats::default()
            })
        };
        let group = |name: &str, memory| ContainerStats { name: name.into(), memory, ..Default::default() };
        let node = NodeStats {
            memory: memory(30, 70),
            system_containers: vec![group("kubelet", memory(1, 1)), group("pods", memory(20, 60))],
            fs: Some(fs(10, 100, 4, 8)),
            rlimit: Some(RlimitStats { time: 8, max_pid: Some(100), processes: Some(60) }),
            ..NodeStats::default()
        };
        let found = readings(&node, &fs(5, 50, 3, 6), &fs(6, 60, 0, 0));
        let told: Vec<_> = found.iter().map(|(s, r)| (s.as_str(), r.available, r.capacity, r.at)).collect();
        assert_eq!(
            told,
            [
                ("memory.available", 30, 100, 7),
                ("allocatableMemory.available", 20, 80, 7),
                ("nodefs.available", 10, 100, 9),
                ("nodefs.inodesFree", 4, 8, 9),
                ("imagefs.available", 5, 50, 9),
                ("imagefs.inodesFree", 3, 6, 9),
                ("containerfs.available", 6, 60, 9),
                ("pid.available", 40, 100, 8),
            ]
        );
        // A group without a limit tells of none.
        let free = NodeStats { system_containers: vec![group("pods", None)], ..NodeStats::default() };
        assert!(readings(&free, &FsStats::default(), &FsStats::default()).is_empty());
    }

    #[test]
    fn one_file_system_is_one() {
        let folder = tempfile::tempdir().unwrap();
        let (root, gone) = (folder.path(), folder.path().join("gone"));
        assert_eq!(disks(root, root, root), Disks::default());
        assert_eq!(disks(root, &gone, &gone), Disks::default());
        let apart = Disks { images_apart: true, layers_apart: false };
        assert_eq!(disks(root, Path::new("/proc"), Path::new("/proc")), apart);
        assert_eq!(disks(root, Path::new("/proc"), root), Disks { layers_apart: true, ..apart });
    }
}
