//! What of this node a join depends on. Owns reading it; never judges it, never changes it. Called by [`super`].

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gantry_agent::runtime::cri::driver::{self, Driver};
use gantry_agent::{node, ports};
use gantry_base::mountinfo;
use gantry_cgroup::Layout;

use super::proxy::Proxies;
use super::way::{self, NetworkRoute};
use crate::client;
use crate::doctor::look::{self, CniNetwork};
use crate::join::{self, kubeadm};

/// For a program's or the runtime's whole answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where the node is looked at. Tests have one of their own.
#[derive(Debug, Clone)]
pub(crate) struct HostView {
    /// Before `/proc`, `/sys` and `/etc`.
    pub(crate) root: PathBuf,
    /// `PATH`.
    pub(crate) path: OsString,
    pub(crate) proxies: Proxies,
    /// Of the node, in lower case.
    pub(crate) name: String,
    /// The runtime's, as `unix:///PATH`.
    pub(crate) runtime: String,
    pub(crate) network: CniNetwork,
}

impl HostView {
    /// This machine, with a runtime at `unix:///PATH` and what its CNI folder holds.
    pub(crate) fn here(runtime: String, network: CniNetwork) -> Self {
        // sudo may leave root's folders out.
        let mut path = std::env::var_os("PATH").unwrap_or_default();
        path.push(":/usr/sbin:/sbin");
        Self {
            root: "/".into(),
            path,
            proxies: Proxies::of(|name| std::env::var(name).ok()),
            name: rustix::system::uname().nodename().to_string_lossy().to_lowercase(),
            runtime,
            network,
        }
    }

    fn read(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.root.join(path)).ok()
    }

    fn program(&self, name: &str) -> Option<PathBuf> {
        std::env::split_paths(&self.path).map(|folder| folder.join(name)).find(|path| path.is_file())
    }
}

/// The node, as far as a join cares.
#[derive(Debug, Clone)]
pub(crate) struct JoinNode {
    pub(crate) name: String,
    pub(crate) ports: Vec<Port>,
    /// Devices in use as swap.
    pub(crate) swaps: usize,
    /// Cgroup v2 alone.
    pub(crate) unified: bool,
    /// Whether the cgroup is there that kubelet-config wants to stand below.
    pub(crate) root_of_cgroups: bool,
    /// Whether systemd is the init.
    pub(crate) systemd: bool,
    pub(crate) endpoint: String,
    /// The cgroup driver that it says; none when it does not know the question.
    pub(crate) runtime: Result<Option<Driver>, String>,
    pub(crate) kubeadm: Kubeadm,
    /// The kubelet in PATH; whether it is this program.
    pub(crate) kubelet: Option<(PathBuf, bool)>,
    /// Programs that kubeadm wants and that are not in PATH.
    pub(crate) missing: Vec<&'static str>,
    /// Files of a join that was made before.
    pub(crate) joined: Vec<PathBuf>,
    pub(crate) network: CniNetwork,
    pub(crate) proxies: Proxies,
    /// The address that a kubelet without `--node-ip` takes.
    pub(crate) outward: Option<IpAddr>,
    /// `--node-ip` of KUBELET_EXTRA_ARGS.
    pub(crate) node_ip: Option<String>,
    pub(crate) forwards_v4: Option<bool>,
    pub(crate) forwards_v6: Option<bool>,
}

/// A port that the kubelet or kube-proxy will listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Port {
    pub(crate) number: u16,
    pub(crate) purpose: &'static str,
    /// Without it the node does not work; else only a part of it can't be asked.
    pub(crate) vital: bool,
    pub(crate) holder: Holder,
}

/// Who listens there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Holder {
    Nobody,
    /// As its name and its id.
    Process(String, u32),
    /// Only root sees whose a socket is.
    Hidden,
    /// It can't be told.
    Unknown(String),
}

/// The program that joins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kubeadm {
    Absent,
    /// As `v1.36.3`.
    Version(String),
    /// It does not say its version.
    Broken(PathBuf, String),
}

/// Number, whose, and whether it is vital.
const PORTS: [(u16, &str, bool); 4] = [
    (10250, "the kubelet's API", true),
    (10248, "the kubelet's health", true),
    (10249, "kube-proxy's metrics", false),
    (10256, "kube-proxy's health", false),
];
/// As kubeadm's own checks before a join.
const PROGRAMS: [&str; 3] = ["losetup", "mount", "cp"];
const JOINED: [&str; 3] =
    ["etc/kubernetes/kubelet.conf", "etc/kubernetes/bootstrap-kubelet.conf", "etc/kubernetes/pki/ca.crt"];

/// A table that cannot be read shows none.
fn is_unified(table: &Path) -> bool {
    let mounts = mountinfo::parse(&std::fs::read(table).unwrap_or_default());
    Layout::of(&mounts).is_some_and(|layout| layout.is_unified())
}

/// `root` is `cgroupRoot`, as the cluster's kubelets have it.
pub(crate) async fn look(place: &HostView, root: &str) -> JoinNode {
    let is_on = |path: &str| place.read(path).map(|text| text.trim() != "0");
    JoinNode {
        name: place.name.clone(),
        ports: PORTS
            .iter()
            .map(|(number, purpose, vital)| port(&place.root, *number, purpose, *vital))
            .collect(),
        swaps: look::swaps(&place.root.join("proc/swaps")),
        unified: is_unified(&place.root.join("proc/self/mountinfo")),
        root_of_cgroups: has_cgroup(&place.root.join("sys/fs/cgroup"), root),
        systemd: place.root.join("run/systemd/system").exists(),
        endpoint: place.runtime.clone(),
        runtime: runtime(&place.runtime).await,
        kubeadm: kubeadm(place).await,
        kubelet: place.program("kubelet").map(|path| {
            let own = join::look::is_this(&path);
            (path, own)
        }),
        missing: PROGRAMS.into_iter().filter(|name| place.program(name).is_none()).collect(),
        joined: JOINED.iter().map(|path| place.root.join(path)).filter(|path| path.exists()).collect(),
        network: place.network.clone(),
        proxies: place.proxies.clone(),
        outward: node::addresses(None).first().and_then(|ip| ip.parse().ok()),
        node_ip: place.read("etc/default/kubelet").as_deref().and_then(node_ip),
        forwards_v4: is_on("proc/sys/net/ipv4/ip_forward"),
        forwards_v6: is_on("proc/sys/net/ipv6/conf/default/forwarding"),
    }
}

/// On v1 every hierarchy has it, or none; systemd's has a name of its own.
fn has_cgroup(mounts: &Path, root: &str) -> bool {
    let steps = root.trim_matches('/');
    [mounts.to_owned(), mounts.join("memory")]
        .iter()
        .any(|mount| mount.join(steps).exists() || mount.join(format!("{steps}.slice")).exists())
}

/// From here to the API server.
pub(crate) fn way(place: &HostView, target: IpAddr) -> NetworkRoute {
    way::to(&place.root.join("proc/self"), target)
}

fn port(root: &Path, number: u16, purpose: &'static str, vital: bool) -> Port {
    let proc = root.join("proc");
    let holder = match ports::listener(&proc.join("self"), number) {
        Ok(None) => Holder::Nobody,
        Ok(Some(inode)) => {
            process(&proc, inode).map_or(Holder::Hidden, |(name, pid)| Holder::Process(name, pid))
        }
        Err(error) => Holder::Unknown(error.to_string()),
    };
    Port { number, purpose, vital, holder }
}

/// Of those that may be looked at, the one that has this socket open.
fn process(proc: &Path, inode: u64) -> Option<(String, u32)> {
    let wanted = format!("socket:[{inode}]");
    let pids = std::fs::read_dir(proc).ok()?.flatten();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).find_map(|pid| {
        let folder = proc.join(pid.to_string());
        let mut open = std::fs::read_dir(folder.join("fd")).ok()?.flatten();
        open.any(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to.as_os_str() == wanted.as_str())).then(
            || {
                let name = std::fs::read_to_string(folder.join("comm")).unwrap_or_default();
                (name.trim().to_owned(), pid)
            },
        )
    })
}

async fn runtime(address: &str) -> Result<Option<Driver>, String> {
    let ask = async {
        let channel = client::connect(address).await.map_err(|error| format!("{error:#}"))?;
        driver::of(channel, PATIENCE).await
    };
    match tokio::time::timeout(PATIENCE * 2, ask).await {
        Ok(answer) => answer,
        Err(_) => Err(format!("no answer within {} s", PATIENCE.as_secs() * 2)),
    }
}

async fn kubeadm(place: &HostView) -> Kubeadm {
    let Some(path) = place.program("kubeadm") else { return Kubeadm::Absent };
    let program = path.clone();
    let told = tokio::task::spawn_blocking(move || kubeadm::version(&program));
    let told = match tokio::time::timeout(PATIENCE, told).await {
        Err(_) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
        Ok(Err(error)) => Err(error.to_string()),
        Ok(Ok(told)) => told.map_err(|error| format!("{error:#}")),
    };
    told.map_or_else(|error| Kubeadm::Broken(path, error), Kubeadm::Version)
}

/// The last one wins, as for the kubelet.
fn node_ip(defaults: &str) -> Option<String> {
    let line = defaults.lines().rev().find_map(|line| line.trim().strip_prefix("KUBELET_EXTRA_ARGS="))?;
    let mut words =
        line.split(|c: char| c.is_whitespace() || c == '"' || c == '\'').filter(|word| !word.is_empty());
    let mut found = None;
    while let Some(word) = words.next() {
        if word == "--node-ip" {
            found = words.next().map(str::to_owned);
        } else if let Some(value) = word.strip_prefix("--node-ip=") {
            found = Some(value.to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests;
