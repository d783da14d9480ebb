//! Who goes first. Pure: owns the order; never asks what a pod uses. Called by [`super::run`].
//!
//! Memory and disk: who uses more than was asked for, then the lower priority, then who is furthest above the request; a pod
//! of which nothing is known goes before all others. Process IDs: the lower priority, then who has most; a pod of which
//! nothing is known goes before others of its priority. Nobody looks at a pod's class.

use std::cmp::Reverse;

use gantry_model::pod::Pod;
use gantry_model::pod::volume::{Medium, VolumeSource};
use gantry_model::requests::requests;
use gantry_model::signal::{Signal, Starved};

use gantry_model::observation::{Disks, PodUse, Usage, Used};

/// Which parts of a pod's disk are on the file system that is short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct StorageParts {
    layers: bool,
    logs: bool,
    volumes: bool,
}

/// Sorts the pods: the first one is ended first.
pub(crate) fn rank<T>(pods: &mut [T], of: impl Fn(&T) -> &Pod, usage: &Usage, signal: Signal, disks: Disks) {
    let key = |item: &T| RankKey::new(of(item), usage.get(&of(item).uid), signal, disks);
    pods.sort_by_cached_key(key);
}

/// What is compared, in this order.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RankKey {
    is_known: bool,
    is_within: bool,
    priority: i32,
    above: Reverse<i128>,
}

impl RankKey {
    fn new(pod: &Pod, used: Option<&PodUse>, signal: Signal, disks: Disks) -> Self {
        let priority = pod.placement.priority.unwrap_or(0);
        let starved = signal.resource();
        let Some(used) = used else {
            let is_known = starved == Starved::Pids;
            return Self { is_known, is_within: is_known, priority, above: Reverse(i128::MAX) };
        };
        let amount = i128::from(amount(pod, used, signal, disks));
        let asked = i128::from(request_of(pod, starved));
        // Nobody asks for process IDs: all are alike there.
        let is_within = starved == Starved::Pids || amount <= asked;
        Self { is_known: true, is_within, priority, above: Reverse(amount - asked) }
    }
}

fn request_of(pod: &Pod, starved: Starved) -> i64 {
    match starved {
        Starved::Memory | Starved::Storage => requests(pod).get(starved.as_str()).copied().unwrap_or(0),
        Starved::Inodes | Starved::Pids => 0,
    }
}

fn amount(pod: &Pod, used: &PodUse, signal: Signal, disks: Disks) -> u64 {
    let disk = || on_disk(pod, used, parts(signal, disks));
    match signal.resource() {
        Starved::Memory => used.memory,
        Starved::Pids => used.processes,
        Starved::Storage => disk().bytes,
        Starved::Inodes => disk().inodes,
    }
}

fn parts(signal: Signal, disks: Disks) -> StorageParts {
    use Signal::{ContainerFs, ContainerFsInodes, ImageFs, ImageFsInodes};
    let all = StorageParts { layers: true, logs: true, volumes: true };
    match (disks.images_apart, disks.layers_apart) {
        (true, false) => match signal {
            ImageFs | ImageFsInodes | ContainerFs | ContainerFsInodes => {
                StorageParts { logs: false, volumes: false, ..all }
            }
            _ => StorageParts { layers: false, ..all },
        },
        // No pod has anything among the images.
        (true, true) if matches!(signal, ImageFs | ImageFsInodes) => {
            StorageParts { layers: false, logs: false, volumes: false }
        }
        _ => all,
    }
}

fn on_disk(pod: &Pod, used: &PodUse, parts: StorageParts) -> Used {
    let mut sum = Used::default();
    for container in &used.containers {
        let layer = container.layer.filter(|_| parts.layers);
        let logs = container.logs.filter(|_| parts.logs);
        sum = [layer, logs].into_iter().flatten().fold(sum, Used::plus);
    }
    let local = pod.volumes.iter().filter(|volume| parts.volumes && is_local(&volume.source));
    local.filter_map(|volume| used.volumes.get(&volume.name)).fold(sum, |sum, used| sum.plus(*used))
}

/// Takes room of the node's own disk.
fn is_local(source: &VolumeSource) -> bool {
    match source {
        VolumeSource::EmptyDir { medium, .. } => *medium == Medium::Disk,
        VolumeSource::Projected { memory, .. } => !memory,
        VolumeSource::HostPath { .. } => true,
        VolumeSource::Claim { .. }
        | VolumeSource::Csi(_)
        | VolumeSource::Migrated(_)
        | VolumeSource::Iscsi(_)
        | VolumeSource::Nfs(_)
        | VolumeSource::Image { .. } => false,
    }
}

#[cfg(test)]
mod tests;
