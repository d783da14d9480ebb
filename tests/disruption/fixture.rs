//! A spec's cluster, its namespace, and what all specs look at: the containers by CRI, the mounts, the audit log. Owns the
//! cluster; judges no spec. Called by the specs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use gantry_proto::cri;
use gantry_tests::cluster::kubectl::Kubectl;
use gantry_tests::cluster::network::Outside;
use gantry_tests::cluster::{Cluster, ClusterOptions, Join, audit, kubelet, runtime};
use gantry_tests::leakcheck::mounts;
use gantry_tests::node::tail;
use gantry_tests::poll::poll_every;
use serde_json::{Value, json};

/// How long a node full of pods may take to where a spec wants it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);
/// Between two looks by kubectl.
const RHYTHM: Duration = Duration::from_millis(500);

/// The only namespace with pods.
pub(crate) const NAMESPACE: &str = "endures";

/// A cluster for one spec.
pub(crate) struct ClusterFixture {
    pub(crate) cluster: Cluster,
    /// Which kubelet is proven.
    pub(crate) chosen: kubelet::KubeletKind,
    folder: tempfile::TempDir,
}

/// A container that runs, by CRI.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Running {
    pub(crate) id: String,
    pub(crate) attempt: u32,
    created_at: i64,
}

/// By pod and container.
pub(crate) type Containers = BTreeMap<(String, String), Running>;

fn chosen() -> Result<(kubelet::KubeletKind, runtime::RuntimeKind)> {
    let kubelet = match std::env::var("GANTRY_CLUSTER_KUBELET").as_deref() {
        Ok("upstream") => kubelet::KubeletKind::Upstream,
        Ok("gantry") | Err(_) => kubelet::KubeletKind::Gantry,
        Ok(other) => bail!("GANTRY_CLUSTER_KUBELET={other}: gantry or upstream"),
    };
    let runtime = match std::env::var("GANTRY_CLUSTER_RUNTIME").as_deref() {
        Ok("containerd") | Err(_) => runtime::RuntimeKind::Containerd,
        Ok("gantry") => runtime::RuntimeKind::Gantry,
        Ok(other) => bail!("GANTRY_CLUSTER_RUNTIME={other}: containerd or gantry"),
    };
    Ok((kubelet, runtime))
}

impl ClusterFixture {
    /// A cluster with a ready node and the namespace.
    pub(crate) fn make(upstream_first: bool, join: Join) -> Result<Self> {
        let (chosen, runtime) = chosen()?;
        let first = if upstream_first { kubelet::KubeletKind::Upstream } else { chosen };
        let folder = tempfile::Builder::new().prefix("ge-").tempdir().context("make a folder")?;
        let start = Instant::now();
        let cluster = Cluster::start(ClusterOptions {
            folder: folder.path().to_owned(),
            runtime,
            kubelet: Some(first),
            addons: false,
            number: 0,
            outside: Outside::Closed,
            join,
            settings: Default::default(),
        })?;
        println!("a cluster with {first:?} on {runtime:?} is ready ({} s)", start.elapsed().as_secs());
        let fixture = Self { cluster, chosen, folder };
        fixture.any().run(&["create", "namespace", NAMESPACE])?;
        for (kind, given) in [("serviceaccount", "default"), ("configmap", "kube-root-ca.crt")] {
            fixture.await_that(&[kind, given], "{.metadata.name}", |name| name == given)?;
        }
        Ok(fixture)
    }

    /// The administrator's kubectl.
    pub(crate) fn any(&self) -> &Kubectl {
        self.cluster.kubectl()
    }

    /// kubectl in the namespace.
    pub(crate) fn kubectl(&self, args: &[&str]) -> Result<String> {
        self.any().run(&[&["-n", NAMESPACE], args].concat())
    }

    /// Applies objects in the namespace, in one call.
    pub(crate) fn apply(&self, objects: Vec<Value>) -> Result<()> {
        let own = |mut object: Value| {
            object["metadata"]["namespace"] = json!(NAMESPACE);
            object
        };
        let items: Vec<Value> = objects.into_iter().map(own).collect();
        self.any().apply(&json!({ "apiVersion": "v1", "kind": "List", "items": items })).map(drop)
    }

    /// Waits for a value by JSONPath in the namespace.
    pub(crate) fn await_that(
        &self,
        what: &[&str],
        path: &str,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<String> {
        self.any().await_value(&[&["get", "-n", NAMESPACE], what].concat(), path, PATIENCE, wanted)
    }

    /// Waits until so many pods of a selector are Ready, and are all that there are.
    pub(crate) fn await_ready(&self, selector: &str, count: usize) -> Result<()> {
        let path =
            r#"{range .items[*]}{.metadata.name}={.status.conditions[?(@.type=="Ready")].status} {end}"#;
        let args = ["pods", "-l", selector];
        self.await_that(&args, path, |pods| {
            let mut pods = pods.split_whitespace();
            pods.clone().count() == count && pods.all(|pod| pod.ends_with("=True"))
        })
        .map(drop)
    }

    /// Deletes what is in the namespace and waits until nothing of it is left, at the API server and on the node.
    pub(crate) fn clear(&self) -> Result<()> {
        let kinds = "deployments,replicasets,pods";
        self.kubectl(&["delete", kinds, "--all", "--wait=false"])?;
        self.await_that(&["pods"], "{.items[*].metadata.name}", str::is_empty)?;
        self.await_clean()
    }

    /// Waits until the node has nothing of pods that the API server doesn't know: no sandbox that runs, no mount.
    pub(crate) fn await_clean(&self) -> Result<()> {
        poll_every(RHYTHM, "the node to have nothing of other pods", PATIENCE, || {
            let text = |error: anyhow::Error| format!("{error:#}");
            let uids = self.any().value(&["get", "pods", "-A"], "{.items[*].metadata.uid}").map_err(text)?;
            let is_known = |uid: &str| uids.split_whitespace().any(|known| known == uid);
            let answer = self.cluster.cri().list_pod_sandbox(cri::ListPodSandboxRequest::default());
            let sandboxes = answer.map_err(|status| status.to_string())?.items;
            let stray = sandboxes.iter().find(|sandbox| {
                let uid = sandbox.metadata.as_ref().map(|meta| meta.uid.as_str()).unwrap_or_default();
                sandbox.state() == cri::PodSandboxState::SandboxReady && !is_known(uid)
            });
            if let Some(sandbox) = stray {
                return Err(format!("{:?}", sandbox.metadata));
            }
            match self.count_mounts().map_err(text)?.into_keys().find(|point| !is_known(&uid_of(point))) {
                Some(point) => Err(format!("{} is mounted", point.display())),
                None => Ok(()),
            }
        })
    }

    /// Stops the kubelet and starts the other one; returns when that one has looked after the node.
    pub(crate) fn swap_to(&mut self, kind: kubelet::KubeletKind) -> Result<()> {
        self.cluster.stop_kubelet()?;
        let before = self.lease_renew_time()?;
        self.cluster.start_kubelet(kind)?;
        self.await_lease_renewal(&before)?;
        let node = self.cluster.node();
        let path = "{.status.nodeInfo.kubeletVersion}";
        let ours = kind == kubelet::KubeletKind::Gantry;
        let is_it = |version: &str| version.contains("gantry") == ours;
        let version = self.any().await_value(&["get", "node", &node], path, PATIENCE, is_it)?;
        println!("now the node's kubelet is {version}");
        Ok(())
    }

    /// When the node's lease was renewed the last time.
    pub(crate) fn lease_renew_time(&self) -> Result<String> {
        let node = self.cluster.node();
        self.any().value(&["get", "lease", "-n", "kube-node-lease", &node], "{.spec.renewTime}")
    }

    /// Waits until the kubelet has renewed its lease.
    pub(crate) fn await_lease_renewal(&self, before: &str) -> Result<()> {
        let node = self.cluster.node();
        let lease = ["get", "lease", "-n", "kube-node-lease", &node];
        self.any().await_value(&lease, "{.spec.renewTime}", PATIENCE, |time| time != before).map(drop)
    }

    /// Lets time pass in which something must hold; looks about once a second, and at its end.
    pub(crate) fn hold(
        &mut self,
        time: Duration,
        mut look: impl FnMut(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let start = Instant::now();
        poll_every(Duration::from_secs(1), "the time to pass", time + PATIENCE, || {
            let passed = start.elapsed() >= time;
            match self.cluster.check().and_then(|()| look(self)) {
                Err(error) => Ok(Err(error)),
                Ok(()) if passed => Ok(Ok(())),
                Ok(()) => Err(format!("{} s of it", start.elapsed().as_secs())),
            }
        })?
    }

    /// The namespace's containers that run.
    pub(crate) fn containers(&self) -> Result<Containers> {
        let answer = self.cluster.cri().list_containers(cri::ListContainersRequest::default());
        let label = |container: &cri::Container, name: &str| {
            container.labels.get(&format!("io.kubernetes.{name}")).cloned().unwrap_or_default()
        };
        let all = answer.map_err(|status| anyhow::anyhow!("{status}"))?.containers;
        let running = all.into_iter().filter(|container| {
            container.state() == cri::ContainerState::ContainerRunning
                && label(container, "pod.namespace") == NAMESPACE
        });
        let mut found = Containers::new();
        for container in running {
            let key = (label(&container, "pod.name"), label(&container, "container.name"));
            let attempt = container.metadata.as_ref().map(|meta| meta.attempt).unwrap_or_default();
            let one = Running { id: container.id, attempt, created_at: container.created_at };
            if let Some(other) = found.insert(key.clone(), one) {
                bail!("{key:?} runs twice, once as {other:?}");
            }
        }
        Ok(found)
    }

    /// A command in a pod's container, past kubelet and API server.
    pub(crate) fn exec(&self, pod: &str, container: &str, script: &str) -> Result<()> {
        let containers = self.containers()?;
        let found = containers.get(&(pod.to_owned(), container.to_owned()));
        let container_id = found.with_context(|| format!("{pod}/{container} does not run"))?.id.clone();
        let cmd = ["sh", "-c", script].map(str::to_owned).to_vec();
        let request = cri::ExecSyncRequest { container_id, cmd, timeout: 20 };
        let answer = self.cluster.cri().exec_sync(request).map_err(|status| anyhow::anyhow!("{status}"))?;
        ensure!(answer.exit_code == 0, "{script} in {pod}: {answer:?}");
        Ok(())
    }

    /// How often each point below the pods' folder is mounted.
    pub(crate) fn count_mounts(&self) -> Result<BTreeMap<PathBuf, usize>> {
        let mut found = BTreeMap::new();
        for mount in mounts()?.into_iter().filter(|mount| mount.point.starts_with(PODS)) {
            *found.entry(mount.point).or_default() += 1;
        }
        Ok(found)
    }

    /// What the node asked from that place of the log on.
    pub(crate) fn requests(&self, from: u64) -> Result<Vec<audit::AuditedRequest>> {
        audit::requests(&self.cluster.audit_log(), from, &format!("system:node:{}", self.cluster.node()))
    }

    /// Every program runs on, and Gantry's kubelet asked for nothing that it may not.
    pub(crate) fn is_well(&mut self) -> Result<()> {
        self.cluster.check()?;
        let (ours, theirs): (Vec<_>, Vec<_>) =
            self.requests(0)?.into_iter().partition(|request| request.by_gantry);
        for (who, requests) in [("upstream", theirs), ("gantry", ours)] {
            let wrongs = audit::wrongs(&requests);
            println!("{} requests by {who}, {} kinds of wrong ones", requests.len(), wrongs.len());
            ensure!(
                who == "upstream" || wrongs.is_empty(),
                "the node asked for what it may not:\n{}",
                wrongs.join("\n")
            );
        }
        Ok(())
    }

    /// For a failure: pods and the end of the kubelet's log.
    pub(crate) fn describe(&self) -> String {
        let pods = self.kubectl(&["get", "pods", "-o", "wide"]).unwrap_or_default();
        let events = self.kubectl(&["get", "events", "--sort-by=.lastTimestamp"]).unwrap_or_default();
        let lines: Vec<&str> = events.lines().collect();
        let from = lines.len().saturating_sub(40);
        let log = tail(&self.cluster.folder().join("log/kubelet.log"));
        format!("{pods}\n{}\n{log}", lines[from..].join("\n"))
    }

    /// Ends the cluster. With GANTRY_DISRUPTION_LOGS its logs are kept there.
    pub(crate) fn end(self) -> Result<()> {
        if let Some(kept) = std::env::var_os("GANTRY_DISRUPTION_LOGS") {
            let status = std::process::Command::new("cp")
                .arg("-r")
                .args([self.cluster.folder().join("log"), self.cluster.audit_log()])
                .arg(&kept)
                .status();
            ensure!(status.context("run cp")?.success(), "the logs do not fit into {}", kept.display());
        }
        self.cluster.end()?;
        self.folder.close().context("remove the folder")
    }
}

const PODS: &str = "/var/lib/kubelet/pods";

/// Whose mount that is.
fn uid_of(point: &std::path::Path) -> String {
    let mut rest = point.strip_prefix(PODS).into_iter().flat_map(std::path::Path::components);
    rest.next().map(|uid| uid.as_os_str().to_string_lossy().into_owned()).unwrap_or_default()
}
