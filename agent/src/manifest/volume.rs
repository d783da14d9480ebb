//! Volumes of a pod and the mounts of its containers. Pure: owns which kinds are honoured and the
//! API server's defaults; never touches a file. Called by [`super::pod`] and [`super::container`].

use std::collections::BTreeSet;

use gantry_model::pod::volume::{
    ClaimRef, CsiVolume, DownwardFile, DownwardValue, HostPathType, KeyToPath, KeysOf, Medium, NfsVolume,
    Projection, Propagation, RecursiveReadOnly, SizeLimit, SubPath, TokenFile, Volume, VolumeMount,
    VolumeSource,
};
use gantry_model::{names, quantity};
use k8s_openapi::api::core::v1 as api;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::container::pull_policy_of;
use super::env::{FieldPathTarget, field_path, object_name, resource_ref};
use super::field::{
    CONFIG_KEY, DNS_LABEL, FieldError, ManifestSource, Result, check, descending_path, duplicate, forbidden,
    invalid, invalid_plain, no_backsteps, not_found, one_of, refuse_set, required, required_because,
};
use super::iscsi;
use crate::api::cluster::migration::inline;

/// Of files in ConfigMap, Secret, projected and downwardAPI volumes.
const DEFAULT_MODE: u32 = 0o644;
/// Of a token that asks for none, as the API server's default.
const TOKEN_SECONDS: i64 = 3600;
const MIN_TOKEN_SECONDS: i64 = 600;
const OF_A_CLUSTER: &str =
    "its driver registers with the node of a cluster: use a hostPath or emptyDir volume";
const MODE_RULE: &str = "must be a number between 0 and 0777 (octal), both inclusive";

pub(super) fn volumes(
    list: Vec<api::Volume>,
    namespace: &str,
    source: ManifestSource,
) -> Result<Vec<Volume>> {
    let mut volumes: Vec<Volume> = Vec::with_capacity(list.len());
    for (index, volume) in list.into_iter().enumerate() {
        let at = format!("spec.volumes[{index}]");
        if volume.name.is_empty() {
            return Err(required(format!("{at}.name")));
        }
        check(format!("{at}.name"), &volume.name, names::is_dns_label, DNS_LABEL)?;
        if volumes.iter().any(|known| known.name == volume.name) {
            return Err(duplicate(format!("{at}.name"), &volume.name));
        }
        let name = volume.name.clone();
        volumes.push(Volume { name, source: source_of((&at, namespace), volume, source)? });
    }
    Ok(volumes)
}

// Longer than functions should be: the ledger of Volume has a line for each field of the API.
fn source_of(
    (at, namespace): (&str, &str),
    volume: api::Volume,
    source: ManifestSource,
) -> Result<VolumeSource> {
    let migrated = migrated_of(at, &volume, namespace, source);
    let api::Volume {
        name: _,
        // Honoured.
        config_map,
        csi,
        downward_api,
        empty_dir,
        ephemeral,
        host_path,
        image,
        iscsi,
        nfs,
        persistent_volume_claim,
        projected,
        secret,
        // Honoured, as their drivers have them.
        aws_elastic_block_store: _,
        azure_disk: _,
        azure_file: _,
        cinder: _,
        gce_persistent_disk: _,
        portworx_volume: _,
        vsphere_volume: _,
        // Refused when set.
        cephfs,
        fc,
        flex_volume,
        flocker,
        git_repo,
        glusterfs,
        photon_persistent_disk,
        quobyte,
        rbd,
        scale_io,
        storageos,
    } = volume;
    for (field, set) in [
        ("cephfs", cephfs.is_some()),
        ("fc", fc.is_some()),
        ("flexVolume", flex_volume.is_some()),
        ("flocker", flocker.is_some()),
        ("gitRepo", git_repo.is_some()),
        ("glusterfs", glusterfs.is_some()),
        ("photonPersistentDisk", photon_persistent_disk.is_some()),
        ("quobyte", quobyte.is_some()),
        ("rbd", rbd.is_some()),
        ("scaleIO", scale_io.is_some()),
        ("storageos", storageos.is_some()),
    ] {
        refuse_set(format!("{at}.{field}"), set)?;
    }
    let mut found: Option<VolumeSource> = None;
    let mut take = |name: &str, source: Option<Result<VolumeSource>>| -> Result<()> {
        let Some(source) = source else { return Ok(()) };
        if found.is_some() {
            return Err(forbidden(format!("{at}.{name}"), "may not specify more than 1 volume type"));
        }
        found = Some(source?);
        Ok(())
    };
    if let Some((field, of)) = migrated {
        take(field, Some(of))?;
    }
    take("csi", csi.map(|s| csi_of(&format!("{at}.csi"), s, source)))?;
    take("emptyDir", empty_dir.map(|s| empty_dir_of(&format!("{at}.emptyDir"), s, source)))?;
    take("hostPath", host_path.map(|s| host_path_of(&format!("{at}.hostPath"), s)))?;
    take("image", image.map(|s| image_of(&format!("{at}.image"), s)))?;
    take("iscsi", iscsi.map(|s| iscsi::source_of(&format!("{at}.iscsi"), s)))?;
    take("nfs", nfs.map(|s| nfs_of(&format!("{at}.nfs"), s)))?;
    let claim = persistent_volume_claim;
    take("persistentVolumeClaim", claim.map(|s| claim_of(&format!("{at}.persistentVolumeClaim"), s)))?;
    take("ephemeral", ephemeral.map(|s| ephemeral_of(format!("{at}.ephemeral"), &s, source)))?;
    take("secret", secret.map(|s| secret_of(&format!("{at}.secret"), s)))?;
    take("configMap", config_map.map(|s| config_map_of(&format!("{at}.configMap"), s)))?;
    take("downwardAPI", downward_api.map(|s| downward_of(&format!("{at}.downwardAPI"), s)))?;
    take("projected", projected.map(|s| projected_of(&format!("{at}.projected"), s)))?;
    // The API server makes an emptyDir of a volume that says nothing.
    Ok(found.unwrap_or(VolumeSource::EmptyDir { medium: Medium::Disk, size_limit: None }))
}

fn empty_dir_of(at: &str, volume: api::EmptyDirVolumeSource, source: ManifestSource) -> Result<VolumeSource> {
    let api::EmptyDirVolumeSource { medium, size_limit } = volume;
    let medium = medium_of(format!("{at}.medium"), medium.as_deref().unwrap_or_default(), source)?;
    let size_limit = match size_limit {
        None => None,
        Some(Quantity(text)) => {
            let bytes = quantity::parse_units(&text)
                .map_err(|source| FieldError::Quantity { field: format!("{at}.sizeLimit"), source })?;
            (bytes > 0).then(|| SizeLimit { bytes, shown: quantity::like(bytes, &text) })
        }
    };
    Ok(VolumeSource::EmptyDir { medium, size_limit })
}

/// A file asks for no huge pages, so there are none for its volumes.
fn medium_of(field: String, text: &str, source: ManifestSource) -> Result<Medium> {
    let size = match text.strip_prefix("HugePages") {
        Some(_) if source == ManifestSource::File => {
            return Err(FieldError::Unsupported { field: format!("{field} {text}") });
        }
        Some("") => return Ok(Medium::HugePages(None)),
        Some(rest) => rest.strip_prefix('-'),
        None => None,
    };
    let Some(size) = size else {
        // The name alone is answered above.
        let all = [("", Medium::Disk), ("HugePages", Medium::HugePages(None)), ("Memory", Medium::Memory)];
        return one_of(field, text, &all);
    };
    let bytes = quantity::parse_units(size).map_err(|source| FieldError::Quantity { field, source })?;
    Ok(Medium::HugePages(Some(bytes)))
}

fn host_path_of(at: &str, source: api::HostPathVolumeSource) -> Result<VolumeSource> {
    let api::HostPathVolumeSource { path, type_ } = source;
    let field = format!("{at}.path");
    if path.is_empty() {
        return Err(required(field));
    }
    no_backsteps(&field, &path)?;
    check(&field, &path, |p| p.starts_with('/'), "must be an absolute path")?;
    let kind = one_of(format!("{at}.type"), &type_.unwrap_or_default(), &HostPathType::NAMES)?;
    Ok(VolumeSource::HostPath { path, kind })
}

fn image_of(at: &str, source: api::ImageVolumeSource) -> Result<VolumeSource> {
    let api::ImageVolumeSource { pull_policy, reference } = source;
    let reference = reference.unwrap_or_default();
    if reference.is_empty() {
        return Err(required(format!("{at}.reference")));
    }
    let pull_policy = pull_policy_of(format!("{at}.pullPolicy"), pull_policy.as_deref(), &reference)?;
    Ok(VolumeSource::Image { reference, pull_policy })
}

fn nfs_of(at: &str, source: api::NFSVolumeSource) -> Result<VolumeSource> {
    let api::NFSVolumeSource { path, read_only, server } = source;
    if server.is_empty() {
        return Err(required(format!("{at}.server")));
    }
    let field = format!("{at}.path");
    if path.is_empty() {
        return Err(required(field));
    }
    check(&field, &path, |p| p.starts_with('/'), "must be an absolute path")?;
    Ok(VolumeSource::Nfs(NfsVolume { server, path, read_only: read_only.unwrap_or(false) }))
}

fn claim_of(at: &str, source: api::PersistentVolumeClaimVolumeSource) -> Result<VolumeSource> {
    let api::PersistentVolumeClaimVolumeSource { claim_name, read_only } = source;
    if claim_name.is_empty() {
        return Err(required(format!("{at}.claimName")));
    }
    Ok(VolumeSource::Claim { claim: ClaimRef::Named(claim_name), read_only: read_only.unwrap_or(false) })
}

/// The template is the controller's, which makes the claim of it.
fn ephemeral_of(
    at: String,
    volume: &api::EphemeralVolumeSource,
    source: ManifestSource,
) -> Result<VolumeSource> {
    if source == ManifestSource::File {
        let remedy = "a controller of the cluster makes its claim: use an emptyDir volume";
        return Err(FieldError::UnsupportedBut { field: at, remedy });
    }
    if volume.volume_claim_template.is_none() {
        return Err(required(format!("{at}.volumeClaimTemplate")));
    }
    Ok(VolumeSource::Claim { claim: ClaimRef::Ephemeral, read_only: false })
}

/// As a driver has it that registers with the node; with the field that says so.
fn migrated_of(
    at: &str,
    volume: &api::Volume,
    namespace: &str,
    source: ManifestSource,
) -> Option<(&'static str, Result<VolumeSource>)> {
    let (field, of) = inline(volume, namespace)?;
    let of = match source.is_file() {
        true => Err(FieldError::UnsupportedBut { field: format!("{at}.{field}"), remedy: OF_A_CLUSTER }),
        false => Ok(VolumeSource::Migrated(of.map(Box::new))),
    };
    Some((field, of))
}

fn csi_of(at: &str, volume: api::CSIVolumeSource, source: ManifestSource) -> Result<VolumeSource> {
    if source == ManifestSource::File {
        return Err(FieldError::UnsupportedBut { field: at.to_owned(), remedy: OF_A_CLUSTER });
    }
    let api::CSIVolumeSource { driver, fs_type, node_publish_secret_ref, read_only, volume_attributes } =
        volume;
    object_name(&format!("{at}.driver"), &driver)?;
    let secret = match node_publish_secret_ref {
        None => None,
        Some(reference) if reference.name.is_empty() => {
            return Err(required(format!("{at}.nodePublishSecretRef.name")));
        }
        Some(reference) => Some(reference.name),
    };
    Ok(VolumeSource::Csi(CsiVolume {
        driver,
        fs_type: fs_type.unwrap_or_default(),
        read_only: read_only.unwrap_or(false),
        attributes: volume_attributes.unwrap_or_default(),
        secret,
    }))
}

fn secret_of(at: &str, source: api::SecretVolumeSource) -> Result<VolumeSource> {
    let api::SecretVolumeSource { default_mode, items, optional, secret_name } = source;
    let name = secret_name.unwrap_or_default();
    object_name(&format!("{at}.secretName"), &name)?;
    let keys = keys_of(at, name, items, optional)?;
    projection(at, default_mode, vec![Projection::Secret(keys)], true, "kubernetes.io~secret")
}

fn config_map_of(at: &str, source: api::ConfigMapVolumeSource) -> Result<VolumeSource> {
    let api::ConfigMapVolumeSource { default_mode, items, name, optional } = source;
    object_name(&format!("{at}.name"), &name)?;
    let keys = keys_of(at, name, items, optional)?;
    // On disk, as upstream: only secrets must not reach it.
    projection(at, default_mode, vec![Projection::ConfigMap(keys)], false, "kubernetes.io~configmap")
}

fn downward_of(at: &str, source: api::DownwardAPIVolumeSource) -> Result<VolumeSource> {
    let api::DownwardAPIVolumeSource { default_mode, items } = source;
    let files = files_of(at, items.unwrap_or_default())?;
    projection(at, default_mode, vec![Projection::Downward(files)], true, "kubernetes.io~downward-api")
}

fn projected_of(at: &str, source: api::ProjectedVolumeSource) -> Result<VolumeSource> {
    let api::ProjectedVolumeSource { default_mode, sources } = source;
    let mut list = Vec::new();
    for (index, source) in sources.unwrap_or_default().into_iter().enumerate() {
        let at = format!("{at}.sources[{index}]");
        let api::VolumeProjection {
            cluster_trust_bundle,
            config_map,
            downward_api,
            pod_certificate,
            secret,
            service_account_token,
        } = source;
        refuse_set(format!("{at}.clusterTrustBundle"), cluster_trust_bundle.is_some())?;
        refuse_set(format!("{at}.podCertificate"), pod_certificate.is_some())?;
        let before = list.len();
        if let Some(api::SecretProjection { items, name, optional }) = secret {
            let at = format!("{at}.secret");
            object_name(&format!("{at}.name"), &name)?;
            list.push(Projection::Secret(keys_of(&at, name, items, optional)?));
        }
        if let Some(api::ConfigMapProjection { items, name, optional }) = config_map {
            let at = format!("{at}.configMap");
            object_name(&format!("{at}.name"), &name)?;
            list.push(Projection::ConfigMap(keys_of(&at, name, items, optional)?));
        }
        if let Some(api::DownwardAPIProjection { items }) = downward_api {
            list.push(Projection::Downward(files_of(
                &format!("{at}.downwardAPI"),
                items.unwrap_or_default(),
            )?));
        }
        if let Some(token) = service_account_token {
            list.push(Projection::Token(token_of(&format!("{at}.serviceAccountToken"), token)?));
        }
        match list.len() - before {
            0 => return Err(required_because(at, "must specify at least one source type")),
            1 => {}
            _ => return Err(forbidden(at, "may not specify more than 1 volume type per source")),
        }
    }
    projection(at, default_mode, list, true, "kubernetes.io~projected")
}

fn token_of(at: &str, source: api::ServiceAccountTokenProjection) -> Result<TokenFile> {
    let api::ServiceAccountTokenProjection { audience, expiration_seconds, path } = source;
    file_path(&format!("{at}.path"), &path)?;
    let seconds = expiration_seconds.unwrap_or(TOKEN_SECONDS);
    if seconds < MIN_TOKEN_SECONDS {
        let why = "may not specify a duration less than 10 minutes";
        return Err(invalid_plain(format!("{at}.expirationSeconds"), seconds, why));
    }
    if seconds > 1 << 32 {
        let why = "may not specify a duration larger than 2^32 seconds";
        return Err(invalid_plain(format!("{at}.expirationSeconds"), seconds, why));
    }
    Ok(TokenFile { path, audience: audience.unwrap_or_default(), seconds })
}

/// No two entries of one volume may be one file.
fn projection(
    at: &str,
    mode: Option<i32>,
    sources: Vec<Projection>,
    memory: bool,
    plugin: &'static str,
) -> Result<VolumeSource> {
    let mut paths = BTreeSet::new();
    for source in &sources {
        let (owner, files): (&str, Vec<&str>) = match source {
            Projection::ConfigMap(keys) | Projection::Secret(keys) => {
                (&keys.name, keys.items.iter().map(|item| item.path.as_str()).collect())
            }
            Projection::Downward(files) => ("", files.iter().map(|file| file.path.as_str()).collect()),
            Projection::Token(token) => ("", vec![token.path.as_str()]),
        };
        for path in files {
            if !paths.insert(path.to_owned()) {
                let shown = if owner.is_empty() { path } else { owner };
                return Err(invalid(at, shown, "conflicting duplicate paths"));
            }
        }
    }
    let default_mode = mode_of(&format!("{at}.defaultMode"), mode)?.unwrap_or(DEFAULT_MODE);
    Ok(VolumeSource::Projected { sources, default_mode, memory, plugin })
}

fn keys_of(
    at: &str,
    name: String,
    items: Option<Vec<api::KeyToPath>>,
    optional: Option<bool>,
) -> Result<KeysOf> {
    let mut list = Vec::new();
    for (index, api::KeyToPath { key, mode, path }) in items.unwrap_or_default().into_iter().enumerate() {
        let at = format!("{at}.items[{index}]");
        if key.is_empty() {
            return Err(required(format!("{at}.key")));
        }
        check(format!("{at}.key"), &key, names::is_config_key, CONFIG_KEY)?;
        file_path(&format!("{at}.path"), &path)?;
        list.push(KeyToPath { key, path, mode: mode_of(&format!("{at}.mode"), mode)? });
    }
    Ok(KeysOf { name, items: list, optional: optional.unwrap_or(false) })
}

fn files_of(at: &str, items: Vec<api::DownwardAPIVolumeFile>) -> Result<Vec<DownwardFile>> {
    let mut files = Vec::with_capacity(items.len());
    for (index, file) in items.into_iter().enumerate() {
        let api::DownwardAPIVolumeFile { field_ref, mode, path, resource_field_ref } = file;
        let at = format!("{at}.items[{index}]");
        file_path(&format!("{at}.path"), &path)?;
        let value = match (field_ref, resource_field_ref) {
            (Some(_), Some(_)) => {
                let why = "fieldRef and resourceFieldRef can not be specified simultaneously";
                return Err(invalid(at, "resource", why));
            }
            (Some(field), None) => {
                DownwardValue::Field(field_path(&format!("{at}.fieldRef"), field, FieldPathTarget::Volume)?)
            }
            (None, Some(resource)) => DownwardValue::Resource(resource_ref(
                &format!("{at}.resourceFieldRef"),
                resource,
                FieldPathTarget::Volume,
            )?),
            (None, None) => {
                return Err(required_because(at, "one of fieldRef and resourceFieldRef is required"));
            }
        };
        files.push(DownwardFile { path, value, mode: mode_of(&format!("{at}.mode"), mode)? });
    }
    Ok(files)
}

/// Relative, going down only, and out of the way of the links that make updates atomic.
fn file_path(field: &str, path: &str) -> Result<()> {
    if path.is_empty() {
        return Err(required(field));
    }
    descending_path(field, path)?;
    check(field, path, |p| !p.starts_with(".."), "must not start with '..'")?;
    // `a//b` and `./a` would name one file in two ways.
    check(field, path, |p| p.split('/').all(|part| !matches!(part, "" | ".")), "must be a plain path")
}

fn mode_of(field: &str, mode: Option<i32>) -> Result<Option<u32>> {
    match mode {
        None => Ok(None),
        Some(mode) => match u32::try_from(mode) {
            Ok(bits) if bits <= 0o777 => Ok(Some(bits)),
            _ => Err(invalid_plain(field, mode, MODE_RULE)),
        },
    }
}

/// `volumes` are the pod's.
pub(super) fn mounts(
    at: &str,
    list: Vec<api::VolumeMount>,
    volumes: &[Volume],
    privileged: bool,
) -> Result<Vec<VolumeMount>> {
    let mut mounts: Vec<VolumeMount> = Vec::with_capacity(list.len());
    for (index, mount) in list.into_iter().enumerate() {
        let at = format!("{at}[{index}]");
        if mount.name.is_empty() {
            return Err(required(format!("{at}.name")));
        }
        if !volumes.iter().any(|volume| volume.name == mount.name) {
            return Err(not_found(format!("{at}.name"), &mount.name));
        }
        let mount = mount_of(&at, mount, privileged)?;
        if mounts.iter().any(|known| known.path == mount.path) {
            return Err(invalid(format!("{at}.mountPath"), &mount.path, "must be unique"));
        }
        mounts.push(mount);
    }
    Ok(mounts)
}

fn mount_of(at: &str, mount: api::VolumeMount, privileged: bool) -> Result<VolumeMount> {
    let api::VolumeMount {
        mount_path,
        mount_propagation,
        name,
        read_only,
        recursive_read_only,
        sub_path,
        sub_path_expr,
    } = mount;
    let field = format!("{at}.mountPath");
    if mount_path.is_empty() {
        return Err(required(field));
    }
    no_backsteps(&field, &mount_path)?;
    let path = if mount_path.starts_with('/') { mount_path } else { format!("/{mount_path}") };
    let full = |text: Option<String>| text.filter(|t| !t.is_empty());
    let sub_path = match (full(sub_path), full(sub_path_expr)) {
        (None, None) => SubPath::Whole,
        (Some(path), None) => {
            descending_path(format!("{at}.subPath"), &path)?;
            SubPath::Plain(path)
        }
        (None, Some(expr)) => {
            descending_path(format!("{at}.subPathExpr"), &expr)?;
            SubPath::Expr(expr)
        }
        (Some(_), Some(expr)) => {
            let why = "subPathExpr and subPath are mutually exclusive";
            return Err(invalid(format!("{at}.subPathExpr"), &expr, why));
        }
    };
    let propagation = propagation_of(&format!("{at}.mountPropagation"), mount_propagation, privileged)?;
    let read_only = read_only.unwrap_or(false);
    let field = format!("{at}.recursiveReadOnly");
    let kinds = [
        ("Disabled", RecursiveReadOnly::Disabled),
        ("IfPossible", RecursiveReadOnly::IfPossible),
        ("Enabled", RecursiveReadOnly::Enabled),
    ];
    let recursive = match recursive_read_only {
        None => RecursiveReadOnly::Disabled,
        Some(text) => one_of(&field, &text, &kinds)?,
    };
    if recursive != RecursiveReadOnly::Disabled {
        if !read_only {
            return Err(forbidden(field, "may only be specified when readOnly is true"));
        }
        if propagation != Propagation::None {
            return Err(forbidden(
                field,
                "may only be specified when mountPropagation is None or not specified",
            ));
        }
    }
    Ok(VolumeMount { volume: name, path, sub_path, read_only, recursive_read_only: recursive, propagation })
}

fn propagation_of(field: &str, text: Option<String>, privileged: bool) -> Result<Propagation> {
    let kinds = [
        ("None", Propagation::None),
        ("HostToContainer", Propagation::HostToContainer),
        ("Bidirectional", Propagation::Bidirectional),
    ];
    let propagation = match text {
        None => Propagation::None,
        Some(text) => one_of(field, &text, &kinds)?,
    };
    if propagation == Propagation::Bidirectional && !privileged {
        return Err(forbidden(
            field,
            "Bidirectional mount propagation is available only to privileged containers",
        ));
    }
    Ok(propagation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_are_a_medium_of_an_api_servers_pods() {
        let of = |text, source| {
            let medium = api::EmptyDirVolumeSource { medium: Some(text), ..Default::default() };
            empty_dir_of("at", medium, source).map_err(|error| error.to_string())
        };
        let api = |text: &str| of(text.to_owned(), ManifestSource::Api);
        let pages = |size| Ok(VolumeSource::EmptyDir { medium: Medium::HugePages(size), size_limit: None });
        assert_eq!(api("HugePages"), pages(None));
        assert_eq!(api("HugePages-2Mi"), pages(Some(2 << 20)));
        assert_eq!(api("HugePages-1Gi"), pages(Some(1 << 30)));
        assert!(api("HugePages-").unwrap_err().starts_with("at.medium"));
        assert!(api("HugePagesOf").unwrap_err().starts_with("at.medium: Unsupported value"));
        let file = of("HugePages".to_owned(), ManifestSource::File).unwrap_err();
        assert_eq!(file, "at.medium HugePages is not supported yet: remove it");
    }
}
