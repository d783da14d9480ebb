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
        let mut weight = disk::weigh(&folder.join(&container.name)).unwrap_or_default();
        // A container could fill the node's disk by its last words (#122224).
        let words = folders.pods.join(&reference.uid).join("containers").join(&container.name);
        add(&mut weight, disk::weigh(&words).unwrap_or_default());
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::summary::{ContainerStats, PodReference};

    #[test]
    fn issues_122224_and_124333_last_words_and_logs_are_a_containers_storage() {
        let root = tempfile::tempdir().unwrap();
        let (logs, pods) = (root.path().join("logs"), root.path().join("pods"));
        let (of_log, of_words) = (logs.join("shop_web_u/app"), pods.join("u/containers/app"));
        let used = || {
            let reference = PodReference { name: "web".into(), namespace: "shop".into(), uid: "u".into() };
            let containers = vec![ContainerStats { name: "app".into(), ..ContainerStats::default() }];
            let mut pod = PodStats { pod_ref: reference, containers, ..PodStats::default() };
            let folders = Folders { logs: &logs, pods: &pods };
            fill(&mut pod, None, Vec::new(), folders, &FsStats::default(), &FsStats::default());
            let logs = pod.containers.remove(0).logs.unwrap().used_bytes.unwrap();
            (logs, pod.ephemeral_storage.unwrap().used_bytes.unwrap())
        };
        let mut before = used().0;
        for folder in [of_log, of_words] {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("0"), vec![b'#'; 1 << 20]).unwrap();
            let (of_container, of_pod) = used();
            assert!(of_container >= before + (1 << 20) && of_pod == of_container, "{of_container} {of_pod}");
            before = of_container;
        }
    }

    #[test]
    fn what_a_container_writes_into_its_hosts_file_is_its_pods_storage() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("pods/u");
        std::fs::create_dir_all(&folder).unwrap();
        let folders = Folders { logs: &root.path().join("logs"), pods: &root.path().join("pods") };
        let reference = PodReference { name: "web".into(), namespace: "shop".into(), uid: "u".into() };
        let used = || {
            let mut pod = PodStats { pod_ref: reference.clone(), ..PodStats::default() };
            fill(&mut pod, None, Vec::new(), folders, &FsStats::default(), &FsStats::default());
            (pod.hosts_file.unwrap().used_bytes, pod.ephemeral_storage.unwrap().used_bytes)
        };
        assert_eq!(used(), (Some(0), Some(0)));
        std::fs::write(folder.join("etc-hosts"), vec![b'#'; 1 << 20]).unwrap();
        let (of_file, of_pod) = used();
        assert!(of_file >= Some(1 << 20) && of_pod == of_file, "{of_file:?} {of_pod:?}");
    }
}
