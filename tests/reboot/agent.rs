//! The agent that both halves run: the same command line on the same files. Owns the manifests and
//! what is handed over; never decides when anything ends. Called by the agent's tests in both halves.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::{Context, Result};
use gantry_proto::cri;
use gantry_tests::node::{Node, Roots};
use gantry_tests::standalone::Foreground;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Each with its restart policy and what it runs.
pub(crate) const PODS: [(&str, &str, &str); 4] = [
    // Over before the reboot, and the agent has seen it.
    ("done", "Never", "[/workload, exit, '0']"),
    // Over while the runtime is down: the agent never hears of it in this boot.
    ("down", "Never", "[/workload, count, '7', '1000000']"),
    // Runs until the machine goes down.
    ("cut", "Never", "[/workload, count, '5']"),
    ("keeps", "Always", "[/workload, web, '8080']"),
];

/// What the first half made.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct AgentBefore {
    /// How many layers the image has.
    pub(crate) layers: usize,
    /// The container of each pod, by the pod's name.
    pub(crate) containers: BTreeMap<String, String>,
    pub(crate) sandboxes: BTreeSet<String>,
    /// A layer's folder that no index knows.
    pub(crate) stray: PathBuf,
}

/// A pod's container as `gantry ps` tells of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ContainerView {
    pub(crate) phase: String,
    pub(crate) ip: String,
    pub(crate) id: String,
    pub(crate) state: String,
    pub(crate) exit_code: Option<i64>,
    pub(crate) restarts: Option<i64>,
}

/// By the pod's name.
pub(crate) fn parse_pods(pods: &[Value]) -> BTreeMap<String, ContainerView> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let one = |pod: &Value| {
        let it = &pod["containers"][0];
        let seen = ContainerView {
            phase: text(&pod["phase"]),
            ip: text(&pod["ip"]),
            id: text(&it["id"]),
            state: text(&it["state"]),
            exit_code: it["exitCode"].as_i64(),
            restarts: it["restartCount"].as_i64(),
        };
        (text(&pod["name"]), seen)
    };
    pods.iter().map(one).collect()
}

fn manifest(roots: &Roots, name: &str) -> PathBuf {
    roots.path(&format!("{name}.yaml"))
}

pub(crate) fn write_manifests(roots: &Roots, image: &str) -> Result<()> {
    for (name, policy, command) in PODS {
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  restartPolicy: {policy}\n  \
             terminationGracePeriodSeconds: 2\n  containers:\n  - {{name: it, image: \"{image}\", command: {command}}}\n"
        );
        std::fs::write(manifest(roots, name), text)?;
    }
    Ok(())
}

/// The agent's folder on disk.
pub(crate) fn root_dir(roots: &Roots) -> PathBuf {
    roots.path("kubelet")
}

/// `gantry agent` on these files, its socket where a reboot empties it.
pub(crate) fn start(roots: &Roots) -> Result<Foreground> {
    let folder = roots.path("agent");
    std::fs::create_dir_all(&folder)?;
    let mut words = vec![
        "agent".to_owned(),
        format!("--container-runtime-endpoint=unix://{}", roots.path("cri.sock").display()),
        format!("--root-dir={}", root_dir(roots).display()),
        format!("--pod-logs-dir={}", roots.path("logs").display()),
        format!("--cgroup-root=/{}", roots.tag()),
    ];
    words.extend(PODS.map(|(name, _, _)| manifest(roots, name).display().to_string()));
    Foreground::with_words(&folder, words)
}

/// IDs of all containers that the runtime knows of a pod.
pub(crate) fn containers_of(node: &Node, pod: &str) -> Result<Vec<String>> {
    let list = node.cri().list_containers(cri::ListContainersRequest::default()).context("ListContainers")?;
    let of = |one: &cri::Container| one.labels.get("io.kubernetes.pod.name").is_some_and(|name| name == pod);
    Ok(list.containers.into_iter().filter(of).map(|one| one.id).collect())
}
