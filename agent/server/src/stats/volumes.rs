//! How full each volume of a pod is. Owns which of a pod's volumes can be measured and how, as
//! upstream's plugins do it; never measures a host path. Called by [`super::Stats`]. Blocks.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use gantry_metrics::Metrics;
use gantry_model::pod::volume::ClaimRef;
use k8s_openapi::api::core::v1::{Pod, Volume};

use tokio::time::timeout;

use super::summary::{FsStats, PvcReference, VolumeStats};
use super::{disk, now};
use crate::node_pods::NodePods;

/// How a volume is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// It is part of a file system: its files are weighed.
    Weigh,
    /// It is a file system of its own, or stands for one.
    Ask,
    /// The agent tells, or has its driver tell: a look at its file system may never end.
    AskDriver,
}

/// A volume to be measured.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct MeasuredVolume {
    name: String,
    path: PathBuf,
    pub(super) how: How,
    claim: Option<PvcReference>,
}

/// Those of a pod.
pub(super) fn places(root: &Path, pod: &Pod, pods: &dyn NodePods) -> Vec<MeasuredVolume> {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let folder = root.join("pods").join(uid).join("volumes");
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let place = |volume: &Volume| {
        let (plugin, name, how) = match volume {
            v if v.empty_dir.is_some() => ("empty-dir", volume.name.clone(), How::Weigh),
            v if v.config_map.is_some() => ("configmap", volume.name.clone(), How::Weigh),
            v if v.secret.is_some() => ("secret", volume.name.clone(), How::Weigh),
            v if v.projected.is_some() => ("projected", volume.name.clone(), How::Weigh),
            v if v.downward_api.is_some() => ("downward-api", volume.name.clone(), How::Weigh),
            v if v.nfs.is_some() => ("nfs", volume.name.clone(), How::AskDriver),
            v if v.csi.is_some() => ("csi", volume.name.clone(), How::AskDriver),
            v => {
                claim_of(pod, v)?;
                match pods.claim_name(uid, &volume.name) {
                    Some(name) => ("local-volume", name, How::Ask),
                    None => ("csi", volume.name.clone(), How::AskDriver),
                }
            }
        };
        let claim = claim_of(pod, volume)
            .map(|name| PvcReference { name, namespace: pod.metadata.namespace.clone().unwrap_or_default() });
        let path = folder.join(format!("kubernetes.io~{plugin}")).join(name);
        Some(MeasuredVolume { name: volume.name.clone(), path, how, claim })
    };
    volumes.filter_map(place).collect()
}

/// The claim's name, of a volume that has one.
fn claim_of(pod: &Pod, volume: &Volume) -> Option<String> {
    if let Some(claim) = &volume.persistent_volume_claim {
        return Some(claim.claim_name.clone());
    }
    volume.ephemeral.as_ref()?;
    let pod = pod.metadata.name.as_deref().unwrap_or_default();
    Some(ClaimRef::Ephemeral.name(pod, &volume.name))
}

/// Asks drivers for theirs, all at once; none of what is not told within `patience`.
pub(super) async fn ask_drivers(
    (pod, places): (&str, Vec<MeasuredVolume>),
    (pods, metrics): (&dyn NodePods, &Metrics),
    patience: Duration,
) -> Vec<VolumeStats> {
    let ask = async |place: MeasuredVolume| {
        let begun = Instant::now();
        let usage = match timeout(patience, pods.usage(pod, &place.name)).await {
            Ok(Ok(usage)) => usage?,
            Ok(Err(error)) => {
                tracing::debug!(
                    pod,
                    volume = place.name,
                    error,
                    "a driver does not tell how full a volume is"
                );
                return None;
            }
            Err(_) => {
                tracing::warn!(pod, volume = place.name, "a driver does not answer how full a volume is");
                return None;
            }
        };
        metrics.volume_metric_duration.took([usage.driver.as_str()], begun.elapsed());
        let fs = FsStats {
            time: now(),
            available_bytes: usage.available_bytes,
            capacity_bytes: usage.capacity_bytes,
            used_bytes: usage.used_bytes,
            inodes_free: usage.inodes_free,
            inodes: usage.inodes,
            inodes_used: usage.inodes_used,
        };
        Some(VolumeStats { fs, name: place.name, pvc_ref: place.claim })
    };
    join_all(places.into_iter().map(ask)).await.into_iter().flatten().collect()
}

/// Measures it; nothing when it is not there.
pub(super) fn measure(place: MeasuredVolume, metrics: &Metrics) -> Option<VolumeStats> {
    let begun = Instant::now();
    let space = disk::space(&place.path, now()).ok()?;
    let fs = match place.how {
        How::Ask | How::AskDriver => space,
        How::Weigh => {
            let weight = disk::weigh(&place.path).ok()?;
            FsStats { used_bytes: Some(weight.bytes), inodes_used: Some(weight.inodes), ..space }
        }
    };
    let source = if place.how == How::Ask { "statfs" } else { "du" };
    metrics.volume_metric_duration.took([source], begun.elapsed());
    Some(VolumeStats { fs, name: place.name, pvc_ref: place.claim })
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::future::BoxFuture;
    use gantry_model::pod::usage::VolumeUsage;
    use serde_json::json;
    use std::sync::Arc;

    #[derive(Debug)]
    struct Claims;

    impl NodePods for Claims {
        fn pods(&self) -> Vec<Arc<Pod>> {
            Vec::new()
        }

        fn translate(&self, uid: &str) -> String {
            uid.to_owned()
        }

        fn claim_name(&self, pod: &str, volume: &str) -> Option<String> {
            (pod == "u" && ["data", "own"].contains(&volume)).then(|| "pv-1".to_owned())
        }

        fn usage<'a>(
            &'a self,
            _: &'a str,
            volume: &'a str,
        ) -> BoxFuture<'a, Result<Option<VolumeUsage>, String>> {
            Box::pin(async move {
                match volume {
                    "disk" => Ok(Some(VolumeUsage { used_bytes: Some(3), ..VolumeUsage::default() })),
                    "lost" => Err("its driver is away".to_owned()),
                    "slow" => std::future::pending().await,
                    _ => Ok(None),
                }
            })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn drivers_tell_of_theirs_and_one_that_does_not_answer_holds_up_no_other() {
        let place = |name: &str| MeasuredVolume {
            name: name.to_owned(),
            path: PathBuf::new(),
            how: How::AskDriver,
            claim: None,
        };
        let places = ["slow", "disk", "lost", "none"].map(place).to_vec();
        let metrics = Metrics::default();
        let told = ask_drivers(("u", places), (&Claims, &metrics), Duration::from_secs(30)).await;
        let told: Vec<_> = told.iter().map(|volume| (volume.name.as_str(), volume.fs.used_bytes)).collect();
        assert_eq!(told, [("disk", Some(3))]);
    }

    #[test]
    fn what_can_be_measured() {
        let root = tempfile::tempdir().unwrap();
        let pod: Pod = serde_json::from_value(json!({
            "metadata": { "uid": "u", "namespace": "ns", "name": "web" },
            "spec": { "containers": [], "volumes": [
                { "name": "scratch", "emptyDir": {} },
                { "name": "host", "hostPath": { "path": "/" } },
                { "name": "data", "persistentVolumeClaim": { "claimName": "data-web-0" } },
                { "name": "own", "ephemeral": { "volumeClaimTemplate": { "spec": {} } } },
                { "name": "disk", "persistentVolumeClaim": { "claimName": "other" } },
                { "name": "inline", "csi": { "driver": "d" } },
                { "name": "share", "nfs": { "server": "s", "path": "/e" } },
            ] },
        }))
        .unwrap();
        let places = places(root.path(), &pod, &Claims);
        let names: Vec<&str> = places.iter().map(|place| place.name.as_str()).collect();
        assert_eq!(names, ["scratch", "data", "own", "disk", "inline", "share"]);
        let claims: Vec<_> = places.iter().map(|place| Some(place.claim.as_ref()?.name.as_str())).collect();
        assert_eq!(claims, [None, Some("data-web-0"), Some("web-own"), Some("other"), None, None]);
        let asked: Vec<_> = places.iter().filter(|place| place.how == How::AskDriver).collect();
        assert_eq!(asked.len(), 3);
        assert!(places[1].path.ends_with("pods/u/volumes/kubernetes.io~local-volume/pv-1"));
        let metrics = Metrics::default();
        assert_eq!(measure(places[0].clone(), &metrics), None);
        std::fs::create_dir_all(&places[0].path).unwrap();
        std::fs::write(places[0].path.join("f"), vec![1; 8192]).unwrap();
        let stats = measure(places[0].clone(), &metrics).unwrap();
        assert!(stats.fs.used_bytes >= Some(8192) && stats.fs.inodes_used == Some(2), "{stats:?}");
        assert_eq!(metrics.volume_metric_duration.count(["du"]), 1);
    }
}
