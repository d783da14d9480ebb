//! Devices of plugins, given to containers (device plugin API v1beta1). Owns which plugin offers what and which container
//! has what, over restarts of the agent, too; never decides when a pod asks. Called by the pod workers (to allocate), the
//! registration (what the node offers), and the server of pod resources.
//!
//! plugin registers ([`registration`]) → connection ([`plugin`]) → its lists ([`state`]) → a pod's request, its choice
//! ([`state`]), Allocate ([`plugin`]) → [`checkpoint`]. One lock holds the bookkeeping, never over a call to a plugin:
//! devices are reserved meanwhile. Requests for one resource follow one another; a plugin that hangs holds up its own alone.

#![expect(clippy::disallowed_methods, reason = "the manager owns what follows plugins, by generation")]

mod affinity;
mod allocate;
mod checkpoint;
mod health;
mod plugin;
mod registration;
mod state;
#[cfg(test)]
mod testing;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gantry_base::error::chain;
use gantry_base::files;
use gantry_metrics::Metrics;
use gantry_model::clock::{Clock, SystemClock};
use gantry_model::pod::{Pod, PodUid};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use checkpoint::Checkpoint;
use plugin::PluginClient;
use state::{ListChange, STOP_GRACE, State};

pub(crate) use allocate::{Reusable, asks, wanted};
pub(crate) use health::{DeviceCondition, DeviceHealth, DeviceHealthWord, Health};
pub(crate) use state::Amount;

/// The folder of sockets and checkpoint, in the kubelet's own.
const FOLDER: &str = "device-plugins";
/// The checkpoint, in that folder.
const CHECKPOINT: &str = "kubelet_internal_checkpoint";
/// A moment after [`STOP_GRACE`].
const EXPIRY: Duration = STOP_GRACE.saturating_add(Duration::from_secs(1));
/// After the registration server has failed.
const SERVE_AGAIN: Duration = Duration::from_secs(1);
/// What `/healthz` says until then, as upstream.
const UNSERVED: &str = "device plugin registration gRPC server failed and no device plugins can register";

/// Healthy devices by resource, as the kubelet has noted them in `device-plugins/kubelet_internal_checkpoint`, for those
/// who look at a node from outside.
///
/// # Errors
/// Why `content` is no such checkpoint.
pub fn healthy_devices(content: &[u8]) -> Result<BTreeMap<String, usize>, String> {
    let Checkpoint { registered, .. } = Checkpoint::decode(content).map_err(|error| chain(&error))?;
    Ok(registered.into_iter().map(|(resource, ids)| (resource, ids.len())).collect())
}

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
    /// Rises when a device that a container has is well no longer, or again.
    health: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Shared {
    state: State,
    /// Why no plugin can register now.
    unserved: Option<String>,
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

impl Shared {
    fn client(&self, resource: &str) -> Option<PluginClient> {
        self.plugins.get(resource).map(|connected| connected.client.clone())
    }

    /// Whom to tell before a container starts that has some of the resource.
    ///
    /// # Errors
    /// When that one is away.
    fn pre_start(&self, resource: &str) -> Result<Option<PluginClient>, String> {
        if self.state.misses_pre_start(resource) {
            return Err(format!(
                "device plugin PreStartContainer rpc failed with err: endpoint {resource} has been stopped"
            ));
        }
        let wants = self.state.options(resource).is_some_and(|options| options.pre_start);
        Ok(self.client(resource).filter(|_| wants))
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
        let (writing, health) = (Arc::default(), watch::channel(0).0);
        Self(Arc::new(Inner { folder, clock, metrics, shared, writing, amounts, health }))
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
                    Ok(listener) => {
                        manager.0.lock().unserved = None;
                        registration::serve(listener, &folder, manager.clone()).await
                    }
                    Err(error) => Err(error),
                };
                let error = served.err().map(|error| chain(&error)).unwrap_or_default();
                tracing::error!(error, "device plugins cannot register; trying again");
                manager.0.lock().unserved = Some(error);
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

    /// What the check `device-plugin` of `/healthz` says.
    ///
    /// # Errors
    /// Why no plugin can register, in upstream's words.
    pub(crate) fn check(&self) -> Result<(), String> {
        match &self.0.lock().unserved {
            None => Ok(()),
            Some(why) => Err(format!("device registration error: {UNSERVED}: {why}")),
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
        let change = {
            let mut shared = self.0.lock();
            let change = shared.state.list(resource, generation, devices);
            self.0.publish(&shared);
            change
        };
        let Some(ListChange { any, given }) = change else { return false };
        if given {
            self.0.health.send_modify(|count| *count += 1);
        }
        if any {
            self.save_or_tell().await;
        }
        true
    }

    /// How the devices are that the pod's containers have.
    pub(crate) fn health(&self, pod: &PodUid) -> DeviceHealth {
        self.0.lock().state.health(pod)
    }

    /// When to look at that again. Of a pod that asks for none: never.
    pub(crate) fn health_changes(&self, pod: &Pod) -> watch::Receiver<u64> {
        if asks(pod) { self.0.health.subscribe() } else { watch::channel(0).1 }
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

fn read(path: &Path) -> Result<Checkpoint, String> {
    match std::fs::read(path) {
        Ok(content) => Checkpoint::decode(&content).map_err(|error| chain(&error)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Checkpoint::default()),
        Err(error) => Err(chain(&error)),
    }
}

#[cfg(test)]
mod tests;
