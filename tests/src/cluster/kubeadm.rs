//! What `kubeadm init` leaves in a cluster, put there by its own phases: the ConfigMaps that a join reads, a token, rights.
//! Owns the configuration they are made of, which is kind's where it matters to a node; starts nothing else. Called by
//! the tier join.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use aws_lc_rs::digest;
use rcgen::{KeyPair, PublicKeyData as _};
use serde_json::json;

use super::control_plane::API_PORT;
use super::network::{PODS, SERVICES};
use super::programs::{self, KUBERNETES};
use super::{Cluster, node_ip, runtime};

/// A token that it knows.
pub const TOKEN: &str = "abcdef.0123456789abcdef";
/// What its nodes call the API server, as kind's call theirs: a name that no resolver has.
pub const NAME: &str = "gantry-control-plane";

/// What a node is told to join.
#[derive(Debug)]
pub struct JoinMaterial {
    /// Of the API server.
    pub endpoint: String,
    /// The endpoint's address.
    pub address: String,
    /// `sha256:…` of its authority's key.
    pub ca_hash: String,
}

/// Runs the phases.
///
/// # Errors
/// When kubeadm is not built, or fails: with what it said.
pub fn init(cluster: &Cluster) -> Result<JoinMaterial> {
    let address = node_ip(&cluster.options).to_string();
    let config = cluster.folder().join("kubeadm-init.yaml");
    std::fs::write(&config, configuration(&address)).context("write kubeadm's configuration")?;
    for phase in [&["upload-config", "all"][..], &["bootstrap-token"]] {
        let output = Command::new(programs::path("kubeadm")?)
            .args(["init", "phase"])
            .args(phase)
            .arg("--config")
            .arg(&config)
            .arg("--kubeconfig")
            .arg(cluster.kubeconfig("admin"))
            .stdin(Stdio::null())
            .output()
            .context("start kubeadm")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "kubeadm init phase {}: {}\n{said}", phase.join(" "), output.status);
    }
    // Signed anew by the control plane.
    let info = cluster.kubectl().json(&["-n", "kube-public", "get", "configmap", "cluster-info"])?;
    let text = info.pointer("/data/kubeconfig").and_then(serde_json::Value::as_str);
    let text = text.context("cluster-info has no kubeconfig")?.replace(&address, NAME);
    let patch = json!({ "data": { "kubeconfig": text } }).to_string();
    cluster.kubectl().run(&["-n", "kube-public", "patch", "configmap", "cluster-info", "--patch", &patch])?;
    let key = std::fs::read_to_string(cluster.pki.pki("ca.key")).context("the authority's key")?;
    let key = KeyPair::from_pem(&key).context("the authority's key")?.subject_public_key_info();
    let hash = digest::digest(&digest::SHA256, &key);
    let hash: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(JoinMaterial { endpoint: format!("{address}:{API_PORT}"), address, ca_hash: format!("sha256:{hash}") })
}

fn configuration(address: &str) -> String {
    let socket = runtime::RuntimeKind::Gantry.socket();
    let documents = [
        json!({
            "apiVersion": "kubeadm.k8s.io/v1beta4",
            "kind": "InitConfiguration",
            "bootstrapTokens": [{ "token": TOKEN }],
            "localAPIEndpoint": { "advertiseAddress": address },
            "nodeRegistration": { "criSocket": format!("unix://{}", socket.display()) },
        }),
        json!({
            "apiVersion": "kubeadm.k8s.io/v1beta4",
            "kind": "ClusterConfiguration",
            "kubernetesVersion": KUBERNETES,
            "networking": { "podSubnet": PODS, "serviceSubnet": SERVICES },
        }),
        // kind's, but for the thresholds: this disk is shared with builds.
        json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "cgroupDriver": "systemd",
            "cgroupRoot": "/kubelet",
            "evictionHard": { "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%" },
            "imageGCHighThresholdPercent": 100,
            "oomScoreAdj": 0,
        }),
    ];
    documents.map(|document| format!("---\n{document}\n")).concat()
}
