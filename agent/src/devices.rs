//! Devices of plugins, given to containers (device plugin API v1beta1). Owns which plugin offers what and which container
//! has what, over restarts of the agent, too; never decides when a pod asks. Called by the pod workers (to allocate), the
//! registration (what the node offers), and the server of pod resources.
//!
//! plugin registers ([`registration`]) → connection ([`plugin`]) → its lists ([`state`]) → a pod's request, its choice
//! ([`state`]), Allocate ([`plugin`]) → [`checkpoint`]. One lock holds the bookkeeping, never over a call to a plugin:
//! devices are reserved meanwhile. Requests for one resource follow one another; a plugin that hangs holds up its own alone.

#![expect(clippy::disallowed_methods, reason = "the manager owns what follows plugins, by generation")]

mod checkpoint;
mod plugin;
mod registration;
mod state;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gantry_base::error::chain;
use gantry_base::files;
use gantry_metrics::Metrics;
use gantry_model::clock::{Clock, SystemClock};
use gantry_model::pod::{Container, Pod, PodUid, Role};
use gantry_model::quantity::parse_units;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::admission::is_extended;
use checkpoint::Checkpoint;
use plugin::PluginClient;
use state::{Request, STOP_GRACE, State};

pub(crate) use state::Amount;

/// The folder of sockets and checkpoint, in the kubelet's own.
const FOLDER: &str = "device-plugins";
/// The checkpoint, in that folder.
const CHECKPOINT: &str = "kubelet_internal_checkpoint";
/// A moment after [`STOP_GRACE`].
const EXPIRY: Duration = STOP_GRACE.saturating_add(Duration::from_secs(1));
/// After the registration server has failed.
const SERVE_AGAIN: Duration = Duration::from_secs(1);

/// What a container is made with for its devices.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Variables; the container's own win.
    pub env: Vec<(String, String)>,
    /// Container path, host path, read only.
    pub mounts: Vec<(String, String, bool)>,
    /// Container path, host path, cgroup permissions (`rwm`).
    pub devices: Vec<(String, String, String)>,
    /// For the runtime.
    pub annotations: Vec<(String, String)>,
    /// Names of CDI devices.
    pub cdi: Vec<String>,
}

/// The devices of one container, for who asks: resource, and ID with its NUMA nodes.
pub(crate) type DevicesOf = BTreeMap<String, BTreeMap<String, Vec<i64>>>;

/// The manager. Clones are the same one.
#[derive(Debug, Clone)]
pub struct DeviceManager(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// None where no plugin is served: then no resource is a plugin's.
    folder: Option<PathBuf>,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    shared: Mutex<Shared>,
    /// Held while the checkpoint is written, also when nobody waits for that any more: the newest is written last.
    writing: Arc<tokio::sync::Mutex<()>>,
    amounts: watch::Sender<BTreeMap<String, Amount>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: State,
    /// By resource.
    plugins: BTreeMap<String, Connected>,
    /// By resource: whose turn it is to be given some of it.
    turns: BTreeMap<String, Arc<tokio::sync::Mutex<()>>>,
}

/// The plugin of a resource.
#[derive(Debug)]
struct Connected {
    client: PluginClient,
    generation: u64,
    socket: PathBuf,
    /// Of the task that takes in its lists.
    lists: AbortHandle,
}

impl Drop for Connected {
    fn drop(&mut self) {
        // That closes the connection.
        self.lists.abort();
    }
}

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

impl Shared {
    fn client(&self, resource: &str) -> Option<PluginClient> {
        self.plugins.get(resource).map(|connected| connected.client.clone())
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Shared> {
        // Each change is one call of the bookkeeping: none is half done.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, shared: &Shared) {
        let now = shared.state.amounts();
        self.amounts.send_if_modified(|old| {
            let changed = *old != now;
            *old = now;
            changed
        });
    }
}

/// One that serves no plugins: every request is somebody else's.
impl Default for DeviceManager {
    fn default() -> Self {
        Self::with(None, State::default(), Arc::new(SystemClock::new()), Arc::default())
    }
}

impl DeviceManager {
    /// With what an earlier kubelet, ours or upstream's, has left in `root`.
    #[must_use]
    pub fn open(root: &Path, clock: Arc<dyn Clock>, metrics: Arc<Metrics>) -> Self {
        let folder = root.join(FOLDER);
        let checkpoint = match read(&folder.join(CHECKPOINT)) {
            Ok(checkpoint) => checkpoint,
            Err(error) => {
                let folder = folder.display();
                tracing::error!(%folder, error, "which pods have which devices is not known: the checkpoint cannot be read");
                Checkpoint::default()
            }
        };
        let state = State::restore(checkpoint, clock.mono());
        Self::with(Some(folder), state, clock, metrics)
    }

    fn with(folder: Option<PathBuf>, state: State, clock: Arc<dyn Clock>, metrics: Arc<Metrics>) -> Self {
        let (amounts, _) = watch::channel(state.amounts());
        let shared = Mutex::new(Shared { state, ..Shared::default() });
        let writing = Arc::default();
        Self(Arc::new(Inner { folder, clock, metrics, shared, writing, amounts }))
    }

    /// Lets plugins register, until the process ends.
    ///
    /// # Errors
    /// When the folder of their sockets cannot be made.
    pub fn serve(&self) -> io::Result<()> {
        let Some(folder) = self.0.folder.clone() else { return Ok(()) };
        registration::clear(&folder)?;
        let mut listener = registration::listen(&folder);
        let manager = self.clone();
        tokio::spawn(async move {
            loop {
                let served = match listener {
                    Ok(listener) => registration::serve(listener, &folder, manager.clone()).await,
                    Err(error) => Err(error),
                };
                let error = served.err().map(|error| chain(&error)).unwrap_or_default();
                tracing::error!(error, "device plugins cannot register; trying again");
                tokio::time::sleep(SERVE_AGAIN).await;
                listener = registration::listen(&folder);
            }
        });
        // Of resources that the checkpoint names.
        self.expire_later();
        Ok(())
    }

    /// Removes what has no plugin by then.
    fn expire_later(&self) {
        let manager = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(EXPIRY).await;
            manager.expire().await;
        });
    }

    async fn expire(&self) {
        let expired = {
            let mut shared = self.0.lock();
            let expired = shared.state.expire(self.0.clock.mono());
            self.0.publish(&shared);
            expired
        };
        if expired {
            self.save_or_tell().await;
        }
    }

    /// Whether a resource is a plugin's.
    pub(crate) fn is_device(&self, resource: &str) -> bool {
        self.0.lock().state.is_device(resource)
    }

    /// What the node offers, by resource; changes are told at once.
    pub(crate) fn amounts(&self) -> watch::Receiver<BTreeMap<String, Amount>> {
        self.0.amounts.subscribe()
    }

    /// Whether a plugin of the folder plugins_registry can be used.
    ///
    /// # Errors
    /// Why not, in upstream's words.
    pub(crate) fn validate(resource: &str, versions: &[String]) -> Result<(), String> {
        registration::validate(resource, versions)
    }

    fn count_registration(&self, resource: &str) {
        self.0.metrics.device_plugin_registrations.inc([resource]);
    }

    /// Connects to a plugin and follows its lists from then on, in place of an earlier one of the same resource.
    ///
    /// # Errors
    /// When it does not answer; an earlier plugin stays.
    pub(crate) async fn connect(&self, resource: &str, socket: &Path) -> Result<(), String> {
        let mut client = PluginClient::connect(socket).await?;
        let options = client.options().await?;
        let mut shared = self.0.lock();
        let generation = shared.state.connect(resource, options);
        let (manager, followed, name) = (self.clone(), client.clone(), resource.to_owned());
        let lists =
            tokio::spawn(async move { manager.follow(followed, &name, generation).await }).abort_handle();
        let connected = Connected { client, generation, socket: socket.to_owned(), lists };
        shared.plugins.insert(resource.to_owned(), connected);
        self.0.publish(&shared);
        tracing::info!(resource, socket = %socket.display(), "a device plugin has registered");
        Ok(())
    }

    /// The plugin at that socket has gone; another one of the same resource stays.
    pub(crate) async fn disconnect(&self, resource: &str, socket: &Path) {
        let generation = {
            let shared = self.0.lock();
            let at = |connected: &&Connected| connected.socket == socket;
            shared.plugins.get(resource).filter(at).map(|connected| connected.generation)
        };
        if let Some(generation) = generation {
            self.stop(resource, generation, "its socket has gone").await;
        }
    }

    /// Takes in a plugin's lists until its stream ends, or another plugin has taken its place.
    async fn follow(&self, mut client: PluginClient, resource: &str, generation: u64) {
        let why = match client.list_and_watch().await {
            Err(why) => why,
            Ok(mut lists) => loop {
                match lists.message().await {
                    Ok(Some(list)) => {
                        if !self.list(resource, generation, plugin::devices(list)).await {
                            return;
                        }
                    }
                    Ok(None) => break "it ended its list".to_owned(),
                    Err(status) => break status.to_string(),
                }
            },
        };
        // In a task of its own: this one ends with the connection.
        let (manager, resource) = (self.clone(), resource.to_owned());
        tokio::spawn(async move { manager.stop(&resource, generation, &why).await });
    }

    async fn stop(&self, resource: &str, generation: u64, why: &str) {
        let stopped = {
            let mut shared = self.0.lock();
            let stopped = shared.state.disconnect(resource, generation, self.0.clock.mono());
            if stopped {
                shared.plugins.remove(resource);
            }
            self.0.publish(&shared);
            stopped
        };
        if stopped {
            tracing::warn!(resource, why, "a device plugin has gone: none of its devices can be given");
            self.expire_later();
            self.save_or_tell().await;
        }
    }

    async fn list(&self, resource: &str, generation: u64, devices: BTreeMap<String, state::Device>) -> bool {
        let current = {
            let mut shared = self.0.lock();
            let current = shared.state.list(resource, generation, devices);
            self.0.publish(&shared);
            current
        };
        if current {
            self.save_or_tell().await;
        }
        current
    }

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
            let gave = self.allocate_container(&pod.uid, container, &reusable, false).await?;
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
        pod: &PodUid,
        container: &Container,
        reusable: &BTreeMap<String, BTreeSet<String>>,
        goes_on: bool,
    ) -> Result<bool, String> {
        let mut gave = false;
        let nothing = BTreeSet::new();
        for (resource, count) in requests(container) {
            let is_asked = {
                let state = &self.0.lock().state;
                let has = state.allocation(pod, &container.name, resource).is_some();
                state.is_device(resource) && !(has && goes_on)
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
        self.0.lock().state.allocate(request, &reservation.devices, given?);
        Ok(true)
    }

    /// Chooses once more: lists may have changed while the plugin was asked for its preference.
    fn reserve<'a>(&'a self, request: Request<'a>, preferred: &[String]) -> Result<Reservation<'a>, String> {
        let mut shared = self.0.lock();
        let devices = shared.state.choice(request)?.map(|choice| choice.pick(preferred)).unwrap_or_default();
        shared.state.reserve(request.resource, &devices);
        Ok(Reservation { inner: &self.0, resource: request.resource, devices })
    }

    /// What a container is made with; plugins that want to know of its start are told.
    ///
    /// # Errors
    /// When a plugin does not let it start.
    pub(crate) async fn options(&self, pod: &Pod, container: &Container) -> Result<DeviceOptions, String> {
        // A kubelet that gave no devices has started the pod: the plugin is asked now, as upstream does.
        if self.allocate_container(&pod.uid, container, &BTreeMap::new(), true).await? {
            self.save().await?;
        }
        let mut given = Vec::new();
        for (resource, _) in requests(container) {
            let (allocation, plugin, options) = {
                let shared = self.0.lock();
                let allocation = shared.state.allocation(&pod.uid, &container.name, resource).cloned();
                (allocation, shared.client(resource), shared.state.options(resource))
            };
            let Some(allocation) = allocation else { continue };
            if options.is_some_and(|options| options.pre_start)
                && let Some(mut plugin) = plugin
            {
                plugin.pre_start(allocation.ids()).await?;
            }
            given.push(allocation.options);
        }
        Ok(merge(given))
    }

    /// The pod is over: others may have its devices.
    pub(crate) async fn forget(&self, pod: &PodUid) {
        let forgot = self.0.lock().state.forget(pod);
        if forgot {
            self.save_or_tell().await;
        }
    }

    /// All pods but these are over. For when all sources have told all of theirs.
    pub(crate) async fn retain(&self, pods: &BTreeSet<&PodUid>) {
        let forgot = self.0.lock().state.retain(pods);
        if forgot {
            self.save_or_tell().await;
        }
    }

    /// What a container has.
    pub(crate) fn of_container(&self, pod: &PodUid, container: &str) -> DevicesOf {
        let shared = self.0.lock();
        let resources = shared.state.of_container(pod, container).into_iter().flatten();
        let nodes = |allocation: &state::Allocation| {
            let mut by_id: BTreeMap<String, Vec<i64>> = BTreeMap::new();
            for (node, ids) in &allocation.devices {
                for id in ids {
                    by_id.entry(id.clone()).or_default().extend((*node >= 0).then_some(*node));
                }
            }
            by_id
        };
        resources.map(|(name, allocation)| (name.clone(), nodes(allocation))).collect()
    }

    /// Every healthy device.
    pub(crate) fn healthy(&self) -> DevicesOf {
        let healthy = self.0.lock().state.healthy();
        let numa = |devices: BTreeMap<String, state::Device>| {
            devices.into_iter().map(|(id, device)| (id, device.numa)).collect()
        };
        healthy.into_iter().map(|(name, devices)| (name, numa(devices))).collect()
    }

    async fn save_or_tell(&self) {
        if let Err(error) = self.save().await {
            tracing::error!(error, "a restart would not know which pods have which devices");
        }
    }

    async fn save(&self) -> Result<(), String> {
        let Some(folder) = self.0.folder.clone() else { return Ok(()) };
        let writing = self.0.writing.clone().lock_owned().await;
        let inner = self.0.clone();
        let written = tokio::task::spawn_blocking(move || {
            let _writing = writing;
            let content = inner.lock().state.checkpoint().encode().map_err(|error| chain(&error))?;
            files::replace(&folder.join(CHECKPOINT), &content, 0o600).map_err(|error| chain(&error))
        });
        let written = written.await.unwrap_or_else(|died| Err(died.to_string()));
        written.map_err(|why| format!("failed to write checkpoint file {CHECKPOINT:?}: {why}"))
    }
}

/// The extended resources among a container's limits: they can be given whole only, so the request is the same.
fn requests(container: &Container) -> impl Iterator<Item = (&str, usize)> {
    let extended = container.written.limits.iter().filter(|(name, _)| is_extended(name));
    extended.map(|(name, text)| {
        // The API server lets whole numbers through alone; of files the reader has refused others.
        (name.as_str(), parse_units(text).ok().and_then(|count| usize::try_from(count).ok()).unwrap_or(0))
    })
}

/// Whether the pod could ask a plugin for anything.
pub(crate) fn asks(pod: &Pod) -> bool {
    pod.init_containers.iter().chain(&pod.containers).any(|container| requests(container).next().is_some())
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

fn read(path: &Path) -> Result<Checkpoint, String> {
    match std::fs::read(path) {
        Ok(content) => Checkpoint::decode(&content).map_err(|error| chain(&error)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Checkpoint::default()),
        Err(error) => Err(chain(&error)),
    }
}

#[cfg(test)]
mod tests;
