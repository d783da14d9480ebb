//! What a join depends on: this machine, the cluster, and what was asked for. Owns the types alone. Filled by
//! [`super::look`] and [`super::cluster`], read by [`super::plan`]. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use super::discovery::Endpoint;

/// Major and minor of a release of Kubernetes.
pub(crate) type Release = (u32, u32);

/// `v1.36.3` and the like.
pub(crate) fn release(text: &str) -> Option<Release> {
    let mut numbers = text.trim().trim_start_matches('v').split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// How the runtime has cgroups made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CgroupDriver {
    Systemd,
    Cgroupfs,
}

impl CgroupDriver {
    /// As a kubelet's configuration has it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Systemd => "systemd",
            Self::Cgroupfs => "cgroupfs",
        }
    }
}

/// This machine, as far as a join cares.
#[derive(Debug, Clone)]
pub(crate) struct JoinHost {
    pub(crate) root: bool,
    /// Path and release of the kubeadm in PATH.
    pub(crate) kubeadm: Option<(PathBuf, Option<Release>)>,
    /// The kubelet in PATH; whether it is this program.
    pub(crate) kubelet: Option<(PathBuf, bool)>,
    pub(crate) overlay: bool,
    pub(crate) br_netfilter: bool,
    pub(crate) nf_conntrack: bool,
    /// Values by name; without those that the kernel has not.
    pub(crate) sysctls: BTreeMap<&'static str, String>,
    /// Cgroup v2 alone.
    pub(crate) unified: bool,
    pub(crate) swap: bool,
    /// Of the folders that a join needs or makes, those that are there.
    pub(crate) folders: Vec<PathBuf>,
    /// Of the files that a join writes, what they say now.
    pub(crate) files: BTreeMap<PathBuf, String>,
    /// What the name in cluster-info stands for here; none where it stands for nothing.
    pub(crate) server: Vec<IpAddr>,
    /// What the endpoint's name stands for here.
    pub(crate) endpoint: Vec<IpAddr>,
    /// The address that packets to the endpoint come from.
    pub(crate) way: Option<IpAddr>,
    /// What shows that this machine is or was a node: paths of kubeadm's.
    pub(crate) traces: Vec<PathBuf>,
    /// The runtime's cgroup driver, or why it does not answer.
    pub(crate) runtime: Result<CgroupDriver, String>,
}

/// The cluster, as its ConfigMaps say.
#[derive(Debug, Clone)]
pub(crate) struct ClusterFacts {
    /// Where this machine asks it.
    pub(crate) endpoint: Endpoint,
    /// Where its nodes reach it.
    pub(crate) server: Endpoint,
    /// `kubernetesVersion` of kubeadm-config.
    pub(crate) version: String,
    /// `networking.podSubnet`, split.
    pub(crate) pod_subnets: Vec<String>,
    pub(crate) kube_proxy: bool,
    pub(crate) kubelet: KubeletConfig,
}

/// What of the ConfigMap kubelet-config may not fit a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct KubeletConfig {
    pub(crate) cgroup_root: String,
    pub(crate) cgroup_driver: String,
    pub(crate) runtime_endpoint: String,
    pub(crate) fail_swap_on: Option<bool>,
    pub(crate) fail_cgroup_v1: Option<bool>,
    pub(crate) client_ca_file: String,
}

/// What was asked for.
#[derive(Debug, Clone)]
pub(crate) struct JoinRequest {
    pub(crate) node_name: Option<String>,
    pub(crate) node_ip: Option<IpAddr>,
    pub(crate) cri_socket: String,
    pub(crate) ignored_checks: Vec<String>,
    /// The hashes of the cluster's authority.
    pub(crate) ca_hashes: Vec<String>,
    /// Known already, or to be made when the time has come.
    pub(crate) token: Option<String>,
}
