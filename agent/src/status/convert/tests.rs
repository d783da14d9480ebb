//! Whole statuses, in upstream's words.

use std::collections::BTreeMap;

use gantry_model::pod::Requirements;
use gantry_model::pod::volume::{Propagation, RecursiveReadOnly, SubPath, VolumeMount};
use gantry_model::pod::{Container, Origin, Role};
use serde_json::{Value, json};

use super::*;
use crate::pod::status::{Condition, ConditionKind, ContainerState, ContainerStatus};
use crate::pod::tests::{container, in_role, pod};
use crate::runtime::{Actual, Exit, User};

const NOW: i64 = 1_800_000_000_123_456_789;

fn condition(kind: ConditionKind, holds: bool) -> Condition {
    Condition { kind, holds, reason: String::new(), message: String::new(), since: NOW, generation: 0 }
}

fn running(name: &str) -> ContainerStatus {
    ContainerStatus {
        name: name.into(),
        id: format!("{name}-1"),
        image: "reg/img:v1".into(),
        image_id: "reg/img@sha256:1".into(),
        state: ContainerState::Running { started_at: NOW },
        started: true,
        ready: true,
        ..ContainerStatus::default()
    }
}

fn now(containers: Vec<ContainerStatus>) -> PodStatus {
    PodStatus {
        life: Life::Running,
        phase: Phase::Running,
        ips: vec!["10.1.0.2".into()],
        host_ips: vec!["192.0.2.1".into()],
        observed_generation: 3,
        runtime: "containerd".into(),
        conditions: vec![condition(ConditionKind::Ready, true), condition(ConditionKind::PodScheduled, true)],
        started_at: NOW,
        containers,
        ..PodStatus::default()
    }
}

fn api_pod() -> Pod {
    Pod { origin: Origin::Api, generation: 3, ..pod() }
}

fn told(pod: &Pod, of: &PodStatus, base: Value) -> Value {
    let base: api::PodStatus = serde_json::from_value(base).unwrap();
    serde_json::to_value(status(pod, of, &base)).unwrap()
}

#[test]
fn a_running_pod_is_told_as_upstream_tells_it() {
    let list = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    };
    let written = Requirements {
        requests: list(&[("cpu", "250m")]),
        limits: list(&[("cpu", "1"), ("memory", "64Mi")]),
    };
    let mount = VolumeMount {
        volume: "data".into(),
        path: "/data".into(),
        sub_path: SubPath::Whole,
        read_only: true,
        recursive_read_only: RecursiveReadOnly::IfPossible,
        propagation: Propagation::None,
    };
    let web = Container { written, mounts: vec![mount], ..container("web") };
    let actual = Actual { cpu_request: Some(250), cpu_limit: Some(1000), memory_limit: Some(64 << 20) };
    let user = User { uid: 1000, gid: 0, groups: vec![5] };
    let of = now(vec![ContainerStatus { user: Some(user), actual: Some(actual), ..running("web") }]);
    let got = told(&Pod { containers: vec![web], ..api_pod() }, &of, json!({}));
    assert_eq!(
        got["containerStatuses"],
        json!([{
            "name": "web",
            "image": "reg/img:v1",
            "imageID": "reg/img@sha256:1",
            "containerID": "containerd://web-1",
            "state": {"running": {"startedAt": "2027-01-15T08:00:00Z"}},
            "lastState": {},
            "ready": true,
            "started": true,
            "restartCount": 0,
            "resources": {"requests": {"cpu": "250m"}, "limits": {"cpu": "1", "memory": "64Mi"}},
            "allocatedResources": {"cpu": "250m"},
            "volumeMounts": [
                {"name": "data", "mountPath": "/data", "readOnly": true, "recursiveReadOnly": "Disabled"}
            ],
            "user": {"linux": {"uid": 1000, "gid": 0, "supplementalGroups": [5]}}
        }])
    );
    let expected = json!({
        "phase": "Running",
        "observedGeneration": 3,
        "hostIP": "192.0.2.1",
        "hostIPs": [{"ip": "192.0.2.1"}],
        "podIP": "10.1.0.2",
        "podIPs": [{"ip": "10.1.0.2"}],
        "qosClass": "BestEffort",
        "startTime": "2027-01-15T08:00:00Z",
    });
    for (key, value) in expected.as_object().unwrap() {
        assert_eq!(got[key], *value, "{key}");
    }
    assert_eq!(
        got["conditions"][0],
        json!({
            "type": "Ready",
            "status": "True",
            "observedGeneration": 3,
            "lastTransitionTime": "2027-01-15T08:00:00Z"
        })
    );
}

#[test]
fn trap_05_what_others_have_written_stays() {
    let base = json!({
        "phase": "Running",
        "startTime": "2020-01-01T00:00:00Z",
        "resourceClaimStatuses": [{"name": "c"}],
        "nominatedNodeName": "n",
        "podIPs": [{"ip": "10.9.9.9"}],
        "conditions": [
            {"type": "example.com/gate", "status": "True"},
            {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"},
            {"type": "Ready", "status": "True", "lastTransitionTime": "2020-01-01T00:00:05Z"},
            {"type": "PodScheduled", "status": "False", "lastTransitionTime": "2020-01-01T00:00:01Z"}
        ]
    });
    let mut of = now(vec![]);
    of.ips = vec![];
    let got = told(&api_pod(), &of, base.clone());
    for key in ["startTime", "resourceClaimStatuses", "nominatedNodeName", "podIPs"] {
        assert_eq!(got[key], base[key], "{key}");
    }
    assert_eq!(got["podIP"], "10.9.9.9");
    let conditions = got["conditions"].as_array().unwrap();
    assert_eq!(conditions[0..2], base["conditions"].as_array().unwrap()[0..2]);
    // The moment of the change is the API's while nothing changes, ours when it does.
    assert_eq!(conditions[2]["lastTransitionTime"], "2020-01-01T00:00:05Z");
    assert_eq!(conditions[3]["lastTransitionTime"], "2027-01-15T08:00:00Z");
    assert_eq!(conditions.len(), 4);
}

#[test]
fn trap_03_a_terminal_phase_is_never_left() {
    let base = json!({"phase": "Failed", "reason": "Evicted", "message": "too big"});
    let got = told(&api_pod(), &now(vec![running("web")]), base);
    assert_eq!(
        (&got["phase"], &got["reason"], &got["message"]),
        (&json!("Failed"), &json!("Evicted"), &json!("too big"))
    );
    let got = told(&api_pod(), &now(vec![]), json!({"phase": "Pending", "reason": "X"}));
    assert_eq!((&got["phase"], &got["reason"]), (&json!("Running"), &Value::Null));
}

#[test]
fn trap_06_nothing_is_told_before_the_runtime_was_looked_at() {
    let base = json!({
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2020-01-01T00:00:05Z"}],
        "containerStatuses": [{"name": "web", "image": "i", "imageID": "", "ready": true, "restartCount": 1}]
    });
    let first = PodStatus { life: Life::Waiting, phase: Phase::Pending, ..now(vec![]) };
    assert_eq!(told(&api_pod(), &first, base.clone()), base);
}

#[test]
fn readiness_gates_keep_a_pod_unready() {
    let gated = Pod { readiness_gates: vec!["a/x".into(), "a/y".into()], ..api_pod() };
    let ready = |conditions: Value| {
        let got = told(&gated, &now(vec![running("web")]), json!({"conditions": conditions}));
        let all = got["conditions"].as_array().unwrap().clone();
        all.into_iter().find(|c| c["type"] == "Ready").unwrap()
    };
    let none = ready(json!([{"type": "a/y", "status": "False"}]));
    assert_eq!((&none["status"], &none["reason"]), (&json!("False"), &json!("ReadinessGatesNotReady")));
    assert_eq!(
        none["message"],
        "corresponding condition of pod readiness gate \"a/x\" does not exist., the status of pod readiness gate \"a/y\" is not \"True\", but False"
    );
    let both = json!([{"type": "a/x", "status": "True"}, {"type": "a/y", "status": "True"}]);
    assert_eq!(ready(both)["status"], "True");
}

#[test]
fn ends_have_their_ids_and_times() {
    let exit = |code, started_at, finished_at| Exit {
        code,
        reason: "Error".into(),
        message: "m".into(),
        started_at,
        finished_at,
    };
    let crashed = ContainerStatus {
        state: ContainerState::Waiting { reason: "CrashLoopBackOff".into(), message: "back-off".into() },
        last_exit: Some(exit(3, NOW, NOW)),
        last_id: "web-0".into(),
        restart_count: 1,
        ready: false,
        started: false,
        ..running("web")
    };
    let got = told(&api_pod(), &now(vec![crashed]), json!({}));
    let web = &got["containerStatuses"][0];
    assert_eq!(web["state"], json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}));
    assert_eq!(
        web["lastState"]["terminated"],
        json!({
            "exitCode": 3,
            "reason": "Error",
            "message": "m",
            "startedAt": "2027-01-15T08:00:00Z",
            "finishedAt": "2027-01-15T08:00:00Z",
            "containerID": "containerd://web-0"
        })
    );
    // One that could not be started began at the epoch, of one that is lost nothing is known.
    let ended = |exit| ContainerStatus { state: ContainerState::Terminated(exit), ..running("web") };
    let got = told(&api_pod(), &now(vec![ended(exit(128, 0, NOW))]), json!({}));
    assert_eq!(got["containerStatuses"][0]["state"]["terminated"]["startedAt"], "1970-01-01T00:00:00Z");
    let got = told(&api_pod(), &now(vec![ended(exit(137, 0, 0))]), json!({}));
    let terminated = &got["containerStatuses"][0]["state"]["terminated"];
    assert_eq!((terminated.get("startedAt"), terminated.get("finishedAt")), (None, None));
}

#[test]
fn lists_are_sorted_as_upstream_sorts_them_and_empty_ones_are_left_out() {
    let role = |name: &str, role| ContainerStatus { role, ..running(name) };
    let spec = Pod {
        containers: vec![container("b"), container("a")],
        init_containers: vec![in_role("z", Role::Init), in_role("y", Role::Init)],
        ephemeral_containers: vec![in_role("e", Role::Ephemeral)],
        ..api_pod()
    };
    let mut of = now(vec![running("b"), running("a")]);
    of.init_containers = vec![role("z", Role::Init), role("y", Role::Init)];
    of.ephemeral_containers = vec![role("e", Role::Ephemeral)];
    let got = told(&spec, &of, json!({}));
    let names = |key: &str| -> Vec<String> {
        got[key].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names("containerStatuses"), ["a", "b"]);
    assert_eq!(names("initContainerStatuses"), ["z", "y"]);
    assert_eq!(got["ephemeralContainerStatuses"][0].get("started"), None);
    let bare = told(
        &api_pod(),
        &PodStatus { life: Life::Stopped, phase: Phase::Failed, ..PodStatus::default() },
        json!({}),
    );
    for key in
        ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses", "conditions", "podIPs"]
    {
        assert_eq!(bare.get(key), None, "{key}");
    }
}

#[test]
fn addresses_are_one_of_each_family_the_nodes_first() {
    let ips = |list: &[&str]| list.iter().map(|ip| (*ip).to_owned()).collect::<Vec<_>>();
    let of = |node: &[&str], own: &[&str]| {
        let status = PodStatus { ips: ips(own), host_ips: ips(node), ..now(vec![]) };
        told(&api_pod(), &status, json!({}))["podIPs"].clone()
    };
    let both = ["fd00::2", "10.1.0.2", "10.1.0.3"];
    assert_eq!(of(&["192.0.2.1"], &both), json!([{"ip": "10.1.0.2"}, {"ip": "fd00::2"}]));
    assert_eq!(of(&["fd00::1"], &both), json!([{"ip": "fd00::2"}, {"ip": "10.1.0.2"}]));
}

#[test]
fn a_status_takes_few_instructions() {
    let (pod, of) = (api_pod(), now((0..5).map(|number| running(&format!("c{number}"))).collect()));
    let base = api::PodStatus::default();
    let test = "status::convert::tests::a_status_takes_few_instructions";
    gantry_instructions::hold(test, 71_384, || {
        assert_eq!(status(&pod, &of, &base).container_statuses.map(|all| all.len()), Some(5));
    });
}

#[test]
fn nothing_is_told_of_the_pod_as_a_whole_where_its_gate_is_closed() {
    let limits = BTreeMap::from([("cpu".to_owned(), "1".to_owned())]);
    let written = Requirements { requests: limits.clone(), limits };
    let resources = gantry_model::allocation::resources(&written);
    let pod = Pod { containers: vec![Container { written, resources, ..container("a") }], ..api_pod() };
    let base = api::PodStatus { phase: Some("Running".to_owned()), ..api::PodStatus::default() };
    let open = status(&pod, &now(vec![running("a")]), &base);
    assert!(open.resources.is_some() && open.allocated_resources.is_some());
    let closed = status_without_pod_level(&pod, &now(vec![running("a")]), &open);
    let expected = api::PodStatus { resources: None, allocated_resources: None, ..open.clone() };
    assert_eq!(closed, expected, "what an open gate told before goes");
    let waiting = PodStatus { life: Life::Waiting, ..now(vec![]) };
    assert_eq!(status_without_pod_level(&pod, &waiting, &open), open);
}
