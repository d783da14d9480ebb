//! A CDI file as it is written: JSON or YAML, its fields and no others. Owns the format
//! (github.com/cncf-tags/container-device-interface, SPEC.md); what is valid is `check`'s to say. Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

/// Longer ones are no device files: parsing them is work that a create waits for.
pub(super) const MAX_BYTES: u64 = 4 << 20;

/// `null` is what a field is without a value, as in Go.
fn null_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct SpecFile {
    #[serde(deserialize_with = "null_default")]
    pub(super) cdi_version: String,
    #[serde(deserialize_with = "null_default")]
    pub(super) kind: String,
    #[serde(deserialize_with = "null_default")]
    pub(super) annotations: BTreeMap<String, String>,
    #[serde(deserialize_with = "null_default")]
    pub(super) devices: Vec<Device>,
    #[serde(deserialize_with = "null_default")]
    pub(super) container_edits: Edits,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct Device {
    #[serde(deserialize_with = "null_default")]
    pub(super) name: String,
    #[serde(deserialize_with = "null_default")]
    pub(super) annotations: BTreeMap<String, String>,
    #[serde(deserialize_with = "null_default")]
    pub(super) container_edits: Edits,
}

/// What a container gets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct Edits {
    #[serde(deserialize_with = "null_default")]
    pub(super) env: Vec<String>,
    #[serde(deserialize_with = "null_default")]
    pub(super) device_nodes: Vec<SpecDeviceNode>,
    #[serde(deserialize_with = "null_default")]
    pub(super) net_devices: Vec<NetDevice>,
    #[serde(deserialize_with = "null_default")]
    pub(super) hooks: Vec<Hook>,
    #[serde(deserialize_with = "null_default")]
    pub(super) mounts: Vec<Mount>,
    pub(super) intel_rdt: Option<IntelRdt>,
    #[serde(deserialize_with = "null_default")]
    pub(super) additional_gids: Vec<u32>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct SpecDeviceNode {
    #[serde(deserialize_with = "null_default")]
    pub(super) path: String,
    #[serde(deserialize_with = "null_default")]
    pub(super) host_path: String,
    #[serde(deserialize_with = "null_default", rename = "type")]
    pub(super) kind: String,
    #[serde(deserialize_with = "null_default")]
    pub(super) major: u32,
    #[serde(deserialize_with = "null_default")]
    pub(super) minor: u32,
    pub(super) file_mode: Option<u32>,
    #[serde(deserialize_with = "null_default")]
    pub(super) permissions: String,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct NetDevice {
    #[serde(deserialize_with = "null_default")]
    pub(super) host_interface_name: String,
    #[serde(deserialize_with = "null_default")]
    pub(super) name: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct Hook {
    #[serde(deserialize_with = "null_default")]
    pub(super) hook_name: String,
    #[serde(deserialize_with = "null_default")]
    pub(super) path: String,
    #[serde(deserialize_with = "null_default")]
    pub(super) args: Vec<String>,
    #[serde(deserialize_with = "null_default")]
    pub(super) env: Vec<String>,
    pub(super) timeout: Option<u32>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct Mount {
    #[serde(deserialize_with = "null_default")]
    pub(super) host_path: String,
    #[serde(deserialize_with = "null_default")]
    pub(super) container_path: String,
    #[serde(deserialize_with = "null_default")]
    pub(super) options: Vec<String>,
    #[serde(deserialize_with = "null_default", rename = "type")]
    pub(super) kind: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct IntelRdt {
    #[serde(deserialize_with = "null_default", rename = "closID")]
    pub(super) clos_id: String,
    #[serde(deserialize_with = "null_default", rename = "l3CacheSchema")]
    pub(super) l3_cache_schema: String,
    #[serde(deserialize_with = "null_default")]
    pub(super) mem_bw_schema: String,
    pub(super) schemata: Option<Vec<String>>,
    #[serde(deserialize_with = "null_default")]
    pub(super) enable_monitoring: bool,
}

/// Both forms by one parser: JSON is YAML.
pub(super) fn parse(text: &str) -> Result<SpecFile, String> {
    let options = serde_saphyr::options! {
        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::Error,
        // As Go's parser: file modes are written that way.
        legacy_octal_numbers: true,
    };
    let file: Option<SpecFile> = serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| format!("failed to unmarshal CDI Spec: {error}"))?;
    file.ok_or_else(|| "no Spec data".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_and_yaml_say_the_same() {
        let json = r#"{"cdiVersion": "1.1.0", "kind": "v.com/c", "devices": [{"name": "d", "containerEdits":
            {"deviceNodes": [{"path": "/dev/x", "type": "c", "fileMode": 416}], "env": null, "hooks":
            [{"hookName": "poststop", "path": "/h", "timeout": 3}], "additionalGids": [5],
            "intelRdt": {"closID": "x", "l3CacheSchema": "y"}}}]}"#;
        let yaml = "cdiVersion: 1.1.0\nkind: v.com/c\ndevices:\n- name: d\n  containerEdits:\n    deviceNodes:\n    \
            - {path: /dev/x, type: c, fileMode: 0640}\n    env:\n    hooks:\n    - hookName: poststop\n      \
            path: /h\n      timeout: 3\n    additionalGids: [5]\n    intelRdt: {closID: x, l3CacheSchema: y}\n";
        let file = parse(json).unwrap();
        assert_eq!(file, parse(yaml).unwrap());
        assert_eq!(file.devices[0].container_edits.device_nodes[0].file_mode, Some(0o640));
    }

    #[test]
    fn what_is_not_of_the_format_is_refused() {
        for text in [
            "",
            "[]",
            "null",
            "{\"kind\": 5, \"kind\": 6}",
            "kind: a\nkind: b\n",
            "kind: a\nflavour: b\n",
            "devices: [{name: d, containerEdits: {mounts: [{hostpath: /x}]}}]",
            "devices: [{name: d, containerEdits: {deviceNodes: [{path: /x, major: -1}]}}]",
            "devices: [{name: d, containerEdits: {hooks: [{timeout: -1}]}}]",
            "a: &a [x, x]\nb: *a\n",
            "kind: a\n---\nkind: b\n",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
