//! Registers the node and keeps its status true. Owns the Node object's requests and when they are
//! made; never decides what is said. Started by [`super::start`].

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use gantry_kube_client::strategic_merge;
use gantry_model::random;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeAddress};
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::compose::{self, NodeInputs};
use super::machine::Addresses;
use super::startup::Startup;
use super::{Settings, World, conditions};
use crate::events::{Kind, NodeNote};
use crate::runtime::about::StoredImage;

const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(7);
/// Between a change of what plugins offer and its report.
const DEVICES_WAIT: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(10);
/// Of what is nice to know: a runtime or a resolver that hangs must not keep the node from saying so.
const IMPATIENCE: Duration = Duration::from_secs(2);
/// Of one update.
const TRIES: usize = 5;
/// While a node is not ready for the first time, it is told as soon as it is.
const GRACE: Duration = Duration::from_secs(120);
const SWAPS_TMPFS: &str = "The tmpfs noswap option is not supported. Memory-backed volumes (e.g. secrets, emptyDirs, \
                           etc.) might be swapped to disk and should no longer be considered secure.";
const CGROUP_V1: &str = "cgroup v1 detected. cgroup v1 support is deprecated and will be removed in a future \
     release. Please migrate to cgroup v2. More information at \
     https://git.k8s.io/enhancements/keps/sig-node/5573-remove-cgroup-v1";

/// Why the status could not be told.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("read node {name}")]
    Get {
        name: String,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("patch the status of node {name}")]
    Patch {
        name: String,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("no answer about node {name}")]
    Silence { name: String },
}

pub(super) struct Reporter {
    settings: Settings,
    world: World,
    node: watch::Receiver<Option<Arc<Node>>>,
    /// The answer to the last write.
    answered: Option<Arc<Node>>,
    /// As the runtime listed them last.
    images: Option<Vec<StoredImage>>,
    /// When the status was last told, and how much later than the period it is told again.
    told: Option<(Instant, Duration)>,
    born: Instant,
    startup: Startup,
    was_ready: bool,
    rebooted: bool,
    unschedulable: bool,
    pod_cidr: String,
}

impl Reporter {
    pub(super) fn new(settings: Settings, world: World, node: watch::Receiver<Option<Arc<Node>>>) -> Self {
        let (booted, begun) = (world.machine.booted_at, world.clock.wall_nanos());
        Self {
            startup: Startup::new(world.metrics.clone(), booted, begun),
            settings,
            world,
            node,
            answered: None,
            images: None,
            told: None,
            born: Instant::now(),
            was_ready: false,
            rebooted: false,
            unschedulable: false,
            pod_cidr: String::new(),
        }
    }

    pub(super) async fn run(mut self) {
        self.note(Kind::Normal, "Starting", "Starting kubelet.");
        if self.world.machine.cgroup_v1 {
            self.note(Kind::Warning, "CgroupV1", CGROUP_V1);
        }
        if self.world.machine.swaps_tmpfs {
            self.note(Kind::Warning, "PossibleMemoryBackedVolumesOnDisk", SWAPS_TMPFS);
        }
        // The runtime's first answer, so that the first report of a restarted kubelet is no NotReady.
        let mut pulse = self.world.pulse.clone();
        let answered = pulse.wait_for(|pulse| pulse.health.is_some());
        if timeout(Duration::from_secs(2), answered).await.is_err() {
            tracing::warn!("the runtime has not said yet how it is");
        }
        if self.settings.register {
            self.register().await;
        }
        loop {
            let shutdown = *self.world.shutdown.borrow_and_update();
            let told = self.update().await;
            if told {
                self.world.reported.send_replace(shutdown);
            }
            self.rest(told).await;
        }
    }

    /// Until the period is over, the node's pressures change, or what kept a new node from being ready is gone.
    async fn rest(&mut self, told: bool) {
        let every = self.settings.status_every;
        let deadline = Instant::now() + every + every.mul_f64(0.04 * random::fraction());
        let (mut pressures, mut devices) = (self.world.pressures.clone(), self.world.devices.clone());
        let mut shutdown = self.world.shutdown.clone();
        let mut in_use = self.world.volumes_in_use.clone();
        loop {
            let at_first = told && !self.was_ready && self.born.elapsed() < GRACE;
            let well = self.troubles().is_empty();
            if at_first && well {
                // A moment, should it be refused.
                tokio::time::sleep(FIRST_WAIT).await;
                return;
            }
            let (pulse, troubles) = (&mut self.world.pulse, &mut self.world.troubles);
            // All arms are cancel-safe: a change stays marked, a timer has no state.
            tokio::select! {
                () = tokio::time::sleep_until(deadline) => return,
                // The scheduler is to know at once.
                Ok(()) = pressures.changed() => return,
                Ok(()) = shutdown.changed() => return,
                // Pods wait for it.
                Ok(()) = in_use.changed() => return,
                Ok(()) = devices.changed() => {
                    // Whatever a plugin does: so often at most.
                    tokio::time::sleep(DEVICES_WAIT).await;
                    return;
                }
                Ok(()) = pulse.changed(), if at_first => {}
                Ok(()) = troubles.changed(), if at_first => {}
            }
        }
    }

    fn troubles(&self) -> Vec<String> {
        let mut troubles = self.world.pulse.borrow().troubles(Instant::now());
        troubles.extend(self.world.troubles.borrow().iter().cloned());
        if self.world.shutdown.borrow().is_on() {
            troubles.push("node is shutting down".to_owned());
        }
        troubles
    }

    fn note(&self, kind: Kind, reason: &'static str, message: impl Into<String>) {
        self.world.recorder.node(NodeNote { kind, reason, message: message.into() });
    }

    /// By the wall clock, in whole seconds: as the API keeps it.
    fn now(&self) -> Timestamp {
        let seconds = self.world.clock.wall_nanos().div_euclid(1_000_000_000);
        Timestamp::from_second(seconds).unwrap_or(Timestamp::UNIX_EPOCH)
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.world.client.clone())
    }

    /// Until the node is there.
    async fn register(&mut self) {
        let mut pause = FIRST_WAIT;
        loop {
            let (node, notes) =
                self.compose_node(&compose::initial(&self.settings, &self.world.machine)).await;
            let name = self.settings.node_name.clone();
            tracing::info!(node = name, "attempting to register node");
            self.startup.tries(self.world.clock.wall_nanos());
            match timeout(PATIENCE, self.try_register(&node)).await {
                Ok(Ok(registered)) => {
                    tracing::info!(node = name, "successfully registered node");
                    notes.into_iter().for_each(|note| self.world.recorder.node(note));
                    self.was_ready = ready(&registered);
                    if self.was_ready {
                        self.startup.ready(self.world.clock.wall_nanos());
                    }
                    self.answered = Some(Arc::new(registered));
                    return;
                }
                Ok(Err(error)) => {
                    tracing::error!(node = name, %error, "unable to register node with API server");
                }
                Err(_) => tracing::error!(node = name, "unable to register node with API server: no answer"),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_WAIT);
        }
    }

    /// The node as the API has it then.
    async fn try_register(&mut self, node: &Node) -> Result<Node, kube::Error> {
        match self.nodes().create(&PostParams::default(), node).await {
            Ok(made) => {
                self.startup.record_registration(self.world.clock.wall_nanos());
                return Ok(made);
            }
            // There already; or it may not be made, but is there all the same.
            Err(kube::Error::Api(status)) if matches!(status.code, 409 | 403) => {}
            Err(error) => return Err(error),
        }
        let mut existing = self.nodes().get(&self.settings.node_name).await?;
        existing.metadata.managed_fields = None;
        tracing::info!(node = self.settings.node_name, "node was previously registered");
        let wanted = compose::reconcile_node(node, &existing, &self.world.machine.devices);
        match difference(&existing, &wanted) {
            None => Ok(existing),
            Some(patch) => self.send(&patch).await,
        }
    }

    async fn send(&self, patch: &Value) -> Result<Node, kube::Error> {
        let patch = Patch::Strategic(patch);
        let mut node =
            self.nodes().patch_status(&self.settings.node_name, &PatchParams::default(), &patch).await?;
        node.metadata.managed_fields = None;
        Ok(node)
    }

    /// Tells the status if there is anything to tell; a few times if need be. Whether that worked.
    async fn update(&mut self) -> bool {
        for tried in 0..TRIES {
            let Err(error) = self.try_update(tried).await else { return true };
            let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            tracing::error!(%error, cause, "error updating node status, will retry");
            if tried > 0 {
                (self.world.troubled)();
            }
        }
        tracing::error!("unable to update node status: update node status exceeds retry count");
        false
    }

    async fn try_update(&mut self, tried: usize) -> Result<(), Error> {
        let name = self.settings.node_name.clone();
        let base = match self.newest().filter(|_| tried == 0) {
            Some(node) => node,
            None => {
                let got = timeout(PATIENCE, self.nodes().get(&name)).await;
                let got = got.map_err(|_| Error::Silence { name: name.clone() })?;
                let mut node =
                    got.map_err(|source| Error::Get { name: name.clone(), source: Box::new(source) })?;
                node.metadata.managed_fields = None;
                Arc::new(node)
            }
        };
        let moved = self.take_pod_cidr(&base).await;
        self.tell_schedulable(&base);
        let (node, notes) = self.compose_node(&base).await;
        let changed = moved || significant(&base) != significant(&node);
        let period = self.settings.report_every;
        let due = self.told.is_none_or(|(at, delay)| at.elapsed() >= (period / 2).saturating_add(delay));
        if !changed && !due {
            return Ok(());
        }
        let delay = match changed || self.told.is_none() {
            true => period.mul_f64(random::fraction()),
            false => period / 2,
        };
        let Some(patch) = difference(&base, &node) else { return Ok(()) };
        let answer = timeout(PATIENCE, self.send(&patch)).await;
        let answer = answer.map_err(|_| Error::Silence { name: name.clone() })?;
        let answer = answer.map_err(|source| Error::Patch { name, source: Box::new(source) })?;
        self.told = Some((Instant::now(), delay));
        // Once, whatever the API's copy says later.
        self.rebooted |= notes.iter().any(|note| note.reason == "Rebooted");
        notes.into_iter().for_each(|note| self.world.recorder.node(note));
        if ready(&answer) {
            self.was_ready = true;
            self.startup.ready(self.world.clock.wall_nanos());
        }
        self.answered = Some(Arc::new(answer));
        Ok(())
    }

    /// From the watch, or the last answer when that is newer.
    fn newest(&self) -> Option<Arc<Node>> {
        let seen = self.node.borrow().clone();
        let newer = |node: &&Arc<Node>| {
            seen.as_ref()
                .is_none_or(|seen| seen.metadata.uid == node.metadata.uid && version(node) > version(seen))
        };
        self.answered.as_ref().filter(newer).cloned().or(seen)
    }

    /// The node as it is now, and what is to be told of it once it is known.
    async fn compose_node(&mut self, base: &Node) -> (Node, Vec<NodeNote>) {
        self.list_images().await;
        let addresses = self.addresses().await;
        let foreign_mounts = self.foreign_mounts(base).await;
        let pulse = self.world.pulse.borrow().clone();
        let devices = self.world.devices.borrow_and_update().clone();
        let in_use = self.world.volumes_in_use.borrow_and_update().clone();
        let facts = NodeInputs {
            in_use: &in_use,
            settings: &self.settings,
            machine: &self.world.machine,
            devices: &devices,
            version: pulse.version.as_ref(),
            health: pulse.health.as_ref(),
            images: self.images.as_deref(),
            addresses: addresses.as_deref(),
            foreign_mounts,
        };
        let mut node = compose::update_node(base, &facts);
        let mut notes = Vec::new();
        let name = &self.settings.node_name;
        let known =
            base.status.as_ref().and_then(|status| status.node_info.as_ref()).map(|info| &info.boot_id);
        let boot = &self.world.machine.boot_id;
        if !self.rebooted && known.is_some_and(|known| !known.is_empty() && known != boot) {
            let message = format!("Node {name} has been rebooted, boot id: {boot}");
            notes.push(NodeNote { kind: Kind::Warning, reason: "Rebooted", message });
        }
        let status = node.status.get_or_insert_default();
        let pressures = self.world.pressures.borrow_and_update().clone();
        notes.extend(conditions::set(status, name, &pressures, &self.troubles(), self.now()));
        (node, notes)
    }

    async fn list_images(&mut self) {
        match timeout(IMPATIENCE, self.world.about.images()).await {
            Ok(Ok(images)) => self.images = Some(images),
            Ok(Err(error)) => {
                tracing::warn!(%error, detail = error.detail(), "the runtime does not list its images");
            }
            Err(_) => tracing::warn!("the runtime does not list its images: no answer"),
        }
    }

    /// Asked for only while volumes are told to be in use. In doubt they are: what is detached under a
    /// mount is lost.
    async fn foreign_mounts(&self, base: &Node) -> bool {
        let told = base.status.as_ref().and_then(|status| status.volumes_in_use.as_ref());
        if told.is_none_or(Vec::is_empty) {
            return false;
        }
        match timeout(IMPATIENCE, self.world.volumes.foreign()).await {
            Ok(Ok(mounted)) => mounted,
            Ok(Err(error)) => {
                tracing::warn!(%error, "volumesInUse stays as it is");
                true
            }
            Err(_) => {
                tracing::warn!("volumesInUse stays as it is: looking for mounts takes too long");
                true
            }
        }
    }

    /// None when none can be found: what the node has stays.
    async fn addresses(&self) -> Option<Vec<NodeAddress>> {
        let (settings, addresses) = (self.settings.clone(), self.world.addresses.clone());
        // A resolver may take its time.
        let found = tokio::task::spawn_blocking(move || addresses_of(&settings, &*addresses));
        match timeout(IMPATIENCE, found).await {
            Err(_) => {
                tracing::warn!("the node's addresses are not known yet: the resolver does not answer");
                None
            }
            Ok(Ok(Ok(found))) => Some(found),
            Ok(Ok(Err(problem))) => {
                tracing::error!(problem, "failed to set some node status fields");
                None
            }
            Ok(Err(error)) => {
                tracing::error!(%error, "looking for the node's addresses died");
                None
            }
        }
    }

    /// Whether it is new.
    async fn take_pod_cidr(&mut self, node: &Node) -> bool {
        let cidrs = node.spec.as_ref().and_then(|spec| spec.pod_cidrs.clone()).unwrap_or_default().join(",");
        if cidrs.is_empty() || cidrs == self.pod_cidr {
            return false;
        }
        match timeout(IMPATIENCE, self.world.about.set_pod_cidr(&cidrs)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::error!(%error, detail = error.detail(), "error updating pod CIDR");
                return false;
            }
            Err(_) => {
                tracing::error!("error updating pod CIDR: no answer");
                return false;
            }
        }
        tracing::info!(new = cidrs, old = self.pod_cidr, "updating pod CIDR");
        self.pod_cidr = cidrs;
        true
    }

    fn tell_schedulable(&mut self, node: &Node) {
        let unschedulable = node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false);
        if unschedulable != self.unschedulable {
            self.unschedulable = unschedulable;
            let event = if unschedulable { "NodeNotSchedulable" } else { "NodeSchedulable" };
            self.note(
                Kind::Normal,
                event,
                format!("Node {} status is now: {event}", self.settings.node_name),
            );
        }
    }
}

/// Upstream's order: what was chosen, the host name if it is one, what the name resolves to, the
/// interface of the default route.
fn addresses_of(settings: &Settings, machine: &dyn Addresses) -> Result<Vec<NodeAddress>, String> {
    let address = |kind: &str, address: String| NodeAddress { type_: kind.to_owned(), address };
    let host = || address("Hostname", settings.hostname.clone());
    let internal = |ip: IpAddr| address("InternalIP", ip.to_string());
    let chosen: Vec<IpAddr> = settings.node_ips.iter().filter(|ip| !ip.is_unspecified()).copied().collect();
    for ip in &chosen {
        if let Some(problem) = machine.problem(*ip) {
            return Err(format!("failed to validate nodeIP: {problem}"));
        }
    }
    if settings.external_cloud && settings.node_ips.is_empty() {
        return Ok(vec![host()]);
    }
    if !chosen.is_empty() {
        return Ok(chosen.into_iter().map(internal).chain([host()]).collect());
    }
    if let Ok(ip) = settings.hostname.parse::<IpAddr>() {
        return Ok(vec![internal(ip), host()]);
    }
    let v6 = settings.node_ips.first().is_some_and(IpAddr::is_ipv6);
    let mut named = machine.of_name(&settings.node_name);
    named.retain(|ip| machine.problem(*ip).is_none());
    let by_name = named.iter().find(|ip| ip.is_ipv6() == v6).or(named.first()).copied();
    let found = by_name.or_else(|| machine.default_route(v6)).or_else(|| machine.default_route(!v6));
    match found {
        Some(ip) => Ok(vec![internal(ip), host()]),
        None => Err(format!(
            "can't get ip address of node {}. error: no default route: give the node an address by --node-ip",
            settings.node_name
        )),
    }
}

fn ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn version(node: &Node) -> u128 {
    node.metadata.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(0)
}

/// Metadata and status: a kubelet does not write the spec.
fn difference(old: &Node, new: &Node) -> Option<Value> {
    let of = |node: &Node| json!({ "metadata": node.metadata, "status": node.status });
    strategic_merge::diff(&of(old), &of(new), strategic_merge::NODE)
}

/// All but the heartbeats, in an order of its own.
fn significant(node: &Node) -> Value {
    let mut status = node.status.clone().unwrap_or_default();
    for condition in status.conditions.iter_mut().flatten() {
        condition.last_heartbeat_time = None;
    }
    status.conditions.iter_mut().for_each(|all| all.sort_by(|a, b| a.type_.cmp(&b.type_)));
    let all =
        json!({ "labels": node.metadata.labels, "annotations": node.metadata.annotations, "status": status });
    strategic_merge::without_empty(&all)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{FakeAddresses, settings};
    use super::*;

    fn texts(addresses: Result<Vec<NodeAddress>, String>) -> Vec<String> {
        addresses.unwrap().into_iter().map(|a| format!("{} {}", a.type_, a.address)).collect()
    }

    #[test]
    fn addresses_are_looked_for_in_upstreams_order() {
        let machine = FakeAddresses {
            own: vec!["10.0.0.5".parse().unwrap(), "fd00::5".parse().unwrap()],
            named: vec!["127.0.1.1".parse().unwrap(), "10.0.0.5".parse().unwrap()],
            route: Some("10.0.0.9".parse().unwrap()),
        };
        let mut settings = settings();
        assert_eq!(texts(addresses_of(&settings, &machine)), ["InternalIP 10.0.0.5", "Hostname n1"]);
        let unnamed = FakeAddresses { named: vec![], ..machine.clone() };
        assert_eq!(texts(addresses_of(&settings, &unnamed)), ["InternalIP 10.0.0.9", "Hostname n1"]);
        settings.node_ips = vec!["10.0.0.5".parse().unwrap(), "fd00::5".parse().unwrap()];
        assert_eq!(
            texts(addresses_of(&settings, &machine)),
            ["InternalIP 10.0.0.5", "InternalIP fd00::5", "Hostname n1"]
        );
        settings.node_ips = vec!["10.9.9.9".parse().unwrap()];
        assert!(addresses_of(&settings, &machine).unwrap_err().starts_with("failed to validate nodeIP: "));
        settings.node_ips = vec![];
        settings.external_cloud = true;
        assert_eq!(texts(addresses_of(&settings, &machine)), ["Hostname n1"]);
    }
}
