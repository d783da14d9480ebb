//! What the agent must know of its machine. Owns reading it once at start; never watches
//! it. Called by the command line, which hands it to the runtime client.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::dns::{self, DnsConfig, Resolver, parse_resolv_conf};
use crate::runtime::cri::NodeConfig;

/// Of services; only names of pods with a subdomain show it here.
const CLUSTER_DOMAIN: &str = "cluster.local";

const RESOLV_CONF: &str = "/etc/resolv.conf";
/// Where systemd-resolved keeps the name servers behind its own on 127.0.0.53.
const RESOLVED: &str = "/run/systemd/resolve/resolv.conf";

/// What pods may learn of their node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeInfo {
    /// Lower case.
    pub name: String,
    /// Primary first; may be empty on a machine without a network.
    pub ips: Vec<String>,
    /// Of services; pods with a subdomain have it in their names.
    pub cluster_domain: String,
    /// Thousandths of a core.
    pub cpu: i64,
    /// Bytes.
    pub memory: i64,
    /// Bytes of the file system of the root folder.
    pub ephemeral: i64,
    /// The runtime's, as its Version says it; empty until it is asked.
    pub runtime_name: String,
    /// Whether the runtime makes recursive read-only mounts.
    pub recursive_read_only: bool,
    /// Whether the runtime can hold processes to the pod's own groups.
    pub strict_groups: bool,
    /// Handlers of the runtime that make user namespaces; the default one is the empty text.
    pub user_namespaces: BTreeSet<String>,
    /// Where pods' resolvers come from, to tell what is missing.
    pub resolver: Arc<Resolver>,
}

/// What could not be read.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant is one file and its cause")]
pub enum Error {
    #[error("read the size of memory from {}", path.display())]
    Meminfo {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{} has no line MemTotal", path.display())]
    NoMemTotal { path: PathBuf },
    #[error("ask how many processors there are")]
    Cpus(#[source] std::io::Error),
    #[error("ask for the size of the file system of {}", path.display())]
    Space {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("read the resolver's configuration {}", path.display())]
    ResolvConf {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

/// What a kubelet is told instead of finding it out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Given {
    /// The node's name, in lower case.
    pub name: Option<String>,
    /// What pods' resolvers are made of; nothing is in an empty path.
    pub resolv_conf: Option<PathBuf>,
    /// Of services.
    pub cluster_domain: Option<String>,
    /// Name servers of the cluster.
    pub cluster_dns: Vec<String>,
}

/// This machine's facts, with pod logs below `pod_logs_dir`; a resolver's configuration that is named
/// is taken as it is, and an empty name is none at all.
///
/// # Errors
/// When /proc/meminfo or /etc/resolv.conf cannot be read; a machine without the latter has
/// no resolver, and so have its pods.
pub fn facts(pod_logs_dir: PathBuf, given: &Given) -> Result<NodeConfig, Error> {
    let path = Path::new("/proc/meminfo");
    let text =
        std::fs::read_to_string(path).map_err(|source| Error::Meminfo { path: path.to_owned(), source })?;
    let memory_capacity = mem_total(&text).ok_or_else(|| Error::NoMemTotal { path: path.to_owned() })?;
    let host = resolv_conf(given.resolv_conf.as_deref().unwrap_or(Path::new(RESOLV_CONF)))?;
    let pods = match given.resolv_conf {
        Some(_) => host.clone(),
        None => dns::beyond_loopback(&host, resolv_conf(Path::new(RESOLVED))?),
    };
    let cluster_domain = given.cluster_domain.clone().unwrap_or_else(|| CLUSTER_DOMAIN.to_owned());
    let resolver =
        Resolver { pods, host, cluster: given.cluster_dns.clone(), cluster_domain: cluster_domain.clone() };
    let cgroup_v2 = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    Ok(NodeConfig {
        pod_logs_dir,
        memory_capacity,
        resolver: Arc::new(resolver),
        cgroup_v2,
        swap: counts_swap(cgroup_v2),
        seccomp_default: false,
        seccomp_root: "/var/lib/kubelet/seccomp".into(),
        cluster_domain,
    })
}

/// One that is not there says nothing.
fn resolv_conf(path: &Path) -> Result<DnsConfig, Error> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(parse_resolv_conf(&text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(DnsConfig::default()),
        Err(source) => Err(Error::ResolvConf { path: path.to_owned(), source }),
    }
}

/// As the kubelet looks: on v2 in its own cgroup, for the root one has no limits.
fn counts_swap(cgroup_v2: bool) -> bool {
    if !cgroup_v2 {
        return Path::new("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes").exists();
    }
    let text = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = text.lines().find_map(|line| line.strip_prefix("0::/"));
    own.is_some_and(|own| Path::new("/sys/fs/cgroup").join(own).join("memory.swap.max").exists())
}

/// What pods on this machine may learn of it; `root` is where their volumes are.
///
/// # Errors
/// When the kernel does not tell.
pub fn info(root: &Path) -> Result<NodeInfo, Error> {
    let path = Path::new("/proc/meminfo");
    let text =
        std::fs::read_to_string(path).map_err(|source| Error::Meminfo { path: path.to_owned(), source })?;
    let memory = mem_total(&text).ok_or_else(|| Error::NoMemTotal { path: path.to_owned() })?;
    let cpus = std::thread::available_parallelism().map_err(Error::Cpus)?.get();
    let name = rustix::system::uname().nodename().to_string_lossy().to_lowercase();
    // The root folder may not be there yet.
    let there = root.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    let space = rustix::fs::statvfs(there)
        .map_err(|errno| Error::Space { path: there.to_owned(), source: errno.into() })?;
    let ephemeral = i64::try_from(space.f_blocks.saturating_mul(space.f_frsize)).unwrap_or(i64::MAX);
    Ok(NodeInfo {
        name,
        ips: addresses(),
        cluster_domain: CLUSTER_DOMAIN.to_owned(),
        cpu: i64::try_from(cpus).unwrap_or(i64::MAX).saturating_mul(1000),
        memory,
        ephemeral,
        ..NodeInfo::default()
    })
}

/// The addresses that this machine would speak from to others. Nothing is sent: connecting a UDP
/// socket only looks up the route, and a machine without one has no address to tell.
fn addresses() -> Vec<String> {
    let v4 = (Ipv4Addr::UNSPECIFIED.into(), IpAddr::from(Ipv4Addr::new(192, 0, 2, 1)));
    let v6 = (Ipv6Addr::UNSPECIFIED.into(), IpAddr::from(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)));
    let from = |(any, far): (IpAddr, IpAddr)| {
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect((far, 9)).ok()?;
        let ip = socket.local_addr().ok()?.ip();
        (!ip.is_unspecified() && !ip.is_loopback()).then(|| ip.to_string())
    };
    [v4, v6].into_iter().filter_map(from).collect()
}

/// proc_meminfo(5): `MemTotal:  16316412 kB`.
fn mem_total(meminfo: &str) -> Option<i64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: i64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_tells_what_it_is() {
        let info = info(Path::new("/no/such/root")).unwrap();
        assert!(info.cpu >= 1000 && info.memory > 0 && info.ephemeral > 0, "{info:?}");
        assert_eq!(info.name, info.name.to_lowercase());
    }

    #[test]
    fn memory_is_read_in_bytes() {
        assert_eq!(mem_total("MemTotal:       16316412 kB\nMemFree: 1 kB\n"), Some(16_316_412 * 1024));
        assert_eq!(mem_total("MemFree: 1 kB\n"), None);
    }
}
