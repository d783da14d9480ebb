//! PersistentVolumes of kinds that upstream's kubelet had itself once, as what the CSI drivers that replace them know: names,
//! handles and attributes of `k8s.io/csi-translation-lib`. Pure. Called by [`super::convert`].

mod inline;

use std::collections::BTreeSet;

pub(crate) use inline::inline;
use k8s_openapi::api::core::v1 as api;

const ZONE: &str = "topology.kubernetes.io/zone";
const REGION: &str = "topology.kubernetes.io/region";
const OLD_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";
const OLD_REGION: &str = "failure-domain.beta.kubernetes.io/region";
/// Between zones in a label of a PersistentVolume.
const ZONES: &str = "__";
/// Of an Azure file share that is not in the cluster's resource group.
const RESOURCE_GROUP: &str = "kubernetes.io/azure-file-resource-group";
const PORTWORX_SECRET: [&str; 2] =
    ["openstorage.io/auth-secret-namespace", "openstorage.io/auth-secret-name"];
/// What GCE writes for a project or a zone that it is to find itself.
const UNSPECIFIED: &str = "UNSPECIFIED";

/// Makes a CSI volume of one of those kinds; others stay as they are.
///
/// # Errors
/// In upstream's words, where no driver can have such a volume.
pub(super) fn translate(object: &mut api::PersistentVolume) -> Result<(), String> {
    let csi = csi_of(object).map_err(|why| failed(&why))?;
    let Some(csi) = csi else { return Ok(()) };
    let keys = keys_of(&csi.driver);
    let is_gce = csi.driver == "pd.csi.storage.gke.io";
    translate_topology(object, keys);
    let spec = object.spec.get_or_insert_default();
    if is_gce {
        spec.access_modes = spec.access_modes.take().map(|modes| gce_modes(&modes));
    }
    spec.csi = Some(csi);
    Ok(())
}

fn failed(why: &str) -> String {
    format!("failed to translate in-tree pv to CSI: {why}")
}

fn csi_of(object: &api::PersistentVolume) -> Result<Option<api::CSIPersistentVolumeSource>, String> {
    let Some(spec) = &object.spec else { return Ok(None) };
    let of = |driver: &str, handle: &str, fs_type: Option<&String>| api::CSIPersistentVolumeSource {
        driver: driver.to_owned(),
        volume_handle: handle.to_owned(),
        fs_type: fs_type.cloned(),
        ..api::CSIPersistentVolumeSource::default()
    };
    let with = |source: api::CSIPersistentVolumeSource, attributes: &[(&str, String)]| {
        let attributes = attributes.iter().map(|(key, value)| ((*key).to_owned(), value.clone()));
        Some(api::CSIPersistentVolumeSource { volume_attributes: Some(attributes.collect()), ..source })
    };
    if let Some(disk) = &spec.aws_elastic_block_store {
        let source = of("ebs.csi.aws.com", &aws_handle(&disk.volume_id)?, disk.fs_type.as_ref());
        return Ok(with(source, &[("partition", disk.partition.unwrap_or_default().to_string())]));
    }
    if let Some(disk) = &spec.gce_persistent_disk {
        let source = of("pd.csi.storage.gke.io", &gce_handle(object, &disk.pd_name)?, disk.fs_type.as_ref());
        let partition = disk.partition.filter(|number| *number != 0).map(|number| number.to_string());
        return Ok(with(source, &[("partition", partition.unwrap_or_default())]));
    }
    if let Some(disk) = &spec.cinder {
        return Ok(with(of("cinder.csi.openstack.org", &disk.volume_id, disk.fs_type.as_ref()), &[]));
    }
    if let Some(disk) = &spec.vsphere_volume {
        let source = of("csi.vsphere.vmware.com", &disk.volume_path, disk.fs_type.as_ref());
        let policy = disk.storage_policy_name.clone().filter(|name| !name.is_empty());
        let policy: Vec<_> = policy.map(|name| ("storagepolicyname", name)).into_iter().collect();
        return Ok(with(source, &policy));
    }
    if let Some(disk) = &spec.azure_disk {
        let (source, attributes) = azure_disk(disk, of)?;
        return Ok(with(source, &attributes));
    }
    if let Some(share) = &spec.azure_file {
        let (handle, secret) = azure_file(object, share)?;
        let source = of("file.csi.azure.com", &handle, None);
        let source = api::CSIPersistentVolumeSource { node_stage_secret_ref: Some(secret), ..source };
        return Ok(with(source, &[("sharename", share.share_name.clone())]));
    }
    if let Some(disk) = &spec.portworx_volume {
        let secret = portworx_secret(object);
        let source = api::CSIPersistentVolumeSource {
            node_stage_secret_ref: secret.clone(),
            node_publish_secret_ref: secret.clone(),
            node_expand_secret_ref: secret,
            ..of("pxd.portworx.com", &disk.volume_id, disk.fs_type.as_ref())
        };
        return Ok(with(source, &[]));
    }
    Ok(None)
}

/// `aws://ZONE/vol-…`, or the last part alone.
fn aws_handle(id: &str) -> Result<String, String> {
    let Some(rest) = id.strip_prefix("aws://") else { return Ok(id.to_owned()) };
    let name = rest.split_once('/').map_or("", |(_, path)| path).trim_matches('/');
    match name.strip_prefix("vol-") {
        Some(rest) if !rest.contains('/') => Ok(name.to_owned()),
        _ => Err(format!(
            "failed to translate Kubernetes ID to EBS Volume ID Invalid format for AWS volume ({id})"
        )),
    }
}

fn label<'a>(object: &'a api::PersistentVolume, key: &str) -> Option<&'a String> {
    object.metadata.labels.as_ref()?.get(key)
}

/// By the zones that the volume's labels name.
fn gce_handle(object: &api::PersistentVolume, disk: &str) -> Result<String, String> {
    let old = label(object, OLD_ZONE).filter(|zones| !zones.is_empty());
    let zones = old.or_else(|| label(object, ZONE)).map(String::as_str).unwrap_or_default();
    let zones: Vec<&str> = zones.split(ZONES).collect();
    if let [zone] = zones.as_slice() {
        let zone = if zone.is_empty() { UNSPECIFIED } else { zone };
        return Ok(format!("projects/{UNSPECIFIED}/zones/{zone}/disks/{disk}"));
    }
    let failed = |why: String| format!("failed to get region from zones: {why}");
    let mut regions = BTreeSet::new();
    for zone in zones {
        match zone.split('-').collect::<Vec<_>>().as_slice() {
            [place, region, _] => drop(regions.insert(format!("{place}-{region}"))),
            _ => {
                let form = "{locale}-{region}-{zone}";
                return Err(failed(format!("zone in unexpected format, expected: {form}, got: {zone}")));
            }
        }
    }
    match regions.iter().collect::<Vec<_>>().as_slice() {
        [region] => Ok(format!("projects/{UNSPECIFIED}/regions/{region}/disks/{disk}")),
        all => Err(failed(format!("multiple or no regions gotten from zones, got: {all:?}"))),
    }
}

/// Of a driver that knows no volume of several writers; what was there took any mode for one writer.
fn gce_modes(modes: &[String]) -> Vec<String> {
    let has = |mode: &str| modes.iter().any(|one| one == mode);
    let read_only = has("ReadOnlyMany") && !has("ReadWriteOnce") && !has("ReadWriteMany");
    vec![if read_only { "ReadOnlyMany" } else { "ReadWriteOnce" }.to_owned()]
}

type Attributes = Vec<(&'static str, String)>;

fn azure_disk(
    disk: &api::AzureDiskVolumeSource,
    of: impl Fn(&str, &str, Option<&String>) -> api::CSIPersistentVolumeSource,
) -> Result<(api::CSIPersistentVolumeSource, Attributes), String> {
    if let Some(kind) = disk.kind.as_ref().filter(|kind| !kind.eq_ignore_ascii_case("managed")) {
        return Err(format!("kind({kind}) is not supported in csi migration"));
    }
    let mut attributes = vec![("kind", "Managed".to_owned())];
    attributes.extend(disk.caching_mode.clone().map(|mode| ("cachingmode", mode)));
    attributes.extend(disk.fs_type.clone().map(|kind| ("fstype", kind)));
    Ok((of("disk.csi.azure.com", &disk.disk_uri, disk.fs_type.as_ref()), attributes))
}

fn azure_file(
    object: &api::PersistentVolume,
    share: &api::AzureFilePersistentVolumeSource,
) -> Result<(String, api::SecretReference), String> {
    // The secret's name has the account's in it.
    let account = share.secret_name.split_once("azure-storage-account-").map(|(_, rest)| rest);
    let account = account.and_then(|rest| rest.rsplit_once("-secret")).map(|(account, _)| account);
    let account = account.filter(|account| !account.is_empty()).unwrap_or(&share.secret_name);
    let of_claim = object.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()?.namespace.clone());
    let namespace = share.secret_namespace.clone().or(of_claim).filter(|namespace| !namespace.is_empty());
    let namespace = namespace.ok_or_else(|| {
        "could not find a secret namespace in PersistentVolumeSource or ClaimRef".to_owned()
    })?;
    let annotations = object.metadata.annotations.as_ref();
    let group = annotations.and_then(|all| all.get(RESOURCE_GROUP)).map(String::as_str).unwrap_or_default();
    let name = object.metadata.name.as_deref().unwrap_or_default();
    let handle = format!("{group}#{account}#{}#{name}#{namespace}", share.share_name);
    let secret = api::SecretReference { name: Some(share.secret_name.clone()), namespace: Some(namespace) };
    Ok((handle, secret))
}

fn portworx_secret(object: &api::PersistentVolume) -> Option<api::SecretReference> {
    let all = object.metadata.annotations.as_ref()?;
    let [namespace, name] = PORTWORX_SECRET.map(|key| all.get(key).cloned());
    Some(api::SecretReference { name: Some(name?), namespace: Some(namespace?) })
}

/// By which labels a driver knows zone and region of a node; none where it is not asked for.
fn keys_of(driver: &str) -> [Option<&'static str>; 2] {
    match driver {
        "ebs.csi.aws.com" => [Some("topology.ebs.csi.aws.com/zone"), None],
        "pd.csi.storage.gke.io" => [Some("topology.gke.io/zone"), None],
        "cinder.csi.openstack.org" => [Some("topology.cinder.csi.openstack.org/zone"), None],
        "csi.vsphere.vmware.com" => {
            [Some("topology.csi.vmware.com/zone"), Some("topology.csi.vmware.com/region")]
        }
        _ => [None, None],
    }
}

/// What the volume asks of its node, by the driver's labels.
fn translate_topology(object: &mut api::PersistentVolume, [zone_key, region_key]: [Option<&str>; 2]) {
    let Some(zone_key) = zone_key else { return };
    let is_old = match (is_asked(object, ZONE), is_asked(object, OLD_ZONE)) {
        (true, _) => false,
        (false, true) => true,
        (false, false) => label(object, ZONE).is_none() && label(object, OLD_ZONE).is_some(),
    };
    let (zone, region) = if is_old { (OLD_ZONE, OLD_REGION) } else { (ZONE, REGION) };
    let of_label = |object: &api::PersistentVolume, key: &str| label(object, key).cloned();
    if !rename(object, zone, zone_key)
        && let Some(zones) = of_label(object, zone)
    {
        let zones: Vec<&str> = if region_key.is_some() { vec![&zones] } else { zones.split(ZONES).collect() };
        add(object, zone_key, &zones);
    }
    match region_key {
        Some(region_key) => {
            if !rename(object, region, region_key)
                && let Some(name) = of_label(object, region)
            {
                add(object, region_key, &[&name]);
            }
        }
        None if is_old => drop(rename(object, OLD_REGION, REGION)),
        None => {}
    }
}

fn terms(object: &mut api::PersistentVolume) -> Option<&mut Vec<api::NodeSelectorTerm>> {
    let required = object.spec.as_mut()?.node_affinity.as_mut()?.required.as_mut()?;
    Some(&mut required.node_selector_terms)
}

fn is_asked(object: &api::PersistentVolume, key: &str) -> bool {
    let required = object.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref()?.required.as_ref());
    let all = required.iter().flat_map(|required| &required.node_selector_terms);
    all.flat_map(|term| term.match_expressions.iter().flatten()).any(|one| one.key == key)
}

/// Whether there was a value to be had under that key.
fn rename(object: &mut api::PersistentVolume, from: &str, to: &str) -> bool {
    let all = terms(object).into_iter().flatten();
    let mut own: Vec<_> = all
        .flat_map(|term| term.match_expressions.iter_mut().flatten())
        .filter(|one| one.key == from)
        .collect();
    if own.iter().all(|one| one.values.iter().flatten().next().is_none()) {
        return false;
    }
    own.iter_mut().for_each(|one| to.clone_into(&mut one.key));
    true
}

/// Asks for one of the values in each term.
fn add(object: &mut api::PersistentVolume, key: &str, values: &[&str]) {
    let values: BTreeSet<String> =
        values.iter().map(|value| value.trim().to_owned()).filter(|value| !value.is_empty()).collect();
    if values.is_empty() {
        return;
    }
    let affinity = object.spec.get_or_insert_default().node_affinity.get_or_insert_default();
    let terms = &mut affinity.required.get_or_insert_default().node_selector_terms;
    if terms.is_empty() {
        terms.push(api::NodeSelectorTerm::default());
    }
    for term in terms {
        term.match_expressions.get_or_insert_default().push(api::NodeSelectorRequirement {
            key: key.to_owned(),
            operator: "In".to_owned(),
            values: Some(values.iter().cloned().collect()),
        });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn translated(metadata: Value, spec: Value) -> Result<Value, String> {
        let object = Value::from_iter([("metadata", metadata), ("spec", spec)]);
        let mut object: api::PersistentVolume = serde_json::from_value(object).unwrap();
        translate(&mut object)?;
        Ok(serde_json::to_value(object.spec.unwrap()).unwrap())
    }

    /// Driver, handle, file system, attributes.
    fn of(metadata: Value, source: Value) -> Value {
        let csi = translated(metadata, source).unwrap()["csi"].take();
        json!([csi["driver"], csi["volumeHandle"], csi["fsType"], csi["volumeAttributes"]])
    }

    #[test]
    fn disks_have_the_names_by_which_drivers_know_them() {
        let none = json!({});
        let aws = json!({ "awsElasticBlockStore": { "volumeID": "aws://us-east-1a/vol-0a1b", "fsType": "ext4", "partition": 2 } });
        assert_eq!(
            of(none.clone(), aws),
            json!(["ebs.csi.aws.com", "vol-0a1b", "ext4", { "partition": "2" }])
        );
        let aws = json!({ "awsElasticBlockStore": { "volumeID": "vol-0a1b" } });
        assert_eq!(of(none.clone(), aws), json!(["ebs.csi.aws.com", "vol-0a1b", null, { "partition": "0" }]));
        let cinder = json!({ "cinder": { "volumeID": "c-1", "fsType": "xfs" } });
        assert_eq!(of(none.clone(), cinder), json!(["cinder.csi.openstack.org", "c-1", "xfs", {}]));
        let vsphere = json!({ "vsphereVolume": { "volumePath": "[d] v.vmdk", "storagePolicyName": "gold" } });
        let want = json!(["csi.vsphere.vmware.com", "[d] v.vmdk", null, { "storagepolicyname": "gold" }]);
        assert_eq!(of(none.clone(), vsphere), want);
        let azure = json!({ "azureDisk": { "diskName": "d", "diskURI": "/disks/d", "cachingMode": "None", "fsType": "ext4", "kind": "Managed" } });
        let want = json!({ "kind": "Managed", "cachingmode": "None", "fstype": "ext4" });
        assert_eq!(of(none.clone(), azure), json!(["disk.csi.azure.com", "/disks/d", "ext4", want]));
        let wrong = json!({ "azureDisk": { "diskName": "d", "diskURI": "/d", "kind": "Dedicated" } });
        let words =
            "failed to translate in-tree pv to CSI: kind(Dedicated) is not supported in csi migration";
        assert_eq!(translated(none.clone(), wrong), Err(words.to_owned()));
        let wrong = json!({ "awsElasticBlockStore": { "volumeID": "aws://z/disk-1" } });
        assert!(
            translated(none.clone(), wrong)
                .unwrap_err()
                .ends_with("Invalid format for AWS volume (aws://z/disk-1)")
        );
        let other = json!({ "nfs": { "server": "s", "path": "/p" } });
        assert_eq!(translated(none, other.clone()), Ok(other));
    }

    #[test]
    fn a_disk_of_gce_is_known_by_its_zone_or_region() {
        let handle = |zones: &str| {
            let labels = json!({ "labels": { ZONE: zones } });
            let gce = json!({ "gcePersistentDisk": { "pdName": "d", "partition": 0 } });
            translated(labels, gce).map(|spec| spec["csi"]["volumeHandle"].clone())
        };
        assert_eq!(handle("us-central1-a").unwrap(), "projects/UNSPECIFIED/zones/us-central1-a/disks/d");
        assert_eq!(handle("").unwrap(), "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d");
        let regional = handle("us-central1-a__us-central1-c").unwrap();
        assert_eq!(regional, "projects/UNSPECIFIED/regions/us-central1/disks/d");
        assert!(handle("us-central1-a__eu-west1-a").unwrap_err().contains("multiple or no regions"));
        for (modes, want) in [
            (json!(["ReadWriteMany"]), "ReadWriteOnce"),
            (json!(["ReadOnlyMany", "ReadWriteOnce"]), "ReadWriteOnce"),
            (json!(["ReadOnlyMany"]), "ReadOnlyMany"),
        ] {
            let gce = json!({ "gcePersistentDisk": { "pdName": "d" }, "accessModes": modes });
            assert_eq!(translated(json!({}), gce).unwrap()["accessModes"], json!([want]));
        }
    }

    #[test]
    fn a_share_has_its_account_and_its_secret() {
        let share = json!({ "azureFile": { "secretName": "azure-storage-account-acc-secret", "shareName": "s" },
            "claimRef": { "namespace": "shop" } });
        let metadata = json!({ "name": "pv", "annotations": { RESOURCE_GROUP: "rg" } });
        let spec = translated(metadata, share).unwrap();
        assert_eq!(spec["csi"]["volumeHandle"], "rg#acc#s#pv#shop");
        let secret = json!({ "name": "azure-storage-account-acc-secret", "namespace": "shop" });
        assert_eq!(spec["csi"]["nodeStageSecretRef"], secret);
        assert_eq!(spec["csi"]["volumeAttributes"], json!({ "sharename": "s" }));
        let share = json!({ "azureFile": { "secretName": "own", "shareName": "s", "secretNamespace": "n" } });
        assert_eq!(translated(json!({ "name": "pv" }), share).unwrap()["csi"]["volumeHandle"], "#own#s#pv#n");
        let share = json!({ "azureFile": { "secretName": "own", "shareName": "s" } });
        assert!(translated(json!({}), share).unwrap_err().contains("could not find a secret namespace"));
        let annotations = json!({ "annotations": { PORTWORX_SECRET[0]: "n", PORTWORX_SECRET[1]: "word" } });
        let portworx = json!({ "portworxVolume": { "volumeID": "p" } });
        let spec = translated(annotations, portworx).unwrap();
        assert_eq!(
            (&spec["csi"]["driver"], &spec["csi"]["volumeHandle"]),
            (&json!("pxd.portworx.com"), &json!("p"))
        );
        for key in ["nodeStageSecretRef", "nodePublishSecretRef", "nodeExpandSecretRef"] {
            assert_eq!(spec["csi"][key], json!({ "name": "word", "namespace": "n" }));
        }
    }

    #[test]
    fn what_a_volume_asks_of_its_node_is_asked_by_the_drivers_labels() {
        let asks = |key: &str| {
            json!({ "required": { "nodeSelectorTerms": [{ "matchExpressions": [
                { "key": key, "operator": "In", "values": ["a"] },
            ] }] } })
        };
        let expressions = |metadata: Value, mut spec: Value| {
            let cinder = json!({ "volumeID": "c" });
            spec["cinder"] = cinder;
            let spec = translated(metadata, spec).unwrap();
            let found = spec.pointer("/nodeAffinity/required/nodeSelectorTerms/0/matchExpressions");
            found.cloned().unwrap_or_default()
        };
        let want = |value: &str| json!([{ "key": "topology.cinder.csi.openstack.org/zone", "operator": "In", "values": [value] }]);
        assert_eq!(expressions(json!({}), json!({ "nodeAffinity": asks(ZONE) })), want("a"));
        assert_eq!(expressions(json!({}), json!({ "nodeAffinity": asks(OLD_ZONE) })), want("a"));
        let by_label = |key: &str| json!({ "labels": { key: "b" } });
        assert_eq!(expressions(by_label(ZONE), json!({})), want("b"));
        assert_eq!(expressions(by_label(OLD_ZONE), json!({})), want("b"));
        assert_eq!(expressions(json!({}), json!({})), Value::Null);
        let vsphere = json!({ "vsphereVolume": { "volumePath": "v" } });
        let labels = json!({ "labels": { ZONE: "z", REGION: "r" } });
        let spec = translated(labels, vsphere).unwrap();
        let both = &spec["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"];
        assert_eq!(both[0]["key"], "topology.csi.vmware.com/zone");
        assert_eq!(
            (&both[1]["key"], &both[1]["values"]),
            (&json!("topology.csi.vmware.com/region"), &json!(["r"]))
        );
        let azure = json!({ "azureDisk": { "diskName": "d", "diskURI": "u" }, "nodeAffinity": asks(ZONE) });
        assert_eq!(translated(json!({}), azure).unwrap()["nodeAffinity"], asks(ZONE));
    }
}
