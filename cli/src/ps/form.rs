//! A pod as JSON and YAML. Owns the field names, which are the Kubernetes API's where it has them;
//! never talks to anybody. Called by [`super`].

use gantry_proto::operator::{Condition, Container, Event, Exit, Pod};
use serde::Serialize;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodForm<'a> {
    namespace: &'a str,
    name: &'a str,
    uid: &'a str,
    phase: &'a str,
    status: &'a str,
    ip: &'a str,
    #[serde(rename = "podIPs")]
    ips: &'a [String],
    #[serde(rename = "hostIPs")]
    host_ips: &'a [String],
    qos_class: &'a str,
    node_name: &'a str,
    started_at: Option<String>,
    message: &'a str,
    conditions: Vec<ConditionForm<'a>>,
    init_containers: Vec<ContainerForm<'a>>,
    containers: Vec<ContainerForm<'a>>,
    events: Vec<EventForm<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ConditionForm<'a> {
    r#type: &'a str,
    status: &'static str,
    reason: &'a str,
    message: &'a str,
    last_transition_time: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ContainerForm<'a> {
    name: &'a str,
    role: &'a str,
    id: &'a str,
    image: &'a str,
    #[serde(rename = "imageID")]
    image_id: &'a str,
    state: &'a str,
    reason: &'a str,
    message: &'a str,
    /// Only of a container that has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    started_at: Option<String>,
    finished_at: Option<String>,
    last_state: Option<ExitForm<'a>>,
    restart_count: u32,
    started: bool,
    ready: bool,
    log_path: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ExitForm<'a> {
    exit_code: i32,
    reason: &'a str,
    message: &'a str,
    started_at: Option<String>,
    finished_at: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct EventForm<'a> {
    r#type: &'a str,
    reason: &'a str,
    message: &'a str,
    container: &'a str,
    count: u32,
    first_timestamp: Option<String>,
    last_timestamp: Option<String>,
}

pub(super) fn pod(pod: &Pod) -> PodForm<'_> {
    PodForm {
        namespace: &pod.namespace,
        name: &pod.name,
        uid: &pod.uid,
        phase: &pod.phase,
        status: &pod.status,
        ip: &pod.ip,
        ips: &pod.ips,
        host_ips: &pod.host_ips,
        qos_class: &pod.qos,
        node_name: &pod.node,
        started_at: time(pod.started_at_unix_nanos),
        message: &pod.message,
        conditions: pod.conditions.iter().map(condition).collect(),
        init_containers: pod.init_containers.iter().map(container).collect(),
        containers: pod.containers.iter().map(container).collect(),
        events: pod.events.iter().map(event).collect(),
    }
}

fn condition(condition: &Condition) -> ConditionForm<'_> {
    ConditionForm {
        r#type: &condition.r#type,
        status: if condition.holds { "True" } else { "False" },
        reason: &condition.reason,
        message: &condition.message,
        last_transition_time: time(condition.since_unix_nanos),
    }
}

fn container(container: &Container) -> ContainerForm<'_> {
    ContainerForm {
        name: &container.name,
        role: &container.role,
        id: &container.id,
        image: &container.image,
        image_id: &container.image_id,
        state: &container.state,
        reason: &container.reason,
        message: &container.message,
        exit_code: (container.state == "terminated").then_some(container.exit_code),
        started_at: time(container.started_at_unix_nanos),
        finished_at: time(container.finished_at_unix_nanos),
        last_state: container.last_exit.as_ref().map(exit),
        restart_count: container.restart_count,
        started: container.started,
        ready: container.ready,
        log_path: &container.log_path,
    }
}

fn exit(exit: &Exit) -> ExitForm<'_> {
    ExitForm {
        exit_code: exit.code,
        reason: &exit.reason,
        message: &exit.message,
        started_at: time(exit.started_at_unix_nanos),
        finished_at: time(exit.finished_at_unix_nanos),
    }
}

fn event(event: &Event) -> EventForm<'_> {
    EventForm {
        r#type: &event.r#type,
        reason: &event.reason,
        message: &event.message,
        container: &event.container,
        count: event.count,
        first_timestamp: time(event.first_unix_nanos),
        last_timestamp: time(event.last_unix_nanos),
    }
}

/// RFC 3339; none for a moment that has not come.
fn time(unix_nanos: i64) -> Option<String> {
    if unix_nanos == 0 {
        return None;
    }
    jiff::Timestamp::from_nanosecond(i128::from(unix_nanos)).ok().map(|time| time.to_string())
}
