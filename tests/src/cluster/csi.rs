//! The tests' CSI driver as its users install one: pods on the node, a CSIDriver, a StorageClass. Owns these objects and
//! the reading of what the driver knows of its volumes; applies nothing. Driver and sidecars are this project's own
//! (`tests/go/csi`): the sidecars stand in for upstream's, under the names of upstream's images. Called by the tiers
//! cluster and disruption, and by `bench::claims`.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::proc;

/// Where kubelets have their things.
pub const KUBELET: &str = "/var/lib/kubelet";
/// The DaemonSet of the driver and its sidecars.
pub const DRIVER_SET: &str = "daemonset/driver";
/// The driver's own container in it.
pub const DRIVER_CONTAINER: &str = "hostpath";
/// A driver does not start while its folder has a file of that name.
const HOLD: &str = "hold";

/// What is installed.
#[derive(Debug, Clone)]
pub struct CsiInstall {
    /// Of the driver, its StorageClass and its rights
    pub name: String,
    pub namespace: String,
    /// Folder of its volumes and of what it knows of them; the node sees it under the same path
    pub state: PathBuf,
    /// Whether its volumes are attached
    pub attach: bool,
    /// When volumes are made: `Immediate` or `WaitForFirstConsumer`
    pub binding: &'static str,
    /// `https://ADDRESS:PORT` of the API server, for a node on which no Service works; None: by the Service
    pub server: Option<String>,
}

impl CsiInstall {
    /// What belongs to no namespace.
    #[must_use]
    pub fn beside(&self) -> [Value; 3] {
        let modes = ["Persistent", "Ephemeral"];
        [
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRoleBinding",
                "metadata": { "name": self.name },
                "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin" },
                "subjects": [{ "kind": "ServiceAccount", "name": "csi", "namespace": self.namespace }],
            }),
            json!({
                "apiVersion": "storage.k8s.io/v1",
                "kind": "CSIDriver",
                "metadata": { "name": self.name },
                "spec": {
                    "attachRequired": self.attach,
                    "podInfoOnMount": true,
                    "fsGroupPolicy": "File",
                    "volumeLifecycleModes": modes,
                },
            }),
            json!({
                "apiVersion": "storage.k8s.io/v1",
                "kind": "StorageClass",
                "metadata": { "name": self.name },
                "provisioner": self.name,
                "volumeBindingMode": self.binding,
                "allowVolumeExpansion": true,
            }),
        ]
    }

    /// What belongs to the namespace: the account, and the pods as upstream's manifests have them, the sidecars beside the
    /// driver.
    #[must_use]
    pub fn inside(&self) -> [Value; 2] {
        let registered = format!("--kubelet-registration-path={}/csi.sock", self.socket_folder().display());
        let mut containers = vec![
            self.container(),
            self.sidecar("registrar", "csi-node-driver-registrar:v2.16.0", &[&registered]),
            self.sidecar("provisioner", "csi-provisioner:v6.1.1", &[]),
            self.sidecar("resizer", "csi-resizer:v2.1.0", &[]),
        ];
        if self.attach {
            containers.push(self.sidecar("attacher", "csi-attacher:v4.11.0", &[]));
        }
        let host = |name: &str, path: &str, kind: &str| json!({ "name": name, "hostPath": { "path": path, "type": kind } });
        let pods = json!({
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": { "name": "driver", "namespace": self.namespace },
            "spec": {
                "selector": { "matchLabels": { "app": "driver" } },
                "template": {
                    "metadata": { "labels": { "app": "driver" } },
                    "spec": {
                        "serviceAccountName": "csi",
                        "terminationGracePeriodSeconds": 5,
                        "containers": containers,
                        "volumes": [
                            host("socket", &self.socket_folder().display().to_string(), "DirectoryOrCreate"),
                            host("state", &self.state.display().to_string(), "DirectoryOrCreate"),
                            host("pods", &format!("{KUBELET}/pods"), "Directory"),
                            host("plugins", &format!("{KUBELET}/plugins"), "Directory"),
                            host("registration", &format!("{KUBELET}/plugins_registry"), "Directory"),
                            host("dev", "/dev", "Directory"),
                        ],
                    },
                },
            },
        });
        let account = json!({
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": { "name": "csi", "namespace": self.namespace },
        });
        [account, pods]
    }

    fn container(&self) -> Value {
        // It does not start while there is a file of that name: so a test keeps it away.
        let attach = if self.attach { " --enable-attach" } else { "" };
        let script = format!(
            "while [ -e /csi-data-dir/{HOLD} ]; do sleep 0.2; done; exec /hostpathplugin --drivername={} --nodeid=$NODE{attach}",
            self.name
        );
        let both = |name: &str, path: &str| json!({ "name": name, "mountPath": path, "mountPropagation": "Bidirectional" });
        json!({
            "name": DRIVER_CONTAINER,
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

    fn sidecar(&self, name: &str, image: &str, more: &[&str]) -> Value {
        let args = [&["--csi-address=/csi/csi.sock"], more].concat();
        let mut sidecar = json!({
            "name": name,
            "image": format!("registry.k8s.io/sig-storage/{image}"),
            "args": args,
            "securityContext": { "privileged": true },
            "volumeMounts": [
                { "name": "socket", "mountPath": "/csi" },
                { "name": "registration", "mountPath": "/registration" },
            ],
        });
        let server =
            self.server.as_deref().and_then(|server| server.strip_prefix("https://")?.split_once(':'));
        if let Some((host, port)) = server {
            // What a pod says itself wins over what the kubelet gives it.
            sidecar["env"] = json!([
                { "name": "KUBERNETES_SERVICE_HOST", "value": host },
                { "name": "KUBERNETES_SERVICE_PORT", "value": port },
            ]);
        }
        sidecar
    }

    /// The folder of its socket, which stays when the driver goes.
    #[must_use]
    pub fn socket_folder(&self) -> PathBuf {
        PathBuf::from(KUBELET).join("plugins").join(&self.name)
    }

    /// Where kubelets stage its volumes.
    #[must_use]
    pub fn staging_folder(&self) -> PathBuf {
        PathBuf::from(KUBELET).join("plugins/kubernetes.io/csi").join(&self.name)
    }

    /// A field of each of its VolumeAttachments, by JSONPath.
    #[must_use]
    pub fn of_attachments(&self, field: &str) -> String {
        format!("{{.items[?(@.spec.attacher==\"{}\")].{field}}}", self.name)
    }

    /// Kills the driver's process.
    ///
    /// # Errors
    /// When it does not run.
    pub fn kill(&self) -> Result<()> {
        let own = format!("--drivername={} ", self.name);
        let is_own =
            |one: &proc::Process| one.name == "hostpathplugin" && proc::command_line(one.pid).contains(&own);
        let found = proc::all()?.into_iter().find(is_own).context("the driver does not run")?;
        proc::kill(found.pid)
    }

    /// Keeps it from starting until [`Self::release`].
    ///
    /// # Errors
    /// When its folder is not there.
    pub fn hold(&self) -> Result<()> {
        std::fs::write(self.state.join(HOLD), "").context("hold the driver")
    }

    /// Lets it start.
    ///
    /// # Errors
    /// When it was not held.
    pub fn release(&self) -> Result<()> {
        std::fs::remove_file(self.state.join(HOLD)).context("let the driver start")
    }

    /// What it knows of its volumes.
    ///
    /// # Errors
    /// When it has not started yet, or its file is no JSON.
    pub fn volumes(&self) -> Result<Vec<Value>> {
        let path = self.state.join("state.json");
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let all: serde_json::Map<String, Value> = serde_json::from_str(&text)?;
        Ok(all.into_iter().map(|(_, volume)| volume).collect())
    }

    /// The folder with the data of a volume, by the name that it was made with.
    ///
    /// # Errors
    /// When it has no such volume.
    pub fn data(&self, name: &str) -> Result<PathBuf> {
        let volumes = self.volumes()?;
        let found = volumes.iter().find(|volume| volume["name"] == name);
        let id = found.and_then(|volume| volume["id"].as_str());
        Ok(self.state.join("volumes").join(id.with_context(|| format!("no volume {name} in {volumes:?}"))?))
    }
}

/// Whether a volume is neither staged nor published.
#[must_use]
pub fn is_unstaged(volume: &Value) -> bool {
    volume["staged"] == "" && volume["published"].as_object().is_some_and(serde_json::Map::is_empty)
}

/// Whether it is not attached either.
#[must_use]
pub fn is_given_back(volume: &Value) -> bool {
    volume["node"] == "" && is_unstaged(volume)
}

/// A claim of one folder.
#[must_use]
pub fn claim(class: &str) -> Value {
    json!({
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": class,
        "resources": { "requests": { "storage": "10Mi" } },
    })
}
