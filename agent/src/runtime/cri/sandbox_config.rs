//! A pod as CRI's PodSandboxConfig, with the kubelet's labels and annotations. Pure: owns
//! the mapping; never calls. Called by [`super::CriRuntime`].

use std::collections::BTreeMap;

use gantry_model::pod::security::SeLinux;
use gantry_model::pod::{Container, Namespaces, Origin, Pod, Port, Role, Seccomp};
use gantry_proto::cri::security_profile::ProfileType;
use gantry_proto::cri::{self as wire, NamespaceMode};

use super::NodeConfig;
use super::observe::{CONFIG_SOURCE, POD_NAME, POD_NAMESPACE, POD_UID, RUN_SOURCE};
use super::resources;
use crate::dns::DnsConfig;
use crate::runtime::Users;

/// The same pod and attempt always give the same config but for the resolver, which is as it is now:
/// containers are created with it.
pub(super) fn sandbox(
    pod: &Pod,
    attempt: u32,
    cgroup_parent: &str,
    users: Option<Users>,
    (node, dns): (&NodeConfig, DnsConfig),
) -> wire::PodSandboxConfig {
    let mut labels: BTreeMap<String, String> = pod.labels.clone().into_iter().collect();
    labels.extend(pod_labels(pod));
    let mut annotations: BTreeMap<String, String> = pod.annotations.clone().into_iter().collect();
    match pod.origin {
        Origin::Run | Origin::Static => {
            annotations.insert(RUN_SOURCE.to_owned(), "true".to_owned());
        }
        Origin::Api => {
            // As the kubelet notes when it met a pod and where from.
            annotations.insert(CONFIG_SOURCE.to_owned(), "api".to_owned());
        }
    }
    let id = |id: Option<i64>| id.map(|value| wire::Int64Value { value });
    wire::PodSandboxConfig {
        metadata: Some(wire::PodSandboxMetadata {
            name: pod.name.clone(),
            uid: pod.uid.to_string(),
            namespace: pod.namespace.clone(),
            attempt,
        }),
        hostname: hostname(pod, &node.cluster_domain),
        log_directory: node.pod_logs_dir.join(pod.log_folder()).to_string_lossy().into_owned(),
        dns_config: Some(wire::DnsConfig {
            servers: dns.servers,
            searches: dns.searches,
            options: dns.options,
        }),
        port_mappings: side_by_side(pod).flat_map(|c| &c.ports).map(port).collect(),
        labels,
        annotations,
        linux: Some(wire::LinuxPodSandboxConfig {
            cgroup_parent: cgroup_parent.to_owned(),
            security_context: Some(wire::LinuxSandboxSecurityContext {
                namespace_options: Some(namespaces(pod.namespaces, users)),
                run_as_user: id(pod.security.run_as_user),
                run_as_group: id(pod.security.run_as_group),
                supplemental_groups: supplemental_groups(pod),
                // One that `kubectl debug` adds later counts: a runtime asks the description that comes with it.
                privileged: pod.every_container().any(|c| c.security.privileged),
                // As the kubelet: whatever the containers get, the pause process is confined.
                seccomp: Some(profile(ProfileType::RuntimeDefault, String::new())),
                selinux_options: pod.security.se_linux.as_ref().map(se_linux),
                ..Default::default()
            }),
            sysctls: pod.security.sysctls.iter().cloned().collect(),
            overhead: resources::overhead(pod, &node.rules),
            resources: resources::of_sandbox(pod, &node.rules),
        }),
        windows: None,
    }
}

/// What every sandbox and container of a pod is found by.
pub(super) fn pod_labels(pod: &Pod) -> [(String, String); 3] {
    [
        (POD_NAME.to_owned(), pod.name.clone()),
        (POD_NAMESPACE.to_owned(), pod.namespace.clone()),
        (POD_UID.to_owned(), pod.uid.to_string()),
    ]
}

pub(super) fn namespaces(namespaces: Namespaces, users: Option<Users>) -> wire::NamespaceOption {
    let mode = |on_host: bool, else_mode: NamespaceMode| {
        i32::from(if on_host { NamespaceMode::Node } else { else_mode })
    };
    let own = if namespaces.share_process { NamespaceMode::Pod } else { NamespaceMode::Container };
    wire::NamespaceOption {
        network: mode(namespaces.host_network, NamespaceMode::Pod),
        pid: mode(namespaces.host_pid, own),
        ipc: mode(namespaces.host_ipc, NamespaceMode::Pod),
        target_id: String::new(),
        userns_options: Some(user_namespace(users)),
    }
}

/// The node's, when the pod has none of its own.
fn user_namespace(users: Option<Users>) -> wire::UserNamespace {
    let Some(users) = users else {
        return wire::UserNamespace { mode: i32::from(NamespaceMode::Node), ..Default::default() };
    };
    let ids = id_mappings(users);
    wire::UserNamespace { mode: i32::from(NamespaceMode::Pod), uids: ids.clone(), gids: ids }
}

/// The same for users and groups.
pub(super) fn id_mappings(users: Users) -> Vec<wire::IdMapping> {
    vec![wire::IdMapping { host_id: users.first, container_id: 0, length: users.length }]
}

pub(super) fn se_linux(options: &SeLinux) -> wire::SeLinuxOption {
    let SeLinux { user, role, kind, level } = options.clone();
    wire::SeLinuxOption { user, role, r#type: kind, level }
}

/// What runs beside each other and so has ports at the same time.
fn side_by_side(pod: &Pod) -> impl Iterator<Item = &Container> {
    pod.containers.iter().chain(pod.init_containers.iter().filter(|c| c.role == Role::Sidecar))
}

/// The short name, unless the pod wants the full one.
fn hostname(pod: &Pod, cluster_domain: &str) -> String {
    match pod.domain(cluster_domain) {
        Some(domain) if pod.fqdn && !pod.hostname.is_empty() => format!("{}.{domain}", pod.hostname),
        _ => pod.hostname.clone(),
    }
}

/// fsGroup first, as the kubelet orders them.
pub(super) fn supplemental_groups(pod: &Pod) -> Vec<i64> {
    pod.security.fs_group.iter().chain(&pod.security.supplemental_groups).copied().collect()
}

/// What a container that says nothing gets is the node's choice.
pub(super) fn seccomp(wanted: Option<&Seccomp>, node: &NodeConfig) -> wire::SecurityProfile {
    match wanted {
        Some(Seccomp::RuntimeDefault) => profile(ProfileType::RuntimeDefault, String::new()),
        Some(Seccomp::Localhost(file)) => {
            profile(ProfileType::Localhost, node.seccomp_root.join(file).to_string_lossy().into_owned())
        }
        None if node.seccomp_default => profile(ProfileType::RuntimeDefault, String::new()),
        None | Some(Seccomp::Unconfined) => profile(ProfileType::Unconfined, String::new()),
    }
}

pub(super) fn profile(kind: ProfileType, localhost_ref: String) -> wire::SecurityProfile {
    wire::SecurityProfile { profile_type: i32::from(kind), localhost_ref }
}

/// Names of the API (`SIGRTMIN+1`) as CRI's (`SIGRTMINPLUS1`); the manifest reader has refused others.
pub(super) fn signal(name: Option<&str>) -> wire::Signal {
    let name = name.map(|name| name.replace('+', "PLUS").replace('-', "MINUS"));
    name.and_then(|name| wire::Signal::from_str_name(&name)).unwrap_or(wire::Signal::RuntimeDefault)
}

fn port(port: &Port) -> wire::PortMapping {
    let protocol = match port.protocol.as_str() {
        "UDP" => wire::Protocol::Udp,
        "SCTP" => wire::Protocol::Sctp,
        _ => wire::Protocol::Tcp,
    };
    wire::PortMapping {
        protocol: i32::from(protocol),
        container_port: i32::from(port.port),
        host_port: i32::from(port.host_port),
        host_ip: port.host_ip.clone(),
    }
}
