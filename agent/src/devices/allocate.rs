//! Gives devices to containers: choice, the plugin's word, what is written down of it. Owns the order of these and the
//! devices that a plugin is being asked for. Part of [`super::DeviceManager`]; called by the pod workers.

use std::collections::{BTreeMap, BTreeSet};

use gantry_model::pod::{Container, Pod, Role};
use gantry_model::quantity::parse_units;
use gantry_model::requests::peak;
use gantry_numa::hint::Hints;
use gantry_numa::node_mask::NodeMask;

use super::state::{Allocation, Request};
use super::{DeviceManager, DeviceOptions, Inner};
use crate::admission::is_extended;

/// Devices that a plugin is being asked for. They are free again when this is dropped.
struct Reservation<'a> {
    inner: &'a Inner,
    resource: &'a str,
    devices: BTreeSet<String>,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.inner.lock().state.release(self.resource, &self.devices);
    }
}

/// How a container is given its devices.
#[derive(Debug, Clone, Copy)]
struct AllocationRules<'a> {
    reusable: &'a Reusable,
    nodes: Option<NodeMask>,
    /// Of a pod that goes on: what the container has is not looked at again.
    goes_on: bool,
}

/// What init containers of a pod have of each resource: they have ended before the next container begins.
pub(crate) type Reusable = BTreeMap<String, BTreeSet<String>>;

impl DeviceManager {
    /// Gives the pod's next container the devices that it asks for, near to `nodes` where there are some. What it has already
    /// stays.
    ///
    /// # Errors
    /// Why the pod cannot have them, in upstream's words. What was given before stays the pod's until it is over.
    pub(crate) async fn allocate_next(
        &self,
        pod: &Pod,
        container: &Container,
        reusable: &mut Reusable,
        nodes: Option<NodeMask>,
    ) -> Result<(), String> {
        let gave = self
            .allocate_container(pod, container, AllocationRules { reusable, nodes, goes_on: false })
            .await?;
        let has = self.0.lock().state.of_container(&pod.uid, &container.name).cloned().unwrap_or_default();
        for (resource, allocation) in has {
            let free = reusable.entry(resource).or_default();
            match container.role {
                Role::Init => free.extend(allocation.ids()),
                _ => free.retain(|id| !allocation.ids().contains(id)),
            }
        }
        if gave {
            self.save().await?;
        }
        Ok(())
    }

    /// The NUMA nodes of the machine's `nodes` that the container's devices could be near to.
    pub(crate) fn hints(
        &self,
        pod: &Pod,
        container: &Container,
        reusable: &Reusable,
        nodes: &[u32],
    ) -> Hints {
        let shared = self.0.lock();
        let nothing = BTreeSet::new();
        let of_plugins = requests(pod, container).filter(|(resource, _)| shared.state.is_device(resource));
        let hints = of_plugins.map(|(resource, count)| {
            let has = shared.state.allocation(&pod.uid, &container.name, resource);
            let has = has.map(Allocation::ids).unwrap_or_default();
            let reusable = reusable.get(resource).unwrap_or(&nothing);
            (resource.to_owned(), shared.state.hints(resource, count, &has, reusable, nodes))
        });
        hints.collect()
    }

    /// The same for all containers of the pod.
    pub(crate) fn hints_of_pod(&self, pod: &Pod, nodes: &[u32]) -> Hints {
        let shared = self.0.lock();
        let of_plugins = wanted(pod).into_iter().filter(|resource| shared.state.is_device(resource));
        let hints = of_plugins.map(|resource| {
            let count = peak(pod, |container| {
                let of = requests(pod, container).find(|(name, _)| *name == resource);
                of.and_then(|(_, count)| i64::try_from(count).ok()).unwrap_or(0)
            });
            let count = usize::try_from(count).unwrap_or(0);
            let has = shared.state.of_pod(&pod.uid, resource);
            (resource.to_owned(), shared.state.hints(resource, count, &has, &BTreeSet::new(), nodes))
        });
        hints.collect()
    }

    /// Returns whether it was given any.
    async fn allocate_container(
        &self,
        pod: &Pod,
        container: &Container,
        rules: AllocationRules<'_>,
    ) -> Result<bool, String> {
        let AllocationRules { reusable, nodes, goes_on } = rules;
        let mut gave = false;
        let nothing = BTreeSet::new();
        for (resource, count) in requests(pod, container) {
            let pod = &pod.uid;
            let is_asked = {
                let state = &self.0.lock().state;
                let settled = count == 0 || state.allocation(pod, &container.name, resource).is_some();
                state.is_device(resource) && !(settled && goes_on)
            };
            if !is_asked {
                continue;
            }
            let reusable = reusable.get(resource).unwrap_or(&nothing);
            let request = Request { pod, container: &container.name, resource, count, reusable, nodes };
            gave |= self.allocate_resource(request).await?;
        }
        Ok(gave)
    }

    /// Chooses, asks the plugin, and writes down what it gave.
    async fn allocate_resource(&self, request: Request<'_>) -> Result<bool, String> {
        let resource = request.resource;
        let turn = self.0.lock().turns.entry(resource.to_owned()).or_default().clone();
        let _turn = turn.lock().await;
        let (choice, plugin, options) = {
            let shared = self.0.lock();
            let Some(choice) = shared.state.choice(request)? else { return Ok(false) };
            (choice, shared.client(resource), shared.state.options(resource))
        };
        let (Some(mut plugin), Some(options)) = (plugin, options) else {
            return Err(format!("unknown Device Plugin {resource}"));
        };
        let mut preferred = Vec::new();
        if choice.missing > 0 && options.preferred {
            preferred = plugin.preferred(&choice.offered(), &choice.taken, request.count).await?;
        }
        let reservation = self.reserve(request, &preferred)?;
        let begun = self.0.clock.mono();
        let given = plugin.allocate(&reservation.devices).await;
        let took = self.0.clock.mono().saturating_sub(begun);
        self.0.metrics.device_plugin_alloc_duration.took([resource], took);
        if !self.0.lock().state.allocate(request, &reservation.devices, given?) {
            return Err(format!("pod {} is over: it needs no {resource} any more", request.pod));
        }
        Ok(true)
    }

    /// Chooses once more: lists may have changed while the plugin was asked for its preference.
    fn reserve<'a>(&'a self, request: Request<'a>, preferred: &[String]) -> Result<Reservation<'a>, String> {
        let mut shared = self.0.lock();
        let devices = shared.state.choice(request)?.map(|choice| choice.pick(preferred)).unwrap_or_default();
        shared.state.reserve(request, &devices);
        Ok(Reservation { inner: &self.0, resource: request.resource, devices })
    }

    /// What a container is made with; plugins that want to know of its start are told.
    ///
    /// # Errors
    /// When a plugin does not let it start.
    pub(crate) async fn options(&self, pod: &Pod, container: &Container) -> Result<DeviceOptions, String> {
        // A kubelet that gave no devices has started the pod: the plugin is asked now, as upstream does.
        let rules = AllocationRules { reusable: &Reusable::new(), nodes: None, goes_on: true };
        if self.allocate_container(pod, container, rules).await? {
            self.save().await?;
        }
        let mut given = Vec::new();
        for (resource, _) in requests(pod, container) {
            let (allocation, plugin) = {
                let shared = self.0.lock();
                let allocation = shared.state.allocation(&pod.uid, &container.name, resource).cloned();
                let Some(allocation) = allocation else { continue };
                (allocation, shared.pre_start(resource)?)
            };
            if let Some(mut plugin) = plugin {
                plugin.pre_start(allocation.ids()).await?;
            }
            given.push(allocation.options);
        }
        Ok(merge(given))
    }
}

/// The extended resources among a container's limits, but for those that a DRA driver gives: they can be given whole only, so
/// the request is the same.
fn requests<'a>(pod: &'a Pod, container: &'a Container) -> impl Iterator<Item = (&'a str, usize)> {
    let is_plugins = |name: &str| is_extended(name) && !pod.resource_claims.gives(&container.name, name);
    let extended = container.written.limits.iter().filter(move |(name, _)| is_plugins(name));
    extended.map(|(name, text)| {
        // The API server lets whole numbers through alone; of files the reader has refused others.
        (name.as_str(), parse_units(text).ok().and_then(|count| usize::try_from(count).ok()).unwrap_or(0))
    })
}

/// Whether the pod could ask a plugin for anything.
pub(crate) fn asks(pod: &Pod) -> bool {
    !wanted(pod).is_empty()
}

/// The resources that it could ask for.
pub(crate) fn wanted(pod: &Pod) -> BTreeSet<&str> {
    let containers = pod.init_containers.iter().chain(&pod.containers);
    containers.flat_map(|container| requests(pod, container).map(|(resource, _)| resource)).collect()
}

/// All answers for a container as one. Of what two name, the first counts.
fn merge(given: Vec<DeviceOptions>) -> DeviceOptions {
    let mut all = DeviceOptions::default();
    for DeviceOptions { env, mounts, devices, annotations, cdi } in given {
        extend(&mut all.env, env, |(name, _)| name.clone());
        extend(&mut all.mounts, mounts, |(path, ..)| path.clone());
        extend(&mut all.devices, devices, |(path, ..)| path.clone());
        extend(&mut all.annotations, annotations, |(name, _)| name.clone());
        extend(&mut all.cdi, cdi, String::clone);
    }
    all
}

fn extend<T>(all: &mut Vec<T>, more: Vec<T>, key: impl Fn(&T) -> String) {
    for one in more {
        if all.iter().all(|known| key(known) != key(&one)) {
            all.push(one);
        }
    }
}
