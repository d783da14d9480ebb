//! Which kernel settings a pod may have. Pure: owns the list of safe ones and the patterns of
//! allowedUnsafeSysctls. Called by [`super::admit`].

use gantry_model::pod::Pod;

use super::Rejection;

/// What the kubelet allows without --allowed-unsafe-sysctls.
pub(crate) const SAFE_SYSCTLS: &[&str] = &[
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
];

/// What the operator allows besides those that are safe: names, or prefixes that end in `*`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allowed {
    /// As in KubeletConfiguration.allowedUnsafeSysctls.
    pub unsafe_too: Vec<String>,
}

/// Whose a setting is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Namespace {
    Ipc,
    Net,
}

impl Allowed {
    /// # Errors
    /// When a pattern names what no namespace has: it would be the node's.
    pub fn new(unsafe_too: Vec<String>) -> Result<Self, String> {
        for pattern in &unsafe_too {
            let dotted = normal(pattern.strip_suffix('*').unwrap_or(pattern));
            if pattern.ends_with('*') && !pattern.ends_with(".*") && !pattern.ends_with("/*") {
                return Err(format!("the sysctl pattern {pattern:?} must end in \".*\""));
            }
            if namespace(&dotted).is_none() {
                return Err(format!("the sysctls {pattern:?} are not known to be namespaced"));
            }
        }
        Ok(Self { unsafe_too })
    }

    pub(crate) fn check(&self, pod: &Pod) -> Result<(), Rejection> {
        for (name, _) in &pod.security.sysctls {
            if let Some(why) = self.forbids(pod, &normal(name)) {
                let message = format!("forbidden sysctl: {why}");
                return Err(Rejection::new("SysctlForbidden", message));
            }
        }
        Ok(())
    }

    fn forbids(&self, pod: &Pod, name: &str) -> Option<String> {
        let allowed = SAFE_SYSCTLS.contains(&name) || self.unsafe_too.iter().any(|of| covers(of, name));
        if !allowed {
            return Some(format!("{name:?} not allowlisted"));
        }
        match namespace(name) {
            Some(Namespace::Ipc) if pod.namespaces.host_ipc => {
                Some(format!("{name:?} not allowed with host ipc enabled"))
            }
            Some(Namespace::Net) if pod.namespaces.host_network => {
                Some(format!("{name:?} not allowed with host net enabled"))
            }
            _ => None,
        }
    }
}

/// With dots, however it is written.
fn normal(name: &str) -> String {
    let first = name.find(['.', '/']);
    if first.and_then(|at| name.get(at..=at)) == Some("/") { name.replace('/', ".") } else { name.to_owned() }
}

fn covers(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(&normal(prefix)),
        None => normal(pattern) == name,
    }
}

fn namespace(name: &str) -> Option<Namespace> {
    let ipc = ["kernel.shm", "kernel.msg", "fs.mqueue."];
    match () {
        () if name == "kernel.sem" || ipc.iter().any(|prefix| name.starts_with(prefix)) => {
            Some(Namespace::Ipc)
        }
        () if name.starts_with("net.") => Some(Namespace::Net),
        () => None,
    }
}
