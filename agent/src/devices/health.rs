//! How the devices are that containers have: what `allocatedResourcesStatus` of a pod is made from. Pure: owns the types
//! alone. Made by [`super::state`] and by [`crate::dra`], told by [`crate::status`].

use std::collections::BTreeMap;

/// As in ResourceHealth.health.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceHealthWord {
    Healthy,
    Unhealthy,
    /// Nobody has told of it, or not for too long.
    Unknown,
}

impl DeviceHealthWord {
    /// As the API spells it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Healthy => "Healthy",
            Self::Unhealthy => "Unhealthy",
            Self::Unknown => "Unknown",
        }
    }

    /// What is none of the API's words says nothing.
    pub(crate) fn parse(text: &str) -> Self {
        match text {
            "Healthy" => Self::Healthy,
            "Unhealthy" => Self::Unhealthy,
            _ => Self::Unknown,
        }
    }
}

/// How one device is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceCondition {
    pub word: DeviceHealthWord,
    /// In the driver's words; mostly empty.
    pub message: String,
}

impl From<bool> for DeviceCondition {
    fn from(healthy: bool) -> Self {
        let word = if healthy { DeviceHealthWord::Healthy } else { DeviceHealthWord::Unhealthy };
        Self { word, message: String::new() }
    }
}

/// How a resource's devices are, by ID.
pub(crate) type Health = BTreeMap<String, DeviceCondition>;

/// Container → resource → ID. Without those that have no devices.
pub(crate) type DeviceHealth = BTreeMap<String, BTreeMap<String, Health>>;
