//! What the runtime does not know of a pod's use: its logs, its volumes, and all of its disk together.
//! Owns the sums; never asks the runtime. Called by [`super::Stats`]. Blocks.

use std::path::Path;

use k8s_openapi::api::core::v1::Pod;

use super::disk::{self, Weight};
use super::summary::{FsStats, PodStats, VolumeStats};

/// Where pods' files are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Folders<'a> {
    /// Of the pods' logs, a folder for each pod.
    pub logs: &'a Path,
    /// The kubelet's, a folder for each pod.
    pub pods: &'a Path,
}

/// Adds disks to a pod.
pub(super) fn fill(
    pod: &mut PodStats,
    api: Option<&Pod>,
    volumes: Vec<VolumeStats>,
    folders: Folders<'_>,
    root: &FsStats,
    containers_on: &FsStats,
) {
    let reference = &pod.pod_ref;
    let folder = folders.logs.join(format!("{}_{}_{}", reference.namespace, reference.name, reference.uid));
    let hosts_file = folders.pods.join(&reference.uid).join("etc-hosts");
    let mut used = disk::weigh(&hosts_file).unwrap_or_default();
    pod.hosts_file = Some(of(root, used));
    for container in &mut pod.containers {
        let weight = disk::weigh(&folder.join(&container.name)).unwrap_or_default();
        container.logs = Some(of(root, weight));
        add(&mut used, weight);
        if let Some(rootfs) = &mut container.rootfs {
            rootfs.available_bytes = containers_on.available_bytes;
            rootfs.capacity_bytes = containers_on.capacity_bytes;
            rootfs.inodes = containers_on.inodes;
            rootfs.inodes_free = containers_on.inodes_free;
            let bytes = rootfs.used_bytes.unwrap_or_default();
            add(&mut used, Weight { bytes, inodes: rootfs.inodes_used.unwrap_or_default() });
        }
    }
    for volume in volumes.iter().filter(|volume| on_disk(api, volume)) {
        let bytes = volume.fs.used_bytes.unwrap_or_default();
        add(&mut used, Weight { bytes, inodes: volume.fs.inodes_used.unwrap_or_default() });
    }
    pod.ephemeral_storage = Some(of(root, used));
    pod.volume = volumes;
}

fn add(sum: &mut Weight, more: Weight) {
    sum.bytes = sum.bytes.saturating_add(more.bytes);
    sum.inodes = sum.inodes.saturating_add(more.inodes);
}

fn of(root: &FsStats, weight: Weight) -> FsStats {
    FsStats { used_bytes: Some(weight.bytes), inodes_used: Some(weight.inodes), ..root.clone() }
}

/// Whether it is the node's own disk that it fills: claims have their own, memory is none.
fn on_disk(api: Option<&Pod>, volume: &VolumeStats) -> bool {
    let spec = api.and_then(|pod| pod.spec.as_ref());
    let found = spec.and_then(|spec| spec.volumes.iter().flatten().find(|known| known.name == volume.name));
    let memory = |found: &k8s_openapi::api::core::v1::Volume| {
        found
            .empty_dir
            .as_ref()
            .is_some_and(|dir| dir.medium.as_deref().is_some_and(|medium| !medium.is_empty()))
            || found.secret.is_some()
            || found.projected.is_some()
    };
    volume.pvc_ref.is_none() && !found.is_some_and(memory)
}
