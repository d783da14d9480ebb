//! Pods as an API server tells them: leniently read, and never without a word.

use std::time::Duration;

use gantry_model::pod::claim::ClaimObject;
use gantry_model::pod::placement::Operator;
use gantry_model::pod::security::AppArmor;
use gantry_model::pod::volume::{ClaimRef, VolumeSource};
use gantry_model::pod::{Origin, RestartAction, Role};
use serde_json::{Value, json};

use crate::manifest::api::{pod, to_pod_update};
use crate::pod::status::{ContainerState, Phase};

#[expect(clippy::needless_pass_by_value, reason = "what json! makes is nobody else's")]
fn described(spec: Value, more: Value) -> k8s_openapi::api::core::v1::Pod {
    let mut own = json!({"containers": [{"name": "web", "image": "web:v1"}]});
    own.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let mut whole = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "web", "namespace": "default", "uid": "u-1", "generation": 4, "resourceVersion": "7",
            "creationTimestamp": "2027-01-15T08:00:00Z", "generateName": "web-", "finalizers": ["a/b"]
        },
        "spec": own,
    });
    for (key, value) in more.as_object().unwrap() {
        match whole.get_mut(key).and_then(Value::as_object_mut) {
            Some(part) => part.extend(value.as_object().unwrap().clone()),
            None => drop(whole.as_object_mut().unwrap().insert(key.clone(), value.clone())),
        }
    }
    serde_json::from_value(whole).unwrap()
}

fn refusal(spec: Value) -> String {
    pod(&described(spec, json!({}))).unwrap_err().to_string()
}

#[test]
fn a_pod_of_an_api_server_is_read_whole() {
    let read = pod(&described(
        json!({
            "containers": [{
                "name": "web", "image": "web:v1", "restartPolicy": "Never",
                "restartPolicyRules": [
                    {"action": "RestartAllContainers", "exitCodes": {"operator": "NotIn", "values": [0, 1]}}
                ],
                "resources": {
                    "requests": {"cpu": "250m", "example.com/gpu": "1"},
                    "limits": {"example.com/gpu": "1", "hugepages-2Mi": "4Mi"}
                },
                "lifecycle": {"preStop": {"tcpSocket": {"port": 80}}},
                "securityContext": {"seLinuxOptions": {"level": "s0"}, "capabilities": {"add": ["net_admin"]}}
            }],
            "ephemeralContainers": [{"name": "debug", "image": "busybox", "targetContainerName": "web"}],
            "priority": 7, "enableServiceLinks": false, "runtimeClassName": "fast", "hostUsers": false,
            "overhead": {"cpu": "1"}, "os": {"name": "linux"}, "terminationGracePeriodSeconds": 0,
            "readinessGates": [{"conditionType": "a/b"}], "schedulingGates": [{"name": "gone"}],
            "nodeSelector": {"zone": "a"}, "resources": {"limits": {"cpu": "2"}},
            "securityContext": {
                "appArmorProfile": {"type": "RuntimeDefault"}, "sysctls": [{"name": "kernel.msgmax", "value": "1"}],
                "windowsOptions": {}
            },
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
            ]}}},
            "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}]
        }),
        json!({}),
    ))
    .unwrap();
    assert_eq!((read.origin.clone(), read.generation, read.created_at), (Origin::Api, 4, 1_800_000_000));
    assert_eq!(read.grace, Duration::from_secs(1));
    let web = read.containers.first().unwrap();
    assert_eq!((web.rule_for(7), web.rule_for(1)), (Some(RestartAction::RestartAllContainers), None));
    assert_eq!(web.written.limits.get("hugepages-2Mi").map(String::as_str), Some("4Mi"));
    assert_eq!(
        (web.security.app_armor.clone(), web.security.se_linux.clone().unwrap().level.as_str()),
        (Some(AppArmor::RuntimeDefault), "s0")
    );
    let debug = read.ephemeral_containers.first().unwrap();
    assert_eq!((debug.role, debug.target.as_str()), (Role::Ephemeral, "web"));
    assert!(read.all_containers().all(|c| c.name != "debug") && read.container("debug").is_some());
    assert!(!read.service_links && read.namespaces.own_users);
    let placement = &read.placement;
    let term = placement.affinity.as_ref().unwrap().first().unwrap();
    assert_eq!((term.labels.first().unwrap().operator, placement.priority), (Operator::In, Some(7)));
    let toleration = placement.tolerations.first().unwrap();
    assert!(toleration.exists && toleration.effect == "NoExecute");
    assert_eq!((read.runtime_class.as_str(), read.readiness_gates.len()), ("fast", 1));
}

#[test]
fn an_ephemeral_volume_has_the_claim_that_a_controller_makes() {
    let volumes = json!([{ "name": "own", "ephemeral": { "volumeClaimTemplate": { "spec": {} } } }]);
    let read = to_pod_update(&described(json!({ "volumes": volumes }), json!({}))).unwrap().pod;
    let source = VolumeSource::Claim { claim: ClaimRef::Ephemeral, read_only: false };
    assert_eq!(read.volumes.first().unwrap().source, source);
    assert_eq!(ClaimRef::Ephemeral.name(&read.name, "own"), "web-own");
}

/// What was made from templates stands in the status alone.
#[test]
fn claims_to_devices_are_read_from_spec_and_status_together() {
    let claims = json!([
        {"name": "given", "resourceClaimName": "c"}, {"name": "made", "resourceClaimTemplateName": "t"},
        {"name": "needless", "resourceClaimTemplateName": "t"}, {"name": "not-made", "resourceClaimTemplateName": "t"},
        {"name": "unsaid"},
    ]);
    let containers = json!([{
        "name": "web", "image": "web:v1",
        "resources": {"claims": [{"name": "given", "request": "gpu"}, {"name": "made"}]},
    }]);
    let status = json!({
        "resourceClaimStatuses": [{"name": "made", "resourceClaimName": "web-made-x"}, {"name": "needless"}],
        "extendedResourceClaimStatus": {
            "resourceClaimName": "web-extended-x",
            "requestMappings": [
                {"containerName": "web", "resourceName": "vendor.example/gpu", "requestName": "container-0-request-0"}
            ]
        }
    });
    let spec = json!({"resourceClaims": claims, "containers": containers});
    let read = pod(&described(spec, json!({"status": status}))).unwrap();
    let all = &read.resource_claims;
    let objects: Vec<ClaimObject> = all.listed.iter().map(|claim| claim.object.clone()).collect();
    let (named, made) = (ClaimObject::Named("c".into()), ClaimObject::Made("web-made-x".into()));
    assert_eq!(objects, [named, made, ClaimObject::Needless, ClaimObject::NotMade, ClaimObject::Unset]);
    assert!(all.gives("web", "vendor.example/gpu") && !all.gives("other", "vendor.example/gpu"));
    let web = &read.containers[0];
    let requests: Vec<&str> = web.claims.iter().map(|claim| claim.request.as_str()).collect();
    assert_eq!(requests, ["gpu", ""]);
}

#[test]
fn what_this_node_does_not_do_is_refused_by_name() {
    let feature = "PodFeatureUnsupported: Pod requires node features that are not available:";
    assert_eq!(
        refusal(json!({"volumes": [{"name": "v", "fc": {"targetWWNs": ["a"], "lun": 0}}]})),
        format!("{feature} spec.volumes[0].fc")
    );
    let broken = refusal(json!({"restartPolicy": "Perhaps"}));
    assert!(
        broken.starts_with("UnexpectedAdmissionError: spec.restartPolicy: Unsupported value"),
        "{broken}"
    );
    // It still has a name, so that its end can be told.
    let fc = json!([{"name": "v", "fc": {"targetWWNs": ["a"], "lun": 0}}]);
    let told = to_pod_update(&described(json!({"volumes": fc}), json!({}))).unwrap();
    assert_eq!((told.pod.full_name().as_str(), told.pod.generation), ("default/web", 4));
    assert_eq!(told.refused.unwrap().reason, "PodFeatureUnsupported");
}

#[test]
fn deletion_and_the_last_status_come_along() {
    let status = json!({
        "phase": "Running",
        "startTime": "2027-01-15T08:00:00Z",
        "conditions": [{"type": "AllContainersRestarting", "status": "True"}],
        "containerStatuses": [{
            "name": "web", "image": "web:v1", "imageID": "i", "containerID": "containerd://c1",
            "ready": true, "started": true, "restartCount": 2,
            "state": {"running": {"startedAt": "2027-01-15T08:00:01Z"}},
            "lastState": {"terminated": {"exitCode": 3, "finishedAt": "2027-01-15T08:00:00Z"}}
        }]
    });
    let deleted = json!({"deletionTimestamp": "2027-01-15T08:00:09Z", "deletionGracePeriodSeconds": 0});
    let told = to_pod_update(&described(json!({}), json!({"status": status, "metadata": deleted}))).unwrap();
    // Never less than a second.
    assert_eq!(told.ending, Some(Duration::from_secs(1)));
    let last = &told.last;
    assert!(last.end.is_none() && last.restarting);
    assert_eq!(last.started_at, 1_800_000_000_000_000_000);
    let web = last.containers.get("web").unwrap();
    assert_eq!((web.id.as_str(), web.restart_count, web.last_exit.as_ref().unwrap().code), ("c1", 2, 3));
    assert!(matches!(web.state, ContainerState::Running { .. }));
    assert_eq!(last.marks().len(), 1);
    let failed = json!({"phase": "Failed", "reason": "Evicted", "message": "m"});
    let told = to_pod_update(&described(json!({}), json!({"status": failed}))).unwrap();
    let end = told.last.end.unwrap();
    assert_eq!((end.phase, end.reason.as_str(), told.ending), (Phase::Failed, "Evicted", None));
}

#[test]
fn a_disk_of_an_older_kind_is_read_as_its_drivers() {
    let read = |source: serde_json::Value| {
        let containers = json!([{ "name": "web", "image": "web:v1" }]);
        let volumes = json!([source]);
        let read =
            pod(&described(json!({ "containers": containers, "volumes": volumes }), json!({}))).unwrap();
        match read.volumes.first().unwrap().source.clone() {
            VolumeSource::Migrated(of) => of.map(|of| (of.name, of.secret)),
            other => panic!("{other:?}"),
        }
    };
    let cinder = read(json!({ "name": "data", "cinder": { "volumeID": "c-1" } }));
    assert_eq!(cinder, Ok(("cinder.csi.openstack.org-c-1".to_owned(), None)));
    let share = json!({ "name": "data", "azureFile": { "secretName": "own", "shareName": "s" } });
    let secret = Some(("default".to_owned(), "own".to_owned()));
    assert_eq!(read(share), Ok(("#own#s#data#default".to_owned(), secret)));
    let wrong = json!({ "name": "data", "awsElasticBlockStore": { "volumeID": "aws://z/disk-1" } });
    assert!(read(wrong).unwrap_err().starts_with("failed to translate in-tree pv to CSI: "));
}
