//! The checkpoint of devices, in upstream's format: `ROOT/device-plugins/kubelet_internal_checkpoint`. Pure: owns its form
//! and its checksum, so that one kubelet can follow another; never reads or writes a file. Called by [`super`].
//!
//! `{"Data":{"PodDeviceEntries":[{"PodUID":…,"ContainerName":…,"ResourceName":…,"DeviceIDs":{"-1":["ID"]},"AllocResp":BASE64}],
//! "RegisteredDevices":{"RESOURCE":["ID"]}},"Checksum":NUMBER}`
//!
//! The checksum is FNV-1a (32 bits) over how Go's spew prints the data (`%#v`, maps sorted by key).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gantry_proto::deviceplugin::ContainerAllocateResponse;
use prost::Message as _;
use serde::{Deserialize, Serialize};

use super::{DeviceOptions, plugin};

/// Why a checkpoint says nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CheckpointError {
    #[error("not a checkpoint of devices")]
    Json(#[from] serde_json::Error),
    /// A part of it was changed, or written by a kubelet that counts otherwise.
    #[error("checkpoint is corrupted: its checksum is {told}, that of its data {counted}")]
    Checksum { told: u64, counted: u64 },
    #[error("the plugin's answer for container {container} of pod {pod} is not base64")]
    Base64 { pod: String, container: String, source: base64::DecodeError },
    #[error("the plugin's answer for container {container} of pod {pod} is no ContainerAllocateResponse")]
    Response { pod: String, container: String, source: prost::DecodeError },
}

/// What a checkpoint says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Checkpoint {
    pub(super) entries: Vec<Entry>,
    /// IDs of healthy devices by resource.
    pub(super) registered: BTreeMap<String, Vec<String>>,
}

/// What one container has of one resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) pod: String,
    pub(super) container: String,
    pub(super) resource: String,
    /// IDs by NUMA node.
    pub(super) devices: BTreeMap<i64, Vec<String>>,
    /// What the plugin wants the container to have.
    pub(super) options: DeviceOptions,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct File {
    data: Data,
    checksum: u64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Data {
    /// Null without any.
    pod_device_entries: Option<Vec<PodDevicesEntry>>,
    registered_devices: Option<BTreeMap<String, Option<Vec<String>>>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct PodDevicesEntry {
    #[serde(rename = "PodUID")]
    pod_uid: String,
    #[serde(rename = "ContainerName")]
    container_name: String,
    #[serde(rename = "ResourceName")]
    resource_name: String,
    #[serde(rename = "DeviceIDs")]
    device_ids: Option<BTreeMap<i64, Option<Vec<String>>>>,
    #[serde(rename = "AllocResp")]
    alloc_resp: Option<String>,
}

impl Checkpoint {
    /// The file's content.
    ///
    /// # Errors
    /// When it cannot be written as JSON.
    pub(super) fn encode(&self) -> Result<Vec<u8>, CheckpointError> {
        let entries = self.entries.iter().map(|entry| PodDevicesEntry {
            pod_uid: entry.pod.clone(),
            container_name: entry.container.clone(),
            resource_name: entry.resource.clone(),
            device_ids: Some(entry.devices.iter().map(|(node, ids)| (*node, Some(ids.clone()))).collect()),
            alloc_resp: Some(STANDARD.encode(plugin::to_wire(&entry.options).encode_to_vec())),
        });
        let registered = self.registered.iter().map(|(name, ids)| (name.clone(), Some(ids.clone())));
        let data = Data {
            pod_device_entries: Some(entries.collect::<Vec<_>>()).filter(|all| !all.is_empty()),
            registered_devices: Some(registered.collect()),
        };
        let checksum = checksum(&data)?;
        Ok(serde_json::to_vec(&File { data, checksum })?)
    }

    /// What such a file says.
    ///
    /// # Errors
    /// When it is none, or its checksum is another's.
    pub(super) fn decode(content: &[u8]) -> Result<Self, CheckpointError> {
        let File { data, checksum: told } = serde_json::from_slice(content)?;
        let counted = checksum(&data)?;
        if told != counted {
            return Err(CheckpointError::Checksum { told, counted });
        }
        let mut entries = Vec::new();
        for entry in data.pod_device_entries.into_iter().flatten() {
            let bytes = bytes_of(&entry)?;
            let response = ContainerAllocateResponse::decode(bytes.as_slice()).map_err(|source| {
                let (pod, container) = (entry.pod_uid.clone(), entry.container_name.clone());
                CheckpointError::Response { pod, container, source }
            })?;
            let devices = entry.device_ids.into_iter().flatten();
            entries.push(Entry {
                pod: entry.pod_uid,
                container: entry.container_name,
                resource: entry.resource_name,
                devices: devices.map(|(node, ids)| (node, ids.unwrap_or_default())).collect(),
                options: plugin::from_wire(response),
            });
        }
        let registered = data.registered_devices.into_iter().flatten();
        let registered = registered.map(|(name, ids)| (name, ids.unwrap_or_default())).collect();
        Ok(Self { entries, registered })
    }
}

fn bytes_of(entry: &PodDevicesEntry) -> Result<Vec<u8>, CheckpointError> {
    let text = entry.alloc_resp.as_deref().unwrap_or_default();
    STANDARD.decode(text).map_err(|source| {
        let (pod, container) = (entry.pod_uid.clone(), entry.container_name.clone());
        CheckpointError::Base64 { pod, container, source }
    })
}

fn checksum(data: &Data) -> Result<u64, CheckpointError> {
    let mut hash = 0x811c_9dc5_u32;
    for byte in print(data)?.bytes() {
        hash = (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    }
    Ok(u64::from(hash))
}

/// As spew prints it: a type in parentheses before each value but those within lists and maps, whose type is known.
fn print(data: &Data) -> Result<String, CheckpointError> {
    let mut text =
        String::from("(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)");
    match &data.pod_device_entries {
        None => text.push_str("<nil>"),
        Some(entries) => {
            text.push('[');
            for (at, entry) in entries.iter().enumerate() {
                separate(&mut text, at);
                print_entry(&mut text, entry)?;
            }
            text.push(']');
        }
    }
    text.push_str(" RegisteredDevices:(map[string][]string)");
    print_map(&mut text, data.registered_devices.as_ref());
    text.push('}');
    Ok(text)
}

fn print_entry(text: &mut String, entry: &PodDevicesEntry) -> Result<(), CheckpointError> {
    let PodDevicesEntry { pod_uid, container_name, resource_name, device_ids, .. } = entry;
    let bytes = bytes_of(entry)?;
    // Writing into a String does not fail.
    let _ = write!(
        text,
        "{{PodUID:(string){pod_uid} ContainerName:(string){container_name} ResourceName:(string){resource_name} \
         DeviceIDs:(checkpoint.DevicesPerNUMA)"
    );
    print_map(text, device_ids.as_ref());
    text.push_str(" AllocResp:([]uint8)");
    if entry.alloc_resp.is_none() {
        text.push_str("<nil>}");
        return Ok(());
    }
    text.push('[');
    for (at, byte) in bytes.iter().enumerate() {
        separate(text, at);
        let _ = write!(text, "{byte}");
    }
    text.push_str("]}");
    Ok(())
}

fn print_map<K: std::fmt::Display>(text: &mut String, map: Option<&BTreeMap<K, Option<Vec<String>>>>) {
    let Some(map) = map else {
        text.push_str("<nil>");
        return;
    };
    text.push_str("map[");
    for (at, (key, ids)) in map.iter().enumerate() {
        separate(text, at);
        let _ = write!(text, "{key}:");
        match ids {
            None => text.push_str("<nil>"),
            Some(ids) => {
                let _ = write!(text, "[{}]", ids.join(" "));
            }
        }
    }
    text.push(']');
}

fn separate(text: &mut String, at: usize) {
    if at > 0 {
        text.push(' ');
    }
}

#[cfg(test)]
mod tests;
