//! What the agent must know of its machine. Owns reading it once at start; never watches
//! it: the addresses and the labels are told by whoever follows the Node object. Called by the command line, which
//! hands it to the runtime client.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gantry_cgroup::Layout;
use gantry_model::cgroup::limits::Rules;
use k8s_openapi::api::core::v1::Node;
use tokio::sync::watch;

use crate::cgroups::page_sizes;
use crate::dns::Resolver;
use crate::dns::source::Source;
use crate::runtime::cri::{NodeConfig, REQUEST_TIMEOUT};

/// Of services; only names of pods with a subdomain show it here.
const CLUSTER_DOMAIN: &str = "cluster.local";

const RESOLV_CONF: &str = "/etc/resolv.conf";
/// Where systemd-resolved keeps the name servers behind its own on 127.0.0.53.
const RESOLVED: &str = "/run/systemd/resolve/resolv.conf";

/// What pods may learn of their node.
#[derive(Debug, Clone, Default)]
pub struct NodeInfo {
    /// Lower case.
    pub name: String,
    /// Of the node, for its pods.
    pub ips: HostIps,
    /// Of the Node object.
    pub labels: NodeLabels,
    /// Of services; pods with a subdomain have it in their names.
    pub cluster_domain: String,
    /// Thousandths of a core that pods may have; so are the two below.
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
    /// The gate `PodLevelResources` is closed: pods that ask as a whole are not run here.
    pub no_pod_level: bool,
    /// Whether the kernel has AppArmor enabled.
    pub app_armor: bool,
    /// Handlers of the runtime that make user namespaces; the default one is the empty text.
    pub user_namespaces: BTreeSet<String>,
    /// Where pods' resolvers come from, to tell what is missing.
    pub resolver: Arc<Resolver>,
}

/// Whether the kernel has AppArmor enabled; it does not change its mind.
#[must_use]
pub fn has_app_armor() -> bool {
    let text = std::fs::read_to_string("/sys/module/apparmor/parameters/enabled");
    text.is_ok_and(|text| text.starts_with('Y'))
}

/// The node's addresses: primary first, then that of the other family; none on a machine without a
/// network, or before a cloud has given any. They may come and change while pods run.
#[derive(Debug, Clone)]
pub struct HostIps(watch::Receiver<Vec<String>>);

impl HostIps {
    /// Those that whoever holds the sender tells.
    #[must_use]
    pub fn channel(first: Vec<String>) -> (watch::Sender<Vec<String>>, Self) {
        let (sender, receiver) = watch::channel(first);
        (sender, Self(receiver))
    }

    /// As they are now.
    #[must_use]
    pub fn now(&self) -> Vec<String> {
        self.0.borrow().clone()
    }

    /// Until they change; cancel-safe.
    ///
    /// # Errors
    /// When they never will.
    pub async fn changed(&mut self) -> Result<(), watch::error::RecvError> {
        self.0.changed().await
    }
}

impl Default for HostIps {
    fn default() -> Self {
        Vec::new().into()
    }
}

impl From<Vec<String>> for HostIps {
    fn from(ips: Vec<String>) -> Self {
        Self::channel(ips).1
    }
}

/// The labels of the Node object, as its watch tells them; none before the object is known, and without a cluster.
#[derive(Debug, Clone)]
pub struct NodeLabels(watch::Receiver<ToldLabels>);

/// Absent until somebody knows.
pub type ToldLabels = Option<BTreeMap<String, String>>;

impl NodeLabels {
    /// Those that whoever holds the sender tells.
    #[must_use]
    pub fn channel() -> (watch::Sender<ToldLabels>, Self) {
        let (sender, receiver) = watch::channel(None);
        (sender, Self(receiver))
    }

    /// As they are now.
    #[must_use]
    pub fn now(&self) -> ToldLabels {
        self.0.borrow().clone()
    }
}

impl Default for NodeLabels {
    fn default() -> Self {
        Self::channel().1
    }
}

/// What could not be read.
#[derive(Debug, thiserror::Error)]
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
}

/// What pods may have together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Allocatable {
    /// Thousandths of a core.
    pub cpu: i64,
    /// Bytes.
    pub memory: i64,
    /// Bytes of local storage.
    pub ephemeral: i64,
}

/// What a kubelet is told instead of finding it out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeOverrides {
    /// The node's name, in lower case.
    pub name: Option<String>,
    /// What pods' resolvers are made of, as it is when a pod begins; nothing is in an empty path.
    pub resolv_conf: Option<PathBuf>,
    /// Of services.
    pub cluster_domain: Option<String>,
    /// Name servers of the cluster.
    pub cluster_dns: Vec<String>,
    /// Its addresses until the Node object tells them; an unspecified one is looked for in its family.
    pub ips: Option<Vec<IpAddr>>,
    /// Without what is reserved; all that the machine has without.
    pub allocatable: Option<Allocatable>,
    /// The gate `PodLevelResources` is closed.
    pub no_pod_level: bool,
    /// Burstable pods get a share of the machine's swap, where it can be limited.
    pub limited_swap: bool,
}

/// This machine's facts, with pod logs below `pod_logs_dir`.
///
/// # Errors
/// When /proc/meminfo cannot be read.
pub fn facts(pod_logs_dir: PathBuf, given: &NodeOverrides) -> Result<NodeConfig, Error> {
    let path = Path::new("/proc/meminfo");
    let text =
        std::fs::read_to_string(path).map_err(|source| Error::Meminfo { path: path.to_owned(), source })?;
    let memory_capacity = mem_total(&text).ok_or_else(|| Error::NoMemTotal { path: path.to_owned() })?;
    let cluster_domain = given.cluster_domain.clone().unwrap_or_else(|| CLUSTER_DOMAIN.to_owned());
    let resolver = Resolver {
        source: resolv_conf(given),
        cluster: given.cluster_dns.clone(),
        cluster_domain: cluster_domain.clone(),
    };
    let cgroup_v2 = Layout::detect().is_ok_and(|layout| layout.is_unified());
    Ok(NodeConfig {
        pod_logs_dir,
        memory_capacity,
        page_sizes: page_sizes(),
        resolver: Arc::new(resolver),
        cgroup_v2,
        swap: counts_swap(cgroup_v2),
        limited_swap: (given.limited_swap && can_limit_swap())
            .then(|| bytes_of(&text, "SwapTotal:").unwrap_or(0)),
        seccomp_default: false,
        seccomp_root: "/var/lib/kubelet/seccomp".into(),
        cluster_domain,
        rules: Rules::default(),
        request_timeout: REQUEST_TIMEOUT,
    })
}

/// A configuration that is named is taken as it is, and an empty name is none at all.
fn resolv_conf(given: &NodeOverrides) -> Source {
    match &given.resolv_conf {
        None => Source::Machine { host: RESOLV_CONF.into(), behind: RESOLVED.into() },
        Some(path) if path.as_os_str().is_empty() => Source::Nowhere(given.ips.clone().unwrap_or_default()),
        Some(path) => Source::File(path.clone()),
    }
}

/// Whether containers can have a part of the swap: cgroup v2 alone says how much.
#[must_use]
pub fn can_limit_swap() -> bool {
    Layout::detect().is_ok_and(|layout| layout.is_unified()) && counts_swap(true)
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
        cluster_domain: CLUSTER_DOMAIN.to_owned(),
        cpu: i64::try_from(cpus).unwrap_or(i64::MAX).saturating_mul(1000),
        memory,
        ephemeral,
        app_armor: has_app_armor(),
        ..NodeInfo::default()
    })
}

/// Those that were given; else the one that this machine would speak from to others, which is what it
/// calls itself as a node.
#[must_use]
pub fn addresses(given: Option<&[IpAddr]>) -> Vec<String> {
    let ips: Vec<IpAddr> = match given {
        None => outward(true).or_else(|| outward(false)).into_iter().collect(),
        Some(ips) => ips
            .iter()
            .filter_map(|ip| if ip.is_unspecified() { outward(ip.is_ipv4()) } else { Some(*ip) })
            .collect(),
    };
    ips.iter().map(ToString::to_string).collect()
}

/// Of that family. Nothing is sent: connecting a UDP socket only looks up the route, and a machine
/// without one has no address to tell.
fn outward(v4: bool) -> Option<IpAddr> {
    let (any, far): (IpAddr, IpAddr) = if v4 {
        (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(192, 0, 2, 1).into())
    } else {
        (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into())
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((far, 9)).ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_unspecified() && !ip.is_loopback()).then_some(ip)
}

/// As upstream's GetNodeHostIPs: the first internal address, else the first external one, and the first
/// of the other family.
#[must_use]
pub fn host_ips(node: &Node) -> Vec<String> {
    let addresses = || node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    let of = |kind: &'static str| {
        addresses().filter(move |a| a.type_ == kind).filter_map(|a| a.address.parse::<IpAddr>().ok())
    };
    let mut all = of("InternalIP").chain(of("ExternalIP"));
    let Some(primary) = all.next() else { return Vec::new() };
    let other = all.find(|ip| ip.is_ipv4() != primary.is_ipv4());
    [Some(primary), other].into_iter().flatten().map(|ip| ip.to_string()).collect()
}

/// proc_meminfo(5): `MemTotal:  16316412 kB`.
fn mem_total(meminfo: &str) -> Option<i64> {
    bytes_of(meminfo, "MemTotal:")
}

fn bytes_of(meminfo: &str, name: &str) -> Option<i64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    let kilobytes: i64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{NodeAddress, NodeStatus};

    use super::*;

    #[test]
    fn this_machine_tells_what_it_is() {
        let info = info(Path::new("/no/such/root")).unwrap();
        assert!(info.cpu >= 1000 && info.memory > 0 && info.ephemeral > 0, "{info:?}");
        assert_eq!(info.name, info.name.to_lowercase());
    }

    #[test]
    fn a_resolver_that_is_named_is_taken_as_it_is_and_an_empty_name_is_none() {
        let ip: IpAddr = "fd00::9".parse().unwrap();
        let of = |path: Option<&str>| {
            resolv_conf(&NodeOverrides {
                resolv_conf: path.map(PathBuf::from),
                ips: Some(vec![ip]),
                ..NodeOverrides::default()
            })
        };
        assert_eq!(of(Some("/run/x")), Source::File("/run/x".into()));
        assert_eq!(of(Some("")), Source::Nowhere(vec![ip]));
        assert!(matches!(of(None), Source::Machine { .. }));
    }

    #[test]
    fn given_addresses_are_told_as_they_are() {
        let given = |texts: &[&str]| {
            let ips: Vec<IpAddr> = texts.iter().map(|text| text.parse().unwrap()).collect();
            addresses(Some(&ips))
        };
        assert_eq!(given(&["192.168.56.11", "fd00::1"]), ["192.168.56.11", "fd00::1"]);
        assert_eq!(given(&[]), [""; 0]);
        assert_eq!(given(&["0.0.0.0"]), outward(true).iter().map(ToString::to_string).collect::<Vec<_>>());
        assert!(addresses(None).len() <= 1, "of one family");
    }

    #[test]
    fn host_ips_are_those_of_the_node_object_one_of_each_family() {
        let of = |addresses: &[(&str, &str)]| {
            let addresses = addresses
                .iter()
                .map(|(kind, ip)| NodeAddress { type_: (*kind).to_owned(), address: (*ip).to_owned() });
            let status = NodeStatus { addresses: Some(addresses.collect()), ..NodeStatus::default() };
            host_ips(&Node { status: Some(status), ..Node::default() })
        };
        let mixed = [
            ("Hostname", "10.0.0.9"),
            ("ExternalIP", "203.0.113.1"),
            ("ExternalIP", "2001:db8::1"),
            ("InternalIP", "192.168.56.11"),
            ("InternalIP", "10.0.2.15"),
        ];
        assert_eq!(of(&mixed), ["192.168.56.11", "2001:db8::1"]);
        assert_eq!(of(&[("ExternalIP", "203.0.113.1"), ("InternalIP", "x")]), ["203.0.113.1"]);
        assert_eq!(of(&[("Hostname", "n1")]), [""; 0]);
    }

    #[test]
    fn memory_is_read_in_bytes() {
        assert_eq!(mem_total("MemTotal:       16316412 kB\nMemFree: 1 kB\n"), Some(16_316_412 * 1024));
        assert_eq!(mem_total("MemFree: 1 kB\n"), None);
        assert_eq!(bytes_of("MemTotal: 1 kB\nSwapTotal:       2 kB\n", "SwapTotal:"), Some(2048));
    }
}
