//! What a join looks at on this machine. Owns reading; changes nothing but that kubeadm is asked for its version. Called
//! by [`super`].

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use gantry_cgroup::Layout;
use gantry_proto::cri::{self, RuntimeConfigRequest};

use super::discovery::Endpoint;
use super::facts::{CgroupDriver, ClusterFacts, JoinHost, JoinRequest, release};
use super::record::Before;
use super::step::sysctl_path;
use super::{kubeadm, plan};
use crate::client;
use crate::runtime_client;

/// For the runtime's answer.
const ANSWER: Duration = Duration::from_secs(5);
/// What kubeadm and kubelets leave, in the order in which kubeadm's checks look.
const TRACES: [&str; 4] = [
    "/etc/kubernetes/kubelet.conf",
    "/etc/kubernetes/bootstrap-kubelet.conf",
    "/etc/kubernetes/pki/ca.crt",
    "/var/lib/kubelet/config.yaml",
];
/// Folders that kubeadm, kubelets and networks make and `kubeadm reset` empties at most, inner ones first.
const THEIRS: [&str; 9] = [
    "/etc/kubernetes/pki",
    "/etc/kubernetes/manifests",
    "/etc/kubernetes/tmp",
    "/etc/kubernetes",
    "/var/lib/kubelet",
    "/var/log/containers",
    "/var/log/pods",
    "/var/lib/cni/results",
    "/var/lib/cni",
];
/// Where configurations of networks are.
pub(crate) const CNI_CONF: &str = "/etc/cni/net.d";

/// The machine before a join.
pub(super) async fn machine(cluster: &ClusterFacts, wanted: &JoinRequest) -> JoinHost {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let endpoint = resolve(&cluster.endpoint).await;
    let kubeadm = find("kubeadm").map(|path| {
        let known = kubeadm::version(&path).ok().and_then(|text| release(&text));
        (path, known)
    });
    JoinHost {
        root: rustix::process::geteuid().is_root(),
        kubeadm,
        kubelet: find("kubelet").map(|path| {
            let own = is_this(&path);
            (path, own)
        }),
        overlay: read("/proc/filesystems").lines().any(|line| line.ends_with("\toverlay")),
        br_netfilter: Path::new("/proc/sys/net/bridge").exists(),
        nf_conntrack: Path::new("/proc/sys/net/netfilter/nf_conntrack_max").exists(),
        sysctls: values(&plan::SETTINGS),
        unified: Layout::detect().is_ok_and(|layout| layout.is_unified()),
        swap: read("/proc/swaps").lines().skip(1).any(|line| !line.trim().is_empty()),
        folders: plan::FOLDERS.iter().map(PathBuf::from).filter(|path| path.is_dir()).collect(),
        files: plan::FILES
            .iter()
            .filter_map(|path| Some((PathBuf::from(path), std::fs::read_to_string(path).ok()?)))
            .collect(),
        server: resolve(&cluster.server).await,
        way: endpoint.first().and_then(|ip| way(SocketAddr::new(*ip, cluster.endpoint.port))),
        endpoint,
        traces: TRACES.iter().map(PathBuf::from).filter(|path| path.exists()).collect(),
        runtime: driver(&wanted.cri_socket).await.map_err(|error| format!("{error:#}")),
    }
}

/// What others will change, as it is now.
///
/// # Errors
/// When the kernel does not tell.
pub(super) fn before(cluster: &ClusterFacts) -> Result<Before> {
    Ok(Before {
        cni: configurations(),
        absent: THEIRS.iter().map(PathBuf::from).filter(|path| !path.exists()).collect(),
        sysctls: values(&super::FOREIGN.map(|(name, _)| name))
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
        tables: gantry_cni::leftovers::tables()?,
        pod_subnets: cluster.pod_subnets.clone(),
    })
}

/// The files of the networks' folder.
pub(crate) fn configurations() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(CNI_CONF).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).filter(|path| !path.is_dir()).collect();
    paths.sort();
    paths
}

fn values(names: &[&'static str]) -> BTreeMap<&'static str, String> {
    let value = |name| Some((name, std::fs::read_to_string(sysctl_path(name)).ok()?.trim().to_owned()));
    names.iter().copied().filter_map(value).collect()
}

/// A program in PATH, or in root's folders, which sudo may leave out.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    folders.map(|folder| folder.join(name)).find(|path| path.is_file())
}

pub(crate) fn is_this(path: &Path) -> bool {
    let own = std::env::current_exe().and_then(std::fs::canonicalize);
    own.and_then(|own| Ok(own == std::fs::canonicalize(path)?)).unwrap_or(false)
}

async fn resolve(endpoint: &Endpoint) -> Vec<IpAddr> {
    let found = tokio::net::lookup_host((endpoint.host.as_str(), endpoint.port)).await;
    found.into_iter().flatten().map(|address| address.ip()).collect()
}

/// Connecting a datagram socket sends nothing: the kernel chooses the way alone.
fn way(to: SocketAddr) -> Option<IpAddr> {
    let any = if to.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(to).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

async fn driver(socket: &str) -> Result<CgroupDriver> {
    let ask = async {
        let mut runtime = runtime_client::runtime(client::connect(socket).await?);
        let answer = runtime_client::answer(runtime.runtime_config(RuntimeConfigRequest {}).await)?;
        let linux = answer.linux.context("it tells no cgroup driver")?;
        Ok(match linux.cgroup_driver() {
            cri::CgroupDriver::Systemd => CgroupDriver::Systemd,
            cri::CgroupDriver::Cgroupfs => CgroupDriver::Cgroupfs,
        })
    };
    tokio::time::timeout(ANSWER, ask).await.context("no answer")?
}
