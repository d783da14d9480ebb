//! The checkpoint of claims, in upstream's format: `ROOT/dra_manager_state`. Pure: owns its form and its checksum, so that
//! one kubelet can follow another; never reads or writes a file. Called by [`super`].
//!
//! `{"Data":"{\"kind\":\"DRACheckpoint\",\"apiVersion\":\"checkpoint.dra.kubelet.k8s.io/v1\",\"ClaimInfoStateList\":[…]}",
//! "Checksum":NUMBER}`
//!
//! The checksum is CRC-32 (IEEE) over the text of the data.

use std::collections::BTreeMap;

use gantry_model::go_json;
use serde::{Deserialize, Serialize};

const KIND: &str = "DRACheckpoint";
const API_VERSION: &str = "checkpoint.dra.kubelet.k8s.io/v1";

/// Why a checkpoint says nothing.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error("not a checkpoint of claims")]
    Json(#[from] serde_json::Error),
    /// Upstream's words.
    #[error("checkpoint is corrupted")]
    Checksum,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ClaimFile {
    #[serde(default)]
    data: String,
    #[serde(default)]
    checksum: u32,
}

#[derive(Debug, Serialize, Deserialize)]
struct ClaimData {
    #[serde(default)]
    kind: String,
    #[serde(default, rename = "apiVersion")]
    api_version: String,
    /// Null before the first claim.
    #[serde(default, rename = "ClaimInfoStateList")]
    claims: Option<Vec<ClaimEntry>>,
}

/// What is known of one claim.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct ClaimEntry {
    #[serde(rename = "ClaimUID")]
    pub(super) uid: String,
    #[serde(rename = "ClaimName")]
    pub(super) name: String,
    #[serde(rename = "Namespace")]
    pub(super) namespace: String,
    /// Go's set: the values say nothing.
    #[serde(rename = "PodUIDs")]
    pub(super) pods: Option<BTreeMap<String, Nothing>>,
    #[serde(rename = "DriverState")]
    pub(super) drivers: Option<BTreeMap<String, DriverEntry>>,
}

/// `{}`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Nothing {}

/// What one driver gave.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct DriverEntry {
    #[serde(rename = "Devices")]
    pub(super) devices: Option<Vec<PreparedDevice>>,
}

/// One device of a claim. Lists are null when they are empty, as Go's are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct PreparedDevice {
    #[serde(rename = "PoolName")]
    pub(crate) pool: String,
    #[serde(rename = "DeviceName")]
    pub(crate) device: String,
    #[serde(rename = "ShareID")]
    pub(crate) share: Option<String>,
    /// Of the claim; all of them when there are none.
    #[serde(rename = "RequestNames", with = "list")]
    pub(crate) requests: Vec<String>,
    /// Qualified names for the runtime.
    #[serde(rename = "CDIDeviceIDs", with = "list")]
    pub(crate) cdi: Vec<String>,
}

/// Null for an empty list.
mod list {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(list: &[String], serializer: S) -> Result<S::Ok, S::Error> {
        Some(list).filter(|list| !list.is_empty()).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
        Ok(Option::deserialize(deserializer)?.unwrap_or_default())
    }
}

/// The file's content. `None` before the first claim of all.
///
/// # Errors
/// When it cannot be written as JSON.
pub(super) fn encode(claims: Option<Vec<ClaimEntry>>) -> Result<Vec<u8>, CheckpointError> {
    let data = ClaimData { kind: KIND.to_owned(), api_version: API_VERSION.to_owned(), claims };
    let data = go_json::text(&data)?;
    let checksum = crc32(data.as_bytes());
    Ok(go_json::text(&ClaimFile { data, checksum })?.into_bytes())
}

/// What such a file says.
///
/// # Errors
/// When it is none, or its checksum is another's.
pub(super) fn decode(content: &[u8]) -> Result<Vec<ClaimEntry>, CheckpointError> {
    let ClaimFile { data, checksum } = serde_json::from_slice(content)?;
    if crc32(data.as_bytes()) != checksum {
        return Err(CheckpointError::Checksum);
    }
    let ClaimData { claims, .. } = serde_json::from_str(&data)?;
    Ok(claims.unwrap_or_default())
}

/// Of IEEE 802.3, as Go's hash/crc32.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |sum: u32| if sum & 1 == 1 { (sum >> 1) ^ 0xedb8_8320 } else { sum >> 1 };
    !bytes.iter().fold(u32::MAX, |sum, byte| (0..8).fold(sum ^ u32::from(*byte), |sum, _| step(sum)))
}

#[cfg(test)]
mod tests;
