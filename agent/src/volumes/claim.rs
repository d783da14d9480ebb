//! What a PersistentVolumeClaim leads to on this node. Owns the lookups and the kubelet's words for a
//! claim that cannot be used; never mounts. Called by [`super::host`].

use std::path::PathBuf;
use std::sync::Arc;

use gantry_model::pod::Pod;
use gantry_model::pod::placement::Term;
use gantry_model::pod::volume::{ClaimRef, HostPathType, Volume, VolumeSource};

use super::iscsi::IscsiDisk;
use super::nfs::NfsMount;
use crate::api::{Api, Claim, IscsiSource, NfsSource, PersistentSource, PersistentVolume};
use crate::csi::expand::Expansion;
use crate::csi::steps::{WantedClaim, WantedVolume};

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
    /// The folder, or what is on the disk, is bound below the pod's volumes, where other agents look for it.
    Local(Box<LocalVolume>),
    /// The device is mapped for the pod, as a device.
    LocalBlock(Box<LocalVolume>),
    /// A driver mounts it below the pod's volumes, or makes a device of it.
    Csi(Box<WantedVolume>),
    /// A target's disk, bound below the pod's volumes, or mapped as a device.
    Iscsi(Box<IscsiDisk>),
    /// A server's export, mounted below the pod's volumes.
    Nfs(Box<NfsMount>),
}

/// A folder or a disk of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LocalVolume {
    /// Absolute.
    pub(super) path: PathBuf,
    /// Of the PersistentVolume.
    pub(super) name: String,
    /// Of the PersistentVolume.
    pub(super) uid: String,
    /// Of a disk; may be empty.
    pub(super) fs_type: String,
    /// For mount(8).
    pub(super) options: Vec<String>,
    /// The pod asks for that.
    pub(super) read_only: bool,
    /// Which pods have it by.
    pub(super) claim: Option<WantedClaim>,
}

impl LocalVolume {
    /// Its claim waits for that, and its pod may write to it.
    pub(super) fn may_grow(&self) -> bool {
        !self.read_only && self.claim.as_ref().is_some_and(|claim| claim.expansion.is_some())
    }
}

impl VolumeBacking {
    /// Where the claim's size counts.
    fn claim_mut(&mut self) -> Option<&mut Option<WantedClaim>> {
        match self {
            Self::Csi(wanted) => Some(&mut wanted.claim),
            Self::Local(of) | Self::LocalBlock(of) => Some(&mut of.claim),
            Self::HostPath { .. } | Self::Iscsi(_) | Self::Nfs(_) => None,
        }
    }

    /// It is a device, not a folder.
    pub(super) fn is_block(&self) -> bool {
        match self {
            Self::LocalBlock(_) => true,
            Self::Csi(wanted) => wanted.block,
            Self::Iscsi(disk) => disk.block,
            Self::HostPath { .. } | Self::Local(_) | Self::Nfs(_) => false,
        }
    }
}

/// A claim's volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BoundVolume {
    pub(super) place: VolumeBacking,
    /// Its name.
    pub(super) volume: String,
    /// ReadWriteOncePod is its only access mode.
    pub(super) one_pod: bool,
    /// As metrics have it.
    pub(super) access_mode: &'static str,
    /// What it asks of the node.
    pub(super) affinity: Option<Vec<Term>>,
    /// It asks for mount options, and is of a kind that has none.
    pub(super) wants_options: bool,
}

/// Follows the claim of one of the pod's volumes to what it is bound to.
pub(super) async fn find(
    api: &dyn Api,
    pod: &Pod,
    volume: &Volume,
    claim: &ClaimRef,
) -> Result<BoundVolume, String> {
    let name = claim.name(&pod.name, &volume.name);
    let found = bound(api, pod, &name).await?;
    // Whoever may make claims could give this one's name to a claim of theirs.
    if *claim == ClaimRef::Ephemeral && found.controller != pod.uid.as_str() {
        return Err(format!(
            "PVC {0}/{name} was not created for pod {0}/{1} (pod is not owner)",
            pod.namespace, pod.name
        ));
    }
    check_mode(pod, &volume.name, found.block)?;
    let mut bound = backing(api, pod, &name, &found).await?;
    let read_only = matches!(volume.source, VolumeSource::Claim { read_only: true, .. });
    match &mut bound.place {
        VolumeBacking::Csi(wanted) => {
            wanted.read_only = read_only;
            wanted.own_name.clone_from(&volume.name);
        }
        VolumeBacking::Iscsi(disk) => disk.of.read_only = read_only,
        VolumeBacking::Nfs(wanted) => wanted.read_only = read_only,
        VolumeBacking::Local(of) | VolumeBacking::LocalBlock(of) => of.read_only = read_only,
        VolumeBacking::HostPath { .. } => {}
    }
    Ok(bound)
}

/// Whether containers use the volume as what it is. The binder has held the claim's mode against its volume's.
fn check_mode(pod: &Pod, volume: &str, block: bool) -> Result<(), String> {
    match block {
        true if pod.mounts_volume(volume) => {
            Err(format!("volume {volume} has volumeMode Block, but is specified in volumeMounts"))
        }
        false if pod.has_device(volume) => {
            Err(format!("volume {volume} has volumeMode Filesystem, but is specified in volumeDevices"))
        }
        _ => Ok(()),
    }
}

/// The claim, which can be used.
async fn bound(api: &dyn Api, pod: &Pod, claim: &str) -> Result<Arc<Claim>, String> {
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
    Ok(found)
}

/// What it is bound to.
async fn backing(api: &dyn Api, pod: &Pod, claim: &str, found: &Claim) -> Result<BoundVolume, String> {
    let failed = |why: String| format!("error processing PVC {}/{claim}: {why}", pod.namespace);
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
    let mut place = backing_of(name, &volume, found.block).map_err(failed)?;
    if let Some(wanted) = place.claim_mut() {
        *wanted = Some(WantedClaim {
            namespace: pod.namespace.clone(),
            name: claim.to_owned(),
            uid: found.uid.clone(),
            outgrown: Expansion::is_outgrown(&found.size, &volume),
            size: found.size.clone(),
            expansion: Expansion::of(&found.size, &volume),
        });
    }
    Ok(BoundVolume {
        place,
        volume: name.clone(),
        one_pod: volume.one_pod,
        access_mode: volume.access_mode,
        affinity: volume.affinity.clone(),
        wants_options: matches!(&volume.source, PersistentSource::HostPath { mount_options, .. } if !mount_options.is_empty()),
    })
}

/// What the PersistentVolume of that name is made of.
fn backing_of(name: &str, of: &PersistentVolume, block: bool) -> Result<VolumeBacking, String> {
    let (uid, one_pod) = (&of.uid, of.one_pod);
    match &of.source {
        PersistentSource::HostPath { .. } if block => Err(no_devices(name, "hostPath")),
        PersistentSource::Nfs(_) if block => Err(no_devices(name, "nfs")),
        PersistentSource::HostPath { path, kind, .. } => {
            let kind = HostPathType::NAMES.iter().find(|(name, _)| name == kind).map(|(_, kind)| *kind);
            let kind = kind.ok_or_else(|| format!("PV {name:?} has an unknown hostPath type"))?;
            Ok(VolumeBacking::HostPath { path: PathBuf::from(path), kind })
        }
        PersistentSource::Local { path, fs_type, mount_options } => {
            let local = Box::new(LocalVolume {
                path: PathBuf::from(path),
                name: name.to_owned(),
                uid: uid.clone(),
                fs_type: fs_type.clone(),
                options: mount_options.clone(),
                read_only: false,
                claim: None,
            });
            Ok(if block { VolumeBacking::LocalBlock(local) } else { VolumeBacking::Local(local) })
        }
        PersistentSource::Csi(source) => Ok(VolumeBacking::Csi(Box::new(WantedVolume {
            name: name.to_owned(),
            source: (**source).clone(),
            read_only: false,
            one_pod,
            own_name: String::new(),
            label: None,
            ephemeral: false,
            block,
            claim: None,
        }))),
        PersistentSource::Nfs(NfsSource { server, path, mount_options }) => {
            Ok(VolumeBacking::Nfs(Box::new(NfsMount {
                name: name.to_owned(),
                server: server.clone(),
                path: path.clone(),
                options: mount_options.clone(),
                read_only: false,
            })))
        }
        PersistentSource::Iscsi(source) => {
            let IscsiSource { volume, mount_options } = (**source).clone();
            let (name, uid, options) = (name.to_owned(), Some(uid.clone()), mount_options);
            Ok(VolumeBacking::Iscsi(Box::new(IscsiDisk { name, uid, of: volume, options, one_pod, block })))
        }
        PersistentSource::Wrong(why) => Err(why.clone()),
        PersistentSource::Other(kind) => Err(other_kind(name, kind)),
    }
}

fn other_kind(name: &str, kind: &str) -> String {
    format!(
        "PV {name:?} is of kind {kind}, which this node does not mount: use a hostPath, local, nfs, iscsi or csi volume"
    )
}

fn no_devices(name: &str, kind: &str) -> String {
    format!("PV {name:?} is of kind {kind}, which has no block devices: use a local, iscsi or csi volume")
}

#[cfg(test)]
mod tests {
    use gantry_model::pod::volume::{Propagation, RecursiveReadOnly, SubPath, VolumeDevice, VolumeMount};

    use super::*;
    use crate::api::fake::{FakeApi, claim_to, volume_from};
    use crate::api::{ClaimSize, PersistentVolume};
    use crate::pod::tests::pod;

    async fn of_claim(api: &FakeApi, claim: ClaimRef) -> Result<BoundVolume, String> {
        let source = VolumeSource::Claim { claim: claim.clone(), read_only: false };
        find(api, &pod(), &Volume { name: "data".into(), source }, &claim).await
    }

    async fn named(api: &FakeApi) -> Result<BoundVolume, String> {
        of_claim(api, ClaimRef::Named("c".into())).await
    }

    fn local() -> PersistentVolume {
        let (fs_type, mount_options) = ("xfs".to_owned(), vec!["noatime".to_owned()]);
        volume_from(PersistentSource::Local { path: "/data".into(), fs_type, mount_options })
    }

    /// What comes of it, by [`usable`].
    fn found_local() -> LocalVolume {
        LocalVolume {
            path: "/data".into(),
            name: "pv".into(),
            uid: "pv-uid".into(),
            fs_type: "xfs".into(),
            options: vec!["noatime".into()],
            read_only: false,
            claim: Some(WantedClaim {
                namespace: "default".into(),
                name: "c".into(),
                uid: "u".into(),
                outgrown: false,
                size: ClaimSize::default(),
                expansion: None,
            }),
        }
    }

    fn host(kind: &str) -> PersistentSource {
        PersistentSource::HostPath { path: "/h".into(), kind: kind.into(), mount_options: Vec::new() }
    }

    #[tokio::test]
    async fn a_bound_claim_leads_to_its_volume() {
        let api = FakeApi::default();
        api.put_claim("c", claim_to("pv"));
        api.put_volume("pv", local());
        assert_eq!(named(&api).await.unwrap().place, VolumeBacking::Local(Box::new(found_local())));
        api.put_volume("pv", volume_from(host("Directory")));
        let host = VolumeBacking::HostPath { path: "/h".into(), kind: HostPathType::Directory };
        assert_eq!(named(&api).await.unwrap().place, host);
    }

    #[tokio::test]
    async fn a_claim_is_used_as_the_block_device_or_the_folder_that_it_is() {
        let api = FakeApi::default();
        api.put_claim("c", Claim { block: true, ..claim_to("pv") });
        api.put_volume("pv", local());
        assert_eq!(named(&api).await.unwrap().place, VolumeBacking::LocalBlock(Box::new(found_local())));
        api.put_volume("pv", volume_from(host("")));
        assert!(named(&api).await.unwrap_err().contains("of kind hostPath, which has no block devices"));
        let told = |block, volume: &str| {
            let mut pod = pod();
            let web = pod.containers.first_mut().unwrap();
            web.devices = vec![VolumeDevice { volume: "data".into(), path: "/dev/a".into() }];
            check_mode(&pod, volume, block)
        };
        assert_eq!((told(true, "data"), told(false, "other")), (Ok(()), Ok(())));
        let words = "volume data has volumeMode Filesystem, but is specified in volumeDevices";
        assert_eq!(told(false, "data"), Err(words.to_owned()));
        let mut mounting = pod();
        mounting.containers.first_mut().unwrap().mounts = vec![VolumeMount {
            volume: "data".into(),
            path: "/data".into(),
            sub_path: SubPath::Whole,
            read_only: false,
            recursive_read_only: RecursiveReadOnly::Disabled,
            propagation: Propagation::None,
        }];
        let words = "volume data has volumeMode Block, but is specified in volumeMounts";
        assert_eq!(check_mode(&mounting, "data", true), Err(words.to_owned()));
    }

    #[tokio::test]
    async fn an_ephemeral_volume_has_the_claim_that_the_pod_owns_and_no_other() {
        let (api, pod) = (FakeApi::default(), pod());
        let name = format!("{}-data", pod.name);
        api.put_volume("pv", local());
        let message = of_claim(&api, ClaimRef::Ephemeral).await.unwrap_err();
        assert!(message.contains(&format!("persistentvolumeclaim {name:?} not found")), "{message}");
        for stranger in ["", "another"] {
            api.put_claim(&name, Claim { controller: stranger.into(), ..claim_to("pv") });
            let message = of_claim(&api, ClaimRef::Ephemeral).await.unwrap_err();
            let told =
                format!("PVC default/{name} was not created for pod default/{} (pod is not owner)", pod.name);
            assert_eq!(message, told);
        }
        api.put_claim(&name, Claim { controller: pod.uid.as_str().into(), ..claim_to("pv") });
        assert_eq!(of_claim(&api, ClaimRef::Ephemeral).await.unwrap().volume, "pv");
    }

    #[tokio::test]
    async fn a_claim_that_cannot_be_used_is_told() {
        let api = FakeApi::default();
        api.put_volume("pv", local());
        let unbound = Claim { bound: false, ..claim_to("pv") };
        api.put_volume("fc", volume_from(PersistentSource::Other("fc".into())));
        for (claim, why) in [
            (None, "failed to fetch PVC from API server: persistentvolumeclaim \"c\" not found"),
            (Some(unbound), "PVC is not bound"),
            (Some(Claim { deleted: true, ..claim_to("pv") }), "PVC is being deleted"),
            (Some(Claim { volume: "gone".into(), ..claim_to("pv") }), "persistentvolume \"gone\" not found"),
            (
                Some(Claim { uid: "v".into(), ..claim_to("pv") }),
                "does not point to the PVC \"c\" (UID \"v\")",
            ),
            (
                Some(Claim { volume: "fc".into(), ..claim_to("pv") }),
                "of kind fc, which this node does not mount",
            ),
        ] {
            if let Some(claim) = claim {
                api.put_claim("c", claim);
            }
            let message = named(&api).await.unwrap_err();
            assert!(message.starts_with("error processing PVC default/c: "), "{message}");
            assert!(message.contains(why), "{message}");
        }
    }
}
