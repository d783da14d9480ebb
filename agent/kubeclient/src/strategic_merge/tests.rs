//! Patches as the API server takes them, and that applying one gives what was wanted.

use serde_json::{Value, json};

use super::apply::apply;
use super::{NODE, POD, diff};

fn round(old: &Value, new: &Value, lists: super::Lists) -> Value {
    let patch = diff(old, new, lists).unwrap();
    let mut target = old.clone();
    apply(&mut target, &patch, lists);
    assert_eq!(&target, new, "by {patch}");
    patch
}

#[test]
fn equal_objects_need_no_patch() {
    let object = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }] } });
    assert_eq!(diff(&object, &object.clone(), POD), None);
}

#[test]
fn trap_05_only_the_conditions_that_changed_are_sent_and_foreign_ones_stay() {
    let condition = |kind: &str, status: &str| json!({ "type": kind, "status": status });
    let old = json!({ "status": { "conditions": [condition("Ready", "False"), condition("Initialized", "True")] } });
    let new =
        json!({ "status": { "conditions": [condition("Ready", "True"), condition("Initialized", "True")] } });
    let patch = round(&old, &new, POD);
    assert_eq!(
        patch,
        json!({ "status": {
            "$setElementOrder/conditions": [{ "type": "Ready" }, { "type": "Initialized" }],
            "conditions": [{ "type": "Ready", "status": "True" }],
        } })
    );
    // Somebody added one meanwhile.
    let mut newer = old.clone();
    newer["status"]["conditions"].as_array_mut().unwrap().push(condition("example.com/gate", "True"));
    apply(&mut newer, &patch, POD);
    assert_eq!(newer["status"]["conditions"][2], condition("example.com/gate", "True"));
    assert_eq!(newer["status"]["conditions"][0], condition("Ready", "True"));
}

#[test]
fn what_goes_is_told() {
    let old = json!({ "status": { "reason": "x", "podIPs": [{ "ip": "10.0.0.1" }, { "ip": "fd00::1" }] } });
    let new = json!({ "status": { "podIPs": [{ "ip": "10.0.0.1" }] } });
    let patch = round(&old, &new, POD);
    assert_eq!(
        patch,
        json!({ "status": {
            "reason": null,
            "$setElementOrder/podIPs": [{ "ip": "10.0.0.1" }],
            "podIPs": [{ "$patch": "delete", "ip": "fd00::1" }],
        } })
    );
}

#[test]
fn lists_without_a_key_are_replaced_and_so_are_a_nodes_addresses() {
    let old = json!({ "status": { "containerStatuses": [{ "name": "a", "ready": false }] } });
    let new = json!({ "status": { "containerStatuses": [{ "name": "a", "ready": true }] } });
    assert_eq!(round(&old, &new, POD), new);
    let address = |kind: &str, address: &str| json!({ "type": kind, "address": address });
    let old = json!({ "status": { "addresses": [address("InternalIP", "10.0.0.1")] } });
    let new = json!({ "status": {
        "addresses": [address("InternalIP", "10.0.0.1"), address("InternalIP", "fd00::1")],
    } });
    let patch = round(&old, &new, NODE);
    assert_eq!(patch["status"]["addresses"][2], json!({ "$patch": "replace" }));
}
