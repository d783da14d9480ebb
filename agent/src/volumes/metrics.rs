//! The metrics of volumes: how many are desired and mounted, and how long mounts and unmounts took,
//! `volume_manager_total_volumes` and `storage_operation_duration_seconds`. Owns the count; never touches
//! a volume. Kept by [`super::host`].

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gantry_metrics::Metrics;
use gantry_model::pod::volume::{Volume, VolumeSource};
use gantry_model::pod::{Pod, PodUid};

use super::Count;
use super::claim::VolumeBacking;
use super::labels::LabelError;

/// By pod and volume.
type MountedVolumes = BTreeMap<PodUid, BTreeMap<String, CountedVolume>>;

/// See the module.
#[derive(Debug, Clone, Default)]
pub(super) struct VolumeMetrics {
    metrics: Arc<Metrics>,
    known: Arc<Mutex<MountedVolumes>>,
}

/// As upstream names it; none of a claim while it is not known where it leads.
fn plugin(volume: &Volume, place: Option<&VolumeBacking>) -> Option<String> {
    let name = match (&volume.source, place) {
        (VolumeSource::EmptyDir { .. }, _) => "kubernetes.io/empty-dir",
        (VolumeSource::HostPath { .. }, _)
        | (VolumeSource::Claim { .. }, Some(VolumeBacking::HostPath { .. })) => "kubernetes.io/host-path",
        (VolumeSource::Claim { .. }, Some(VolumeBacking::Local(_) | VolumeBacking::LocalBlock(_))) => {
            "kubernetes.io/local-volume"
        }
        (VolumeSource::Claim { .. } | VolumeSource::Migrated(_), Some(VolumeBacking::Csi(wanted))) => {
            return Some(format!("kubernetes.io/csi:{}", wanted.source.driver));
        }
        (VolumeSource::Nfs(_), _) | (VolumeSource::Claim { .. }, Some(VolumeBacking::Nfs(_))) => {
            "kubernetes.io/nfs"
        }
        (VolumeSource::Iscsi(_), _) | (VolumeSource::Claim { .. }, Some(VolumeBacking::Iscsi(_))) => {
            "kubernetes.io/iscsi"
        }
        (VolumeSource::Claim { .. }, None) | (VolumeSource::Migrated(_), _) => return None,
        (VolumeSource::Csi(of), _) => return Some(format!("kubernetes.io/csi:{}", of.driver)),
        (VolumeSource::Image { .. }, _) => "kubernetes.io/image",
        // Its folder's name.
        (VolumeSource::Projected { plugin, .. }, _) => return Some(plugin.replace('~', "/")),
    };
    Some(name.to_owned())
}

/// Volumes that no container mounts or has as a device are none, as upstream.
fn is_used(pod: &Pod, volume: &Volume) -> bool {
    pod.mounts_volume(&volume.name) || pod.has_device(&volume.name)
}

/// A volume of a pod.
#[derive(Debug)]
struct CountedVolume {
    plugin: String,
    /// It is a device.
    block: bool,
    there: bool,
}

impl VolumeMetrics {
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        Self { metrics, known: Arc::default() }
    }

    fn known(&self) -> MutexGuard<'_, MountedVolumes> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A volume is about to be made, or brought up to date.
    pub(super) fn begins(&self, pod: &Pod, volume: &Volume, place: Option<&VolumeBacking>) {
        let Some(plugin) = plugin(volume, place).filter(|_| is_used(pod, volume)) else { return };
        let mut known = self.known();
        let volumes = known.entry(pod.uid.clone()).or_default();
        let block = place.is_some_and(VolumeBacking::is_block);
        volumes.entry(volume.name.clone()).or_insert(CountedVolume { plugin, block, there: false });
    }

    /// It is there, or could not be made.
    pub(super) fn record_mount(&self, pod: &Pod, volume: &Volume, begun: Instant, worked: bool) {
        let mut known = self.known();
        let Some(counted) = known.get_mut(&pod.uid).and_then(|of| of.get_mut(&volume.name)) else {
            return;
        };
        counted.there |= worked;
        let operation = if counted.block { "map_volume" } else { "volume_mount" };
        self.took(&counted.plugin, operation, begun.elapsed(), worked);
    }

    /// All of a pod's are gone, or could not be taken back.
    pub(super) fn record_unmount(&self, uid: &PodUid, begun: Instant, worked: bool) {
        let mut known = self.known();
        for counted in known.get(uid).iter().flat_map(|of| of.values()).filter(|counted| counted.there) {
            let operation = if counted.block { "unmap_volume" } else { "volume_unmount" };
            self.took(&counted.plugin, operation, begun.elapsed(), worked);
        }
        if worked {
            known.remove(uid);
        }
    }

    fn took(&self, plugin: &str, operation: &str, time: Duration, worked: bool) {
        let status = if worked { "success" } else { "fail-unknown" };
        self.metrics.storage_operation_duration.took([plugin, operation, status, "false"], time);
    }

    /// A volume of a pod has no SELinux label; that keeps the pod from it, or would if volumes of all kinds had one.
    pub(super) fn record_no_label(&self, error: &LabelError, access_mode: &str, keeps: bool) {
        let metrics = &self.metrics;
        match (error, keeps) {
            (LabelError::Unknown(_), true) => metrics.selinux_container_errors.inc([access_mode]),
            (LabelError::Unknown(_), false) => metrics.selinux_container_warnings.inc([access_mode]),
            (LabelError::Several(_), true) => metrics.selinux_pod_errors.inc([access_mode]),
            (LabelError::Several(_), false) => metrics.selinux_pod_warnings.inc([access_mode]),
        }
    }

    /// By plugin.
    pub(super) fn counts(&self) -> BTreeMap<String, Count> {
        let mut counts: BTreeMap<String, Count> = BTreeMap::new();
        for counted in self.known().values().flat_map(BTreeMap::values) {
            let count = counts.entry(counted.plugin.clone()).or_default();
            count.wanted += 1;
            count.there += usize::from(counted.there);
        }
        counts
    }
}
