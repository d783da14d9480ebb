//! The same of a volume that a pod has inline: upstream makes a PersistentVolume of it that is nowhere but in the kubelet.
//! Pure: owns that one's name and access mode. Called by [`crate::manifest`].

use gantry_model::pod::volume::MigratedVolume;
use k8s_openapi::api::core::v1 as api;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{csi_of, failed};

/// How that PersistentVolume is called: by driver and disk, by the disk alone, or by its handle.
enum InlineName {
    ByDisk(String),
    Disk(String),
    Handle,
}

/// With the field of the volume that says it; none of a volume of another kind.
///
/// # Errors
/// In upstream's words, where no driver can have such a volume.
pub(crate) fn inline(
    volume: &api::Volume,
    namespace: &str,
) -> Option<(&'static str, Result<MigratedVolume, String>)> {
    let (field, spec, named, access_mode) = disk_of(volume).or_else(|| share_of(volume, namespace))?;
    let metadata = ObjectMeta { name: Some(volume.name.clone()), ..ObjectMeta::default() };
    let object = api::PersistentVolume { metadata, spec: Some(spec), status: None };
    let csi = match csi_of(&object) {
        Ok(csi) => csi?,
        Err(why) => return Some((field, Err(failed(&why)))),
    };
    let name = match named {
        // The driver's name for the disk, which may have come with more around it.
        InlineName::ByDisk(disk) if disk.is_empty() => format!("{}-{}", csi.driver, csi.volume_handle),
        InlineName::ByDisk(disk) => format!("{}-{disk}", csi.driver),
        InlineName::Disk(disk) => disk,
        InlineName::Handle => csi.volume_handle.clone(),
    };
    let secret =
        csi.node_stage_secret_ref.map(|of| (of.namespace.unwrap_or_default(), of.name.unwrap_or_default()));
    let of = MigratedVolume {
        name,
        driver: csi.driver,
        handle: csi.volume_handle,
        fs_type: csi.fs_type.unwrap_or_default(),
        attributes: csi.volume_attributes.unwrap_or_default(),
        access_mode,
        secret,
    };
    Some((field, Ok(of)))
}

/// Field, what stands for it, its name, its access mode.
type Wrapped = (&'static str, api::PersistentVolumeSpec, InlineName, &'static str);

/// Of one writer, or of many readers where the driver is to know that.
fn mode_of(read_only: Option<bool>) -> &'static str {
    if read_only == Some(true) { "ReadOnlyMany" } else { "ReadWriteOnce" }
}

fn disk_of(volume: &api::Volume) -> Option<Wrapped> {
    let none = api::PersistentVolumeSpec::default;
    let by_disk = |disk: &str| InlineName::ByDisk(disk.to_owned());
    if let Some(disk) = &volume.aws_elastic_block_store {
        let spec = api::PersistentVolumeSpec { aws_elastic_block_store: Some(disk.clone()), ..none() };
        return Some(("awsElasticBlockStore", spec, by_disk(""), "ReadWriteOnce"));
    }
    if let Some(disk) = &volume.gce_persistent_disk {
        let spec = api::PersistentVolumeSpec { gce_persistent_disk: Some(disk.clone()), ..none() };
        return Some(("gcePersistentDisk", spec, by_disk(&disk.pd_name), mode_of(disk.read_only)));
    }
    if let Some(disk) = &volume.cinder {
        let own = api::CinderPersistentVolumeSource {
            fs_type: disk.fs_type.clone(),
            read_only: disk.read_only,
            volume_id: disk.volume_id.clone(),
            secret_ref: None,
        };
        let spec = api::PersistentVolumeSpec { cinder: Some(own), ..none() };
        return Some(("cinder", spec, by_disk(&disk.volume_id), "ReadWriteOnce"));
    }
    if let Some(disk) = &volume.vsphere_volume {
        let spec = api::PersistentVolumeSpec { vsphere_volume: Some(disk.clone()), ..none() };
        return Some(("vsphereVolume", spec, by_disk(&disk.volume_path), "ReadWriteOnce"));
    }
    if let Some(disk) = &volume.azure_disk {
        let caching_mode = disk.caching_mode.clone().filter(|mode| !mode.is_empty());
        let own = api::AzureDiskVolumeSource { caching_mode, ..disk.clone() };
        let spec = api::PersistentVolumeSpec { azure_disk: Some(own), ..none() };
        return Some(("azureDisk", spec, InlineName::Disk(disk.disk_uri.clone()), "ReadWriteOnce"));
    }
    let disk = volume.portworx_volume.as_ref()?;
    let spec = api::PersistentVolumeSpec { portworx_volume: Some(disk.clone()), ..none() };
    Some(("portworxVolume", spec, by_disk(&disk.volume_id), mode_of(disk.read_only)))
}

/// Its secret is in the pod's namespace.
fn share_of(volume: &api::Volume, namespace: &str) -> Option<Wrapped> {
    let share = volume.azure_file.as_ref()?;
    let namespace = if namespace.is_empty() { "default" } else { namespace };
    let own = api::AzureFilePersistentVolumeSource {
        read_only: share.read_only,
        secret_name: share.secret_name.clone(),
        secret_namespace: Some(namespace.to_owned()),
        share_name: share.share_name.clone(),
    };
    let spec = api::PersistentVolumeSpec { azure_file: Some(own), ..api::PersistentVolumeSpec::default() };
    Some(("azureFile", spec, InlineName::Handle, "ReadWriteMany"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(kind: &str, source: Value) -> Option<Result<MigratedVolume, String>> {
        let volume = Value::from_iter([("name".to_owned(), json!("data")), (kind.to_owned(), source)]);
        let (field, of) = inline(&serde_json::from_value(volume).unwrap(), "shop")?;
        assert_eq!(field, kind);
        Some(of)
    }

    /// Name, driver, handle, access mode, attributes.
    fn known(kind: &str, source: Value) -> Value {
        let found = of(kind, source).unwrap().unwrap();
        json!([found.name, found.driver, found.handle, found.access_mode, found.attributes])
    }

    #[test]
    fn a_disk_has_the_name_that_upstream_gives_it() {
        let none = json!({});
        let aws = json!({ "volumeID": "aws://us-east-1a/vol-0a1b", "partition": 2, "readOnly": true });
        let want = json!(["ebs.csi.aws.com-vol-0a1b", "ebs.csi.aws.com", "vol-0a1b", "ReadWriteOnce", { "partition": "2" }]);
        assert_eq!(known("awsElasticBlockStore", aws), want);
        let handle = "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d";
        for (read_only, mode) in [(false, "ReadWriteOnce"), (true, "ReadOnlyMany")] {
            let gce = json!({ "pdName": "d", "readOnly": read_only });
            let name = "pd.csi.storage.gke.io-d";
            let want = json!([name, "pd.csi.storage.gke.io", handle, mode, { "partition": "" }]);
            assert_eq!(known("gcePersistentDisk", gce), want);
            let portworx = json!({ "volumeID": "p", "readOnly": read_only });
            let want = json!(["pxd.portworx.com-p", "pxd.portworx.com", "p", mode, none]);
            assert_eq!(known("portworxVolume", portworx), want);
        }
        let driver = "cinder.csi.openstack.org";
        let want = json!([format!("{driver}-c-1"), driver, "c-1", "ReadWriteOnce", none]);
        assert_eq!(known("cinder", json!({ "volumeID": "c-1" })), want);
        let (driver, path) = ("csi.vsphere.vmware.com", "[d] v.vmdk");
        let vsphere = json!({ "volumePath": path, "storagePolicyName": "gold" });
        let policy = json!({ "storagepolicyname": "gold" });
        let want = json!([format!("{driver}-{path}"), driver, path, "ReadWriteOnce", policy]);
        assert_eq!(known("vsphereVolume", vsphere), want);
        let azure = json!({ "diskName": "d", "diskURI": "/disks/d", "cachingMode": "", "fsType": "ext4" });
        let attributes = json!({ "kind": "Managed", "fstype": "ext4" });
        let want = json!(["/disks/d", "disk.csi.azure.com", "/disks/d", "ReadWriteOnce", attributes]);
        assert_eq!(known("azureDisk", azure), want);
        assert_eq!(of("emptyDir", none), None);
    }

    #[test]
    fn a_share_is_known_by_its_handle_and_has_its_secret_in_the_pods_namespace() {
        let share = json!({ "secretName": "azure-storage-account-acc-secret", "shareName": "s" });
        let found = of("azureFile", share).unwrap().unwrap();
        assert_eq!((found.name.as_str(), found.access_mode), ("#acc#s#data#shop", "ReadWriteMany"));
        assert_eq!(found.handle, found.name);
        assert_eq!(found.secret, Some(("shop".into(), "azure-storage-account-acc-secret".into())));
        assert_eq!(found.attributes, [("sharename".to_owned(), "s".to_owned())].into());
    }

    #[test]
    fn a_disk_that_no_driver_can_have_is_told_in_upstreams_words() {
        let disk = json!({ "diskName": "d", "diskURI": "/d", "kind": "Dedicated" });
        let why = "failed to translate in-tree pv to CSI: kind(Dedicated) is not supported in csi migration";
        assert_eq!(of("azureDisk", disk), Some(Err(why.to_owned())));
    }
}
