//! Environment variables and where their values come from. Pure: owns the checks; never looks a
//! value up. Called by [`super::container`], and by [`super::volume`] for the downward API.

use gantry_model::field_path::subscript;
use gantry_model::pod::env::{EnvFrom, EnvFromSource, EnvValue, EnvVar, FileKeyRef, KeyRef, ResourceRef};
use gantry_model::pod::volume::{Volume, VolumeSource};
use gantry_model::{names, quantity};
use k8s_openapi::api::core::v1 as api;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::field::{
    CONFIG_KEY, DNS_SUBDOMAIN, FieldError, QUALIFIED_NAME, Result, check, descending_path, invalid,
    not_found, one_of, required,
};

/// What `env` may show of a pod, sorted.
const ENV_FIELDS: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
/// What a downwardAPI volume may show: nothing that is known only once the pod runs.
const FILE_FIELDS: &[&str] =
    &["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];
const RESOURCES: &[(&str, ())] = &[
    ("limits.cpu", ()),
    ("limits.ephemeral-storage", ()),
    ("limits.memory", ()),
    ("requests.cpu", ()),
    ("requests.ephemeral-storage", ()),
    ("requests.memory", ()),
];

/// Where a field path stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FieldPathTarget {
    /// In a variable.
    Env,
    /// In a file.
    Volume,
}

/// `volumes` are the pod's.
pub(super) fn env(at: &str, list: Vec<api::EnvVar>, volumes: &[Volume]) -> Result<Vec<EnvVar>> {
    let mut variables = Vec::with_capacity(list.len());
    for (index, variable) in list.into_iter().enumerate() {
        let api::EnvVar { name, value, value_from } = variable;
        let field = format!("{at}[{index}]");
        env_name(&format!("{field}.name"), &name)?;
        let value = match (value_from, value.filter(|v| !v.is_empty())) {
            (Some(_), Some(_)) => {
                return Err(invalid(
                    format!("{field}.valueFrom"),
                    "",
                    "may not be specified when `value` is not empty",
                ));
            }
            (Some(from), None) => value_from_of(&format!("{field}.valueFrom"), from, volumes)?,
            (None, text) => {
                let text = text.unwrap_or_default();
                check(format!("{field}.value"), &text, |v| !v.contains('\0'), "must not contain NUL")?;
                EnvValue::Literal(text)
            }
        };
        variables.push(EnvVar { name, value });
    }
    Ok(variables)
}

/// Any printable ASCII but `=`, as Kubernetes relaxed it in 1.34.
fn env_name(field: &str, name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(required(field));
    }
    let printable = |n: &str| n.bytes().all(|b| (b.is_ascii_graphic() || b == b' ') && b != b'=');
    check(
        field,
        name,
        printable,
        "a valid environment variable name must consist only of printable ASCII characters other than '='",
    )
}

fn value_from_of(at: &str, from: api::EnvVarSource, volumes: &[Volume]) -> Result<EnvValue> {
    let api::EnvVarSource { config_map_key_ref, field_ref, file_key_ref, resource_field_ref, secret_key_ref } =
        from;
    let mut values = Vec::new();
    if let Some(selector) = file_key_ref {
        values.push(EnvValue::FileKey(file_key(&format!("{at}.fileKeyRef"), selector, volumes)?));
    }
    if let Some(selector) = field_ref {
        values.push(EnvValue::Field(field_path(&format!("{at}.fieldRef"), selector, FieldPathTarget::Env)?));
    }
    if let Some(selector) = resource_field_ref {
        values.push(EnvValue::Resource(resource_ref(
            &format!("{at}.resourceFieldRef"),
            selector,
            FieldPathTarget::Env,
        )?));
    }
    if let Some(api::ConfigMapKeySelector { key, name, optional }) = config_map_key_ref {
        values.push(EnvValue::ConfigMapKey(key_ref(&format!("{at}.configMapKeyRef"), name, key, optional)?));
    }
    if let Some(api::SecretKeySelector { key, name, optional }) = secret_key_ref {
        values.push(EnvValue::SecretKey(key_ref(&format!("{at}.secretKeyRef"), name, key, optional)?));
    }
    let several = values.len() > 1;
    match values.pop() {
        Some(value) if !several => Ok(value),
        Some(_) => Err(invalid(at, "", "may not have more than one field specified at a time")),
        None => Err(invalid(
            at,
            "",
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        )),
    }
}

/// A variable of a file that an init container has left in an emptyDir.
fn file_key(at: &str, selector: api::FileKeySelector, volumes: &[Volume]) -> Result<FileKeyRef> {
    let api::FileKeySelector { key, optional, path, volume_name } = selector;
    env_name(&format!("{at}.key"), &key)?;
    descending_path(format!("{at}.path"), &path)?;
    if path.is_empty() {
        return Err(required(format!("{at}.path")));
    }
    let field = format!("{at}.volumeName");
    let Some(volume) = volumes.iter().find(|volume| volume.name == volume_name) else {
        return Err(not_found(field, &volume_name));
    };
    if !matches!(volume.source, VolumeSource::EmptyDir { .. }) {
        return Err(invalid(field, &volume_name, "referenced volume must be of type emptyDir"));
    }
    Ok(FileKeyRef { volume: volume_name, path, key, optional: optional.unwrap_or(false) })
}

fn key_ref(at: &str, name: String, key: String, optional: Option<bool>) -> Result<KeyRef> {
    object_name(&format!("{at}.name"), &name)?;
    if key.is_empty() {
        return Err(required(format!("{at}.key")));
    }
    check(format!("{at}.key"), &key, names::is_config_key, CONFIG_KEY)?;
    Ok(KeyRef { name, key, optional: optional.unwrap_or(false) })
}

/// The name of a ConfigMap or Secret.
pub(super) fn object_name(field: &str, name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(required(field));
    }
    check(field, name, names::is_dns_subdomain, DNS_SUBDOMAIN)
}

/// The path, known to be one that can be shown at `place`.
pub(super) fn field_path(
    at: &str,
    selector: api::ObjectFieldSelector,
    place: FieldPathTarget,
) -> Result<String> {
    let api::ObjectFieldSelector { api_version, field_path: path } = selector;
    if let Some(version) = api_version.filter(|v| !v.is_empty()) {
        one_of(format!("{at}.apiVersion"), &version, &[("v1", ())])?;
    }
    let field = format!("{at}.fieldPath");
    if path.is_empty() {
        return Err(required(field));
    }
    if let Some((of, key)) = subscript(&path) {
        return match of {
            "metadata.annotations" => {
                check(at, key, |k| names::is_qualified_key(&k.to_lowercase()), QUALIFIED_NAME).map(|()| path)
            }
            "metadata.labels" => check(at, key, names::is_qualified_key, QUALIFIED_NAME).map(|()| path),
            _ => Err(invalid(at, of, "does not support subscript")),
        };
    }
    let allowed = match place {
        FieldPathTarget::Env => ENV_FIELDS,
        FieldPathTarget::Volume => FILE_FIELDS,
    };
    if allowed.contains(&path.as_str()) {
        return Ok(path);
    }
    let known = ENV_FIELDS.contains(&path.as_str()) || FILE_FIELDS.contains(&path.as_str());
    if !known {
        return Err(invalid(
            field,
            &path,
            format!("error converting fieldPath: field label not supported: {path}"),
        ));
    }
    let supported: Vec<String> = allowed.iter().map(|name| format!("{name:?}")).collect();
    Err(FieldError::Value { field, value: path, supported: supported.join(", ") })
}

/// A file must name its container; a variable means its own.
pub(super) fn resource_ref(
    at: &str,
    selector: api::ResourceFieldSelector,
    place: FieldPathTarget,
) -> Result<ResourceRef> {
    let api::ResourceFieldSelector { container_name, divisor, resource } = selector;
    let container = container_name.unwrap_or_default();
    if place == FieldPathTarget::Volume && container.is_empty() {
        return Err(required(format!("{at}.containerName")));
    }
    let field = format!("{at}.resource");
    if resource.is_empty() {
        return Err(required(field));
    }
    let of = resource.split_once('.').map_or("", |(_, of)| of);
    let of_pages = of.starts_with("hugepages-")
        && (resource.starts_with("limits.") || resource.starts_with("requests."));
    if !of_pages {
        one_of(field, &resource, RESOURCES)?;
    }
    let divisor_milli = match divisor {
        None => 1000,
        Some(Quantity(text)) => divisor_of(&format!("{at}.divisor"), &text, of)?,
    };
    Ok(ResourceRef { container, resource, divisor_milli })
}

/// Zero is one.
fn divisor_of(field: &str, text: &str, of: &str) -> Result<i64> {
    const CPU: &[i64] = &[1, 1000];
    let milli = quantity::parse_milli(text)
        .map_err(|source| FieldError::Quantity { field: field.to_owned(), source })?;
    let exact = match of {
        "cpu" => CPU.contains(&milli),
        _ => {
            let decimal = (0..=6).map(|power| 1000_i128.pow(power));
            let binary = (0..=6).map(|power| 1024_i128.pow(power));
            decimal.chain(binary).any(|unit| unit * 1000 == i128::from(milli))
        }
    };
    match (milli, of) {
        (0, _) => Ok(1000),
        _ if exact => Ok(milli),
        (_, "cpu") => {
            Err(invalid(field, text, "only divisor's values 1m and 1 are supported with the cpu resource"))
        }
        _ => Err(invalid(
            field,
            text,
            format!(
                "only divisor's values 1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei are supported with the {} resource",
                if of == "memory" { "memory" } else { "local ephemeral storage" }
            ),
        )),
    }
}

pub(super) fn env_from(at: &str, list: Vec<api::EnvFromSource>) -> Result<Vec<EnvFrom>> {
    let mut sources = Vec::with_capacity(list.len());
    for (index, source) in list.into_iter().enumerate() {
        let api::EnvFromSource { config_map_ref, prefix, secret_ref } = source;
        let field = format!("{at}[{index}]");
        let prefix = prefix.unwrap_or_default();
        if !prefix.is_empty() {
            env_name(&format!("{field}.prefix"), &prefix)?;
        }
        let (source, optional) = match (config_map_ref, secret_ref) {
            (Some(api::ConfigMapEnvSource { name, optional }), None) => {
                object_name(&format!("{field}.configMapRef.name"), &name)?;
                (EnvFromSource::ConfigMap(name), optional)
            }
            (None, Some(api::SecretEnvSource { name, optional })) => {
                object_name(&format!("{field}.secretRef.name"), &name)?;
                (EnvFromSource::Secret(name), optional)
            }
            (Some(_), Some(_)) => {
                return Err(invalid(field, "", "may not have more than one field specified at a time"));
            }
            (None, None) => {
                return Err(invalid(field, "", "must specify one of: `configMapRef` or `secretRef`"));
            }
        };
        sources.push(EnvFrom { prefix, source, optional: optional.unwrap_or(false) });
    }
    Ok(sources)
}
