//! Gives devices to containers: choice, the plugin's word, what is written down of it. Owns the order of these and the
//! devices that a plugin is being asked for. Part of [`super::DeviceManager`]; called by the pod workers.

use std::collections::{BTreeMap, BTreeSet};

use gantry_model::pod::{Container, Pod, Role};
use gantry_model::quantity::parse_units;

use super::state::Request;
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

impl DeviceManager {
    /// Gives each container of the pod the devices that it asks for. What it has already stays; of a pod that `runs`
    /// nothing is asked again.
    ///
    /// # Errors
    /// Why the pod cannot have them, in upstream's words. What was given before stays the pod's until it is over.
    pub(crate) async fn allocate(&self, pod: &Pod, runs: bool) -> Result<(), String> {
        if runs {
            return Ok(());
        }
        let mut reusable: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for container in pod.init_containers.iter().chain(&pod.containers) {
            let gave = self.allocate_container(pod, container, &reusable, false).await?;
            let has =
                self.0.lock().state.of_container(&pod.uid, &container.name).cloned().unwrap_or_default();
            for (resource, allocation) in has {
                let free = reusable.entry(resource).or_default();
                match container.role {
                    // It has ended before the next one begins.
                    Role::Init => free.extend(allocation.ids()),
                    _ => free.retain(|id| !allocation.ids().contains(id)),
                }
            }
            if gave {
                self.save().await?;
            }
        }
        Ok(())
    }

    /// Of a pod that `goes_on`, what a container has is not looked at again. Returns whether it was given any.
    async fn allocate_container(
        &self,
        pod: &Pod,
        container: &Container,
        reusable: &BTreeMap<String, BTreeSet<String>>,
        goes_on: bool,
    ) -> Result<bool, String> {
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
            let request = Request { pod, container: &container.name, resource, count, reusable };
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
            let all = choice.available.union(&choice.reused).cloned().collect();
            preferred = plugin.preferred(&all, &choice.reused, request.count).await?;
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
        if self.allocate_container(pod, container, &BTreeMap::new(), true).await? {
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
