//! A real control plane with one node: etcd, API server, controller manager and scheduler of Kubernetes 1.36, a runtime,
//! and a kubelet, Gantry's or upstream's. Owns their order, start and end; what they are started with is in the files
//! beside. Never runs in the host's own namespaces. Called by `cargo xtask cluster` and the tier cluster.

pub mod addons;
pub mod audit;
pub mod bus;
mod control_plane;
pub mod csi;
pub mod going;
pub mod harness;
pub mod images;
pub mod isolation;
pub mod kubeadm;
pub mod kubectl;
pub mod kubelet;
pub mod lives;
pub mod network;
mod pki;
pub mod power;
pub mod process;
pub mod programs;
pub mod records;
pub mod runtime;
pub mod watched;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use self::control_plane::{API_PORT, ControlPlane, Folders};
use self::isolation::NodeIsolation;
use self::kubectl::Kubectl;
use self::kubelet::Kubelet;
use self::network::{NodeNetwork, Outside};
use self::pki::{CertificateSubjects, Pki};
use self::process::NodeProcess;
use self::runtime::ClusterRuntime;
use crate::cri::Cri;
use crate::leakcheck;
use crate::poll::poll;
use crate::registry::Registry;

/// The node's name.
pub const NODE: &str = "gantry-node";

/// What a cluster is to be.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// Everything is below it: sockets of its own, logs, pids, disks. Empty, or of an earlier cluster that ended.
    pub folder: PathBuf,
    pub runtime: runtime::RuntimeKind,
    /// None leaves the node unjoined.
    pub kubelet: Option<kubelet::KubeletKind>,
    /// kube-proxy, CoreDNS and metrics-server.
    pub addons: bool,
    /// Chooses the node's address among clusters on one machine.
    pub number: u8,
    pub outside: Outside,
    pub join: Join,
    /// Fields of KubeletConfiguration beside and instead of those that every cluster's kubelet has.
    pub settings: serde_json::Map<String, serde_json::Value>,
}

/// How the node comes to its certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Join {
    /// It has them, and they are good for years
    Given,
    /// With nothing but a token it asks for them; what is signed in this cluster lives so long
    Asked(Duration),
}

/// What stands below any kubelet: folders, network, images and a runtime. Upstream's node suite brings the rest itself.
#[derive(Debug)]
pub struct NodeBase {
    // Dropped in this order: who depends on the others goes first.
    runtime: ClusterRuntime,
    _registry: Registry,
    network: NodeNetwork,
    place: NodeIsolation,
    ended: bool,
}

impl Drop for NodeBase {
    fn drop(&mut self) {
        if !self.ended {
            // Something failed and is told already; what this leaves shows in the leak check.
            self.finish(&mut Errors::default());
        }
    }
}

impl NodeBase {
    /// Makes all of it and waits until the runtime is ready.
    ///
    /// # Errors
    /// When this is no place for a cluster, a program or an image is not built, or the runtime does not come up.
    pub fn make(folder: &Path, runtime: runtime::RuntimeKind, number: u8, outside: &Outside) -> Result<Self> {
        let logs = folder.join("log");
        std::fs::create_dir_all(&logs).with_context(|| format!("make {}", logs.display()))?;
        let place = NodeIsolation::enter(folder)?;
        let network = NodeNetwork::make(folder, number, outside)?;
        let registry = images::serve()?;
        let runtime = ClusterRuntime::start(runtime, folder, &logs)?;
        Ok(Self { runtime, _registry: registry, network, place, ended: false })
    }

    /// The runtime.
    pub fn runtime(&mut self) -> &mut ClusterRuntime {
        &mut self.runtime
    }

    /// Ends pods, runtime, mounts and links.
    ///
    /// # Errors
    /// With all that could not be ended.
    pub fn end(mut self) -> Result<()> {
        let mut errors = Errors::default();
        self.finish(&mut errors);
        errors.result()
    }

    fn finish(&mut self, errors: &mut Errors) {
        self.ended = true;
        errors.note("end the runtime", self.runtime.end());
        errors.note("leave the folders", self.place.leave());
        errors.note("remove the network", self.network.remove());
        errors.note("remove the kubelet's cgroups", remove_cgroups());
    }
}

/// What went wrong on the way down, which goes on.
#[derive(Debug, Default)]
struct Errors(Vec<String>);

impl Errors {
    fn note(&mut self, what: &str, done: Result<()>) {
        if let Err(error) = done {
            self.0.push(format!("{what}: {error:#}"));
        }
    }

    fn result(self) -> Result<()> {
        if self.0.is_empty() { Ok(()) } else { bail!("{}", self.0.join("\n")) }
    }
}

/// A running cluster; what is left of it on drop is killed with its place.
#[derive(Debug)]
pub struct Cluster {
    // As in NodeBase.
    kubelet: Mutex<Option<Kubelet>>,
    control_plane: ControlPlane,
    ground: NodeBase,
    kubectl: Kubectl,
    pki: Pki,
    options: ClusterOptions,
}

impl Cluster {
    /// Starts everything and waits until the node is ready, when there is to be one.
    ///
    /// # Errors
    /// As [`NodeBase::make`], or when the control plane or the node does not come up; with the end of the log of what did
    /// not.
    pub fn start(options: ClusterOptions) -> Result<Self> {
        let folder = options.folder.as_path();
        let ground = NodeBase::make(folder, options.runtime, options.number, &options.outside)?;
        let (node_ip, server) = (node_ip(&options), server(&options));
        let facts = CertificateSubjects {
            server: &server,
            node: NODE,
            node_ip: node_ip.into(),
            service_ip: network::API,
        };
        let pki = Pki::make(folder, &facts)?;
        let kubectl = Kubectl::new(pki.kubeconfig("admin"))?;
        let logs = folder.join("log");
        let folders = Folders { root: folder, logs: &logs };
        let control_plane =
            ControlPlane::start(&folders, &pki, &node_ip.to_string(), options.join, &kubectl)?;
        kubectl.apply(&addons::rights()).context("give rights")?;
        let mut cluster = Self { kubelet: Mutex::new(None), control_plane, ground, kubectl, pki, options };
        if cluster.options.addons {
            cluster.add_addons()?;
        }
        if let Some(kind) = cluster.options.kubelet {
            cluster.start_kubelet(kind)?;
            cluster.await_ready()?;
        }
        Ok(cluster)
    }

    fn add_addons(&self) -> Result<()> {
        let server = server(&self.options);
        for (name, objects) in [
            ("kube-proxy", addons::proxy(&server)),
            ("CoreDNS", addons::dns()),
            ("metrics-server", addons::metrics(addons::KubeletTrust::Cluster)),
        ] {
            self.kubectl.apply(&objects).with_context(|| format!("add {name}"))?;
        }
        Ok(())
    }

    /// kubectl as its administrator.
    #[must_use]
    pub fn kubectl(&self) -> &Kubectl {
        &self.kubectl
    }

    /// A kubeconfig: of `admin`, `node`, `bootstrap`, `controller-manager` or `scheduler`.
    #[must_use]
    pub fn kubeconfig(&self, user: &str) -> PathBuf {
        self.pki.kubeconfig(user)
    }

    /// The API server's address.
    #[must_use]
    pub fn server(&self) -> String {
        server(&self.options)
    }

    /// The folder with everything in it.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.options.folder
    }

    /// Every request that anyone made: a line of JSON each.
    #[must_use]
    pub fn audit_log(&self) -> PathBuf {
        control_plane::audit_log(&self.options.folder)
    }

    /// The runtime.
    pub fn runtime(&mut self) -> &mut ClusterRuntime {
        &mut self.ground.runtime
    }

    /// The node's name: one that asks for its certificates is told no other than its host's.
    #[must_use]
    pub fn node(&self) -> String {
        match self.options.join {
            Join::Given => NODE.to_owned(),
            Join::Asked(_) => rustix::system::uname().nodename().to_string_lossy().to_lowercase(),
        }
    }

    /// Which runtime it has.
    #[must_use]
    pub fn runtime_kind(&self) -> runtime::RuntimeKind {
        self.options.runtime
    }

    /// The runtime's CRI.
    #[must_use]
    pub fn cri(&self) -> &Cri {
        self.ground.runtime.cri()
    }

    /// The kubelet.
    ///
    /// # Errors
    /// When there is none.
    pub fn kubelet(&mut self) -> Result<&mut Kubelet> {
        self.own_kubelet().as_mut().context("the cluster has no kubelet")
    }

    fn own_kubelet(&mut self) -> &mut Option<Kubelet> {
        self.kubelet.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kills the kubelet and starts it again, beside whatever else is done with the cluster.
    ///
    /// # Errors
    /// When there is none, or it cannot be killed or started.
    pub fn kill_kubelet(&self) -> Result<()> {
        let mut kubelet = self.kubelet.lock().unwrap_or_else(PoisonError::into_inner);
        let process = kubelet.as_mut().context("the cluster has no kubelet")?.process();
        process.kill()?;
        process.restart()
    }

    /// A process of the control plane by its name, to be killed and started again.
    ///
    /// # Errors
    /// When it has no such process.
    pub fn control_plane(&mut self, name: &str) -> Result<&mut NodeProcess> {
        self.control_plane.process(name)
    }

    /// Stops the kubelet, as an operator does before an upgrade: its pods run on.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub fn stop_kubelet(&mut self) -> Result<()> {
        let Some(mut kubelet) = self.own_kubelet().take() else { return Ok(()) };
        kubelet.process().stop()?;
        if kubelet.kind() == kubelet::KubeletKind::Node {
            self.ground.runtime.take_over()?;
        }
        Ok(())
    }

    /// Starts a kubelet on the same folders and socket as the one before.
    ///
    /// # Errors
    /// When one runs, or it cannot be started.
    pub fn start_kubelet(&mut self, kind: kubelet::KubeletKind) -> Result<()> {
        if self.own_kubelet().is_some() {
            bail!("a kubelet runs already");
        }
        let logs = self.options.folder.join("log");
        let facts = kubelet::KubeletOptions {
            folder: &self.options.folder,
            logs: &logs,
            node: NODE,
            node_ip: &node_ip(&self.options).to_string(),
            runtime: self.options.runtime,
            join: self.options.join,
            settings: &self.options.settings,
        };
        if kind == kubelet::KubeletKind::Node {
            self.ground.runtime.give_way()?;
        }
        let kubelet = Kubelet::start(kind, &facts, &self.pki)?;
        *self.own_kubelet() = Some(kubelet);
        Ok(())
    }

    /// Waits until the node is ready, and with addons until they are, too.
    ///
    /// # Errors
    /// After two minutes, or when something has ended by itself.
    pub fn await_ready(&mut self) -> Result<()> {
        let path = r#"{.status.conditions[?(@.type=="Ready")].status}"#;
        let node = ["get", "node", &self.node()];
        let ready = self.kubectl.await_value(&node, path, WAIT, |value| value == "True");
        self.check()?;
        ready.with_context(|| self.kubelet_log())?;
        if self.options.addons {
            let rollouts =
                [["rollout", "status", "daemonset/kube-proxy"], ["rollout", "status", "deployment"]];
            for args in rollouts {
                let waited =
                    self.kubectl.run(&[&args[..], &["-n", "kube-system", "--timeout=180s"]].concat());
                waited.with_context(|| self.kubelet_log())?;
            }
            let args =
                ["wait", "--for=condition=Available", "apiservice/v1beta1.metrics.k8s.io", "--timeout=120s"];
            self.kubectl.run(&args)?;
        }
        Ok(())
    }

    /// Fails when a program has ended by itself.
    ///
    /// # Errors
    /// Then, with the end of its log.
    pub fn check(&mut self) -> Result<()> {
        self.control_plane.check()?;
        self.ground.runtime.process().check()?;
        self.own_kubelet().as_mut().map_or(Ok(()), |kubelet| kubelet.process().check())
    }

    fn kubelet_log(&self) -> String {
        crate::node::tail(&self.options.folder.join("log/kubelet.log"))
    }

    /// Ends everything: pods, programs, mounts, links. Its folder stays, with logs and disks.
    ///
    /// # Errors
    /// With all that could not be ended.
    pub fn end(mut self) -> Result<()> {
        let mut errors = Errors::default();
        errors.note("stop the kubelet", self.stop_kubelet());
        errors.note("stop the control plane", self.control_plane.stop());
        self.ground.finish(&mut errors);
        errors.result()
    }
}

const WAIT: Duration = Duration::from_secs(120);

fn node_ip(options: &ClusterOptions) -> std::net::Ipv4Addr {
    network::addresses(options.number).0
}

/// The API server's address, from the node and from outside.
fn server(options: &ClusterOptions) -> String {
    format!("https://{}:{API_PORT}", node_ip(options))
}

/// The kubelet keeps `/kubepods` and its classes beyond its own end, upstream's also the one that it is told to run in
/// (the node suite says `/kubelet.slice`), Gantry's runtime its monitors' cgroup.
fn remove_cgroups() -> Result<()> {
    poll("the cgroups to be empty", Duration::from_secs(10), || {
        ["kubepods", "kubelet.slice", "gantry-monitors"]
            .into_iter()
            .try_for_each(leakcheck::remove_node_cgroups)
            .map_err(|error| format!("{error:#}"))
    })
}
