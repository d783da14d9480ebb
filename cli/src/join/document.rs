//! What kubeadm is told: its JoinConfiguration, and the patch of the kubelet's configuration. Owns their fields.
//! Called by [`super::plan`]. Pure.
//!
//! Both are JSON, which every reader of YAML reads.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::facts::{CgroupDriver, ClusterFacts, JoinHost, JoinRequest, Release};

/// The first kubeadm that reads v1beta4; the one before takes flags of the kubelet as a map.
const V1BETA4: Release = (1, 31);
/// Where kubeadm puts the cluster's authority, and kubelet-config usually looks for it.
const CA: &str = "/etc/kubernetes/pki/ca.crt";

/// The check of kubeadm that refuses cgroup v1, whatever the kubelet's configuration says of it.
const SYSTEM_VERIFICATION: &str = "SystemVerification";
/// The first kubeadm that refuses it; those before warn.
const REFUSES_CGROUP_V1: Release = (1, 35);

/// What `kubeadm join --config` reads.
pub(super) fn join(
    machine: &JoinHost,
    cluster: &ClusterFacts,
    wanted: &JoinRequest,
    node_ip: Option<std::net::IpAddr>,
    kubeadm: Option<Release>,
    patches: Option<&Path>,
) -> Value {
    let old = kubeadm.is_some_and(|release| release < V1BETA4);
    let mut registration = json!({ "criSocket": wanted.cri_socket });
    if let Some(name) = &wanted.node_name {
        registration["name"] = json!(name);
    }
    if let Some(ip) = node_ip {
        registration["kubeletExtraArgs"] = match old {
            true => json!({ "node-ip": ip }),
            false => json!([{ "name": "node-ip", "value": ip }]),
        };
    }
    let ignored = ignored_checks(machine, wanted, kubeadm);
    if !ignored.is_empty() {
        registration["ignorePreflightErrors"] = json!(ignored);
    }
    let mut document = json!({
        "apiVersion": if old { "kubeadm.k8s.io/v1beta3" } else { "kubeadm.k8s.io/v1beta4" },
        "kind": "JoinConfiguration",
        "discovery": {
            "bootstrapToken": {
                "apiServerEndpoint": cluster.endpoint.to_string(),
                "caCertHashes": wanted.ca_hashes,
                "token": wanted.token,
            },
        },
        "nodeRegistration": registration,
    });
    if let Some(folder) = patches {
        document["patches"] = json!({ "directory": folder });
    }
    // A control plane with certificates elsewhere says so to every kubelet.
    let file = &cluster.kubelet.client_ca_file;
    if !file.is_empty() && file != CA {
        document["caCertPath"] = json!(file);
    }
    document
}

/// Those that were asked for, and the one that would keep a machine with cgroup v1 out.
fn ignored_checks(machine: &JoinHost, wanted: &JoinRequest, kubeadm: Option<Release>) -> Vec<String> {
    let mut ignored = wanted.ignored_checks.clone();
    let refuses = !machine.unified && kubeadm.is_none_or(|release| release >= REFUSES_CGROUP_V1);
    // kubeadm takes `all` only alone, and lower case as well.
    let named =
        |name: &String| name.eq_ignore_ascii_case("all") || name.eq_ignore_ascii_case(SYSTEM_VERIFICATION);
    if refuses && !ignored.iter().any(named) {
        ignored.push(SYSTEM_VERIFICATION.to_owned());
    }
    ignored
}

/// What of the cluster's kubelet-config does not fit this machine: merged into it by kubeadm.
pub(super) fn patch(
    cluster: &ClusterFacts,
    machine: &JoinHost,
    wanted: &JoinRequest,
    driver: CgroupDriver,
) -> Value {
    let theirs = &cluster.kubelet;
    let mut patch = Map::new();
    // kind's: `/kubelet`, a cgroup that the containers of its nodes have and no other machine.
    if !matches!(theirs.cgroup_root.as_str(), "" | "/") {
        patch.insert("cgroupRoot".to_owned(), json!("/"));
    }
    // Empty where every kubelet has a flag for it.
    if theirs.runtime_endpoint != wanted.cri_socket {
        patch.insert("containerRuntimeEndpoint".to_owned(), json!(wanted.cri_socket));
    }
    // The kubelet asks the runtime and goes by its answer; the file should not say otherwise.
    if theirs.cgroup_driver != driver.word() {
        patch.insert("cgroupDriver".to_owned(), json!(driver.word()));
    }
    // The machine's swap stays its own: pods get none of it (NoSwap, the default).
    if machine.swap && theirs.fail_swap_on != Some(false) {
        patch.insert("failSwapOn".to_owned(), json!(false));
    }
    if !machine.unified && theirs.fail_cgroup_v1 != Some(false) {
        patch.insert("failCgroupV1".to_owned(), json!(false));
    }
    Value::Object(patch)
}
