//! Sandboxes and containers as CRI messages. Pure but for reading states. Called by `cri` and `event_stream`.

mod inspect;

use std::collections::BTreeMap;

use gantry_cni::CniResult;
use gantry_proto::cri;

use crate::config::IFNAME;
use crate::store::container::ContainerExit;
use crate::store::record::{ContainerRecord, IdLine, PodName, Users};
use crate::store::{Container, ContainerState, IndexKey, RecordStore, Sandbox, SandboxState};
use gantry_base::timeline::Span;

/// Verbose info: where the time went.
pub(crate) fn info(verbose: bool, spans: &[Span]) -> BTreeMap<String, String> {
    let json = serde_json::to_string(spans).ok().filter(|_| verbose && !spans.is_empty());
    json.map(|json| ("timeline".to_owned(), json)).into_iter().collect()
}

/// As `info`, with what `inspected` gives.
fn with_info(
    verbose: bool,
    spans: &[Span],
    inspected: impl FnOnce() -> serde_json::Value,
) -> BTreeMap<String, String> {
    let mut info = info(verbose, spans);
    if verbose {
        info.insert("info".to_owned(), inspected().to_string());
    }
    info
}

pub(crate) fn matches_selector(
    labels: &BTreeMap<String, String>,
    selector: &BTreeMap<String, String>,
) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

pub(crate) fn pod_metadata(pod: &PodName) -> cri::PodSandboxMetadata {
    let PodName { name, uid, namespace, attempt } = pod.clone();
    cri::PodSandboxMetadata { name, uid, namespace, attempt }
}

fn sandbox_state(sandbox: &Sandbox) -> cri::PodSandboxState {
    match sandbox.state() {
        SandboxState::Ready => cri::PodSandboxState::SandboxReady,
        SandboxState::Starting | SandboxState::NotReady => cri::PodSandboxState::SandboxNotready,
    }
}

pub(crate) fn sandboxes(store: &RecordStore, filter: &cri::PodSandboxFilter) -> Vec<cri::PodSandbox> {
    let wanted = filter.state.as_ref().map(cri::PodSandboxStateValue::state);
    // A kubelet asks for one pod's, and often: the others are not looked at.
    let candidates = match IndexKey::of_labels(&filter.label_selector) {
        Some(group) => store.sandboxes_in(&group),
        None => store.sandboxes(),
    };
    let shown = candidates.into_iter().filter(|sandbox| sandbox.state() != SandboxState::Starting);
    shown
        .filter(|sandbox| filter.id.is_empty() || sandbox.id.starts_with(&filter.id))
        .filter(|sandbox| wanted.is_none_or(|wanted| wanted == sandbox_state(sandbox)))
        .map(|sandbox| (sandbox_state(&sandbox), sandbox.record()))
        .filter(|(_, record)| matches_selector(&record.labels, &filter.label_selector))
        .map(|(state, record)| cri::PodSandbox {
            id: record.id.clone(),
            metadata: Some(pod_metadata(&record.pod)),
            state: state.into(),
            created_at: record.created_at,
            labels: record.labels.clone(),
            annotations: record.annotations.clone(),
            runtime_handler: record.runtime_handler.clone(),
        })
        .collect()
}

/// A sandbox with its containers. `at`: from before the call, so that no change after it is missed by
/// whoever asks for what is newer.
pub(crate) fn sandbox_status(
    store: &RecordStore,
    sandbox: &Sandbox,
    at: i64,
    verbose: bool,
) -> cri::PodSandboxStatusResponse {
    let containers = store.containers_of(&sandbox.id);
    cri::PodSandboxStatusResponse {
        status: Some(pod_status(sandbox)),
        info: with_info(verbose, &sandbox.spans.spans(), || inspect::sandbox(sandbox)),
        containers_statuses: containers
            .iter()
            .filter_map(|container| container_status(container, false).status)
            .collect(),
        timestamp: at,
    }
}

fn pod_status(sandbox: &Sandbox) -> cri::PodSandboxStatus {
    let record = sandbox.record();
    // Of a stopped pod the addresses may be another's by now.
    let network = record.network.as_ref().filter(|_| !record.stopped);
    let addresses = network.and_then(|network| network.result.as_ref()).map(addresses);
    let mut addresses = addresses.unwrap_or_default().into_iter();
    let options = cri::NamespaceOption {
        network: record.namespaces.network,
        pid: record.namespaces.pid,
        ipc: record.namespaces.ipc,
        userns_options: record.users.map(user_namespace),
        ..cri::NamespaceOption::default()
    };
    cri::PodSandboxStatus {
        id: record.id.clone(),
        metadata: Some(pod_metadata(&record.pod)),
        state: sandbox_state(sandbox).into(),
        created_at: record.created_at,
        network: Some(cri::PodSandboxNetworkStatus {
            ip: addresses.next().unwrap_or_default(),
            additional_ips: addresses.map(|ip| cri::PodIp { ip }).collect(),
        }),
        linux: Some(cri::LinuxPodSandboxStatus {
            namespaces: Some(cri::Namespace { options: Some(options) }),
        }),
        labels: record.labels.clone(),
        annotations: record.annotations.clone(),
        runtime_handler: record.runtime_handler.clone(),
    }
}

/// Addresses of the pod without prefix length, the primary one first: IPv4, as containerd has it.
#[must_use]
pub(crate) fn addresses(result: &CniResult) -> Vec<String> {
    let mut addresses: Vec<_> = result.addresses_of(IFNAME).map(|ip| ip.address.addr()).collect();
    if let Some(first) = addresses.iter().position(std::net::IpAddr::is_ipv4) {
        let primary = addresses.remove(first);
        addresses.insert(0, primary);
    }
    addresses.iter().map(ToString::to_string).collect()
}

fn user_namespace(users: Users) -> cri::UserNamespace {
    let Users { uids, gids } = users;
    let mode = cri::NamespaceMode::Pod.into();
    cri::UserNamespace { mode, uids: vec![id_mapping(uids)], gids: vec![id_mapping(gids)] }
}

fn id_mapping(line: IdLine) -> cri::IdMapping {
    cri::IdMapping { host_id: line.host_id, container_id: line.container_id, length: line.length }
}

fn container_state(state: &ContainerState) -> cri::ContainerState {
    match state {
        ContainerState::Created => cri::ContainerState::ContainerCreated,
        ContainerState::Running(_) => cri::ContainerState::ContainerRunning,
        ContainerState::Exited(_) => cri::ContainerState::ContainerExited,
    }
}

pub(crate) fn container_metadata(record: &ContainerRecord) -> cri::ContainerMetadata {
    cri::ContainerMetadata { name: record.name.clone(), attempt: record.attempt }
}

/// A tag of the image, as containerd has it; what the request says only where it has none.
fn image_spec(record: &ContainerRecord) -> cri::ImageSpec {
    match record.image_name.as_str() {
        "" => record.requested_image(),
        name => cri::ImageSpec { image: name.to_owned(), ..cri::ImageSpec::default() },
    }
}

pub(crate) fn containers(store: &RecordStore, filter: &cri::ContainerFilter) -> Vec<cri::Container> {
    let wanted = filter.state.as_ref().map(cri::ContainerStateValue::state);
    let candidates = match IndexKey::of_labels(&filter.label_selector) {
        Some(group) => store.containers_in(&group),
        None => store.containers(),
    };
    candidates
        .into_iter()
        .filter(|container| filter.id.is_empty() || container.id.starts_with(&filter.id))
        .filter(|container| {
            filter.pod_sandbox_id.is_empty() || container.sandbox_id.starts_with(&filter.pod_sandbox_id)
        })
        .map(|container| (container_state(&container.state()), container.record()))
        .filter(|(state, _)| wanted.is_none_or(|wanted| wanted == *state))
        .filter(|(_, record)| matches_selector(&record.labels, &filter.label_selector))
        .map(|(state, record)| cri::Container {
            metadata: Some(container_metadata(&record)),
            image: Some(record.requested_image()),
            id: record.id.clone(),
            pod_sandbox_id: record.sandbox_id.clone(),
            image_ref: record.image_ref.clone(),
            state: state.into(),
            created_at: record.created_at,
            labels: record.labels.clone(),
            annotations: record.annotations.clone(),
            image_id: record.image_id.clone(),
        })
        .collect()
}

/// None where the record is damaged: such a container is still to be seen and removed, and its start says what is wrong.
fn limits(record: &ContainerRecord) -> Option<cri::ContainerResources> {
    let linux = record.linux_resources().ok()?;
    Some(cri::ContainerResources { linux: Some(linux), windows: None })
}

pub(crate) fn container_status(container: &Container, verbose: bool) -> cri::ContainerStatusResponse {
    let (record, state) = (container.record(), container.state());
    let mut status = cri::ContainerStatus {
        id: record.id.clone(),
        metadata: Some(container_metadata(&record)),
        state: container_state(&state).into(),
        created_at: record.created_at,
        started_at: record.started.map_or(0, |started| started.at),
        image: Some(image_spec(&record)),
        log_path: record.log_path.clone(),
        resources: limits(&record),
        user: Some(cri::ContainerUser {
            linux: Some(cri::LinuxContainerUser {
                uid: record.uid.into(),
                gid: record.gid.into(),
                supplemental_groups: record.groups.iter().map(|group| i64::from(*group)).collect(),
            }),
        }),
        mounts: record.mounts.iter().map(mount).collect(),
        stop_signal: stop_signal(record.stop_signal),
        image_ref: record.image_ref.clone(),
        image_id: record.image_id.clone(),
        labels: record.labels.clone(),
        annotations: record.annotations.clone(),
        ..cri::ContainerStatus::default()
    };
    if let ContainerState::Exited(ended) = state {
        status.started_at = started_at(status.started_at, &ended);
        status.exit_code = ended.exit_code;
        status.finished_at = ended.finished_at;
        status.reason = ended.reason.to_owned();
        status.message = ended.message;
    }
    let info = with_info(verbose, &container.spans.spans(), || inspect::container(container));
    cri::ContainerStatusResponse { status: Some(status), info }
}

/// What the record has, unless the end came first; never after the end, which would be a run of less than
/// nothing. 0 for one that never ran.
fn started_at(recorded: i64, ended: &ContainerExit) -> i64 {
    let known = if recorded == 0 { ended.started_at } else { recorded };
    known.min(ended.finished_at)
}

fn mount(record: &crate::store::record::MountRecord) -> cri::Mount {
    cri::Mount {
        container_path: record.container_path.clone(),
        host_path: record.host_path.clone(),
        readonly: record.readonly,
        propagation: record.propagation,
        recursive_read_only: record.recursive_readonly,
        image: record.image.as_ref().map(|from| cri::ImageSpec {
            image: from.image.clone(),
            user_specified_image: from.user_specified_image.clone(),
            ..cri::ImageSpec::default()
        }),
        image_sub_path: record.image.as_ref().map(|from| from.sub_path.clone()).unwrap_or_default(),
        uid_mappings: record.users.map(|users| id_mapping(users.uids)).into_iter().collect(),
        gid_mappings: record.users.map(|users| id_mapping(users.gids)).into_iter().collect(),
        ..cri::Mount::default()
    }
}

/// CRI numbers its signals by the alphabet, so the name is what maps.
fn stop_signal(number: i32) -> i32 {
    let name = match number {
        34 => "SIGRTMIN".to_owned(),
        35..=49 => format!("SIGRTMINPLUS{}", number - 34),
        50..=63 => format!("SIGRTMAXMINUS{}", 64 - number),
        64 => "SIGRTMAX".to_owned(),
        _ => crate::spec::container::SIGNALS
            .iter()
            .find(|(known, _)| *known == number)
            .map(|(_, name)| format!("SIG{name}"))
            .unwrap_or_default(),
    };
    cri::Signal::from_str_name(&name).unwrap_or(cri::Signal::RuntimeDefault).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_that_has_ended_started_before_that() {
        let ended = |started_at| ContainerExit {
            exit_code: 0,
            started_at,
            finished_at: 100,
            reason: "Completed",
            message: String::new(),
        };
        for (recorded, told, shown) in [(90, 90, 90), (0, 95, 95), (110, 0, 100), (0, 0, 0)] {
            assert_eq!(started_at(recorded, &ended(told)), shown, "{recorded} {told}");
        }
    }

    #[test]
    fn signals_are_cris_by_name() {
        for (number, expected) in
            [(15, cri::Signal::Sigterm), (3, cri::Signal::Sigquit), (37, cri::Signal::Sigrtminplus3)]
        {
            assert_eq!(stop_signal(number), i32::from(expected));
        }
    }
}
