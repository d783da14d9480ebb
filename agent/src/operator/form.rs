//! The agent's own types as the operator API's. Owns the mapping; never decides anything.

use gantry_model::pod::Role;
use gantry_proto::operator::{self as wire};

use crate::api::files::Change;
use crate::events::Event;
use crate::explain::Finding;
use crate::manifest::Text;
use crate::pod::Life;
use crate::pod::status::{Condition, ContainerState, ContainerStatus, PodStatus};
use crate::pod::worker::PodHandle;
use crate::runtime::Exit;
use crate::runtime_ext::pulls::Pulls;
use crate::timeline::Span;

use super::additions::Added;
use super::object;

/// The container that kubectl takes when none is named.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// Those that are there: one that was removed is remembered for its timeline only.
pub(super) fn list(pods: &[PodHandle], node: &str, objects: bool) -> wire::ListPodsResponse {
    let form = |handle: &PodHandle| {
        let status = handle.status.borrow();
        let object = || if objects { object::text(&handle.pod, &status, node) } else { String::new() };
        let with = |pod| wire::Pod { object: object(), ..pod };
        (status.life != Life::Gone).then(|| with(pod(handle, &status, node)))
    };
    wire::ListPodsResponse { pods: pods.iter().filter_map(form).collect() }
}

pub(super) fn text(manifest: wire::Manifest) -> Text {
    Text { path: manifest.path.into(), text: manifest.text }
}

pub(super) fn to_apply_response(added: &[Added]) -> wire::ApplyManifestsResponse {
    let form = |added: &Added| wire::Applied {
        kind: added.kind.to_owned(),
        namespace: added.namespace.clone(),
        name: added.name.clone(),
        outcome: match added.change {
            Change::Created => "created",
            Change::Configured => "configured",
            Change::Unchanged => "unchanged",
        }
        .to_owned(),
    };
    wire::ApplyManifestsResponse { applied: added.iter().map(form).collect() }
}

pub(super) fn pod(handle: &PodHandle, status: &PodStatus, node: &str) -> wire::Pod {
    let container = |status| container(status, handle);
    wire::Pod {
        namespace: handle.pod.namespace.clone(),
        name: handle.pod.name.clone(),
        uid: handle.pod.uid.to_string(),
        phase: status.phase.as_str().to_owned(),
        status: status.reason.clone(),
        ip: status.ip.clone(),
        started_at_unix_nanos: status.started_at,
        containers: status.containers.iter().map(container).collect(),
        message: status.message.clone(),
        init_containers: status.init_containers.iter().map(container).collect(),
        ips: status.ips.clone(),
        host_ips: status.host_ips.clone(),
        qos: status.qos.to_string(),
        conditions: status.conditions.iter().map(condition).collect(),
        events: status.events.iter().map(event).collect(),
        node: node.to_owned(),
        labels: handle.pod.labels.clone().into_iter().collect(),
        default_container: handle.pod.annotations.get(DEFAULT_CONTAINER).cloned().unwrap_or_default(),
        object: String::new(),
    }
}

fn container(status: &ContainerStatus, handle: &PodHandle) -> wire::Container {
    let spec = handle.pod.all_containers().find(|container| container.name == status.name);
    let (state, reason, message) = match &status.state {
        ContainerState::Waiting { reason, message } => ("waiting", reason.clone(), message.clone()),
        ContainerState::Running { .. } => ("running", String::new(), String::new()),
        ContainerState::Terminated(exit) => ("terminated", exit.reason.clone(), exit.message.clone()),
    };
    let (started_at, finished_at, exit_code) = match &status.state {
        ContainerState::Waiting { .. } => (0, 0, 0),
        ContainerState::Running { started_at } => (*started_at, 0, 0),
        ContainerState::Terminated(exit) => (exit.started_at, exit.finished_at, exit.code),
    };
    let role = match status.role {
        Role::Regular => "regular",
        Role::Ephemeral => "ephemeral",
        Role::Init => "init",
        Role::Sidecar => "sidecar",
    };
    wire::Container {
        name: status.name.clone(),
        id: status.id.clone(),
        image: status.image.clone(),
        state: state.to_owned(),
        reason,
        message,
        exit_code,
        restart_count: status.restart_count,
        ready: status.ready,
        log_path: status.log_path.clone(),
        role: role.to_owned(),
        image_id: status.image_id.clone(),
        started: status.started,
        started_at_unix_nanos: started_at,
        finished_at_unix_nanos: finished_at,
        last_exit: status.last_exit.as_ref().map(exit),
        stdin: spec.is_some_and(|spec| spec.stdin),
        tty: spec.is_some_and(|spec| spec.tty),
    }
}

fn exit(exit: &Exit) -> wire::Exit {
    wire::Exit {
        code: exit.code,
        reason: exit.reason.clone(),
        message: exit.message.clone(),
        started_at_unix_nanos: exit.started_at,
        finished_at_unix_nanos: exit.finished_at,
    }
}

fn condition(condition: &Condition) -> wire::Condition {
    wire::Condition {
        r#type: condition.kind.as_str().to_owned(),
        holds: condition.holds,
        reason: condition.reason.clone(),
        message: condition.message.clone(),
        since_unix_nanos: condition.since,
    }
}

fn event(event: &Event) -> wire::Event {
    wire::Event {
        r#type: event.note.kind.as_str().to_owned(),
        reason: event.note.reason.to_string(),
        message: event.note.message.clone(),
        container: event.note.container.clone(),
        count: event.count,
        first_unix_nanos: event.first,
        last_unix_nanos: event.last,
    }
}

/// A pull under way tells how far it is.
pub(super) fn span(span: &Span, pulls: Option<&Pulls>) -> wire::Span {
    let pull = pulls.filter(|_| span.name == "image" && span.end == 0);
    let detail = match pull.and_then(|pulls| pulls.progress(&span.detail)) {
        Some(progress) => format!("{}: {}", span.detail, progress.words()),
        None => span.detail.clone(),
    };
    wire::Span {
        name: span.name.clone(),
        start_unix_nanos: span.start,
        end_unix_nanos: span.end,
        container: span.container.clone(),
        detail,
    }
}

pub(super) fn finding(finding: Finding) -> wire::Finding {
    let Finding { container, state, cause, remedy, evidence } = finding;
    wire::Finding { container, state, cause, remedy, evidence }
}
