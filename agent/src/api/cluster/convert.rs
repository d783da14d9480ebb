//! API objects as the agent knows them. Pure. Called by [`super`].

use std::collections::BTreeMap;
use std::time::Duration;

use gantry_model::pod::placement::Operator;
use gantry_model::pod::volume::IscsiVolume;
use k8s_openapi::api::core::v1;
use k8s_openapi::api::resource::v1 as resource;
use k8s_openapi::api::storage::v1 as storage;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::migration;
use crate::api::node_selector;
use crate::api::{
    Attachment, Claim, ClaimSize, ConfigMap, CsiDriver, CsiSource, IscsiSource, NfsSource, PersistentSource,
    PersistentVolume, ResourceClaim, Secret, ServiceAccount,
};

/// Of a PersistentVolume, from before it had a field for them.
const MOUNT_OPTIONS: &str = "volume.beta.kubernetes.io/mount-options";

pub(super) fn config_map(object: v1::ConfigMap) -> ConfigMap {
    let binary = object.binary_data.unwrap_or_default();
    ConfigMap {
        data: object.data.unwrap_or_default(),
        binary: binary.into_iter().map(|(key, bytes)| (key, bytes.0)).collect(),
    }
}

pub(super) fn is_fixed_map(object: &v1::ConfigMap) -> bool {
    object.immutable == Some(true)
}

pub(super) fn secret(object: v1::Secret) -> Secret {
    let data = object.data.unwrap_or_default();
    Secret {
        kind: object.type_.unwrap_or_default(),
        data: data.into_iter().map(|(key, bytes)| (key, bytes.0)).collect(),
        uid: object.metadata.uid.unwrap_or_default(),
    }
}

pub(super) fn service_account(object: v1::ServiceAccount) -> ServiceAccount {
    ServiceAccount {
        uid: object.metadata.uid.unwrap_or_default(),
        annotations: object.metadata.annotations.unwrap_or_default(),
    }
}

pub(super) fn is_fixed_secret(object: &v1::Secret) -> bool {
    object.immutable == Some(true)
}

pub(super) fn resource_claim(object: resource::ResourceClaim) -> ResourceClaim {
    let owners = object.metadata.owner_references.unwrap_or_default();
    let controller = owners.into_iter().find(|owner| owner.controller == Some(true)).map(|owner| owner.uid);
    let status = object.status.unwrap_or_default();
    let drivers = status.allocation.map(|allocation| {
        let results = allocation.devices.and_then(|devices| devices.results).unwrap_or_default();
        results.into_iter().map(|result| result.driver).collect()
    });
    ResourceClaim {
        uid: object.metadata.uid.unwrap_or_default(),
        controller: controller.unwrap_or_default(),
        reserved_for: status.reserved_for.unwrap_or_default().into_iter().map(|pod| pod.uid).collect(),
        drivers,
    }
}

pub(super) fn claim(object: v1::PersistentVolumeClaim) -> Claim {
    let owners = object.metadata.owner_references.unwrap_or_default();
    let controller = owners.into_iter().find(|owner| owner.controller == Some(true)).map(|owner| owner.uid);
    let spec = object.spec.unwrap_or_default();
    let status = object.status.unwrap_or_default();
    let storage = |of: Option<BTreeMap<String, Quantity>>| {
        of.and_then(|mut all| all.remove("storage")).map(|amount| amount.0).unwrap_or_default()
    };
    let mut statuses = status.allocated_resource_statuses.unwrap_or_default();
    let size = ClaimSize {
        version: object.metadata.resource_version.unwrap_or_default(),
        requested: storage(spec.resources.and_then(|resources| resources.requests)),
        capacity: storage(status.capacity),
        allocated: storage(status.allocated_resources),
        status: statuses.remove("storage").unwrap_or_default(),
    };
    let phase = status.phase;
    Claim {
        volume: spec.volume_name.unwrap_or_default(),
        bound: phase.as_deref() == Some("Bound"),
        block: spec.volume_mode.as_deref() == Some("Block"),
        deleted: object.metadata.deletion_timestamp.is_some(),
        uid: object.metadata.uid.unwrap_or_default(),
        controller: controller.unwrap_or_default(),
        size,
    }
}

pub(super) fn volume(mut object: v1::PersistentVolume) -> PersistentVolume {
    let migrated = migration::translate(&mut object);
    let uid = object.metadata.uid.take().unwrap_or_default();
    let annotated = object.metadata.annotations.as_mut().and_then(|all| all.remove(MOUNT_OPTIONS));
    let spec = object.spec.unwrap_or_default();
    let claim_uid = spec.claim_ref.as_ref().and_then(|claim| claim.uid.clone()).unwrap_or_default();
    let source = match (migrated, &spec.host_path, &spec.local) {
        (Err(why), ..) => PersistentSource::Wrong(why),
        (Ok(()), None, None) if spec.csi.is_some() => PersistentSource::Csi(Box::new(csi_source(&spec))),
        (Ok(()), Some(host), _) => PersistentSource::HostPath {
            path: host.path.clone(),
            kind: host.type_.clone().unwrap_or_default(),
            mount_options: mount_options(annotated.as_deref(), &spec),
        },
        (Ok(()), None, Some(local)) => PersistentSource::Local {
            path: local.path.clone(),
            fs_type: local.fs_type.clone().unwrap_or_default(),
            mount_options: mount_options(annotated.as_deref(), &spec),
        },
        (Ok(()), None, None) => match (&spec.nfs, &spec.iscsi) {
            (Some(nfs), _) => {
                PersistentSource::Nfs(nfs_source(nfs, mount_options(annotated.as_deref(), &spec)))
            }
            (None, Some(iscsi)) => PersistentSource::Iscsi(Box::new(IscsiSource {
                volume: iscsi_volume(iscsi),
                mount_options: mount_options(annotated.as_deref(), &spec),
            })),
            (None, None) => PersistentSource::Other(other_source(&spec)),
        },
    };
    let one_pod = spec.access_modes.as_deref().is_some_and(|modes| modes == ["ReadWriteOncePod"]);
    let access_mode = crate::api::widest(spec.access_modes.as_deref().unwrap_or_default());
    let required = spec.node_affinity.and_then(|affinity| affinity.required);
    let affinity = required.map(|required| {
        // The API server lets none through that cannot be understood: such terms match no node.
        let operator = |_: String, name: &str| {
            Operator::ALL.iter().find(|(known, _)| *known == name).map(|(_, operator)| *operator).ok_or(())
        };
        node_selector::terms("", required.node_selector_terms, &operator).unwrap_or_default()
    });
    let capacity = spec.capacity.and_then(|mut all| all.remove("storage")).map(|amount| amount.0);
    let capacity = capacity.unwrap_or_default();
    PersistentVolume { uid, source, claim_uid, one_pod, access_mode, affinity, capacity }
}

/// The annotation goes first, as upstream.
fn mount_options(annotated: Option<&str>, spec: &v1::PersistentVolumeSpec) -> Vec<String> {
    let of_spec = || spec.mount_options.clone().unwrap_or_default();
    annotated.map_or_else(of_spec, |text| text.split(',').map(str::to_owned).collect())
}

fn nfs_source(nfs: &v1::NFSVolumeSource, mount_options: Vec<String>) -> NfsSource {
    NfsSource { server: nfs.server.clone(), path: nfs.path.clone(), mount_options }
}

/// With the API server's defaults.
fn iscsi_volume(of: &v1::ISCSIPersistentVolumeSource) -> IscsiVolume {
    let secret = of.secret_ref.clone();
    IscsiVolume {
        target_portal: of.target_portal.clone(),
        portals: of.portals.clone().unwrap_or_default(),
        iqn: of.iqn.clone(),
        lun: of.lun,
        interface: of.iscsi_interface.clone().unwrap_or_else(|| "default".to_owned()),
        initiator: of.initiator_name.clone(),
        discovery_chap: of.chap_auth_discovery.unwrap_or(false),
        session_chap: of.chap_auth_session.unwrap_or(false),
        secret: secret.map(|of| (of.namespace.unwrap_or_default(), of.name.unwrap_or_default())),
        fs_type: of.fs_type.clone().unwrap_or_default(),
        read_only: false,
    }
}

fn csi_source(spec: &v1::PersistentVolumeSpec) -> CsiSource {
    let Some(csi) = spec.csi.clone() else { return CsiSource::default() };
    let secret = |of: Option<v1::SecretReference>| {
        of.map(|of| (of.namespace.unwrap_or_default(), of.name.unwrap_or_default()))
    };
    CsiSource {
        driver: csi.driver,
        handle: csi.volume_handle,
        fs_type: csi.fs_type.unwrap_or_default(),
        attributes: csi.volume_attributes.unwrap_or_default(),
        mount_options: spec.mount_options.clone().unwrap_or_default(),
        access_modes: spec.access_modes.clone().unwrap_or_default(),
        stage_secret: secret(csi.node_stage_secret_ref),
        publish_secret: secret(csi.node_publish_secret_ref),
        expand_secret: secret(csi.node_expand_secret_ref),
    }
}

/// An hour, unless the driver says for how long.
fn token(request: &storage::TokenRequest) -> (String, i64) {
    (request.audience.clone(), request.expiration_seconds.unwrap_or(3600))
}

/// With the API server's defaults.
pub(super) fn csi_driver(object: &storage::CSIDriver) -> CsiDriver {
    let spec = &object.spec;
    let persistent = || vec!["Persistent".to_owned()];
    CsiDriver {
        attach_required: spec.attach_required.unwrap_or(true),
        pod_info: spec.pod_info_on_mount.unwrap_or(false),
        fs_group_policy: spec.fs_group_policy.clone().unwrap_or_else(|| "ReadWriteOnceWithFSType".to_owned()),
        modes: spec.volume_lifecycle_modes.clone().filter(|all| !all.is_empty()).unwrap_or_else(persistent),
        tokens: spec.token_requests.iter().flatten().map(token).collect(),
        tokens_in_secrets: spec.service_account_token_in_secrets.unwrap_or(false),
        republish: spec.requires_republish.unwrap_or(false),
        se_linux_mount: spec.se_linux_mount.unwrap_or(false),
        allocatable_period: allocatable_period(object),
    }
}

pub(super) fn allocatable_period(object: &storage::CSIDriver) -> Option<Duration> {
    let seconds = object.spec.node_allocatable_update_period_seconds.unwrap_or(0);
    u64::try_from(seconds).ok().filter(|seconds| *seconds > 0).map(Duration::from_secs)
}

pub(super) fn attachment(object: storage::VolumeAttachment) -> Attachment {
    let status = object.status.unwrap_or_default();
    Attachment {
        attached: status.attached,
        deleted: object.metadata.deletion_timestamp.is_some(),
        error_code: status.attach_error.as_ref().and_then(|error| error.error_code),
        error: status.attach_error.map(|error| error.message.unwrap_or_default()),
        metadata: status.attachment_metadata.unwrap_or_default(),
    }
}

/// The API's name of the one source that is set.
fn other_source(spec: &v1::PersistentVolumeSpec) -> String {
    let others = [
        ("fc", spec.fc.is_some()),
        ("flexVolume", spec.flex_volume.is_some()),
        ("cephfs", spec.cephfs.is_some()),
        ("rbd", spec.rbd.is_some()),
        ("glusterfs", spec.glusterfs.is_some()),
        ("quobyte", spec.quobyte.is_some()),
        ("scaleIO", spec.scale_io.is_some()),
        ("storageos", spec.storageos.is_some()),
        ("flocker", spec.flocker.is_some()),
        ("photonPersistentDisk", spec.photon_persistent_disk.is_some()),
    ];
    others.iter().find(|(_, set)| *set).map_or("unknown to it", |(name, _)| name).to_owned()
}
