//! What a PersistentVolumeClaim leads to on this node. Owns the lookups and the kubelet's words for a
//! claim that cannot be used; never mounts. Called by [`super::host`].

use std::path::PathBuf;

use gantry_model::pod::Pod;
use gantry_model::pod::placement::Term;
use gantry_model::pod::volume::HostPathType;

use crate::api::{Api, PersistentSource};

/// Where the files of a claim are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum VolumeBacking {
    /// The path itself is mounted into containers.
    HostPath {
        /// Absolute.
        path: PathBuf,
        /// What must be there.
        kind: HostPathType,
    },
    /// The folder is bound below the pod's volumes, where other agents look for it.
    Local {
        /// Absolute.
        path: PathBuf,
        /// Of the PersistentVolume.
        volume: String,
    },
}

/// A claim's volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BoundVolume {
    pub(super) place: VolumeBacking,
    /// Its name.
    pub(super) volume: String,
    /// ReadWriteOncePod is its only access mode.
    pub(super) one_pod: bool,
    /// What it asks of the node.
    pub(super) affinity: Option<Vec<Term>>,
}

/// Follows the claim to its volume.
pub(super) async fn find(api: &dyn Api, pod: &Pod, claim: &str) -> Result<BoundVolume, String> {
    let failed = |why: String| format!("error processing PVC {}/{claim}: {why}", pod.namespace);
    let found = api.claim(&pod.namespace, claim).await;
    let found = found.map_err(|error| failed(format!("failed to fetch PVC from API server: {error}")))?;
    let found = found.ok_or_else(|| {
        let absent = format!("persistentvolumeclaim {claim:?} not found");
        failed(format!("failed to fetch PVC from API server: {absent}"))
    })?;
    if found.deleted {
        return Err(failed("PVC is being deleted".to_owned()));
    }
    if !found.bound || found.volume.is_empty() {
        return Err(failed("PVC is not bound".to_owned()));
    }
    if found.block {
        return Err(failed(
            "volumeMode Block is not supported: this node mounts claims of volumeMode Filesystem".to_owned(),
        ));
    }
    let name = &found.volume;
    let fetching = |why: &str| {
        failed(format!(
            "error processing PVC {claim:?}: failed to fetch PV {name:?} from API server: err={why}"
        ))
    };
    let volume = api.persistent_volume(name).await.map_err(|error| fetching(&error.to_string()))?;
    let volume = volume.ok_or_else(|| fetching(&format!("persistentvolume {name:?} not found")))?;
    if volume.claim_uid.is_empty() || volume.claim_uid != found.uid {
        return Err(failed(format!(
            "PV.Spec.ClaimRef.UID {:?} does not point to the PVC {claim:?} (UID {:?})",
            volume.claim_uid, found.uid
        )));
    }
    let place = match &volume.source {
        PersistentSource::HostPath { path, kind } => {
            let kind = HostPathType::NAMES.iter().find(|(name, _)| name == kind).map(|(_, kind)| *kind);
            let kind = kind.ok_or_else(|| failed(format!("PV {name:?} has an unknown hostPath type")))?;
            VolumeBacking::HostPath { path: PathBuf::from(path), kind }
        }
        PersistentSource::Local { path } => {
            VolumeBacking::Local { path: PathBuf::from(path), volume: name.clone() }
        }
        PersistentSource::Other(kind) => {
            return Err(failed(format!(
                "PV {name:?} is of kind {kind}, which this node does not mount: use a hostPath or local volume"
            )));
        }
    };
    Ok(BoundVolume {
        place,
        volume: name.clone(),
        one_pod: volume.one_pod,
        affinity: volume.affinity.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::fake::FakeApi;
    use crate::api::{Claim, PersistentVolume};
    use crate::pod::tests::pod;

    fn bound() -> Claim {
        Claim { volume: "pv".into(), bound: true, uid: "u".into(), ..Claim::default() }
    }

    fn local() -> PersistentVolume {
        of(PersistentSource::Local { path: "/data".into() })
    }

    fn of(source: PersistentSource) -> PersistentVolume {
        PersistentVolume { source, claim_uid: "u".into(), one_pod: false, affinity: None }
    }

    #[tokio::test]
    async fn a_bound_claim_leads_to_its_volume() {
        let api = FakeApi::default();
        api.put_claim("c", bound());
        api.put_volume("pv", local());
        let local = VolumeBacking::Local { path: "/data".into(), volume: "pv".into() };
        assert_eq!(find(&api, &pod(), "c").await.unwrap().place, local);
        let source = PersistentSource::HostPath { path: "/h".into(), kind: "Directory".into() };
        api.put_volume("pv", of(source));
        let host = VolumeBacking::HostPath { path: "/h".into(), kind: HostPathType::Directory };
        assert_eq!(find(&api, &pod(), "c").await.unwrap().place, host);
    }

    #[tokio::test]
    async fn a_claim_that_cannot_be_used_is_told() {
        let api = FakeApi::default();
        api.put_volume("pv", local());
        let unbound = Claim { bound: false, ..bound() };
        api.put_volume("nfs", of(PersistentSource::Other("nfs".into())));
        for (claim, why) in [
            (None, "failed to fetch PVC from API server: persistentvolumeclaim \"c\" not found"),
            (Some(unbound), "PVC is not bound"),
            (Some(Claim { deleted: true, ..bound() }), "PVC is being deleted"),
            (Some(Claim { block: true, ..bound() }), "volumeMode Block is not supported"),
            (Some(Claim { volume: "gone".into(), ..bound() }), "persistentvolume \"gone\" not found"),
            (Some(Claim { uid: "v".into(), ..bound() }), "does not point to the PVC \"c\" (UID \"v\")"),
            (Some(Claim { volume: "nfs".into(), ..bound() }), "of kind nfs, which this node does not mount"),
        ] {
            if let Some(claim) = claim {
                api.put_claim("c", claim);
            }
            let message = find(&api, &pod(), "c").await.unwrap_err();
            assert!(message.starts_with("error processing PVC default/c: "), "{message}");
            assert!(message.contains(why), "{message}");
        }
    }
}
