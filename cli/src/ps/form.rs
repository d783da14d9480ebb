//! Pods and events as Kubernetes' objects. Owns the lists around them and the form of an event; a pod's own is the
//! agent's. Never talks to anybody. Called by [`super`].

use anyhow::Result;
use gantry_proto::operator::{Event, Pod};
use serde_json::{Value, json};

use crate::client;

/// A PodList; the Pod itself when it was named.
pub(super) fn pods(pods: &[Pod], named: bool) -> Result<Value> {
    let mut items = pods.iter().map(client::object).collect::<Result<Vec<Value>>>()?;
    match (named, items.len()) {
        (true, 1) => Ok(items.remove(0)),
        _ => Ok(list("PodList", &items)),
    }
}

/// An EventList.
pub(super) fn events(events: &[(&Pod, &Event)]) -> Value {
    list("EventList", &events.iter().map(|(pod, told)| event(pod, told)).collect::<Vec<_>>())
}

fn list(kind: &str, items: &[Value]) -> Value {
    json!({ "apiVersion": "v1", "kind": kind, "metadata": {}, "items": items })
}

/// As a kubelet reports it.
fn event(pod: &Pod, event: &Event) -> Value {
    let mut object = json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": { "namespace": pod.namespace, "name": format!("{}.{:x}", pod.name, event.first_unix_nanos) },
        "involvedObject": {
            "apiVersion": "v1", "kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid,
        },
        "type": event.r#type,
        "reason": event.reason,
        "message": event.message,
        "count": event.count,
        "firstTimestamp": time(event.first_unix_nanos),
        "lastTimestamp": time(event.last_unix_nanos),
        "source": { "component": "kubelet", "host": pod.node },
    });
    if let Some(path) = field_path(pod, event) {
        object["involvedObject"]["fieldPath"] = path.into();
    }
    object
}

/// The container that an event is about, as `involvedObject.fieldPath` has it; none for the pod's own.
pub(super) fn field_path(pod: &Pod, event: &Event) -> Option<String> {
    let init = pod.init_containers.iter().any(|container| container.name == event.container);
    let list = if init { "initContainers" } else { "containers" };
    (!event.container.is_empty()).then(|| format!("spec.{list}{{{}}}", event.container))
}

/// RFC 3339 in whole seconds; none for a moment that has not come.
fn time(unix_nanos: i64) -> Option<String> {
    let seconds = unix_nanos.div_euclid(1_000_000_000);
    let moment = (unix_nanos != 0).then(|| jiff::Timestamp::from_second(seconds).ok()).flatten();
    moment.map(|time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_is_named_stands_alone_and_others_in_a_list() {
        let pod = |name: &str| Pod {
            name: name.into(),
            object: format!(r#"{{"kind":"{name}"}}"#),
            ..Pod::default()
        };
        assert_eq!(pods(&[pod("a")], true).unwrap()["kind"], "a");
        let all = pods(&[pod("a"), pod("b")], true).unwrap();
        assert_eq!((&all["kind"], &all["items"][1]["kind"]), (&json!("PodList"), &json!("b")));
        assert_eq!(pods(&[pod("a")], false).unwrap()["kind"], "PodList");
        assert_eq!(pods(&[], true).unwrap()["items"], json!([]));
        assert!(pods(&[Pod::default()], false).unwrap_err().to_string().contains("older"));
    }

    #[test]
    fn an_event_names_pod_and_container() {
        let pod = Pod { namespace: "shop".into(), name: "web".into(), uid: "u".into(), ..Pod::default() };
        let told = Event {
            r#type: "Warning".into(),
            reason: "BackOff".into(),
            container: "c".into(),
            count: 3,
            first_unix_nanos: 1_700_000_000_500_000_000,
            ..Event::default()
        };
        let list = events(&[(&pod, &told)]);
        let event = &list["items"][0];
        assert_eq!(list["kind"], "EventList");
        assert_eq!(event["involvedObject"]["fieldPath"], "spec.containers{c}");
        assert_eq!(event["firstTimestamp"], "2023-11-14T22:13:20Z");
        assert_eq!((&event["count"], &event["lastTimestamp"]), (&json!(3), &Value::Null));
    }
}
