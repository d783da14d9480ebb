//! The tests' CSI driver as its users install one: pods on the node, a CSIDriver, a StorageClass. Owns these objects, and
//! what is known of the driver's volumes. Driver and sidecars are this project's own (`tests/go/csi`): the sidecars stand in
//! for upstream's, under the names of upstream's images.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gantry_tests::leakcheck::mounts;
use gantry_tests::poll::poll_every;
use gantry_tests::proc;
use serde_json::{Value, json};

use crate::spec::{PATIENCE, Spec};

const KUBELET: &str = "/var/lib/kubelet";
const DRIVER_POD: &str = "daemonset/driver";

/// A driver that runs on the node.
pub(super) struct InstalledDriver<'a> {
    spec: &'a Spec<'a>,
    /// Of the driver and of its StorageClass.
    pub(super) name: String,
    /// Its volumes and what it knows of them.
    state: PathBuf,
}

impl<'a> InstalledDriver<'a> {
    /// Installs it and waits until the node has it.
    pub(super) fn install(spec: &'a Spec<'a>, name: &str) -> Result<Self> {
        let driver = Self { spec, name: name.to_owned(), state: spec.folder()?.join("state") };
        spec.apply(json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "csi" } }))?;
        spec.apply_beside(json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": { "name": name },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin" },
            "subjects": [{ "kind": "ServiceAccount", "name": "csi", "namespace": spec.namespace }],
        }))?;
        spec.apply_beside(json!({
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSIDriver",
            "metadata": { "name": name },
            "spec": {
                "attachRequired": true,
                "podInfoOnMount": true,
                "fsGroupPolicy": "File",
                "volumeLifecycleModes": ["Persistent", "Ephemeral"],
            },
        }))?;
        spec.apply_beside(json!({
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": { "name": name },
            "provisioner": name,
            "volumeBindingMode": "WaitForFirstConsumer",
            "allowVolumeExpansion": true,
        }))?;
        spec.apply(driver.pods())?;
        spec.kubectl(&["rollout", "status", DRIVER_POD, "--timeout=180s"])?;
        driver.await_on_node(true)?;
        Ok(driver)
    }

    /// Waits until the node's CSINode names it, or does no more.
    pub(super) fn await_on_node(&self, wanted: bool) -> Result<()> {
        let has = |names: &str| names.split(' ').any(|name| name == self.name) == wanted;
        let what = format!("csinode/{}", self.spec.node());
        self.spec.await_that(&[&what], "{.spec.drivers[*].name}", has).map(drop)
    }

    /// As upstream's manifests have them: the sidecars beside the driver.
    fn pods(&self) -> Value {
        let socket = format!("{KUBELET}/plugins/{}", self.name);
        let registered = format!("--kubelet-registration-path={socket}/csi.sock");
        let containers = json!([
            self.container(),
            sidecar("registrar", "csi-node-driver-registrar:v2.16.0", &[&registered]),
            sidecar("provisioner", "csi-provisioner:v6.1.1", &[]),
            sidecar("attacher", "csi-attacher:v4.11.0", &[]),
            sidecar("resizer", "csi-resizer:v2.1.0", &[]),
        ]);
        let host = |name: &str, path: &str, kind: &str| json!({ "name": name, "hostPath": { "path": path, "type": kind } });
        json!({
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": { "name": "driver" },
            "spec": {
                "selector": { "matchLabels": { "app": "driver" } },
                "template": {
                    "metadata": { "labels": { "app": "driver" } },
                    "spec": {
                        "serviceAccountName": "csi",
                        "terminationGracePeriodSeconds": 5,
                        "containers": containers,
                        "volumes": [
                            host("socket", &socket, "DirectoryOrCreate"),
                            host("state", &self.state.display().to_string(), "DirectoryOrCreate"),
                            host("pods", &format!("{KUBELET}/pods"), "Directory"),
                            host("plugins", &format!("{KUBELET}/plugins"), "Directory"),
                            host("registration", &format!("{KUBELET}/plugins_registry"), "Directory"),
                            host("dev", "/dev", "Directory"),
                        ],
                    },
                },
            },
        })
    }

    fn container(&self) -> Value {
        // It does not start while there is a file of that name: so a test keeps it away.
        let script = format!(
            "while [ -e /csi-data-dir/hold ]; do sleep 0.2; done; exec /hostpathplugin --drivername={} --nodeid=$NODE --enable-attach",
            self.name
        );
        let both = |name: &str, path: &str| json!({ "name": name, "mountPath": path, "mountPropagation": "Bidirectional" });
        json!({
            "name": "hostpath",
            "image": "registry.k8s.io/sig-storage/hostpathplugin:v1.17.1",
            "command": ["sh", "-c", script],
            "env": [{ "name": "NODE", "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } }],
            "securityContext": { "privileged": true },
            "volumeMounts": [
                { "name": "socket", "mountPath": "/csi" },
                { "name": "state", "mountPath": "/csi-data-dir" },
                { "name": "dev", "mountPath": "/dev" },
                both("pods", &format!("{KUBELET}/pods")),
                both("plugins", &format!("{KUBELET}/plugins")),
            ],
        })
    }

    /// Kills the driver, and keeps it from starting until [`Self::release`].
    pub(super) fn kill_and_hold(&self) -> Result<()> {
        std::fs::write(self.state.join("hold"), "").context("hold the driver")?;
        let own = format!("--drivername={} ", self.name);
        let is_own =
            |one: &proc::Process| one.name == "hostpathplugin" && proc::command_line(one.pid).contains(&own);
        let found = proc::all()?.into_iter().find(is_own).context("the driver does not run")?;
        proc::kill(found.pid)
    }

    /// Lets the driver start.
    pub(super) fn release(&self) -> Result<()> {
        std::fs::remove_file(self.state.join("hold")).context("let the driver start")
    }

    /// What the driver knows of its volumes.
    pub(super) fn volumes(&self) -> Result<Vec<Value>> {
        let path = self.state.join("state.json");
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let all: serde_json::Map<String, Value> = serde_json::from_str(&text)?;
        Ok(all.into_iter().map(|(_, volume)| volume).collect())
    }

    fn await_volumes(&self, what: &str, wanted: impl Fn(&[Value]) -> bool) -> Result<()> {
        poll_every(Duration::from_millis(500), what, PATIENCE, || {
            let all = self.volumes().map_err(|error| format!("{error:#}"))?;
            if wanted(&all) { Ok(()) } else { Err(format!("{all:?}")) }
        })
    }

    /// Waits until no volume is published, staged or attached, and the cluster has no attachment.
    pub(super) fn await_idle(&self) -> Result<()> {
        let is_idle = |one: &Value| {
            one["node"] == ""
                && one["staged"] == ""
                && one["published"].as_object().is_some_and(|all| all.is_empty())
        };
        self.await_volumes("the volumes to be given back", |all| all.iter().all(is_idle))?;
        self.spec.await_value(&["volumeattachments"], &self.of_attachments("metadata.name"), "")?;
        let in_use = |all: &str| !all.contains(&self.name);
        let node = format!("node/{}", self.spec.node());
        self.spec.await_that(&[&node], "{.status.volumesInUse}", in_use).map(drop)
    }

    /// A field of each of its VolumeAttachments, by JSONPath.
    pub(super) fn of_attachments(&self, field: &str) -> String {
        format!("{{.items[?(@.spec.attacher==\"{}\")].{field}}}", self.name)
    }

    /// Waits until it has no volume at all.
    pub(super) fn await_empty(&self) -> Result<()> {
        self.await_volumes("the volumes to be deleted", <[Value]>::is_empty)
    }

    /// The driver was never asked out of turn, nothing of it is left below the kubelet's folder; then it goes.
    pub(super) fn remove(self) -> Result<()> {
        let said = self.spec.kubectl(&["logs", DRIVER_POD, "--container=hostpath"])?;
        let refused = said.lines().find(|line| line.contains("FailedPrecondition"));
        ensure!(refused.is_none(), "the driver was asked out of turn: {refused:?}");
        let own = PathBuf::from(KUBELET).join("plugins/kubernetes.io/csi").join(&self.name);
        poll_every(Duration::from_millis(500), "the node to be clean of volumes", PATIENCE, || {
            let text = |error: anyhow::Error| format!("{error:#}");
            let below = match std::fs::read_dir(&own) {
                Ok(entries) => entries.count(),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
                Err(error) => return Err(error.to_string()),
            };
            let all = mounts().map_err(text)?;
            let mounted = all.iter().find(|mount| mount.point.starts_with(&own));
            match (below, mounted) {
                (0, None) => Ok(()),
                _ => Err(format!("{below} folders below {}, {mounted:?}", own.display())),
            }
        })?;
        self.spec.kubectl(&["delete", DRIVER_POD, "--timeout=60s"])?;
        self.await_on_node(false)?;
        let socket = PathBuf::from(KUBELET).join("plugins").join(&self.name);
        std::fs::remove_dir_all(&socket).with_context(|| socket.display().to_string())
    }
}

fn sidecar(name: &str, image: &str, more: &[&str]) -> Value {
    let args = [&["--csi-address=/csi/csi.sock"], more].concat();
    json!({
        "name": name,
        "image": format!("registry.k8s.io/sig-storage/{image}"),
        "args": args,
        "securityContext": { "privileged": true },
        "volumeMounts": [
            { "name": "socket", "mountPath": "/csi" },
            { "name": "registration", "mountPath": "/registration" },
        ],
    })
}
