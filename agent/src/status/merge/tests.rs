//! Whose field is whose, and what a status may not take back.

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use serde_json::{Value, json};

use super::*;

fn pod(status: &Value) -> Pod {
    let spec = json!({ "restartPolicy": "Never", "initContainers": [{ "name": "z" }, { "name": "a" }],
        "containers": [{ "name": "web" }, { "name": "db" }] });
    serde_json::from_value(json!({ "metadata": { "name": "web" }, "spec": spec, "status": status })).unwrap()
}

fn status(value: Value) -> PodStatus {
    serde_json::from_value(value).unwrap()
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn merged(old: &Value, new: Value, end: PodEnd) -> Value {
    serde_json::to_value(merge(&pod(old), status(new), end, at(1_000_000))).unwrap()
}

#[test]
fn trap_05_conditions_of_others_stay_and_ours_keep_their_times() {
    let old = json!({ "startTime": "2020-01-01T00:00:00Z", "conditions": [
        { "type": "Ready", "status": "True", "lastTransitionTime": "2020-01-01T00:00:01Z" },
        { "type": "example.com/gate", "status": "True", "reason": "x" },
        { "type": "Initialized", "status": "True", "lastTransitionTime": "2020-01-01T00:00:02Z" },
        { "type": "AllContainersRestarting", "status": "True" },
    ], "resourceClaimStatuses": [{ "name": "claim" }], "nominatedNodeName": "n" });
    let new = json!({ "startTime": "2024-01-01T00:00:00Z", "conditions": [
        { "type": "Ready", "status": "False", "reason": "ContainersNotReady" },
        { "type": "Initialized", "status": "True", "lastTransitionTime": "2024-01-01T00:00:00Z" },
    ] });
    let merged = merged(&old, new, PodEnd::Not);
    assert_eq!(
        merged["conditions"],
        json!([
            { "type": "example.com/gate", "status": "True", "reason": "x" },
            { "type": "Ready", "status": "False", "reason": "ContainersNotReady",
              "lastTransitionTime": "1970-01-12T13:46:40Z" },
            { "type": "Initialized", "status": "True", "lastTransitionTime": "2020-01-01T00:00:02Z" },
        ])
    );
    assert_eq!(merged["startTime"], "2020-01-01T00:00:00Z");
    assert_eq!(merged["resourceClaimStatuses"][0]["name"], "claim");
    assert_eq!(merged["nominatedNodeName"], "n");
}

#[test]
fn a_condition_that_a_gate_turned_turned_when_it_was_told() {
    let old = json!({ "conditions": [
        { "type": "Ready", "status": "False", "lastTransitionTime": "1970-01-10T00:00:00Z" }] });
    let own = |time: &str| {
        let new =
            json!({ "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": time }] });
        merged(&old, new, PodEnd::Not)["conditions"][0]["lastTransitionTime"].clone()
    };
    assert_eq!(own("1970-01-09T00:00:00Z"), "1970-01-12T13:46:40Z", "the worker saw no change then");
    assert_eq!(own("1970-01-11T00:00:00Z"), "1970-01-11T00:00:00Z");
}

#[test]
fn trap_05_addresses_stay_when_the_sandbox_goes_and_a_generation_never_falls() {
    let old = json!({ "podIP": "10.0.0.1", "podIPs": [{ "ip": "10.0.0.1" }], "observedGeneration": 3,
        "hostIP": "10.0.0.5", "hostIPs": [{ "ip": "10.0.0.5" }] });
    let merged = merged(&old, json!({ "observedGeneration": 2 }), PodEnd::Not);
    assert_eq!((&merged["podIP"], &merged["podIPs"][0]["ip"]), (&json!("10.0.0.1"), &json!("10.0.0.1")));
    assert_eq!((&merged["hostIP"], &merged["observedGeneration"]), (&json!("10.0.0.5"), &json!(3)));
}

#[test]
fn trap_03_no_phase_is_terminal_while_a_container_may_run_and_none_is_left() {
    let old = json!({ "phase": "Running" });
    let failed = json!({ "phase": "Failed", "reason": "Evicted", "message": "m", "conditions": [
        { "type": "DisruptionTarget", "status": "True" }] });
    let early = merged(&old, failed.clone(), PodEnd::Not);
    assert_eq!(
        (&early["phase"], early.get("reason"), early.get("conditions")),
        (&json!("Running"), None, None)
    );
    let over = merged(&old, failed, PodEnd::Ended);
    assert_eq!((&over["phase"], &over["reason"]), (&json!("Failed"), &json!("Evicted")));
    assert_eq!(over["conditions"][0]["type"], "DisruptionTarget");
    let back = merged(&json!({ "phase": "Succeeded" }), json!({ "phase": "Running" }), PodEnd::Not);
    assert_eq!(back["phase"], "Succeeded");
}

#[test]
fn a_pod_that_is_over_is_not_ready() {
    let ready =
        json!([{ "type": "Ready", "status": "True" }, { "type": "ContainersReady", "status": "True" }]);
    let new = json!({ "phase": "Succeeded", "conditions": ready });
    let merged = merged(&json!({ "phase": "Running" }), new, PodEnd::Ended);
    for condition in merged["conditions"].as_array().unwrap() {
        assert_eq!((&condition["status"], &condition["reason"]), (&json!("False"), &json!("PodCompleted")));
    }
}

#[test]
fn what_is_gone_from_the_node_has_failed_unless_it_said_otherwise() {
    assert_eq!(merged(&json!({}), json!({ "phase": "Pending" }), PodEnd::Gone)["phase"], "Failed");
    assert_eq!(merged(&json!({}), json!({ "phase": "Succeeded" }), PodEnd::Gone)["phase"], "Succeeded");
    let mut own = pod(&json!({}));
    own.metadata.annotations = Some([("kubernetes.io/config.source".to_owned(), "file".to_owned())].into());
    let kept = merge(&own, status(json!({ "phase": "Pending" })), PodEnd::Gone, at(0));
    assert_eq!(kept.phase.as_deref(), Some("Pending"), "a static pod has no end in the API");
}

#[test]
fn trap_04_an_exit_code_is_not_lost_with_its_record() {
    let ended = |code: i64| {
        json!({ "name": "web", "state": { "terminated": { "exitCode": code } },
        "image": "", "imageID": "", "ready": false, "restartCount": 0 })
    };
    let waits = json!([{ "name": "web", "state": { "waiting": { "reason": "ContainerCreating" } },
        "image": "", "imageID": "", "ready": false, "restartCount": 0 }]);
    let merged = merged(
        &json!({ "containerStatuses": [ended(3)] }),
        json!({ "containerStatuses": waits }),
        PodEnd::Not,
    );
    assert_eq!(merged["containerStatuses"][0]["state"]["terminated"]["exitCode"], 3);
}

#[test]
fn trap_05_times_are_whole_seconds_and_lists_have_an_order() {
    let of = |name: &str| {
        json!({ "name": name, "image": "", "imageID": "", "ready": true, "restartCount": 0,
        "state": { "running": { "startedAt": "2020-01-01T00:00:01.900000Z" } } })
    };
    let new = json!({ "containerStatuses": [of("web"), of("db")], "initContainerStatuses": [of("a"), of("z")],
        "startTime": "2020-01-01T00:00:00.999Z" });
    let made = merge(&pod(&json!({})), status(new), PodEnd::Not, at(0));
    let names = |all: &Option<Vec<ContainerStatus>>| {
        all.iter().flatten().map(|status| status.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&made.container_statuses), ["db", "web"]);
    assert_eq!(names(&made.init_container_statuses), ["z", "a"], "the spec's order");
    let again: PodStatus = serde_json::from_value(serde_json::to_value(&made).unwrap()).unwrap();
    assert_eq!(again, made, "what is sent is what comes back");
}

#[test]
fn last_words_are_cut_to_their_share() {
    let words = "é".repeat(5000);
    let new = json!({ "containerStatuses": [{ "name": "web", "image": "", "imageID": "", "ready": false,
        "restartCount": 0, "state": { "terminated": { "exitCode": 1, "message": words } } }] });
    let merged = merged(&json!({}), new, PodEnd::Not);
    let message = merged["containerStatuses"][0]["state"]["terminated"]["message"].as_str().unwrap();
    assert_eq!(message.len(), 3072, "12 KiB over four containers, between characters");
}

#[test]
fn times_and_emptiness_alone_are_no_reason_to_write() {
    let old = json!({ "phase": "Running", "conditions": [
        { "type": "A", "status": "True" }, { "type": "Ready", "status": "True", "lastProbeTime": null,
          "lastTransitionTime": "2020-01-01T00:00:00Z", "observedGeneration": 1 }] });
    let new = json!({ "phase": "Running", "message": "", "podIPs": [], "conditions": [
        { "type": "Ready", "status": "True", "lastTransitionTime": "2021-01-01T00:00:00Z", "observedGeneration": 2 },
        { "type": "A", "status": "True" }] });
    assert!(equal(&old, &new));
    assert!(!equal(&old, &json!({ "phase": "Running" })));
}
