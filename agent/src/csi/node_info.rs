//! What the cluster is told of this node's CSI drivers: the CSINode object, the Node's annotation with the drivers' IDs of
//! it, and its labels of topology. Owns these requests; one is made after the other. Called by [`super::drivers`].
//!
//! As upstream, with one exception: what a driver that is gone for good has left in the CSINode is withdrawn, since pods
//! would be sent here for it and wait.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::{CSINode, CSINodeDriver, CSINodeSpec, VolumeNodeResources};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::sync::{Mutex, watch};
use tokio::time::timeout;

use super::driver::NodeFacts;
use super::drivers::Drivers;

const NODE_IDS: &str = "csi.volume.kubernetes.io/nodeid";
const MIGRATED: &str = "storage.alpha.kubernetes.io/migrated-plugins";
/// Kinds of volumes that drivers have from the kubelet, by the names of upstream's old plugins.
const MIGRATED_PLUGINS: &str = "kubernetes.io/aws-ebs,kubernetes.io/azure-disk,kubernetes.io/azure-file,kubernetes.io/cinder,kubernetes.io/gce-pd,kubernetes.io/portworx-volume,kubernetes.io/vsphere-volume";
/// Waits between the tries of one update.
const WAITS: [Duration; 3] =
    [Duration::from_millis(10), Duration::from_millis(50), Duration::from_millis(250)];
/// Of one request.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between the tries at the start, at most.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// A driver has so long after the kubelet's start to register again.
const GRACE: Duration = Duration::from_secs(120);

/// See the module.
#[derive(Clone)]
pub(crate) struct NodeInfo {
    client: Client,
    node: String,
    /// One update at a time.
    turn: Arc<Mutex<()>>,
}

impl std::fmt::Debug for NodeInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeInfo").field("node", &self.node).finish_non_exhaustive()
    }
}

impl NodeInfo {
    /// Of the node of that name.
    pub(crate) fn new(client: Client, node: &str) -> Self {
        Self { client, node: node.to_owned(), turn: Arc::default() }
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    fn csi_nodes(&self) -> Api<CSINode> {
        Api::all(self.client.clone())
    }

    /// The driver is here.
    ///
    /// # Errors
    /// In upstream's words, when the API server refuses or does not answer.
    pub(crate) async fn install(&self, driver: &str, facts: &NodeFacts) -> Result<(), String> {
        if facts.node_id.is_empty() {
            return Err("error adding CSI driver node info: driverNodeID must not be empty".to_owned());
        }
        let node = self.again(|| self.install_in_node(driver, facts)).await;
        node.map_err(|why| {
            format!("error updating Node object with CSI driver node info: error updating node: {why}")
        })?;
        let csi = self.again(|| self.install_in_csi_node(driver, facts)).await;
        csi.map_err(|why| {
            format!("error updating CSINode object with CSI driver node info: error updating CSINode: {why}")
        })
    }

    /// The driver says something else than it did, unless it is not `here` any more.
    ///
    /// # Errors
    /// Likewise.
    pub(super) async fn update(
        &self,
        driver: &str,
        facts: &NodeFacts,
        here: impl Fn() -> bool,
    ) -> Result<(), String> {
        // In the same turn as the request: whoever has the driver withdrawn comes after it.
        let update = async || if here() { self.install_in_csi_node(driver, facts).await } else { Ok(()) };
        self.again(update).await.map_err(|why| {
            format!("error updating CSINode object with CSI driver node info: error updating CSINode: {why}")
        })
    }

    /// The driver has gone. Labels of topology stay: they are of volumes, too.
    ///
    /// # Errors
    /// Likewise.
    pub(crate) async fn uninstall(&self, driver: &str) -> Result<(), String> {
        let only = BTreeSet::from([driver.to_owned()]);
        self.again(|| self.remove_from_csi_node(|name| only.contains(name)))
            .await
            .map_err(|why| format!("error uninstalling CSI driver from CSINode object {why}"))?;
        self.again(|| self.remove_from_node(|name| only.contains(name)))
            .await
            .map_err(|why| format!("error removing CSI driver node info from Node object {why}"))
    }

    /// Has the CSINode there, and withdraws drivers that have not come back. Ends when that is done.
    pub(crate) async fn begin(self, drivers: Drivers, mut node: watch::Receiver<Option<Arc<Node>>>) {
        if node.wait_for(Option::is_some).await.is_err() {
            return;
        }
        self.until_it_works("the CSINode is not there yet", || self.have_csi_node()).await;
        tokio::time::sleep(GRACE).await;
        let what = "CSI drivers that have gone are not withdrawn yet";
        self.until_it_works(what, || self.withdraw(&drivers)).await;
    }

    async fn have_csi_node(&self) -> Result<(), String> {
        let mut object = self.csi_node().await?;
        if note_migrated(&mut object) { self.replace(&object).await } else { Ok(()) }
    }

    async fn withdraw(&self, drivers: &Drivers) -> Result<(), String> {
        let gone = |name: &str| !drivers.names().contains(name);
        self.remove_from_csi_node(gone).await?;
        self.remove_from_node(gone).await
    }

    async fn until_it_works<F: Future<Output = Result<(), String>>>(&self, what: &str, work: impl Fn() -> F) {
        let mut pause = WAITS[1];
        while let Err(why) = self.once(work()).await {
            tracing::warn!(why, "{what}");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_WAIT);
        }
    }

    async fn once(&self, work: impl Future<Output = Result<(), String>>) -> Result<(), String> {
        let _turn = self.turn.lock().await;
        timeout(PATIENCE, work).await.unwrap_or_else(|_| Err("the API server does not answer".to_owned()))
    }

    /// A few times: others write these objects, too.
    async fn again<F: Future<Output = Result<(), String>>>(
        &self,
        work: impl Fn() -> F,
    ) -> Result<(), String> {
        let mut failures = Vec::new();
        for wait in [Some(WAITS[0]), Some(WAITS[1]), Some(WAITS[2]), None] {
            match self.once(work()).await {
                Ok(()) => return Ok(()),
                Err(why) if failures.contains(&why) => {}
                Err(why) => failures.push(why),
            }
            if let Some(wait) = wait {
                tokio::time::sleep(wait).await;
            }
        }
        let causes =
            if failures.len() == 1 { failures.concat() } else { format!("[{}]", failures.join(", ")) };
        Err(format!("timed out waiting for the condition; caused by: {causes}"))
    }

    async fn node(&self) -> Result<Node, String> {
        self.nodes().get(&self.node).await.map_err(|error| told(&error))
    }

    async fn patch_node(&self, patch: &Value) -> Result<(), String> {
        let patched =
            self.nodes().patch_status(&self.node, &PatchParams::default(), &Patch::Strategic(patch)).await;
        patched.map(drop).map_err(|error| told(&error))
    }

    async fn install_in_node(&self, driver: &str, facts: &NodeFacts) -> Result<(), String> {
        let node = self.node().await?;
        let mut ids = ids_of(&node)?;
        let known = ids.insert(driver.to_owned(), facts.node_id.clone());
        let labels = node.metadata.labels.unwrap_or_default();
        for (key, value) in &facts.topology {
            if let Some(other) = labels.get(key).filter(|other| *other != value) {
                return Err(format!(
                    "detected topology value collision: driver reported {key:?}:{value:?} but existing label is {key:?}:{other:?}"
                ));
            }
        }
        if known.as_ref() == Some(&facts.node_id) && facts.topology.keys().all(|key| labels.contains_key(key))
        {
            return Ok(());
        }
        let ids = json!(ids).to_string();
        self.patch_node(
            &json!({ "metadata": { "annotations": { NODE_IDS: ids }, "labels": facts.topology } }),
        )
        .await
    }

    async fn remove_from_node(&self, gone: impl Fn(&str) -> bool) -> Result<(), String> {
        let mut ids = ids_of(&self.node().await?)?;
        let before = ids.len();
        ids.retain(|name, _| !gone(name));
        if ids.len() == before {
            return Ok(());
        }
        let left = if ids.is_empty() { Value::Null } else { Value::String(json!(ids).to_string()) };
        self.patch_node(&json!({ "metadata": { "annotations": { NODE_IDS: left } } })).await
    }

    /// The CSINode of this very node; made when there is none.
    async fn csi_node(&self) -> Result<CSINode, String> {
        let uid = self.node().await?.metadata.uid.unwrap_or_default();
        let Some(found) = self.csi_nodes().get_opt(&self.node).await.map_err(|error| told(&error))? else {
            return self.make_csi_node(uid).await;
        };
        let owners = found.metadata.owner_references.as_deref().unwrap_or_default();
        let of_node = |owner: &&OwnerReference| owner.kind == "Node";
        if owners.iter().filter(of_node).any(|owner| owner.name == self.node && owner.uid == uid) {
            return Ok(found);
        }
        let other = owners.iter().find(of_node).map(|owner| owner.uid.clone()).unwrap_or_default();
        let deleted = self.csi_nodes().delete(&self.node, &DeleteParams::default()).await;
        deleted
            .map_err(|error| format!("error deleting existing CSINode {:?}: {}", self.node, told(&error)))?;
        Err(format!(
            "CSINode {:?} was owned by different node (oldNodeID={other:?}, newNodeID={uid:?}), deleted it",
            self.node
        ))
    }

    async fn make_csi_node(&self, uid: String) -> Result<CSINode, String> {
        let owner = OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: self.node.clone(),
            uid,
            ..OwnerReference::default()
        };
        let metadata = ObjectMeta {
            name: Some(self.node.clone()),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        };
        let mut new = CSINode { metadata, spec: CSINodeSpec { drivers: Vec::new() } };
        note_migrated(&mut new);
        self.csi_nodes().create(&PostParams::default(), &new).await.map_err(|error| told(&error))
    }

    async fn install_in_csi_node(&self, driver: &str, facts: &NodeFacts) -> Result<(), String> {
        let mut object = self.csi_node().await?;
        let (new, is_noted) = (entry(driver, facts), !note_migrated(&mut object));
        let drivers = &mut object.spec.drivers;
        if is_noted && drivers.iter().any(|known| same(known, &new)) {
            return Ok(());
        }
        drivers.retain(|known| known.name != driver);
        drivers.push(new);
        self.replace(&object).await
    }

    async fn remove_from_csi_node(&self, gone: impl Fn(&str) -> bool) -> Result<(), String> {
        let found = self.csi_nodes().get_opt(&self.node).await.map_err(|error| told(&error))?;
        let Some(mut object) = found else { return Ok(()) };
        let before = object.spec.drivers.len();
        object.spec.drivers.retain(|driver| !gone(&driver.name));
        if object.spec.drivers.len() == before { Ok(()) } else { self.replace(&object).await }
    }

    /// With its version: what somebody has changed meanwhile is looked at again.
    async fn replace(&self, object: &CSINode) -> Result<(), String> {
        let replaced = self.csi_nodes().replace(&self.node, &PostParams::default(), object).await;
        replaced.map(drop).map_err(|error| told(&error))
    }
}

/// Notes which kinds go to drivers; whether that was anything new.
fn note_migrated(object: &mut CSINode) -> bool {
    let annotations = object.metadata.annotations.get_or_insert_default();
    let kinds = |text: &str| text.split(',').map(str::to_owned).collect::<BTreeSet<_>>();
    if annotations.get(MIGRATED).is_some_and(|old| kinds(old) == kinds(MIGRATED_PLUGINS)) {
        return false;
    }
    annotations.insert(MIGRATED.to_owned(), MIGRATED_PLUGINS.to_owned());
    true
}

/// As the API server said it.
fn told(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        error => gantry_base::error::chain(error),
    }
}

/// By driver, how it calls this node.
fn ids_of(node: &Node) -> Result<BTreeMap<String, String>, String> {
    let text = node.metadata.annotations.as_ref().and_then(|all| all.get(NODE_IDS));
    let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(BTreeMap::new()) };
    serde_json::from_str(text).map_err(|error| {
        format!("failed to parse node's {NODE_IDS:?} annotation value ({text:?}) err={error}")
    })
}

/// In the CSINode.
fn entry(driver: &str, facts: &NodeFacts) -> CSINodeDriver {
    let max = facts.max_volumes;
    if max < 0 {
        tracing::error!(driver, max, "a CSI driver's limit of volumes is none");
    }
    let count = (max > 0).then(|| i32::try_from(max).unwrap_or(i32::MAX));
    CSINodeDriver {
        name: driver.to_owned(),
        node_id: facts.node_id.clone(),
        topology_keys: Some(facts.topology.keys().cloned().collect()),
        allocatable: count.map(|count| VolumeNodeResources { count: Some(count) }),
    }
}

/// Whether it says the same already.
fn same(one: &CSINodeDriver, other: &CSINodeDriver) -> bool {
    let keys = |of: &CSINodeDriver| of.topology_keys.iter().flatten().cloned().collect::<BTreeSet<_>>();
    let count = |of: &CSINodeDriver| of.allocatable.as_ref().and_then(|all| all.count);
    one.name == other.name
        && one.node_id == other.node_id
        && keys(one) == keys(other)
        && count(one) == count(other)
}
