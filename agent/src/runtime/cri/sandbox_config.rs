//! A pod as CRI's PodSandboxConfig, with the kubelet's labels and annotations. Pure: owns
//! the mapping; never calls. Called by [`super::CriRuntime`].

use std::collections::BTreeMap;

use gantry_proto::cri::{self as wire, NamespaceMode};

use super::NodeConfig;
use super::observe::{POD_NAME, POD_NAMESPACE, POD_UID, RUN_SOURCE};
use crate::pod::spec::{Namespaces, Pod};

/// The same pod and attempt always give the same config: containers are created with it.
pub(super) fn sandbox(
    pod: &Pod,
    attempt: u32,
    cgroup_parent: &str,
    node: &NodeConfig,
) -> wire::PodSandboxConfig {
    let mut labels: BTreeMap<String, String> = pod.labels.clone().into_iter().collect();
    labels.extend(pod_labels(pod));
    let mut annotations: BTreeMap<String, String> = pod.annotations.clone().into_iter().collect();
    annotations.insert(RUN_SOURCE.to_owned(), "true".to_owned());
    wire::PodSandboxConfig {
        metadata: Some(wire::PodSandboxMetadata {
            name: pod.name.clone(),
            uid: pod.uid.to_string(),
            namespace: pod.namespace.clone(),
            attempt,
        }),
        hostname: pod.hostname.clone(),
        log_directory: node.pod_logs_dir.join(pod.log_folder()).to_string_lossy().into_owned(),
        dns_config: Some(wire::DnsConfig {
            servers: node.dns.servers.clone(),
            searches: node.dns.searches.clone(),
            options: node.dns.options.clone(),
        }),
        port_mappings: pod.containers.iter().flat_map(|c| &c.ports).map(port).collect(),
        labels,
        annotations,
        linux: Some(wire::LinuxPodSandboxConfig {
            cgroup_parent: cgroup_parent.to_owned(),
            security_context: Some(wire::LinuxSandboxSecurityContext {
                namespace_options: Some(namespaces(pod.namespaces)),
                privileged: pod.containers.iter().any(|c| c.security.privileged),
                seccomp: Some(unconfined()),
                ..Default::default()
            }),
            ..Default::default()
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

pub(super) fn namespaces(namespaces: Namespaces) -> wire::NamespaceOption {
    let mode = |on_host: bool, else_mode: NamespaceMode| {
        i32::from(if on_host { NamespaceMode::Node } else { else_mode })
    };
    let own = if namespaces.share_process { NamespaceMode::Pod } else { NamespaceMode::Container };
    wire::NamespaceOption {
        network: mode(namespaces.host_network, NamespaceMode::Pod),
        pid: mode(namespaces.host_pid, own),
        ipc: mode(namespaces.host_ipc, NamespaceMode::Pod),
        target_id: String::new(),
        userns_options: None,
    }
}

/// Until the runtime has a default profile to ask for.
pub(super) fn unconfined() -> wire::SecurityProfile {
    wire::SecurityProfile {
        profile_type: i32::from(wire::security_profile::ProfileType::Unconfined),
        localhost_ref: String::new(),
    }
}

fn port(port: &crate::pod::spec::Port) -> wire::PortMapping {
    let protocol = match port.protocol.as_str() {
        "UDP" => wire::Protocol::Udp,
        "SCTP" => wire::Protocol::Sctp,
        _ => wire::Protocol::Tcp,
    };
    wire::PortMapping {
        protocol: i32::from(protocol),
        container_port: i32::from(port.port),
        host_port: 0,
        host_ip: String::new(),
    }
}
