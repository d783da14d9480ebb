//! Which devices plugins offer, and which container has which. Pure: owns the bookkeeping and upstream's rules of
//! choice and refusal; never calls a plugin and never writes. Called by [`super::DeviceManager`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gantry_model::pod::PodUid;
use gantry_numa::hint::TopologyHint;
use gantry_numa::node_mask::NodeMask;

use super::DeviceOptions;
use super::affinity;
use super::checkpoint::{Checkpoint, Entry};
use super::health::DeviceHealth;

/// How long a resource is remembered after its plugin has gone: endpointStopGracePeriod of the kubelet.
pub(super) const STOP_GRACE: Duration = Duration::from_secs(5 * 60);
/// The NUMA node of a device that tells none, in checkpoints.
const WITHOUT_TOPOLOGY: i64 = -1;

/// A device, as its plugin told of it last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Device {
    pub(super) healthy: bool,
    /// NUMA nodes that it is near to.
    pub(super) numa: Vec<i64>,
}

/// What a plugin wants to be asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct PluginOptions {
    /// Before each start of a container that has its devices.
    pub(super) pre_start: bool,
    /// Which of the available devices it would give.
    pub(super) preferred: bool,
}

/// Whether a resource's plugin is there.
///
/// ```text
///  Connected ──its stream ends──▶ Stopped ──5 minutes──▶ (the resource is removed)
///      ▲                             │
///      └──────── registers ──────────┘
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
enum Plugin {
    Connected {
        generation: u64,
        options: PluginOptions,
    },
    /// Since when, by the monotonic clock.
    Stopped {
        since: Duration,
        /// What it wanted to be asked; all off of one that was gone when this kubelet began.
        options: PluginOptions,
    },
}

/// A resource that a plugin offers, or has offered.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Resource {
    plugin: Plugin,
    /// By ID, from the last list.
    devices: BTreeMap<String, Device>,
    /// The plugin has gone, or has told nothing yet: none of them can be given.
    all_unhealthy: bool,
}

impl Resource {
    fn healthy(&self) -> BTreeSet<String> {
        let usable = |(_, device): &(&String, &Device)| device.healthy && !self.all_unhealthy;
        self.devices.iter().filter(usable).map(|(id, _)| id.clone()).collect()
    }
}

/// What a container has of one resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Allocation {
    /// IDs by NUMA node.
    pub(super) devices: BTreeMap<i64, Vec<String>>,
    /// What the plugin wants the container to have for them.
    pub(super) options: DeviceOptions,
}

impl Allocation {
    pub(super) fn ids(&self) -> BTreeSet<String> {
        self.devices.values().flatten().cloned().collect()
    }
}

/// What a node tells of a resource.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    /// Devices.
    pub(crate) capacity: i64,
    /// Devices that are healthy.
    pub(crate) allocatable: i64,
}

/// What one container asks for of one resource.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) pod: &'a PodUid,
    pub(super) container: &'a str,
    pub(super) resource: &'a str,
    pub(super) count: usize,
    /// Of init containers of the pod that have ended by then.
    pub(super) reusable: &'a BTreeSet<String>,
    /// Where it should be near to.
    pub(super) nodes: Option<NodeMask>,
}

/// What a list has changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ListChange {
    /// Which devices there are, or the health of one.
    pub(super) any: bool,
    /// The health of one that a container has.
    pub(super) given: bool,
}

/// Devices to choose from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Choice {
    /// Taken in any case: those of init containers, and near ones where there are no more than are wanted.
    pub(super) taken: BTreeSet<String>,
    /// Healthy and nobody's, the better ones first.
    pub(super) groups: Vec<BTreeSet<String>>,
    /// How many of these are wanted.
    pub(super) missing: usize,
}

impl Choice {
    /// All that the plugin may prefer some of.
    pub(super) fn offered(&self) -> BTreeSet<String> {
        self.groups.iter().flatten().chain(&self.taken).cloned().collect()
    }

    /// All devices of the container: the plugin's preference first, then by group and ID.
    pub(super) fn pick(&self, preferred: &[String]) -> BTreeSet<String> {
        let mut picked = self.taken.clone();
        let most = self.taken.len().saturating_add(self.missing);
        let preferred = preferred.iter().filter(|id| self.groups.iter().any(|group| group.contains(*id)));
        for id in preferred.chain(self.groups.iter().flatten()) {
            if picked.len() == most {
                break;
            }
            picked.insert(id.clone());
        }
        picked
    }
}

/// The bookkeeping.
#[derive(Debug, Default)]
pub(super) struct State {
    resources: BTreeMap<String, Resource>,
    /// Resources that were removed: a node tells 0 of them from then on.
    removed: BTreeSet<String>,
    /// Pod → container → resource.
    pods: BTreeMap<PodUid, BTreeMap<String, BTreeMap<String, Allocation>>>,
    /// Chosen for a container of that pod, while its plugin is being asked: by resource and ID.
    reserved: BTreeMap<String, BTreeMap<String, PodUid>>,
    generations: u64,
}

impl State {
    /// From a checkpoint: its resources have no devices until their plugins register again.
    pub(super) fn restore(checkpoint: Checkpoint, now: Duration) -> Self {
        let mut state = Self::default();
        for Entry { pod, container, resource, devices, options } in checkpoint.entries {
            // One that is none is no pod's of this node.
            let Some(pod) = PodUid::parse(&pod) else { continue };
            let containers = state.pods.entry(pod).or_default();
            let allocation = Allocation { devices, options };
            containers.entry(container).or_default().insert(resource, allocation);
        }
        for name in checkpoint.registered.into_keys() {
            let plugin = Plugin::Stopped { since: now, options: PluginOptions::default() };
            let resource = Resource { plugin, devices: BTreeMap::new(), all_unhealthy: true };
            state.resources.insert(name, resource);
        }
        state
    }

    /// What is to be known after a restart.
    pub(super) fn checkpoint(&self) -> Checkpoint {
        let mut entries = Vec::new();
        for (pod, containers) in &self.pods {
            for (container, resources) in containers {
                entries.extend(resources.iter().map(|(resource, allocation)| Entry {
                    pod: pod.to_string(),
                    container: container.clone(),
                    resource: resource.clone(),
                    devices: allocation.devices.clone(),
                    options: allocation.options.clone(),
                }));
            }
        }
        let healthy = |(name, resource): (&String, &Resource)| {
            (name.clone(), resource.healthy().into_iter().collect::<Vec<_>>())
        };
        Checkpoint { entries, registered: self.resources.iter().map(healthy).collect() }
    }

    /// A plugin has registered and answered: from now on it, and no earlier one, speaks for the resource. Returns the
    /// generation by which it does.
    pub(super) fn connect(&mut self, resource: &str, options: PluginOptions) -> u64 {
        self.generations += 1;
        let plugin = Plugin::Connected { generation: self.generations, options };
        self.removed.remove(resource);
        match self.resources.get_mut(resource) {
            Some(known) => known.plugin = plugin,
            None => {
                let new = Resource { plugin, devices: BTreeMap::new(), all_unhealthy: true };
                self.resources.insert(resource.to_owned(), new);
            }
        }
        self.generations
    }

    fn is_current(&self, resource: &str, generation: u64) -> bool {
        let plugin = self.resources.get(resource).map(|resource| &resource.plugin);
        matches!(plugin, Some(Plugin::Connected { generation: current, .. }) if *current == generation)
    }

    /// The plugin's new list. None when another plugin speaks for the resource meanwhile.
    pub(super) fn list(
        &mut self,
        resource: &str,
        generation: u64,
        devices: BTreeMap<String, Device>,
    ) -> Option<ListChange> {
        if !self.is_current(resource, generation) {
            return None;
        }
        let given: BTreeSet<String> = self.allocations(resource).flat_map(Allocation::ids).collect();
        let known = self.resources.get_mut(resource)?;
        let health =
            |of: &BTreeMap<String, Device>, id: &String| of.get(id).is_none_or(|device| device.healthy);
        let change = ListChange {
            any: known.all_unhealthy || known.devices != devices,
            given: given.iter().any(|id| health(&known.devices, id) != health(&devices, id)),
        };
        known.devices = devices;
        known.all_unhealthy = false;
        Some(change)
    }

    /// How the devices are that the pod's containers have, as their plugins told last; of one that no plugin has told of,
    /// as upstream: healthy.
    pub(super) fn health(&self, pod: &PodUid) -> DeviceHealth {
        let mut health = DeviceHealth::new();
        for (container, resources) in self.pods.get(pod).into_iter().flatten() {
            for (resource, allocation) in resources {
                let told = self.resources.get(resource).map(|resource| &resource.devices);
                let is_healthy =
                    |id: &String| told.and_then(|told| told.get(id)).is_none_or(|device| device.healthy);
                let ids = allocation.ids().into_iter().map(|id| (is_healthy(&id), id));
                let of_container = health.entry(container.clone()).or_default();
                of_container
                    .insert(resource.clone(), ids.map(|(healthy, id)| (id, healthy.into())).collect());
            }
        }
        health
    }

    /// The plugin's stream has ended: its devices can be given to nobody. False when another plugin speaks for the resource.
    pub(super) fn disconnect(&mut self, resource: &str, generation: u64, now: Duration) -> bool {
        if !self.is_current(resource, generation) {
            return false;
        }
        if let Some(known) = self.resources.get_mut(resource)
            && let Plugin::Connected { options, .. } = known.plugin
        {
            known.plugin = Plugin::Stopped { since: now, options };
            known.all_unhealthy = true;
        }
        true
    }

    /// Removes resources whose plugins have been gone for [`STOP_GRACE`]. Returns whether there were any.
    pub(super) fn expire(&mut self, now: Duration) -> bool {
        let gone = |resource: &Resource| match resource.plugin {
            Plugin::Stopped { since, .. } => now.saturating_sub(since) > STOP_GRACE,
            Plugin::Connected { .. } => false,
        };
        let names: Vec<String> =
            self.resources.iter().filter(|(_, r)| gone(r)).map(|(name, _)| name.clone()).collect();
        for name in &names {
            self.resources.remove(name);
        }
        let any = !names.is_empty();
        self.removed.extend(names);
        any
    }

    /// What the node tells, by resource; 0 of those that were removed.
    pub(super) fn amounts(&self) -> BTreeMap<String, Amount> {
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        let mut amounts: BTreeMap<String, Amount> =
            self.removed.iter().map(|name| (name.clone(), Amount::default())).collect();
        for (name, resource) in &self.resources {
            let amount = Amount {
                capacity: count(resource.devices.len()),
                allocatable: count(resource.healthy().len()),
            };
            amounts.insert(name.clone(), amount);
        }
        amounts
    }

    /// Whether it is a plugin's at all: one that offers it, or that has given some of it.
    pub(super) fn is_device(&self, resource: &str) -> bool {
        self.resources.contains_key(resource) || self.allocations(resource).next().is_some()
    }

    /// None when the plugin is not there.
    pub(super) fn options(&self, resource: &str) -> Option<PluginOptions> {
        match self.resources.get(resource).map(|resource| &resource.plugin) {
            Some(Plugin::Connected { options, .. }) => Some(*options),
            _ => None,
        }
    }

    /// Whether a plugin that is away now wants to know before a container starts.
    pub(super) fn misses_pre_start(&self, resource: &str) -> bool {
        let plugin = self.resources.get(resource).map(|resource| &resource.plugin);
        matches!(plugin, Some(Plugin::Stopped { options, .. }) if options.pre_start)
    }

    fn allocations<'a>(&'a self, resource: &'a str) -> impl Iterator<Item = &'a Allocation> {
        let containers = self.pods.values().flat_map(BTreeMap::values);
        containers.filter_map(move |resources| resources.get(resource))
    }

    /// What a container has of a resource.
    pub(super) fn allocation(&self, pod: &PodUid, container: &str, resource: &str) -> Option<&Allocation> {
        self.pods.get(pod)?.get(container)?.get(resource)
    }

    /// What a container has, by resource.
    pub(super) fn of_container(
        &self,
        pod: &PodUid,
        container: &str,
    ) -> Option<&BTreeMap<String, Allocation>> {
        self.pods.get(pod)?.get(container)
    }

    /// What a container may be given; nothing when it has all of it already.
    ///
    /// # Errors
    /// Why it can be given none, in upstream's words.
    pub(super) fn choice(&self, of: Request<'_>) -> Result<Option<Choice>, String> {
        let Request { pod, container, resource, count, reusable, nodes } = of;
        let has = self.allocation(pod, container, resource).map(Allocation::ids);
        if let Some(has) = &has
            && has.len() != count
        {
            return Err(format!(
                "pod {:?} container {container:?} changed request for resource {resource:?} from {} to {count}",
                pod.to_string(),
                has.len()
            ));
        }
        let Some(known) = self.resources.get(resource) else {
            return Err(format!("cannot allocate unregistered device {resource}"));
        };
        let healthy = known.healthy();
        if healthy.is_empty() {
            return Err(format!("no healthy devices present; cannot allocate unhealthy devices {resource}"));
        }
        if let Some(has) = has {
            if !has.is_subset(&healthy) {
                return Err(format!(
                    "previously allocated devices are no longer healthy; cannot allocate unhealthy devices {resource}"
                ));
            }
            return Ok(None);
        }
        if count == 0 {
            return Ok(None);
        }
        let reused: BTreeSet<String> = reusable.iter().take(count).cloned().collect();
        let missing = count - reused.len();
        let available = self.available(resource);
        if available.len() < missing {
            return Err(format!(
                "requested number of devices unavailable for {resource}. Requested: {missing}, Available: {}",
                available.len()
            ));
        }
        Ok(Some(affinity::choice(&known.devices, nodes, reused, available, missing)))
    }

    /// Healthy and nobody's.
    fn available(&self, resource: &str) -> BTreeSet<String> {
        let mut taken: BTreeSet<String> = self.allocations(resource).flat_map(Allocation::ids).collect();
        taken.extend(self.reserved.get(resource).into_iter().flat_map(BTreeMap::keys).cloned());
        let healthy = self.resources.get(resource).map(Resource::healthy).unwrap_or_default();
        healthy.difference(&taken).cloned().collect()
    }

    /// The NUMA nodes of the machine's `nodes` that could give so many of the resource, which are `has` where they were given
    /// before. None: its devices are near to none.
    pub(super) fn hints(
        &self,
        resource: &str,
        count: usize,
        has: &BTreeSet<String>,
        reusable: &BTreeSet<String>,
        nodes: &[u32],
    ) -> Option<Vec<TopologyHint>> {
        let devices = &self.resources.get(resource)?.devices;
        if !affinity::is_aligned(devices) {
            return None;
        }
        let available = self.available(resource);
        let nothing = BTreeSet::new();
        match has.len() {
            0 if available.union(reusable).count() < count => Some(Vec::new()),
            0 => affinity::hints(devices, count, &available, reusable, nodes),
            has_count if has_count != count => Some(Vec::new()),
            _ => affinity::hints(devices, count, has, &nothing, nodes),
        }
    }

    /// What all containers of the pod have of the resource.
    pub(super) fn of_pod(&self, pod: &PodUid, resource: &str) -> BTreeSet<String> {
        let containers = self.pods.get(pod).into_iter().flat_map(BTreeMap::values);
        containers.filter_map(|resources| resources.get(resource)).flat_map(Allocation::ids).collect()
    }

    /// Nobody else is given them until [`State::release`].
    pub(super) fn reserve(&mut self, of: Request<'_>, devices: &BTreeSet<String>) {
        let of_pod = devices.iter().map(|id| (id.clone(), of.pod.clone()));
        self.reserved.entry(of.resource.to_owned()).or_default().extend(of_pod);
    }

    /// They are the container's now, or were never given.
    pub(super) fn release(&mut self, resource: &str, devices: &BTreeSet<String>) {
        if let Some(reserved) = self.reserved.get_mut(resource) {
            reserved.retain(|id, _| !devices.contains(id));
        }
    }

    /// The plugin has given what was reserved. False when the pod was over before it did: then they are nobody's.
    pub(super) fn allocate(
        &mut self,
        of: Request<'_>,
        devices: &BTreeSet<String>,
        options: DeviceOptions,
    ) -> bool {
        let reserved = self.reserved.get(of.resource);
        if !devices.iter().all(|id| reserved.and_then(|all| all.get(id)) == Some(of.pod)) {
            return false;
        }
        let mut by_node: BTreeMap<i64, Vec<String>> = BTreeMap::new();
        let known = self.resources.get(of.resource).map(|resource| &resource.devices);
        for id in devices {
            let numa =
                known.and_then(|all| all.get(id)).map(|device| device.numa.as_slice()).unwrap_or_default();
            let nodes = if numa.is_empty() { &[WITHOUT_TOPOLOGY] } else { numa };
            nodes.iter().for_each(|node| by_node.entry(*node).or_default().push(id.clone()));
        }
        let container =
            self.pods.entry(of.pod.clone()).or_default().entry(of.container.to_owned()).or_default();
        container.insert(of.resource.to_owned(), Allocation { devices: by_node, options });
        true
    }

    /// The pod is over: others may have its devices. Returns whether it had any.
    pub(super) fn forget(&mut self, pod: &PodUid) -> bool {
        self.reserved.values_mut().for_each(|reserved| reserved.retain(|_, of| of != pod));
        self.pods.remove(pod).is_some()
    }

    /// The same for all pods but these.
    pub(super) fn retain(&mut self, pods: &BTreeSet<&PodUid>) -> bool {
        let before = self.pods.len();
        self.pods.retain(|pod, _| pods.contains(pod));
        self.pods.len() != before
    }

    /// Healthy devices by resource.
    pub(super) fn healthy(&self) -> BTreeMap<String, BTreeMap<String, Device>> {
        let of = |resource: &Resource| {
            let healthy = resource.healthy();
            resource
                .devices
                .iter()
                .filter(|(id, _)| healthy.contains(*id))
                .map(|(id, d)| (id.clone(), d.clone()))
                .collect()
        };
        self.resources.iter().map(|(name, resource)| (name.clone(), of(resource))).collect()
    }
}

#[cfg(test)]
mod tests;
