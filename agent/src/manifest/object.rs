//! ConfigMaps and Secrets of files. Pure: owns their ledger and the checks of the API server; never
//! logs what is in a Secret. Called by [`super`].

use std::collections::BTreeMap;

use gantry_model::names;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1 as k8s;

use super::field::{CONFIG_KEY, FieldError, ManifestSource, Result, check, invalid, required};
use super::meta::{Meta, meta};
use crate::api::{ConfigMap, Secret};

/// As core.MaxSecretSize.
const MAX_BYTES: usize = 1 << 20;
/// What a Secret of a kind must have, and whether it is JSON.
const REQUIRED_KEYS: &[(&str, &str)] = &[
    ("kubernetes.io/dockercfg", ".dockercfg"),
    ("kubernetes.io/dockerconfigjson", ".dockerconfigjson"),
    ("kubernetes.io/ssh-auth", "ssh-privatekey"),
    ("kubernetes.io/tls", "tls.crt"),
    ("kubernetes.io/tls", "tls.key"),
];

/// Namespace, name, content.
pub(super) type Named<T> = (String, String, T);

pub(super) fn config_map(object: k8s::ConfigMap) -> Result<Named<ConfigMap>> {
    // `immutable` is inert: nothing changes these objects.
    let k8s::ConfigMap { binary_data, data, immutable: _, metadata } = object;
    let Meta { namespace, name, .. } = meta(metadata, ManifestSource::File)?;
    let data = data.unwrap_or_default();
    let binary: BTreeMap<String, Vec<u8>> =
        binary_data.unwrap_or_default().into_iter().map(|(key, ByteString(value))| (key, value)).collect();
    let mut size = 0;
    for (key, value) in &data {
        key_ok("data", key)?;
        if binary.contains_key(key) {
            return Err(invalid(format!("data[{key}]"), key, "duplicate of key present in binaryData"));
        }
        size += value.len();
    }
    for (key, value) in &binary {
        key_ok("binaryData", key)?;
        size += value.len();
    }
    small("data", size)?;
    Ok((namespace, name, ConfigMap { data, binary }))
}

pub(super) fn secret(object: k8s::Secret) -> Result<Named<Secret>> {
    let k8s::Secret { data, immutable: _, metadata, string_data, type_ } = object;
    let Meta { namespace, name, .. } = meta(metadata, ManifestSource::File)?;
    let mut all: BTreeMap<String, Vec<u8>> =
        data.unwrap_or_default().into_iter().map(|(key, ByteString(value))| (key, value)).collect();
    // stringData wins, as in the API server.
    all.extend(string_data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.into_bytes())));
    for key in all.keys() {
        key_ok("data", key)?;
    }
    small("data", all.values().map(Vec::len).sum())?;
    let kind = type_.filter(|t| !t.is_empty()).unwrap_or_else(|| "Opaque".to_owned());
    for (_, key) in REQUIRED_KEYS.iter().filter(|(of, _)| *of == kind) {
        let Some(value) = all.get(*key) else { return Err(required(format!("data[{key}]"))) };
        if key.starts_with('.')
            && serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(value).is_err()
        {
            return Err(invalid(
                format!("data[{key}]"),
                "<secret contents redacted>",
                "is not a JSON object",
            ));
        }
    }
    if kind == "kubernetes.io/basic-auth" && !all.contains_key("username") && !all.contains_key("password") {
        return Err(required("data[username]"));
    }
    Ok((namespace, name, Secret { kind, data: all, uid: String::new() }))
}

fn key_ok(at: &str, key: &str) -> Result<()> {
    check(format!("{at}[{key}]"), key, names::is_config_key, CONFIG_KEY)
}

fn small(field: &str, size: usize) -> Result<()> {
    if size > MAX_BYTES {
        return Err(FieldError::TooLong { field: field.to_owned(), max: MAX_BYTES });
    }
    Ok(())
}
