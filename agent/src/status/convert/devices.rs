//! How the devices of a container are, as its status says it. Pure. Called by [`super::containers`].

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ResourceHealth, ResourceStatus};

use crate::devices::{DeviceCondition, Health};

/// What names of resources begin with that are claims, which DRA drivers tell of.
const CLAIM: &str = "claim:";

/// By resource, then by device. What nothing is known of stays as it was: of a pod that had ended before this agent began,
/// and of claims.
pub(super) fn resources_status(
    devices: Option<&BTreeMap<String, Health>>,
    before: Option<&Vec<ResourceStatus>>,
) -> Option<Vec<ResourceStatus>> {
    let Some(devices) = devices else { return before.cloned() };
    let health = |(id, condition): (&String, &DeviceCondition)| ResourceHealth {
        resource_id: id.clone(),
        health: Some(condition.word.as_str().to_owned()),
        message: Some(condition.message.clone()).filter(|message| !message.is_empty()),
    };
    let of = |(name, devices): (&String, &Health)| ResourceStatus {
        name: name.clone(),
        resources: Some(devices.iter().map(health).collect()),
    };
    // Of claims that the drivers have taken back.
    let claims = before.into_iter().flatten();
    let claims =
        claims.filter(|status| status.name.starts_with(CLAIM) && !devices.contains_key(&status.name));
    Some(devices.iter().map(of).chain(claims.cloned()).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn told(devices: Option<&BTreeMap<String, Health>>, before: &Value) -> Value {
        let before: Option<Vec<ResourceStatus>> = serde_json::from_value(before.clone()).unwrap();
        serde_json::to_value(resources_status(devices, before.as_ref())).unwrap()
    }

    #[test]
    fn each_device_is_healthy_or_not_and_claims_stay() {
        let health = [("a".to_owned(), true.into()), ("b".to_owned(), false.into())].into();
        let devices = [("vendor.com/gpu".to_owned(), health)].into();
        let before = json!([
            { "name": "vendor.com/gpu", "resources": [{ "resourceID": "old", "health": "Unknown" }] },
            { "name": "claim:c/r", "resources": [{ "resourceID": "d", "health": "Healthy" }] },
        ]);
        let now = json!([
            { "name": "vendor.com/gpu", "resources": [
                { "resourceID": "a", "health": "Healthy" }, { "resourceID": "b", "health": "Unhealthy" },
            ]},
            { "name": "claim:c/r", "resources": [{ "resourceID": "d", "health": "Healthy" }] },
        ]);
        assert_eq!(told(Some(&devices), &before), now);
        assert_eq!(told(None, &before), before);
        assert_eq!(told(None, &Value::Null), Value::Null);
    }
}
