//! A pod's sandbox configuration, checked. Pure. Called by `sandbox::run`.

use std::collections::BTreeMap;

use gantry_proto::cri;
use gantry_proto::monitor::{NamespaceMode, Sysctl, UserMapping};

use super::resources::with_overhead;
use super::{Error, Namespaces, profiles, selinux, userns};
use crate::seccomp::SeccompChoice;
use crate::store::record::{NamespaceModes, PodName};

/// What a sandbox needs, resolved.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SandboxSpec {
    pub pod: PodName,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub log_directory: String,
    pub hostname: String,
    pub modes: NamespaceModes,
    pub pid: NamespaceMode,
    pub ipc: NamespaceMode,
    /// A user namespace of its own.
    pub users: Option<UserMapping>,
    pub host_network: bool,
    pub privileged: bool,
    pub cgroup_parent: String,
    pub sysctls: Vec<Sysctl>,
    pub dns: Option<cri::DnsConfig>,
    /// Of pause.
    pub seccomp: SeccompChoice,
    /// Of pause, and of containers that say nothing else.
    pub selinux: selinux::SelinuxOptions,
    /// Of the pod as a whole, for a cgroup of our own.
    pub limits: cri::LinuxContainerResources,
    /// Ports of the node that lead to the pod; none with the node's network.
    pub host_ports: Vec<cri::PortMapping>,
}

impl SandboxSpec {
    /// Checks and resolves a request. `unset_seccomp` is the profile of pods that name none.
    ///
    /// # Errors
    /// What is missing, invalid or not supported yet, by field.
    pub(crate) fn new(config: cri::PodSandboxConfig, unset_seccomp: &SeccompChoice) -> Result<Self, Error> {
        let metadata = config.metadata.ok_or(Error::Missing("config.metadata"))?;
        // Namespace and UID are Kubernetes's: who uses CRI by hand may have none.
        if metadata.name.is_empty() {
            return Err(Error::Missing("metadata.name"));
        }
        let linux = config.linux.unwrap_or_default();
        let security = linux.security_context.unwrap_or_default();
        let selinux = selinux::SelinuxOptions::new(security.selinux_options.as_ref())?;
        let seccomp = seccomp(&security, unset_seccomp)?;
        let options = security.namespace_options.unwrap_or_default();
        let Namespaces { net, pid, ipc } = Namespaces::of_sandbox(&options)?;
        let host_network = net == NamespaceMode::Host;
        let users = userns::parse(options.userns_options.as_ref())?;
        check_users(users.as_ref(), &[(pid, "namespace_options.pid"), (ipc, "namespace_options.ipc")])?;
        // With the node's network a port is the node's anyway, and Kubernetes sets both alike.
        let is_mapped = |port: &cri::PortMapping| port.host_port > 0 && !host_network;
        let host_ports = config.port_mappings.into_iter().filter(is_mapped).collect();
        let hostname = config.hostname;
        if hostname.len() > 64 || hostname.contains(['\0', '\n']) {
            return Err(Error::Invalid {
                field: "hostname",
                value: hostname,
                expected: "at most 64 characters",
            });
        }
        Ok(Self {
            pod: PodName {
                name: metadata.name,
                namespace: metadata.namespace,
                uid: metadata.uid,
                attempt: metadata.attempt,
            },
            labels: config.labels.into_iter().collect(),
            annotations: config.annotations.into_iter().collect(),
            log_directory: config.log_directory,
            hostname,
            modes: NamespaceModes { network: options.network, pid: options.pid, ipc: options.ipc },
            pid,
            ipc,
            users,
            privileged: security.privileged,
            host_network,
            cgroup_parent: linux.cgroup_parent,
            sysctls: sysctls(linux.sysctls, host_network, ipc == NamespaceMode::Host, users.is_some())?,
            dns: config.dns_config,
            seccomp,
            selinux,
            limits: with_overhead(&linux.resources.unwrap_or_default(), &linux.overhead.unwrap_or_default()),
            host_ports,
        })
    }
}

#[expect(deprecated, reason = "clients still set the old field, and containerd honours it")]
fn seccomp(
    security: &cri::LinuxSandboxSecurityContext,
    unset: &SeccompChoice,
) -> Result<SeccompChoice, Error> {
    let old = &security.seccomp_profile_path;
    profiles::seccomp(security.seccomp.as_ref(), old, security.privileged, unset)
}

/// With users of its own a pod can't see the node's processes or queues: nobody in it could mount them.
fn check_users(
    users: Option<&UserMapping>,
    namespaces: &[(NamespaceMode, &'static str)],
) -> Result<(), Error> {
    match namespaces.iter().find(|(mode, _)| *mode == NamespaceMode::Host) {
        Some((_, field)) if users.is_some() => Err(Error::Invalid {
            field,
            value: "NODE".to_owned(),
            expected: "the pod's own, with a user namespace of its own",
        }),
        _ => Ok(()),
    }
}

const PING_GROUPS: &str = "net.ipv4.ping_group_range";

/// Ports below 1024 and pings for every user: in a network of the pod's own they guard nothing.
const UNPRIVILEGED: [(&str, &str); 2] =
    [("net.ipv4.ip_unprivileged_port_start", "0"), (PING_GROUPS, "0 2147483647")];

/// As sysctl(8) has it: what separates first separates all along, and the other sign is a letter of a name, as in
/// `net/ipv4/conf/eth0.100/rp_filter` and `net.ipv4.conf.eth0/100.rp_filter`.
fn dotted_name(name: &str) -> String {
    let swap = |letter| match letter {
        '.' => '/',
        '/' => '.',
        letter => letter,
    };
    match name.find(['.', '/']) {
        Some(at) if name.as_bytes().get(at) == Some(&b'/') => name.chars().map(swap).collect(),
        _ => name.to_owned(),
    }
}

/// Only what belongs to a namespace of the pod: anything else would change the node.
fn sysctls(
    wanted: impl IntoIterator<Item = (String, String)>,
    host_network: bool,
    host_ipc: bool,
    own_users: bool,
) -> Result<Vec<Sysctl>, Error> {
    let mut sysctls = Vec::new();
    for (name, value) in wanted {
        let name = dotted_name(&name);
        let ipc = ["kernel.shm", "kernel.msg", "fs.mqueue."].iter().any(|prefix| name.starts_with(prefix))
            || name == "kernel.sem";
        let ipc = ipc && !host_ipc;
        let net = name.starts_with("net.") && !host_network;
        // A dot is a slash in the path, and a slash a dot.
        if name.contains("..") || name.contains("//") || name.contains('\0') || !(ipc || net) {
            return Err(Error::Invalid {
                field: "sysctls",
                value: name,
                expected: "a sysctl of the pod's own namespaces",
            });
        }
        sysctls.push(Sysctl { name, value });
    }
    // containerd 2's defaults (enable_unprivileged_ports, enable_unprivileged_icmp).
    // The groups of a pod with users of its own do not reach that far.
    let fits = |name: &str| !(host_network || own_users && name == PING_GROUPS);
    for (name, value) in UNPRIVILEGED.iter().filter(|(name, _)| fits(name)) {
        if !sysctls.iter().any(|sysctl| sysctl.name == *name) {
            sysctls.push(Sysctl { name: (*name).to_owned(), value: (*value).to_owned() });
        }
    }
    sysctls.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(sysctls)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> cri::PodSandboxConfig {
        cri::PodSandboxConfig {
            metadata: Some(cri::PodSandboxMetadata {
                name: "web".into(),
                namespace: "default".into(),
                uid: "u".into(),
                attempt: 0,
            }),
            ..cri::PodSandboxConfig::default()
        }
    }

    #[test]
    fn a_plain_pod_has_its_own_network_and_shares_ipc() {
        let spec = SandboxSpec::new(config(), &SeccompChoice::Unconfined).unwrap();
        assert!(!spec.host_network);
        assert_eq!((spec.pid, spec.ipc), (NamespaceMode::Sandbox, NamespaceMode::Sandbox));
    }

    #[test]
    fn host_ports_are_those_that_are_mapped_and_not_the_nodes_own() {
        let mut port = config();
        for host_port in [80, 0] {
            port.port_mappings.push(cri::PortMapping { host_port, ..cri::PortMapping::default() });
        }
        let mapped = SandboxSpec::new(port.clone(), &SeccompChoice::Unconfined).unwrap().host_ports;
        assert_eq!(mapped.iter().map(|port| port.host_port).collect::<Vec<_>>(), [80]);
        let options = cri::NamespaceOption {
            network: cri::NamespaceMode::Node.into(),
            ..cri::NamespaceOption::default()
        };
        let security = cri::LinuxSandboxSecurityContext {
            namespace_options: Some(options),
            ..cri::LinuxSandboxSecurityContext::default()
        };
        port.linux = Some(cri::LinuxPodSandboxConfig {
            security_context: Some(security),
            ..cri::LinuxPodSandboxConfig::default()
        });
        assert_eq!(SandboxSpec::new(port, &SeccompChoice::Unconfined).unwrap().host_ports, []);
    }

    #[test]
    fn with_users_of_its_own_a_pod_has_its_own_processes_and_queues() {
        let of = |pid: cri::NamespaceMode, ipc: cri::NamespaceMode, network: cri::NamespaceMode| {
            let line = vec![cri::IdMapping { host_id: 65_536, container_id: 0, length: 65_536 }];
            let users =
                cri::UserNamespace { mode: cri::NamespaceMode::Pod.into(), uids: line.clone(), gids: line };
            let options = cri::NamespaceOption {
                network: network.into(),
                pid: pid.into(),
                ipc: ipc.into(),
                userns_options: Some(users),
                ..cri::NamespaceOption::default()
            };
            let mut config = config();
            let security = config.linux.get_or_insert_default().security_context.get_or_insert_default();
            security.namespace_options = Some(options);
            SandboxSpec::new(config, &SeccompChoice::Unconfined)
        };
        use cri::NamespaceMode::{Container, Node, Pod};
        assert!(of(Container, Pod, Pod).unwrap().users.is_some());
        assert!(of(Pod, Pod, Node).unwrap().users.is_some());
        assert!(matches!(of(Node, Pod, Pod), Err(Error::Invalid { field: "namespace_options.pid", .. })));
        assert!(matches!(of(Pod, Node, Pod), Err(Error::Invalid { field: "namespace_options.ipc", .. })));
    }

    #[test]
    fn what_is_not_honoured_is_refused_by_name() {
        assert_eq!(
            SandboxSpec::new(cri::PodSandboxConfig::default(), &SeccompChoice::Unconfined).unwrap_err(),
            Error::Missing("config.metadata")
        );
    }

    #[test]
    fn a_pod_network_has_no_privileged_ports_unless_asked_for() {
        let own = sysctls([], false, false, false).unwrap();
        assert_eq!(own.len(), 2, "{own:?}");
        assert!(sysctls([], true, false, false).unwrap().is_empty());
        let own_users = sysctls([], false, false, true).unwrap();
        assert_eq!((own_users.len(), own_users[0].name.as_str()), (1, "net.ipv4.ip_unprivileged_port_start"));
        let wanted = ("net/ipv4/ip_unprivileged_port_start".to_owned(), "1024".to_owned());
        let own = sysctls([wanted], false, false, false).unwrap();
        assert_eq!((own.len(), own[0].value.as_str()), (2, "1024"));
    }

    #[test]
    fn an_interface_may_have_a_dot_in_its_name() {
        for name in ["net/ipv4/conf/eth0.100/rp_filter", "net.ipv4.conf.eth0/100.rp_filter"] {
            let own = sysctls([(name.to_owned(), "1".to_owned())], false, false, false).unwrap();
            assert!(own.iter().any(|sysctl| sysctl.name == "net.ipv4.conf.eth0/100.rp_filter"), "{own:?}");
        }
    }

    #[test]
    fn a_sysctl_of_the_node_is_refused() {
        let one = |name: &str| sysctls([(name.to_owned(), "1".to_owned())], false, false, false);
        assert!(one("net.ipv4.ip_forward").is_ok());
        assert!(one("kernel.panic").is_err());
        assert!(one("net/../kernel/panic").is_err());
        assert!(one("net.ipv4.\0").is_err());
        assert!(one("net.//.kernel.panic").is_err());
        assert!(sysctls([("net.ipv4.ip_forward".to_owned(), "1".to_owned())], true, false, false).is_err());
        assert!(sysctls([("kernel.sem".to_owned(), "1".to_owned())], false, true, false).is_err());
    }
}
