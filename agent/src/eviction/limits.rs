//! Limits of what a pod may keep on the node's own disk: `emptyDir.sizeLimit`, and limits of `ephemeral-storage` of a
//! pod and of its containers. Pure: owns the comparison and upstream's words for it; never measures. Called by
//! [`super::run`].

use gantry_model::pod::volume::{Medium, VolumeSource};
use gantry_model::pod::{Container, Pod};
use gantry_model::quantity;
use gantry_model::requests::peak;

use gantry_model::observation::{ContainerUse, PodUse, Used};

/// The resource, as limits name it.
const STORAGE: &str = "ephemeral-storage";

/// A pod keeps more than it may.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Exceeded {
    /// `eviction_signal` of the metric `kubelet_evictions`.
    pub signal: &'static str,
    /// Of the pod's status and its event.
    pub message: String,
}

/// Whether it has any such limit: pods without one need not be measured.
#[must_use]
pub(crate) fn is_limited(pod: &Pod) -> bool {
    let by_size =
        |source: &VolumeSource| matches!(source, VolumeSource::EmptyDir { size_limit: Some(_), .. });
    pod.volumes.iter().any(|volume| by_size(&volume.source))
        || pod.all_containers().any(|container| limit_of(container).is_some())
}

/// The first limit that the pod exceeds: of a volume, of the pod, of a container. With images on a file system of
/// their own, writable layers are there, too, and do not count.
#[must_use]
pub(crate) fn find_exceeded(pod: &Pod, used: &PodUse, images_apart: bool) -> Option<Exceeded> {
    of_a_volume(pod, used)
        .or_else(|| of_the_pod(pod, used, images_apart))
        .or_else(|| of_a_container(pod, used, images_apart))
}

fn of_a_volume(pod: &Pod, used: &PodUse) -> Option<Exceeded> {
    pod.volumes.iter().find_map(|volume| {
        let VolumeSource::EmptyDir { size_limit: Some(limit), .. } = &volume.source else { return None };
        let is_above = above(used.volumes.get(&volume.name)?.bytes, limit.bytes);
        is_above.then(|| Exceeded {
            signal: "emptydirfs.limit",
            message: format!(
                "Usage of EmptyDir volume {:?} exceeds the limit {:?}. ",
                volume.name, limit.shown
            ),
        })
    })
}

fn of_the_pod(pod: &Pod, used: &PodUse, images_apart: bool) -> Option<Exceeded> {
    let (limit, shown) = pod_limit(pod)?;
    let containers = used.containers.iter().map(|container| of_container(container, images_apart));
    let volumes = pod.volumes.iter().filter(|volume| is_on_disk(&volume.source));
    let volumes = volumes.filter_map(|volume| used.volumes.get(&volume.name).copied());
    // A container could fill the node's disk by its /etc/hosts (CVE-2020-8557).
    let total = containers.chain(volumes).fold(used.hosts_file, Used::plus).bytes;
    above(total, limit).then(|| Exceeded {
        signal: "ephemeralpodfs.limit",
        message: format!("Pod ephemeral local storage usage exceeds the total limit of containers {shown}. "),
    })
}

fn of_a_container(pod: &Pod, used: &PodUse, images_apart: bool) -> Option<Exceeded> {
    used.containers.iter().find_map(|container| {
        let spec = pod.containers.iter().find(|spec| spec.name == container.name)?;
        let (limit, written) = limit_of(spec).filter(|(limit, _)| *limit > 0)?;
        above(of_container(container, images_apart).bytes, limit).then(|| Exceeded {
            signal: "ephemeralcontainerfs.limit",
            message: format!(
                "Container {} exceeded its local ephemeral storage limit {:?}. ",
                spec.name,
                quantity::like(limit, written)
            ),
        })
    })
}

fn above(used: u64, limit: i64) -> bool {
    i128::from(used) > i128::from(limit)
}

/// Its logs, and its writable layer where that is on the node's disk.
fn of_container(container: &ContainerUse, images_apart: bool) -> Used {
    let layer = container.layer.filter(|_| !images_apart);
    [layer, container.logs].into_iter().flatten().fold(Used::default(), Used::plus)
}

/// Volumes that count for the pod: emptyDirs and ConfigMaps, as upstream's `IsLocalEphemeralVolume`.
fn is_on_disk(source: &VolumeSource) -> bool {
    match source {
        VolumeSource::EmptyDir { medium, .. } => *medium == Medium::Disk,
        VolumeSource::Projected { memory, .. } => !memory,
        VolumeSource::HostPath { .. }
        | VolumeSource::Claim { .. }
        | VolumeSource::Csi(_)
        | VolumeSource::Migrated(_)
        | VolumeSource::Iscsi(_)
        | VolumeSource::Nfs(_)
        | VolumeSource::Image { .. } => false,
    }
}

/// In bytes, and as written.
fn limit_of(container: &Container) -> Option<(i64, &str)> {
    let written = container.written.limits.get(STORAGE)?;
    Some((container.resources.ephemeral_limit?, written))
}

/// Upstream's `PodLimits`: the sum of the containers' limits, or of sidecars and an init container where that is more,
/// and the overhead. None where no container has a limit.
fn pod_limit(pod: &Pod) -> Option<(i64, String)> {
    let (_, written) = pod.containers.iter().chain(&pod.init_containers).find_map(limit_of)?;
    let overhead = pod.overhead.get(STORAGE).and_then(|text| quantity::parse_units(text).ok()).unwrap_or(0);
    let limit =
        peak(pod, |container| limit_of(container).map_or(0, |(limit, _)| limit)).saturating_add(overhead);
    Some((limit, quantity::like(limit, written)))
}

#[cfg(test)]
mod tests;
