//! etcd, API server, controller manager and scheduler. Owns their flags and their order; never talks to the API itself.
//! Called by `cluster`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use super::Join;
use super::kubectl::{Kubectl, RHYTHM};
use super::network::{NODE_MASK, PODS, SERVICES};
use super::pki::Pki;
use super::process::{NodeProcess, ProcessSpec};
use super::programs;
use crate::poll::poll_every;

/// Where etcd listens, on loopback.
const STORE: &str = "http://127.0.0.1:2379";
pub(super) const API_PORT: u16 = 6443;

/// Who did what, without bodies; the answers only.
const AUDIT: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
";

/// As `hack/local-up-cluster.sh` has them.
const ADMISSION: &str = "NamespaceLifecycle,LimitRanger,ServiceAccount,DefaultStorageClass,DefaultTolerationSeconds,\
    Priority,MutatingAdmissionWebhook,ValidatingAdmissionWebhook,ResourceQuota,NodeRestriction,RuntimeClass";

/// The four processes, in the order they are started.
#[derive(Debug)]
pub(super) struct ControlPlane {
    processes: Vec<NodeProcess>,
}

/// Where they keep things.
pub(super) struct Folders<'a> {
    pub(super) root: &'a Path,
    pub(super) logs: &'a Path,
}

impl ControlPlane {
    /// Starts them and waits until the API server is ready.
    pub(super) fn start(
        folders: &Folders<'_>,
        pki: &Pki,
        node_ip: &str,
        join: Join,
        kubectl: &Kubectl,
    ) -> Result<Self> {
        std::fs::write(folders.root.join("audit-policy.yaml"), AUDIT)?;
        let mut own = Self { processes: Vec::new() };
        let recipes = [
            etcd(folders.root)?,
            api_server(folders.root, pki, node_ip)?,
            controller_manager(pki, join)?,
            scheduler(pki)?,
        ];
        for recipe in recipes {
            own.processes.push(NodeProcess::start(recipe, folders.logs)?);
        }
        own.await_ready(kubectl)?;
        Ok(own)
    }

    fn await_ready(&mut self, kubectl: &Kubectl) -> Result<()> {
        let processes = &mut self.processes;
        poll_every(RHYTHM, "the API server to be ready", Duration::from_secs(120), || {
            for process in processes.iter_mut() {
                if let Err(error) = process.check() {
                    return Ok(Err(error));
                }
            }
            kubectl.run(&["get", "--raw", "/readyz"]).map(|_| Ok(())).map_err(|error| format!("{error:#}"))
        })?
    }

    /// Fails when one has ended by itself.
    pub(super) fn check(&mut self) -> Result<()> {
        self.processes.iter_mut().try_for_each(NodeProcess::check)
    }

    /// One of them: `etcd`, `kube-apiserver`, `kube-controller-manager` or `kube-scheduler`.
    pub(super) fn process(&mut self, name: &str) -> Result<&mut NodeProcess> {
        let found = self.processes.iter_mut().find(|process| process.name() == name);
        found.with_context(|| format!("the control plane has no {name}"))
    }

    /// Ends them, the last one first.
    pub(super) fn stop(&mut self) -> Result<()> {
        for process in self.processes.iter_mut().rev() {
            match process.name() {
                // It would wait a minute for the watches of pods that still run, and for nothing: its store goes next.
                "kube-apiserver" => process.kill()?,
                _ => process.stop().map(drop)?,
            }
        }
        Ok(())
    }
}

fn flag(name: &str, value: impl AsRef<std::ffi::OsStr>) -> std::ffi::OsString {
    let mut flag = std::ffi::OsString::from(format!("--{name}="));
    flag.push(value);
    flag
}

fn etcd(root: &Path) -> Result<ProcessSpec> {
    let args = [
        flag("data-dir", root.join("etcd")),
        flag("listen-client-urls", STORE),
        flag("advertise-client-urls", STORE),
        flag("listen-peer-urls", "http://127.0.0.1:2380"),
        flag("log-level", "warn"),
        "--unsafe-no-fsync".into(),
    ];
    Ok(ProcessSpec::new("etcd", programs::path("etcd")?, args))
}

fn api_server(root: &Path, pki: &Pki, node_ip: &str) -> Result<ProcessSpec> {
    let file = |name: &str, value: &str| flag(name, pki.pki(value));
    let args = [
        flag("etcd-servers", STORE),
        flag("bind-address", "0.0.0.0"),
        flag("advertise-address", node_ip),
        flag("secure-port", API_PORT.to_string()),
        file("tls-cert-file", "apiserver.crt"),
        file("tls-private-key-file", "apiserver.key"),
        file("client-ca-file", "ca.crt"),
        file("kubelet-certificate-authority", "ca.crt"),
        file("kubelet-client-certificate", "apiserver-kubelet-client.crt"),
        file("kubelet-client-key", "apiserver-kubelet-client.key"),
        flag("kubelet-preferred-address-types", "InternalIP"),
        flag("authorization-mode", "Node,RBAC"),
        flag("enable-admission-plugins", ADMISSION),
        "--enable-bootstrap-token-auth".into(),
        "--allow-privileged".into(),
        // No ClusterIP need be reachable from here for metrics-server and webhooks of the API server's own.
        "--enable-aggregator-routing".into(),
        flag("service-cluster-ip-range", SERVICES),
        file("service-account-key-file", "sa.pub"),
        file("service-account-signing-key-file", "sa.key"),
        flag("service-account-issuer", "https://kubernetes.default.svc"),
        flag("service-account-jwks-uri", "https://kubernetes.default.svc/openid/v1/jwks"),
        file("requestheader-client-ca-file", "front-proxy-ca.crt"),
        flag("requestheader-allowed-names", "front-proxy-client"),
        flag("requestheader-username-headers", "X-Remote-User"),
        flag("requestheader-group-headers", "X-Remote-Group"),
        flag("requestheader-extra-headers-prefix", "X-Remote-Extra-"),
        file("proxy-client-cert-file", "front-proxy-client.crt"),
        file("proxy-client-key-file", "front-proxy-client.key"),
        flag("audit-policy-file", root.join("audit-policy.yaml")),
        flag("audit-log-path", root.join("audit.log")),
        flag("audit-log-maxsize", "1000"),
        flag("cert-dir", root.join("pki")),
    ];
    Ok(ProcessSpec::new("kube-apiserver", programs::path("kube-apiserver")?, args))
}

/// Three kubeconfigs with one meaning: to call, to be called, and who may.
fn own_kubeconfig(path: &Path) -> [std::ffi::OsString; 3] {
    ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"].map(|name| flag(name, path))
}

fn controller_manager(pki: &Pki, join: Join) -> Result<ProcessSpec> {
    let file = |name: &str, value: &str| flag(name, pki.pki(value));
    let mut args = vec![
        flag("controllers", "*,bootstrapsigner,tokencleaner"),
        flag("leader-elect", "false"),
        flag("bind-address", "127.0.0.1"),
        file("root-ca-file", "ca.crt"),
        file("service-account-private-key-file", "sa.key"),
        file("cluster-signing-cert-file", "ca.crt"),
        file("cluster-signing-key-file", "ca.key"),
        file("client-ca-file", "ca.crt"),
        file("requestheader-client-ca-file", "front-proxy-ca.crt"),
        "--use-service-account-credentials".into(),
        // An autoscaler looks as often as there may be something new.
        flag("horizontal-pod-autoscaler-sync-period", "5s"),
        "--allocate-node-cidrs".into(),
        flag("cluster-cidr", PODS),
        flag("node-cidr-mask-size", NODE_MASK),
        flag("service-cluster-ip-range", SERVICES),
    ];
    if let Join::Asked(life) = join {
        args.push(flag("cluster-signing-duration", format!("{}s", life.as_secs())));
    }
    args.extend(own_kubeconfig(&pki.kubeconfig("controller-manager")));
    Ok(ProcessSpec::new("kube-controller-manager", programs::path("kube-controller-manager")?, args))
}

fn scheduler(pki: &Pki) -> Result<ProcessSpec> {
    let mut args = vec![flag("leader-elect", "false"), flag("bind-address", "127.0.0.1")];
    args.extend(own_kubeconfig(&pki.kubeconfig("scheduler")));
    Ok(ProcessSpec::new("kube-scheduler", programs::path("kube-scheduler")?, args))
}

/// Where the requests of everyone are written down.
pub(super) fn audit_log(root: &Path) -> PathBuf {
    root.join("audit.log")
}
