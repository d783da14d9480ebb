//! The node's kubelet, upstream's or Gantry's, with one configuration for both. Owns the process and that file; never
//! talks to the API. Called by `cluster`; tests swap one for the other under running pods.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::json;

use super::Join;
use super::network::DNS;
use super::pki::Pki;
use super::process::{NodeProcess, ProcessSpec};
use super::programs;
use super::runtime;
use crate::place;

/// Which one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KubeletKind {
    Upstream,
    Gantry,
    /// `gantry node`: with the runtime in its process, in the place of the cluster's
    Node,
}

/// What a kubelet is started with.
#[derive(Debug)]
pub(super) struct KubeletOptions<'a> {
    pub(super) folder: &'a Path,
    pub(super) logs: &'a Path,
    pub(super) node: &'a str,
    pub(super) node_ip: &'a str,
    pub(super) runtime: runtime::RuntimeKind,
    pub(super) join: Join,
    pub(super) settings: &'a serde_json::Map<String, serde_json::Value>,
}

/// A started one.
#[derive(Debug)]
pub struct Kubelet {
    kind: KubeletKind,
    process: NodeProcess,
}

impl Kubelet {
    /// Writes its configuration and starts it.
    pub(super) fn start(kind: KubeletKind, facts: &KubeletOptions<'_>, pki: &Pki) -> Result<Self> {
        std::fs::create_dir_all(facts.folder.join("manifests"))?;
        let path = facts.folder.join("kubelet.yaml");
        std::fs::write(&path, serde_json::to_vec_pretty(&configuration(facts, pki))?)?;
        let flag = |name: &str, value: &Path| {
            let mut flag = std::ffi::OsString::from(format!("--{name}="));
            flag.push(value);
            flag
        };
        let mut args = vec![flag("config", &path), "--v=2".into()];
        match facts.join {
            Join::Given => args.extend([
                flag("kubeconfig", &pki.kubeconfig("node")),
                flag("hostname-override", Path::new(facts.node)),
                flag("node-ip", Path::new(facts.node_ip)),
            ]),
            // The kubeconfig is where it writes its own: without this flag a kubelet has no API server.
            Join::Asked(_) => args.extend([
                flag("bootstrap-kubeconfig", &pki.kubeconfig("bootstrap")),
                flag("kubeconfig", &facts.folder.join("kubeconfig/joined.conf")),
            ]),
        }
        let spec = match kind {
            KubeletKind::Upstream | KubeletKind::Gantry => {
                ProcessSpec::new("kubelet", program(kind, facts.folder)?, args)
            }
            KubeletKind::Node => {
                let mut words = vec!["node".into()];
                words.extend(runtime::gantry_flags(facts.folder)?);
                words.push("--".into());
                words.extend(args);
                ProcessSpec::new("kubelet", place::bin_dir()?.join("gantry"), words)
            }
        };
        Ok(Self { kind, process: NodeProcess::start(spec, facts.logs)? })
    }

    /// Which one it is.
    #[must_use]
    pub fn kind(&self) -> KubeletKind {
        self.kind
    }

    /// Its process, to be killed and started again.
    pub fn process(&mut self) -> &mut NodeProcess {
        &mut self.process
    }
}

fn program(kind: KubeletKind, folder: &Path) -> Result<PathBuf> {
    Ok(folder_with(kind, folder)?.join("kubelet"))
}

/// A folder with a program of the name `kubelet`: Gantry is a kubelet by its name.
///
/// # Errors
/// When it is not built.
pub fn folder_with(kind: KubeletKind, folder: &Path) -> Result<PathBuf> {
    let (own, program) = match kind {
        KubeletKind::Upstream => ("bin-upstream", programs::path("kubelet")?),
        KubeletKind::Gantry | KubeletKind::Node => ("bin-gantry", place::bin_dir()?.join("gantry")),
    };
    let own = folder.join(own);
    std::fs::create_dir_all(&own)?;
    let named = own.join("kubelet");
    if !named.exists() {
        std::os::unix::fs::symlink(program, &named).with_context(|| named.display().to_string())?;
    }
    Ok(own)
}

/// Upstream's defaults but for what this machine needs: cgroup v1, swap or not, no CAP_SYS_RESOURCE, a disk that is
/// shared with builds.
fn configuration(facts: &KubeletOptions<'_>, pki: &Pki) -> serde_json::Value {
    let mut config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": { "x509": { "clientCAFile": pki.pki("ca.crt") } },
        "cgroupDriver": "cgroupfs",
        "clusterDNS": [DNS],
        "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": format!("unix://{}", facts.runtime.socket().display()),
        "evictionHard": {
            "memory.available": "100Mi",
            // No share of a large disk: on one with little left, no pod would be scheduled.
            "nodefs.available": "200Mi",
            "nodefs.inodesFree": "1%",
            "imagefs.available": "200Mi",
            "imagefs.inodesFree": "1%",
        },
        "failCgroupV1": false,
        "failSwapOn": false,
        "imageGCHighThresholdPercent": 99,
        "imageGCLowThresholdPercent": 98,
        "oomScoreAdj": 0,
        "resolvConf": facts.folder.join("resolv.conf"),
        "staticPodPath": facts.folder.join("manifests"),
    });
    match facts.join {
        Join::Given => {
            config["tlsCertFile"] = json!(pki.pki("kubelet.crt"));
            config["tlsPrivateKeyFile"] = json!(pki.pki("kubelet.key"));
        }
        Join::Asked(_) => {
            config["rotateCertificates"] = json!(true);
            config["serverTLSBootstrap"] = json!(true);
        }
    }
    for (field, value) in facts.settings {
        config[field] = value.clone();
    }
    config
}
