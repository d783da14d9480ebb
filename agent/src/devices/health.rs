//! How the devices are that containers have: what `allocatedResourcesStatus` of a pod is made from. Pure: owns the types
//! alone. Made by [`super::state`], told by [`crate::status`].

use std::collections::BTreeMap;

/// Whether a device is healthy, by its ID.
pub(crate) type Health = BTreeMap<String, bool>;

/// Container → resource → ID. Without those that have no devices.
pub(crate) type DeviceHealth = BTreeMap<String, BTreeMap<String, Health>>;
