//! The node's conditions, with upstream's reasons and messages. Pure: owns what is said when, and
//! which events that makes; never looks at the runtime. Called by [`super`].

use gantry_model::signal::{Pressure, Pressures};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{NodeCondition, NodeStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::events::{Kind, NodeNote};

/// What is said of one: reason, message, event.
type Words = (&'static str, &'static str, &'static str);

/// Each with what is said of it when the node is short of it, and when not.
const PRESSURES: [(Pressure, Words, Words); 3] = [
    (
        Pressure::Memory,
        (
            "KubeletHasInsufficientMemory",
            "kubelet has insufficient memory available",
            "NodeHasInsufficientMemory",
        ),
        ("KubeletHasSufficientMemory", "kubelet has sufficient memory available", "NodeHasSufficientMemory"),
    ),
    (
        Pressure::Disk,
        ("KubeletHasDiskPressure", "kubelet has disk pressure", "NodeHasDiskPressure"),
        ("KubeletHasNoDiskPressure", "kubelet has no disk pressure", "NodeHasNoDiskPressure"),
    ),
    (
        Pressure::Pid,
        ("KubeletHasInsufficientPID", "kubelet has insufficient PID available", "NodeHasInsufficientPID"),
        ("KubeletHasSufficientPID", "kubelet has sufficient PID available", "NodeHasSufficientPID"),
    ),
];

/// Sets them; what changed is told as events of `node`. `troubles` are why pods cannot run.
pub(super) fn set(
    status: &mut NodeStatus,
    node: &str,
    pressures: &Pressures,
    troubles: &[String],
    now: Timestamp,
) -> Vec<NodeNote> {
    let mut notes = Vec::new();
    let missing = missing(status);
    let all = status.conditions.get_or_insert_default();
    for (pressure, short, enough) in PRESSURES {
        let is_short = pressures.contains(&pressure);
        let (reason, message, event) = if is_short { short } else { enough };
        let is = if is_short { "True" } else { "False" };
        if put(all, condition(pressure.as_str(), is, reason, message, now)) != Change::None {
            notes.push(status_is(node, event));
        }
    }
    let troubles: Vec<&str> = troubles.iter().map(String::as_str).chain(missing.as_deref()).collect();
    let ready = match said(&troubles) {
        None => condition("Ready", "True", "KubeletReady", "kubelet is posting ready status", now),
        Some(why) => condition("Ready", "False", "KubeletNotReady", &why, now),
    };
    let event = if ready.status == "True" { "NodeReady" } else { "NodeNotReady" };
    // As it is at first is no change.
    if put(all, ready) == Change::Turned {
        notes.push(status_is(node, event));
    }
    notes
}

/// What cannot be done without.
fn missing(status: &NodeStatus) -> Option<String> {
    let has = |name: &&str| status.capacity.as_ref().is_some_and(|all| all.contains_key(*name));
    let missing: Vec<&str> = ["cpu", "memory", "pods"].into_iter().filter(|name| !has(name)).collect();
    (!missing.is_empty()).then(|| format!("missing node capacity for resources: {}", missing.join(", ")))
}

fn status_is(node: &str, event: &'static str) -> NodeNote {
    NodeNote { kind: Kind::Normal, reason: event, message: format!("Node {node} status is now: {event}") }
}

/// As apimachinery prints an aggregate: each message once.
fn said(troubles: &[&str]) -> Option<String> {
    let mut once: Vec<&str> = Vec::new();
    for trouble in troubles {
        if !once.contains(trouble) {
            once.push(trouble);
        }
    }
    match once.as_slice() {
        [] => None,
        [one] => Some((*one).to_owned()),
        all => Some(format!("[{}]", all.join(", "))),
    }
}

fn condition(kind: &str, status: &str, reason: &str, message: &str, now: Timestamp) -> NodeCondition {
    NodeCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_heartbeat_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Change {
    None,
    New,
    Turned,
}

/// In its place, or last.
fn put(all: &mut Vec<NodeCondition>, mut new: NodeCondition) -> Change {
    let Some(old) = all.iter_mut().find(|old| old.type_ == new.type_) else {
        all.push(new);
        return Change::New;
    };
    let turned = old.status != new.status;
    if !turned {
        new.last_transition_time = old.last_transition_time.clone();
        // Pressures keep their words as long as they hold.
        if new.type_ != "Ready" {
            new.reason = old.reason.clone();
            new.message = old.message.clone();
        }
    }
    *old = new;
    if turned { Change::Turned } else { Change::None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn sized() -> NodeStatus {
        serde_json::from_value(
            serde_json::json!({ "capacity": { "cpu": "1", "memory": "1Gi", "pods": "110" } }),
        )
        .unwrap()
    }

    fn ready(status: &NodeStatus) -> NodeCondition {
        let last = status.conditions.as_ref().unwrap().last().unwrap().clone();
        assert_eq!(last.type_, "Ready", "Ready is the last one");
        last
    }

    fn reasons(notes: &[NodeNote]) -> Vec<&str> {
        notes.iter().map(|note| note.reason).collect()
    }

    #[test]
    fn a_node_becomes_ready_with_upstreams_words_and_says_when() {
        let mut status = sized();
        let down = ["container runtime is down".to_owned()];
        let notes = set(&mut status, "n1", &Pressures::new(), &down, at(1));
        assert_eq!(
            reasons(&notes),
            ["NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"]
        );
        let first = ready(&status);
        assert_eq!((first.status.as_str(), first.reason.as_deref()), ("False", Some("KubeletNotReady")));
        assert_eq!(first.message.as_deref(), Some("container runtime is down"));
        let notes = set(&mut status, "n1", &Pressures::new(), &[], at(5));
        assert_eq!(reasons(&notes), ["NodeReady"]);
        assert_eq!(notes[0].message, "Node n1 status is now: NodeReady");
        assert_eq!(set(&mut status, "n1", &Pressures::new(), &[], at(15)), []);
        let now = ready(&status);
        assert_eq!(now.message.as_deref(), Some("kubelet is posting ready status"));
        assert_eq!(
            (now.last_transition_time, now.last_heartbeat_time),
            (Some(Time(at(5))), Some(Time(at(15))))
        );
    }

    #[test]
    fn several_troubles_are_listed_once_each() {
        let mut status = NodeStatus::default();
        let troubles = ["a".to_owned(), "b".to_owned(), "a".to_owned()];
        set(&mut status, "n1", &Pressures::new(), &troubles, at(1));
        let message = ready(&status).message.unwrap();
        assert_eq!(message, "[a, b, missing node capacity for resources: cpu, memory, pods]");
    }

    #[test]
    fn pressure_comes_and_goes_in_upstreams_words_and_keeps_when() {
        let mut status = sized();
        set(&mut status, "n1", &Pressures::new(), &[], at(1));
        let short = Pressures::from([Pressure::Disk]);
        let notes = set(&mut status, "n1", &short, &[], at(5));
        assert_eq!(reasons(&notes), ["NodeHasDiskPressure"]);
        assert_eq!(notes[0].message, "Node n1 status is now: NodeHasDiskPressure");
        assert_eq!(set(&mut status, "n1", &short, &[], at(15)), []);
        let of = |status: &NodeStatus, kind: &str| {
            let all = status.conditions.as_ref().unwrap();
            all.iter().find(|condition| condition.type_ == kind).unwrap().clone()
        };
        let disk = of(&status, "DiskPressure");
        assert_eq!((disk.status.as_str(), disk.reason.as_deref()), ("True", Some("KubeletHasDiskPressure")));
        assert_eq!(disk.message.as_deref(), Some("kubelet has disk pressure"));
        assert_eq!(disk.last_transition_time, Some(Time(at(5))));
        assert_eq!(of(&status, "MemoryPressure").status, "False");
        let all = Pressures::from([Pressure::Memory, Pressure::Pid]);
        assert_eq!(
            reasons(&set(&mut status, "n1", &all, &[], at(20))),
            ["NodeHasInsufficientMemory", "NodeHasNoDiskPressure", "NodeHasInsufficientPID"]
        );
        assert_eq!(of(&status, "PIDPressure").reason.as_deref(), Some("KubeletHasInsufficientPID"));
    }

    #[test]
    fn foreign_conditions_stay() {
        let mut status = sized();
        status.conditions = Some(vec![condition("NetworkUnavailable", "False", "RouteCreated", "x", at(0))]);
        set(&mut status, "n1", &Pressures::new(), &[], at(1));
        assert_eq!(status.conditions.unwrap().len(), 5);
    }
}
