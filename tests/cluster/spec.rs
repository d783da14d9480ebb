//! One spec's surroundings: a namespace of its own, and the check that nothing of it is left on the node. Owns both;
//! asserts nothing else. Called by `main` around each spec.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use gantry_proto::cri;
use gantry_tests::cluster::Cluster;
use gantry_tests::cluster::going::Going;
use gantry_tests::cluster::kubectl::Kubectl;
use gantry_tests::leakcheck::mounts;
use gantry_tests::poll::{poll, poll_every};
use serde_json::{Value, json};

/// How long a pod may take to where a spec wants it: an image is pulled, a machine is shared.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// A cluster and a namespace in it.
#[derive(Debug)]
pub(crate) struct Spec<'a> {
    cluster: &'a Cluster,
    pub(crate) namespace: String,
}

/// A pod of one busybox container, which a script in its shell keeps alive; it ends within a second.
pub(crate) fn pod(name: &str, script: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "labels": { "app": name } },
        "spec": {
            "containers": [{ "name": "main", "image": "busybox", "command": ["sh", "-c", script] }],
            "terminationGracePeriodSeconds": 1,
        },
    })
}

/// A script that does nothing until it is asked to end, and then ends at once.
pub(crate) const IDLE: &str = "trap 'exit 0' TERM; while :; do sleep 1; done";

/// Label of what belongs to a spec and to no namespace.
const MARK: &str = "gantry-spec";

impl Spec<'_> {
    /// Makes the namespace, runs the body, deletes the namespace, looks whether the node is clean.
    pub(crate) fn run(cluster: &Cluster, name: &str, body: fn(&Spec<'_>) -> Result<()>) -> Result<()> {
        let namespace: String = name.replace('_', "-").chars().take(60).collect();
        let spec = Spec { cluster, namespace: namespace.trim_end_matches('-').to_owned() };
        let kubectl = cluster.kubectl();
        kubectl.run(&["create", "namespace", &spec.namespace])?;
        // The controllers give a new namespace its account and its authority a moment later; a pod before that would
        // have to wait for its volume, and say so.
        for (kind, given) in [("serviceaccount", "default"), ("configmap", "kube-root-ca.crt")] {
            let get = ["get", kind, given, "-n", &spec.namespace];
            kubectl.await_value(&get, "{.metadata.name}", PATIENCE, |name| name == given)?;
        }
        let outcome = body(&spec);
        let told = match outcome {
            Err(_) => {
                kubectl.run(&["describe", "pods", "-n", &spec.namespace]).unwrap_or_default() + &spec.logs()
            }
            Ok(()) => String::new(),
        };
        let deleted = kubectl.run(&["delete", "namespace", &spec.namespace, "--timeout=120s"]).map(drop);
        let label = format!("{MARK}={}", spec.namespace);
        let kinds = "storageclasses,persistentvolumes,csidrivers,clusterrolebindings";
        let beside = kubectl.run(&["delete", kinds, "--selector", &label, "--timeout=60s"]).map(drop);
        outcome.with_context(|| told)?;
        deleted?;
        beside?;
        spec.is_clean()
    }

    /// What every container of the namespace has said, as far as it can be had.
    fn logs(&self) -> String {
        let names = self.kubectl(&["get", "pods", "-o", "name"]).unwrap_or_default();
        let one = |name: &str| self.kubectl(&["logs", name, "--all-containers", "--prefix", "--tail=20"]);
        names.lines().map(|name| one(name).unwrap_or_else(|error| format!("{name}: {error:#}\n"))).collect()
    }

    /// kubectl in the namespace.
    pub(crate) fn kubectl(&self, args: &[&str]) -> Result<String> {
        // First: what follows `--` is the container's.
        self.cluster.kubectl().run(&[&["-n", &self.namespace], args].concat())
    }

    /// A call of kubectl in the namespace, not started yet.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        self.cluster.kubectl().command(&[&["-n", &self.namespace], args].concat())
    }

    /// kubectl in the namespace, going on beside the spec.
    pub(crate) fn start(&self, args: &[&str]) -> Result<Going> {
        Going::start(self.command(args))
    }

    /// A folder of the spec's own, which the node sees under the same path; gone with the cluster's.
    pub(crate) fn folder(&self) -> Result<PathBuf> {
        let folder = self.cluster.folder().join("specs").join(&self.namespace);
        std::fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
        Ok(folder)
    }

    /// Every request that anyone made of the API server.
    pub(crate) fn audit_log(&self) -> PathBuf {
        self.cluster.audit_log()
    }

    /// Kills the node's kubelet and starts it again.
    pub(crate) fn kill_kubelet(&self) -> Result<()> {
        self.cluster.kill_kubelet()
    }

    /// The node's name.
    pub(crate) fn node(&self) -> String {
        self.cluster.node()
    }

    /// The administrator's kubectl, for what is not in the namespace.
    pub(crate) fn any(&self) -> &Kubectl {
        self.cluster.kubectl()
    }

    /// Applies an object in the namespace.
    pub(crate) fn apply(&self, mut object: Value) -> Result<()> {
        object["metadata"]["namespace"] = Value::String(self.namespace.clone());
        self.cluster.kubectl().apply(&object).map(drop)
    }

    /// Applies a StorageClass, a PersistentVolume, a CSIDriver or a ClusterRoleBinding, which belong to no namespace, for
    /// as long as the spec runs.
    pub(crate) fn apply_beside(&self, mut object: Value) -> Result<()> {
        object["metadata"]["labels"][MARK] = Value::String(self.namespace.clone());
        self.cluster.kubectl().apply(&object).map(drop)
    }

    /// Applies a pod and waits until it is ready.
    pub(crate) fn start_pod(&self, pod: Value) -> Result<()> {
        let name = format!("pod/{}", pod["metadata"]["name"].as_str().unwrap_or_default());
        self.apply(pod)?;
        self.kubectl(&["wait", "--for=condition=Ready", &name, "--timeout=120s"]).map(drop)
    }

    /// A command in the only container of a pod, through its shell.
    pub(crate) fn shell(&self, pod: &str, script: &str) -> Result<String> {
        self.kubectl(&["exec", pod, "--", "sh", "-c", script])
    }

    /// One value by JSONPath, as it is now.
    pub(crate) fn value(&self, what: &[&str], path: &str) -> Result<String> {
        let args = [&["get"], what, &["-n", &self.namespace]].concat();
        self.cluster.kubectl().value(&args, path)
    }

    /// Waits for a value by JSONPath to be as wanted.
    pub(crate) fn await_that(
        &self,
        what: &[&str],
        path: &str,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<String> {
        let args = [&["get"], what, &["-n", &self.namespace]].concat();
        self.cluster.kubectl().await_value(&args, path, PATIENCE, wanted)
    }

    /// Waits for an event of an object: its reason, and words of its message.
    pub(crate) fn await_event(&self, object: &str, reason: &str, words: &str) -> Result<()> {
        let selector = format!("--field-selector=involvedObject.name={object},reason={reason}");
        let path = r#"{range .items[*]}{.message}{"\n"}{end}"#;
        self.await_that(&["events", &selector], path, |messages| messages.contains(words)).map(drop)
    }

    /// Waits until a pod's log is as wanted: its lines come a moment after the container runs.
    pub(crate) fn await_log(&self, args: &[&str], wanted: impl Fn(&str) -> bool) -> Result<()> {
        poll_every(Duration::from_millis(250), "the log", PATIENCE, || {
            let log = self.kubectl(&[&["logs"], args].concat()).map_err(|error| format!("{error:#}"))?;
            if wanted(&log) { Ok(()) } else { Err(format!("{log:?}")) }
        })
    }

    /// Waits for a value by JSONPath.
    pub(crate) fn await_value(&self, what: &[&str], path: &str, wanted: &str) -> Result<String> {
        let args = [&["get"], what, &["-n", &self.namespace]].concat();
        self.cluster.kubectl().await_value(&args, path, PATIENCE, |value| value == wanted)
    }

    /// No sandbox of the namespace that runs (upstream collects dead ones once a minute), and no mount of a pod that is no more.
    fn is_clean(&self) -> Result<()> {
        let kubectl = self.cluster.kubectl();
        poll("the node to be clean of the namespace", PATIENCE, || {
            let text = |error: anyhow::Error| format!("{error:#}");
            let answer = self.cluster.cri().list_pod_sandbox(cri::ListPodSandboxRequest::default());
            let sandboxes = answer.map_err(|status| status.to_string())?.items;
            let own = |sandbox: &&cri::PodSandbox| {
                sandbox.state() == cri::PodSandboxState::SandboxReady
                    && sandbox.metadata.as_ref().is_some_and(|meta| meta.namespace == self.namespace)
            };
            if let Some(sandbox) = sandboxes.iter().find(own) {
                return Err(format!("sandbox {}", sandbox.id));
            }
            let uids = kubectl.value(&["get", "pods", "-A"], "{.items[*].metadata.uid}").map_err(text)?;
            let all = mounts().map_err(text)?;
            let below = |point: &std::path::Path| -> Option<String> {
                let rest = point.strip_prefix("/var/lib/kubelet/pods").ok()?;
                Some(rest.components().next()?.as_os_str().to_string_lossy().into_owned())
            };
            let stray =
                all.iter().filter_map(|mount| below(&mount.point)).find(|uid| !uids.contains(uid.as_str()));
            match stray {
                Some(uid) => Err(format!("a mount of the pod {uid}, which is no more")),
                None => Ok(()),
            }
        })
    }
}
