//! CRI's lists and statuses as what the agent observes. Owns the mapping; never changes
//! anything. Called by [`super::CriRuntime`].

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::future::{try_join, try_join_all};
use gantry_model::pod::PodUid;
use gantry_proto::cri::runtime_service_client::RuntimeServiceClient;
use gantry_proto::cri::{self as wire};
use tonic::{Code, Status};

use super::{NodeConfig, timed};
use crate::runtime::{
    Actual, Exit, Image, Instance, InstanceState, KnownPod, Observed, PodStates, Sandbox, User, Users,
};
use gantry_grpc::counted::Counted;

pub(super) const POD_NAME: &str = "io.kubernetes.pod.name";
pub(super) const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
pub(super) const POD_UID: &str = "io.kubernetes.pod.uid";
pub(super) const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
pub(super) const HASH: &str = "io.kubernetes.container.hash";
pub(super) const WORDS: &str = "io.kubernetes.container.terminationMessagePath";
pub(super) const CONTAINER_NAME: &str = "io.kubernetes.container.name";
/// Marks the pods of `gantry run`. Not the kubelet's `config.source`: on a runtime that both use, a
/// static pod of the kubelet's must never be taken for an older version of ours.
pub(super) const RUN_SOURCE: &str = "io.gantry.run";

/// Lists first, then asks for each one's status: what vanished in between is left out. All at once
/// in both steps, because every step of a pod's start waits for it.
pub(super) async fn pod(
    client: RuntimeServiceClient<Counted>,
    uid: &PodUid,
    node: &NodeConfig,
) -> Result<Observed, Status> {
    let label_selector = BTreeMap::from([(POD_UID.to_owned(), uid.to_string())]);
    let filter = wire::PodSandboxFilter { label_selector: label_selector.clone(), ..Default::default() };
    let ask = wire::ListPodSandboxRequest { filter: Some(filter) };
    let (mut first, mut second) = (client.clone(), client.clone());
    let sandboxes = first.list_pod_sandbox(timed(ask, node.request_timeout));
    let filter = wire::ContainerFilter { label_selector, ..Default::default() };
    let ask = wire::ListContainersRequest { filter: Some(filter) };
    let (sandboxes, containers) =
        try_join(sandboxes, second.list_containers(timed(ask, node.request_timeout))).await?;

    let sandboxes = sandboxes.into_inner().items.into_iter().map(|item| {
        let mut client = client.clone();
        async move {
            let ask = wire::PodSandboxStatusRequest { pod_sandbox_id: item.id, verbose: false };
            let answer = client.pod_sandbox_status(timed(ask, node.request_timeout)).await;
            present(answer.map(|a| a.into_inner().status)).map(|status| status.map(sandbox))
        }
    });
    let containers = containers.into_inner().containers.into_iter().map(|item| {
        let mut client = client.clone();
        async move {
            let ask = wire::ContainerStatusRequest { container_id: item.id, verbose: false };
            let answer = client.container_status(timed(ask, node.request_timeout)).await;
            let status = present(answer.map(|a| a.into_inner().status))?;
            Ok(status.map(|status| instance(status, item.pod_sandbox_id, node)))
        }
    });
    let (sandboxes, containers) = try_join(try_join_all(sandboxes), try_join_all(containers)).await?;
    Ok(Observed {
        sandboxes: sandboxes.into_iter().flatten().collect(),
        containers: containers.into_iter().flatten().collect(),
    })
}

/// Every pod with a sandbox and the kubelet's labels; others are nobody's business here.
pub(super) async fn pods(
    mut client: RuntimeServiceClient<Counted>,
    timeout: Duration,
) -> Result<Vec<KnownPod>, Status> {
    let ask = wire::ListPodSandboxRequest { filter: None };
    let items = client.list_pod_sandbox(timed(ask, timeout)).await?.into_inner().items;
    let mut pods: Vec<KnownPod> = Vec::new();
    for item in items {
        let metadata = item.metadata.unwrap_or_default();
        let uid = item.labels.get(POD_UID).and_then(|uid| PodUid::parse(uid));
        if let Some(uid) = uid
            && pods.iter().all(|pod| pod.uid != uid)
        {
            let of_folder = item.annotations.get(CONFIG_SOURCE).is_some_and(|source| source == "file");
            let from_file = of_folder || item.annotations.contains_key(RUN_SOURCE);
            pods.push(KnownPod { uid, namespace: metadata.namespace, name: metadata.name, from_file });
        }
    }
    Ok(pods)
}

/// What the kubelet's labels give to a pod; others are nobody's business here.
pub(super) async fn states(
    client: RuntimeServiceClient<Counted>,
    timeout: Duration,
) -> Result<PodStates, Status> {
    let (mut first, mut second) = (client.clone(), client);
    let sandboxes = first.list_pod_sandbox(timed(wire::ListPodSandboxRequest { filter: None }, timeout));
    let containers = second.list_containers(timed(wire::ListContainersRequest { filter: None }, timeout));
    let (sandboxes, containers) = try_join(sandboxes, containers).await?;
    let sandboxes = sandboxes.into_inner().items.into_iter().map(|it| (it.labels, it.id, it.state));
    let containers = containers.into_inner().containers.into_iter().map(|it| (it.labels, it.id, it.state));
    let mut states = PodStates::new();
    for (labels, id, state) in sandboxes.chain(containers) {
        if let Some(uid) = labels.get(POD_UID).and_then(|uid| PodUid::parse(uid)) {
            states.entry(uid).or_default().push((id, state));
        }
    }
    // No runtime promises an order.
    states.values_mut().for_each(|of_pod| of_pod.sort_unstable());
    Ok(states)
}

/// The ranges of users that the pod's sandboxes have; the second error is one's that makes no sense.
pub(super) async fn users(
    mut client: RuntimeServiceClient<Counted>,
    uid: &PodUid,
    timeout: Duration,
) -> Result<Vec<Result<Users, String>>, Status> {
    let label_selector = BTreeMap::from([(POD_UID.to_owned(), uid.to_string())]);
    let filter = wire::PodSandboxFilter { label_selector, ..Default::default() };
    let ask = wire::ListPodSandboxRequest { filter: Some(filter) };
    let items = client.list_pod_sandbox(timed(ask, timeout)).await?.into_inner().items;
    let mut found = Vec::new();
    for item in items {
        let ask = wire::PodSandboxStatusRequest { pod_sandbox_id: item.id, verbose: false };
        let answer = client.pod_sandbox_status(timed(ask, timeout)).await;
        found.extend(present(answer.map(|answer| answer.into_inner().status))?.and_then(range));
    }
    Ok(found)
}

/// None of a sandbox with the node's own users. POD is what a runtime says that says nothing.
pub(super) fn range(status: wire::PodSandboxStatus) -> Option<Result<Users, String>> {
    let ready = status.state() == wire::PodSandboxState::SandboxReady;
    let namespaces = status.linux.and_then(|linux| linux.namespaces?.options);
    let users = namespaces.and_then(|options| options.userns_options).unwrap_or_default();
    if users.mode() == wire::NamespaceMode::Node {
        return None;
    }
    let (uids, gids) = (&users.uids[..], &users.gids[..]);
    match uids {
        [only] if only.container_id == 0 && uids == gids => {
            Some(Ok(Users { first: only.host_id, length: only.length }))
        }
        // Nothing runs in one that has ended.
        _ => ready.then(|| Err(format!("sandbox {} does not say which range it has", status.id))),
    }
}

fn present<T>(answer: Result<Option<T>, Status>) -> Result<Option<T>, Status> {
    match answer {
        Err(status) if status.code() == Code::NotFound => Ok(None),
        answer => answer,
    }
}

pub(super) fn sandbox(status: wire::PodSandboxStatus) -> Sandbox {
    Sandbox {
        ready: status.state() == wire::PodSandboxState::SandboxReady,
        attempt: status.metadata.as_ref().map_or(0, |m| m.attempt),
        ips: status.network.map(addresses).unwrap_or_default(),
        created_at: status.created_at,
        id: status.id,
    }
}

fn addresses(network: wire::PodSandboxNetworkStatus) -> Vec<String> {
    let more = network.additional_ips.into_iter().map(|other| other.ip);
    std::iter::once(network.ip).chain(more).filter(|ip| !ip.is_empty()).collect()
}

pub(super) fn image(image: wire::Image) -> Image {
    let wire::Image { id, size, uid, username, .. } = image;
    Image { id, size, uid: uid.map(|uid| uid.value), username }
}

/// The pod that an event is about: a sandbox says it by itself, else one of its containers does.
pub(super) fn changed_pod(event: &wire::ContainerEventResponse) -> Option<PodUid> {
    let of_sandbox = event.pod_sandbox_status.as_ref().and_then(|s| s.metadata.as_ref()).map(|m| &m.uid);
    let of_container = || event.containers_statuses.iter().find_map(|status| status.labels.get(POD_UID));
    of_sandbox.filter(|uid| !uid.is_empty()).or_else(of_container).and_then(|uid| PodUid::parse(uid))
}

pub(super) fn instance(status: wire::ContainerStatus, sandbox: String, node: &NodeConfig) -> Instance {
    let state = match status.state() {
        wire::ContainerState::ContainerCreated => InstanceState::Created,
        wire::ContainerState::ContainerRunning => InstanceState::Running { started_at: status.started_at },
        wire::ContainerState::ContainerExited => InstanceState::Exited(Exit {
            code: status.exit_code,
            reason: status.reason.clone(),
            message: status.message.clone(),
            started_at: status.started_at,
            finished_at: status.finished_at,
        }),
        wire::ContainerState::ContainerUnknown => InstanceState::Unknown,
    };
    let words = status.annotations.get(WORDS);
    let is_words = |mount: &&wire::Mount| words == Some(&mount.container_path);
    let words = status.mounts.iter().find(is_words).map(|mount| PathBuf::from(&mount.host_path));
    let hash = status.annotations.get(HASH).cloned().unwrap_or_default();
    let linux = status.user.and_then(|user| user.linux);
    let user = linux.map(|of| User { uid: of.uid, gid: of.gid, groups: of.supplemental_groups });
    let actual = status.resources.and_then(|resources| resources.linux).map(|linux| actual(&linux));
    let (name, attempt) = status.metadata.map_or_else(Default::default, |m| (m.name, m.attempt));
    Instance {
        id: status.id,
        name,
        attempt,
        sandbox,
        state,
        created_at: status.created_at,
        log_path: absolute(&status.log_path, node),
        words,
        image: status.image.map(|spec| spec.image).unwrap_or_default(),
        image_id: status.image_ref,
        hash,
        user,
        actual,
    }
}

/// By toKubeContainerResources: shares and quota as thousandths of a core.
fn actual(linux: &wire::LinuxContainerResources) -> Actual {
    let quota = Some(linux.cpu_quota).filter(|quota| *quota > 0 && linux.cpu_period > 0);
    let shares = Some(linux.cpu_shares).filter(|shares| *shares >= 2);
    Actual {
        cpu_request: shares.map(|shares| shares.saturating_mul(1000).saturating_add(1023) / 1024),
        cpu_limit: quota
            .map(|quota| quota.saturating_mul(1000) / linux.cpu_period)
            .filter(|milli| *milli > 0),
        memory_limit: Some(linux.memory_limit_in_bytes).filter(|bytes| *bytes > 0),
    }
}

/// Runtimes answer with the whole path; one outside the pods' folder would make
/// `gantry logs` a way to read any file, so it is not passed on.
pub(super) fn absolute(path: &str, node: &NodeConfig) -> String {
    let inside = std::path::Path::new(path).starts_with(&node.pod_logs_dir) && !path.contains("/../");
    if inside { path.to_owned() } else { String::new() }
}
