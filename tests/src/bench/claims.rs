//! Many claims of a CSI driver mounted at once and unmounted at once, on a real control plane: how long until their pods
//! are ready, how long until the volumes are given back, and what the node asks of the API server for it. Only the kubelet
//! differs between nodes. Owns the round and the numbers; prints nothing and keeps nothing. Called by
//! `cargo xtask bench claims`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::pods::{TRAIL, api_server_time, feed_at_once};
use super::usage::processor_time_of;
use super::watch::{DEADLINE, Watch};
use crate::cluster::audit::{self, AuditedRequest};
use crate::cluster::csi::{self, CsiInstall, DRIVER_SET};
use crate::cluster::kubectl::Kubectl;
use crate::cluster::lives::is_ready;
use crate::cluster::network::Outside;
use crate::cluster::{Cluster, ClusterOptions, Join, NODE, images, kubelet, runtime};
use crate::poll::poll_every;

const DRIVER: &str = "claims.gantry.test";
/// The driver's namespace.
const BESIDE: &str = "driver";
/// Between two looks at what the driver knows.
const RHYTHM: Duration = Duration::from_millis(20);

/// What is measured.
#[derive(Debug, Clone)]
pub struct ClaimsAsked {
    pub claims: usize,
    /// The claims are shared out among so many pods.
    pub pods: usize,
    /// Whether the driver's volumes are attached by the cluster's controller first.
    pub attach: bool,
    pub runtime: runtime::RuntimeKind,
}

/// A round: claims that are bound already get pods, which are ready, deleted, gone.
#[derive(Debug, Clone, Default)]
pub struct ClaimsRound {
    /// For each pod, from when the first was sent.
    pub ready: Vec<Duration>,
    /// From when the deletion was sent until the last pod was gone.
    pub gone: Duration,
    /// From then until the last volume was unstaged.
    pub unmounted: Duration,
    /// From then until the last volume was detached; where none is attached, until it was unstaged.
    pub detached: Duration,
    /// Of the node, by verb and resource; without its lease's.
    pub requests: BTreeMap<String, usize>,
    /// Processor time of the kubelet.
    pub kubelet: Duration,
    /// Processor time of the API server.
    pub api_server: Duration,
}

impl ClaimsRound {
    /// When the last pod was ready.
    #[must_use]
    pub fn all_ready(&self) -> Duration {
        self.ready.iter().copied().max().unwrap_or_default()
    }
}

/// A round on one node, which is alone on the machine for that time.
///
/// # Errors
/// When the cluster or its driver does not come up, or a pod is not ready, or not gone, in time.
pub fn round(kind: kubelet::KubeletKind, asked: &ClaimsAsked) -> Result<ClaimsRound> {
    let folder = tempfile::Builder::new().prefix("gc-").tempdir()?;
    let mut cluster = Cluster::start(ClusterOptions {
        folder: folder.path().to_owned(),
        runtime: asked.runtime,
        kubelet: Some(kind),
        addons: false,
        number: 0,
        outside: Outside::Closed,
        join: Join::Given,
        settings: [("maxPods".to_owned(), json!((asked.pods + 10).max(110)))].into_iter().collect(),
    })?;
    let round = install(&cluster, asked.attach).and_then(|driver| {
        // The image, and what a node's first pod and volume pay for.
        let first = ClaimsAsked { claims: 1, pods: 1, ..asked.clone() };
        measure(&mut cluster, &driver, "warm", &first)?;
        measure(&mut cluster, &driver, "claims", asked)
    });
    cluster.end().and(round)
}

fn install(cluster: &Cluster, attach: bool) -> Result<CsiInstall> {
    let driver = CsiInstall {
        name: DRIVER.to_owned(),
        namespace: BESIDE.to_owned(),
        state: cluster.folder().join("csi"),
        attach,
        binding: "Immediate",
        server: Some(cluster.server()),
    };
    let kubectl = cluster.kubectl();
    kubectl.run(&["create", "namespace", BESIDE])?;
    let objects: Vec<Value> = driver.beside().into_iter().chain(driver.inside()).collect();
    kubectl.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": objects }))?;
    kubectl.run(&["rollout", "status", DRIVER_SET, "-n", BESIDE, "--timeout=180s"])?;
    let node = ["get", "csinode", NODE];
    kubectl.await_value(&node, "{.spec.drivers[*].name}", DEADLINE, |names| names.contains(DRIVER))?;
    Ok(driver)
}

fn measure(
    cluster: &mut Cluster,
    driver: &CsiInstall,
    namespace: &str,
    asked: &ClaimsAsked,
) -> Result<ClaimsRound> {
    let kubectl = cluster.kubectl().clone();
    bind(&kubectl, namespace, asked.claims)?;
    let log = audit::end(&cluster.audit_log())?;
    let (kubelet, api_server) = (kubelet_time(cluster)?, api_server_time(cluster)?);
    let watch = Watch::start(&kubectl, namespace)?;
    let begun = Instant::now();
    feed_at_once(&kubectl, &pods(namespace, asked))?;
    let mut round = ClaimsRound {
        ready: watch.until_all(asked.pods, begun, "ready", |event| is_ready(&event["object"]))?,
        ..ClaimsRound::default()
    };
    std::thread::sleep(TRAIL);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        // Beside the watch: a volume may be given back before the last pod is gone.
        let given_back = scope.spawn(|| await_given_back(driver, begun));
        kubectl.run(&["delete", "--raw", &format!("/api/v1/namespaces/{namespace}/pods")])?;
        let gone = watch.until_all(asked.pods, begun, "gone", |event| event["type"] == "DELETED")?;
        round.gone = gone.into_iter().max().unwrap_or_default();
        let joined = given_back.join().map_err(|_| anyhow::anyhow!("who looks at the driver ended early"))?;
        (round.unmounted, round.detached) = joined?;
        anyhow::Ok(())
    })?;
    std::thread::sleep(TRAIL);
    round.requests = count(&audit::requests(&cluster.audit_log(), log, &format!("system:node:{NODE}"))?);
    round.kubelet = kubelet_time(cluster)?.saturating_sub(kubelet);
    round.api_server = api_server_time(cluster)?.saturating_sub(api_server);
    kubectl.run(&["delete", "namespace", namespace, "--timeout=120s"])?;
    Ok(round)
}

/// When the last volume was unstaged, and when it was detached.
fn await_given_back(driver: &CsiInstall, begun: Instant) -> Result<(Duration, Duration)> {
    let until = |what: &str, is_so: fn(&Value) -> bool| {
        poll_every(RHYTHM, what, DEADLINE, || {
            let volumes = driver.volumes().map_err(|error| format!("{error:#}"))?;
            match volumes.iter().find(|volume| !is_so(volume)) {
                Some(volume) => Err(volume.to_string()),
                None => Ok(begun.elapsed()),
            }
        })
    };
    let unmounted = until("the volumes to be unstaged", csi::is_unstaged)?;
    Ok((unmounted, until("the volumes to be detached", csi::is_given_back)?))
}

/// The namespace and its claims, each with its volume.
fn bind(kubectl: &Kubectl, namespace: &str, claims: usize) -> Result<()> {
    kubectl.run(&["create", "namespace", namespace])?;
    let account = ["get", "serviceaccount", "default", "-n", namespace];
    kubectl.await_value(&account, "{.metadata.name}", DEADLINE, |name| name == "default")?;
    let claim = |number: usize| {
        json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": { "name": format!("claim-{number}"), "namespace": namespace },
            "spec": csi::claim(DRIVER),
        })
    };
    let all: Vec<Value> = (0..claims).map(claim).collect();
    feed_at_once(kubectl, &all)?;
    let phases = ["get", "pvc", "-n", namespace];
    let bound = |phases: &str| phases.split(' ').filter(|phase| *phase == "Bound").count() == claims;
    kubectl
        .await_value(&phases, "{.items[*].status.phase}", DEADLINE, bound)
        .context("bind the claims")
        .map(drop)
}

/// Bound to the node: what a scheduler takes is no matter of a node.
fn pods(namespace: &str, asked: &ClaimsAsked) -> Vec<Value> {
    let pod = |number: usize| {
        let own: Vec<usize> = (0..asked.claims).filter(|claim| claim % asked.pods == number).collect();
        let volume = |claim: &usize| {
            json!({
                "name": format!("data-{claim}"),
                "persistentVolumeClaim": { "claimName": format!("claim-{claim}") },
            })
        };
        let mount =
            |claim: &usize| json!({ "name": format!("data-{claim}"), "mountPath": format!("/data-{claim}") });
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": format!("pod-{number}"), "namespace": namespace },
            "spec": {
                "nodeName": NODE,
                "terminationGracePeriodSeconds": 1,
                "volumes": own.iter().map(volume).collect::<Vec<_>>(),
                "containers": [{
                    "name": "pause",
                    "image": images::PAUSE,
                    "volumeMounts": own.iter().map(mount).collect::<Vec<_>>(),
                }],
            },
        })
    };
    (0..asked.pods).map(pod).collect()
}

/// By verb and resource. The lease is renewed by the clock.
fn count(asked: &[AuditedRequest]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for request in asked.iter().filter(|request| request.resource != "leases") {
        *counts.entry(format!("{} {}", request.verb, request.resource)).or_default() += 1;
    }
    counts
}

fn kubelet_time(cluster: &mut Cluster) -> Result<Duration> {
    processor_time_of(cluster.kubelet()?.process().pid()?.as_raw_nonzero().get())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_claim_has_one_pod_and_every_pod_mounts_what_it_has() {
        let asked =
            ClaimsAsked { claims: 5, pods: 2, attach: true, runtime: runtime::RuntimeKind::Containerd };
        let pods = pods("ns", &asked);
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let claims: Vec<Value> = pods.iter().flat_map(|pod| list(&pod["spec"]["volumes"])).collect();
        let names: BTreeSet<&str> =
            claims.iter().filter_map(|one| one["persistentVolumeClaim"]["claimName"].as_str()).collect();
        assert_eq!((pods.len(), claims.len(), names.len()), (2, 5, 5));
        for pod in &pods {
            let mounts = list(&pod["spec"]["containers"][0]["volumeMounts"]);
            let of = |all: &[Value]| all.iter().map(|one| one["name"].clone()).collect::<Vec<_>>();
            assert_eq!(of(&mounts), of(&list(&pod["spec"]["volumes"])));
        }
    }

    #[test]
    fn a_lease_is_no_claims() {
        let asked = |verb: &str, resource: &str| AuditedRequest {
            verb: verb.into(),
            resource: resource.into(),
            namespace: String::new(),
            uri: String::new(),
            code: 200,
            message: String::new(),
            by_gantry: true,
        };
        let all =
            [asked("get", "volumeattachments"), asked("update", "leases"), asked("get", "volumeattachments")];
        assert_eq!(count(&all), [("get volumeattachments".to_owned(), 2)].into());
    }
}
