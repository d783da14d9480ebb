//! The tier join: `gantry join` and `gantry leave` with the real kubeadm, on a real control plane that has what `kubeadm
//! init` leaves in one. This machine is the node: its `/etc` and `/opt` are overlays, and what kubeadm asks of systemd a
//! thread does. Each command of docs/join.md that needs no kind and no package is one of these. Run by `cargo xtask test
//! --tier join`, in a place of its own.

#![allow(
    clippy::disallowed_methods,
    clippy::needless_pass_by_value,
    clippy::panic,
    clippy::unwrap_used,
    reason = "all of this program is tests, its helpers too"
)]

mod machine;

use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gantry_proto::cri::ListPodSandboxRequest;
use gantry_tests::cluster::network::Outside;
use gantry_tests::cluster::{Cluster, ClusterOptions, Join, kubeadm, runtime};
use gantry_tests::place;

use self::machine::{JoinMachine, snapshot};

const WAIT: Duration = Duration::from_secs(120);
const RECORD: &str = "/var/lib/gantry/join.json";

/// A control plane made by kubeadm, as kind's: its nodes' cgroups lie below `/kubelet`, and its name is known to nobody.
fn cluster(folder: &Path) -> Result<(Cluster, kubeadm::JoinMaterial)> {
    let cluster = Cluster::start(ClusterOptions {
        folder: folder.to_owned(),
        runtime: runtime::RuntimeKind::Gantry,
        kubelet: None,
        addons: false,
        number: 0,
        outside: Outside::Closed,
        join: Join::Given,
        settings: Default::default(),
    })?;
    let made = kubeadm::init(&cluster)?;
    Ok((cluster, made))
}

fn words(made: &kubeadm::JoinMaterial) -> Vec<&str> {
    vec![
        "join",
        "--token",
        kubeadm::TOKEN,
        "--discovery-token-ca-cert-hash",
        &made.ca_hash,
        // This machine is none that kubeadm knows: cgroup v1 beside v2, and whatever kernel.
        "--ignore-preflight-errors",
        "SystemVerification",
        &made.endpoint,
    ]
}

fn ready(cluster: &Cluster, node: &str) -> Result<()> {
    let path = r#"{.status.conditions[?(@.type=="Ready")].status}"#;
    cluster.kubectl().await_value(&["get", "node", node], path, WAIT, |value| value == "True").map(drop)
}

#[test]
fn a_machine_joins_by_token_and_leaves_as_it_was() -> Result<()> {
    let folder = tempfile::Builder::new().prefix("gj-").tempdir()?;
    let machine = JoinMachine::make(folder.path())?;
    let (cluster, made) = cluster(folder.path())?;
    machine.prepare()?;
    let before = snapshot()?;

    let dry = machine.gantry(&[&words(&made)[..], &["--dry-run"]].concat())?;
    for line in [
        "would set the sysctl net.ipv4.ip_forward to 1 (was 0)",
        &format!("would add to /etc/hosts: {} {} # gantry join", made.address, kubeadm::NAME),
        "would kubeadm join --config /var/lib/gantry/join/config.yaml",
    ] {
        ensure!(dry.lines().any(|found| found == line), "no line {line:?} in\n{dry}");
    }
    ensure!(dry.contains(r#""cgroupRoot":"/""#), "no patch of kind's cgroupRoot in\n{dry}");
    ensure!(snapshot()? == before && !Path::new(RECORD).exists(), "a dry run changed something");

    // kubeadm's own check fails: nothing is lost, and the same command goes on.
    let busy = TcpListener::bind("0.0.0.0:10250").context("the kubelet's port")?;
    let failed = machine.fails(&words(&made))?;
    ensure!(failed.contains("give the same command again"), "{failed}");
    drop(busy);
    let said = machine.gantry(&words(&made))?;
    let node = machine.node();
    ensure!(
        said.contains("an earlier join came to no end") && said.contains(&format!("{node} has joined")),
        "{said}"
    );
    ready(&cluster, &node)?;
    ensure!(machine.fails(&words(&made))?.contains("has joined"), "a second join");

    let ip = cluster
        .kubectl()
        .value(&["get", "node", &node], r#"{.status.addresses[?(@.type=="InternalIP")].address}"#)?;
    ensure!(ip == made.address, "the node's address is {ip}");
    run_a_pod(&cluster)?;
    machine.as_a_cluster_leaves_it()?;

    let config = cluster.kubeconfig("admin");
    let config = config.to_str().context("a path")?;
    let leave = ["leave", "--delete-node", "--kubeconfig", config];
    let whole = snapshot()?;
    let dry = machine.gantry(&[&leave[..], &["--dry-run"]].concat())?;
    ensure!(
        dry.contains("would kubeadm reset") && dry.contains(&format!("would delete the Node {node}")),
        "{dry}"
    );
    ensure!(snapshot()? == whole, "a dry run changed something");
    machine.gantry(&leave)?;

    let after = snapshot()?;
    ensure!(after == before, "left or lost:\n{}", machine::difference(&before, &after));
    ensure!(!Path::new(RECORD).exists(), "the record is still there");
    let pods = cluster.cri().list_pod_sandbox(ListPodSandboxRequest::default())?.items;
    ensure!(pods.is_empty(), "{pods:?}");
    let nodes = cluster.kubectl().run(&["get", "nodes", "-o", "name"])?;
    ensure!(nodes.is_empty(), "{nodes}");
    ensure!(machine.fails(&leave)?.contains("nothing to take back"), "a second leave");
    machine.end()?;
    cluster.end()
}

/// By the administrator: the token is made for this join and is gone after it.
#[test]
fn a_machine_joins_by_an_administrators_kubeconfig() -> Result<()> {
    let folder = tempfile::Builder::new().prefix("gj-").tempdir()?;
    let machine = JoinMachine::make(folder.path())?;
    let (cluster, made) = cluster(folder.path())?;
    machine.prepare()?;
    let before = snapshot()?;
    let config = cluster.kubeconfig("admin");
    let config = config.to_str().context("a path")?;
    let join = ["join", "--kubeconfig", config, "--node-name", "n2", "--node-ip", &made.address];
    let tokens = || {
        let secrets =
            ["-n", "kube-system", "get", "secrets", "--field-selector=type=bootstrap.kubernetes.io/token"];
        cluster.kubectl().run(&[&secrets[..], &["-o", "name"]].concat())
    };
    let known = tokens()?;
    let dry = machine.gantry(&[&join[..], &["--dry-run"]].concat())?;
    ensure!(dry.contains("would make a bootstrap token for this join alone"), "{dry}");
    ensure!(tokens()? == known, "a dry run made a token");
    machine.gantry(&join)?;
    ready(&cluster, "n2")?;
    ensure!(tokens()? == known, "the token is still there: {}", tokens()?);
    let said = machine.gantry(&["leave"])?;
    ensure!(said.contains("kubectl delete node n2"), "{said}");
    let after = snapshot()?;
    ensure!(after == before, "left or lost:\n{}", machine::difference(&before, &after));
    machine.end()?;
    cluster.end()
}

/// One that is still there when the machine leaves.
fn run_a_pod(cluster: &Cluster) -> Result<()> {
    let kubectl = cluster.kubectl();
    let account = ["get", "serviceaccount", "default"];
    kubectl.await_value(&account, "{.metadata.name}", WAIT, |name| name == "default")?;
    kubectl.run(&["run", "here", "--image=registry.k8s.io/pause:3.10.2"])?;
    kubectl
        .await_value(&["get", "pod", "here"], "{.status.phase}", WAIT, |phase| phase == "Running")
        .map(drop)
}

#[test]
fn the_programs_are_there() -> Result<()> {
    ensure!(place::bin_dir()?.join("gantry").is_file(), "gantry is not built");
    Ok(())
}
