//! Devices of DRA drivers, by claims of the API (dynamic resource allocation: DRAPlugin v1 and v1beta1). Owns which pods have
//! which claims here and what drivers gave for them, over restarts of the agent, too; never decides when a pod starts or
//! ends. Called by the pod workers (to prepare and to unprepare), the registration of plugins, the statuses (health), and the
//! server of pod resources.
//!
//! a driver registers ([`drivers`]) → a pod starts: its claims are looked up ([`prepare`]) → referenced ([`claims`]), written
//! down ([`checkpoint`]) → the driver prepares ([`driver`]) → containers get CDI devices; [`watch`] follows their health.
//! Claims have turns: nobody prepares one that is being unprepared (PR 140527). No lock is held over a call but these turns.

mod checkpoint;
mod claims;
mod driver;
mod drivers;
mod health;
mod prepare;
pub(crate) mod slices;
#[cfg(test)]
pub(crate) mod testing;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gantry_base::error::chain;
use gantry_base::files;
use gantry_metrics::Metrics;
use gantry_model::clock::{Clock, SystemClock};
use gantry_model::pod::claim::ExtendedRequest;
use gantry_model::pod::{Container, Pod, PodUid};
use tokio::sync::{OwnedMutexGuard, watch as channel};

use crate::api::Api;
use crate::api::files::Files;
use crate::devices::DeviceHealth;
pub(crate) use checkpoint::PreparedDevice;
use checkpoint::{CheckpointError, decode, encode};
use claims::{ClaimBook, ClaimKey};
use drivers::Drivers;
use health::HealthBook;
use slices::Slices;

/// In the kubelet's folder.
const CHECKPOINT: &str = "dra_manager_state";
const HEALTH: &str = "dra_health_state";
/// Upstream's word for all drivers together.
const ANY_DRIVER: &str = "<any>";
/// What names of resources begin with that are claims, in `allocatedResourcesStatus`.
const CLAIM: &str = "claim:";

/// What stands in the way of the agent's start: without the file it would not know what to unprepare. Upstream's remedy.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{}: drain this node and delete the file before restarting the kubelet", path.display())]
    Form {
        path: PathBuf,
        #[source]
        source: CheckpointError,
    },
    #[error("read or write the checkpoint {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// A claim of a container, for who asks: namespace, name, and what each driver gave.
pub(crate) type ContainerClaims = Vec<(String, String, Vec<(String, PreparedDevice)>)>;

/// The manager. Clones are the same one.
#[derive(Debug, Clone)]
pub struct DraManager(Arc<DraState>);

#[derive(Debug)]
struct DraState {
    /// None where no driver is served.
    root: Option<PathBuf>,
    api: Arc<dyn Api>,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    drivers: Drivers,
    shared: Mutex<DraBooks>,
    /// Held while a file is written, also when nobody waits for that any more: the newest is written last.
    writing: Arc<tokio::sync::Mutex<()>>,
    /// Rises when a device that a claim has is well no longer, or again.
    health: channel::Sender<u64>,
}

#[derive(Debug, Default)]
struct DraBooks {
    claims: ClaimBook,
    book: HealthBook,
    /// Of an earlier kubelet. Nobody has told of them yet.
    restored: BTreeSet<PodUid>,
    /// By claim: whose turn it is.
    turns: BTreeMap<ClaimKey, Arc<tokio::sync::Mutex<()>>>,
}

impl DraState {
    fn lock(&self) -> MutexGuard<'_, DraBooks> {
        // Each change is one call of the bookkeeping: none is half done.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One that serves no drivers: no pod has a claim.
impl Default for DraManager {
    fn default() -> Self {
        let (api, metrics): (_, Arc<Metrics>) = (Arc::new(Files::default()), Arc::default());
        let drivers = Drivers::new(metrics.clone());
        Self::with((None, api), DraBooks::default(), Arc::new(SystemClock::new()), metrics, drivers)
    }
}

impl DraManager {
    /// With what an earlier kubelet, ours or upstream's, has left in `root`. `api` has the claims.
    ///
    /// # Errors
    /// When the checkpoint is there and cannot be used, or cannot be made.
    pub fn open(
        root: &Path,
        api: Arc<dyn Api>,
        clock: Arc<dyn Clock>,
        metrics: Arc<Metrics>,
    ) -> Result<Self, OpenError> {
        let drivers = Drivers::new(metrics.clone());
        Self::open_with(root, api, clock, metrics, drivers)
    }

    fn open_with(
        root: &Path,
        api: Arc<dyn Api>,
        clock: Arc<dyn Clock>,
        metrics: Arc<Metrics>,
        drivers: Drivers,
    ) -> Result<Self, OpenError> {
        let claims = restore(&root.join(CHECKPOINT))?;
        let book = restore_health(&root.join(HEALTH));
        let restored = claims.pods();
        let shared = DraBooks { claims, book, restored, ..DraBooks::default() };
        Ok(Self::with((Some(root.to_owned()), api), shared, clock, metrics, drivers))
    }

    fn with(
        (root, api): (Option<PathBuf>, Arc<dyn Api>),
        shared: DraBooks,
        clock: Arc<dyn Clock>,
        metrics: Arc<Metrics>,
        drivers: Drivers,
    ) -> Self {
        let (writing, health) = (Arc::default(), channel::channel(0).0);
        let shared = Mutex::new(shared);
        let manager =
            Self(Arc::new(DraState { root, api, clock, metrics, drivers, shared, writing, health }));
        manager.count_claims(&manager.0.lock());
        manager
    }

    /// From now on ResourceSlices of drivers that are not here are deleted.
    pub(crate) fn wipe(&self, slices: Arc<dyn Slices>) {
        self.0.drivers.wipe(slices);
    }

    /// Whether a driver's plugin can be used.
    ///
    /// # Errors
    /// Why not, in upstream's words.
    pub(crate) fn validate(&self, name: &str, endpoint: &Path, services: &[String]) -> Result<(), String> {
        self.0.drivers.validate(name, endpoint, services).map(drop)
    }

    /// Uses the driver's plugin from now on, and follows the health of its devices.
    ///
    /// # Errors
    /// Likewise.
    pub(crate) async fn register(
        &self,
        name: &str,
        endpoint: &Path,
        services: &[String],
    ) -> Result<(), String> {
        let (manager, driver) = (self.clone(), name.to_owned());
        let follow = move |to| watch::follow(manager.clone(), driver.clone(), to);
        self.0.drivers.register(name, endpoint, services, follow).await
    }

    /// The plugin at that socket has gone; another one of the same driver stays.
    pub(crate) fn deregister(&self, name: &str, endpoint: &Path) {
        self.0.drivers.deregister(name, endpoint);
    }

    /// The CDI devices that a container is made with, in the order of the pod's claims.
    ///
    /// # Errors
    /// When a claim of it is not known here, in upstream's words.
    pub(crate) fn cdi(&self, pod: &Pod, container: &Container) -> Result<Vec<String>, String> {
        let own = (container.name.as_str(), container.claims.as_slice());
        let claims = pod.resource_claims.of_container(&pod.full_name(), own, &container.written.requests)?;
        let shared = self.0.lock();
        let mut found: Vec<String> = Vec::new();
        for (name, request) in claims {
            let key = (pod.namespace.clone(), name);
            let devices = shared.claims.devices(&key).ok_or_else(|| {
                let (namespace, name) = &key;
                format!(
                    "internal error: unable to get claim info for ResourceClaim {name} in namespace {namespace}"
                )
            })?;
            for device in devices.values().flatten().filter(|device| is_for(device, &request)) {
                // The runtime takes each once.
                let new = |cdi: &&String| !found.contains(cdi);
                let new: Vec<String> = device.cdi.iter().filter(new).cloned().collect();
                found.extend(new);
            }
        }
        Ok(found)
    }

    /// What a container has by claims. Of a pod whose claims are not known here: nothing.
    pub(crate) fn of_container(&self, pod: &Pod, container: &Container) -> ContainerClaims {
        let shared = self.0.lock();
        let named = |name: &str| container.claims.iter().any(|claim| claim.name == name);
        let listed = pod.resource_claims.listed.iter().filter(|claim| named(&claim.name));
        let listed = listed.filter_map(|claim| claim.object(&pod.full_name()).ok()?.map(|(name, _)| name));
        let own = |of: &ExtendedRequest| of.container == container.name;
        let extended = pod.resource_claims.extended.iter().filter(|claim| claim.requests.iter().any(own));
        let names = listed.chain(extended.map(|claim| claim.name.as_str()));
        let known = names.filter_map(|name| {
            let devices = shared.claims.devices(&(pod.namespace.clone(), name.to_owned()))?;
            let of = |(driver, own): (&String, &Vec<PreparedDevice>)| {
                own.iter().map(|device| (driver.clone(), device.clone())).collect::<Vec<_>>()
            };
            Some((pod.namespace.clone(), name.to_owned(), devices.iter().flat_map(of).collect()))
        });
        known.collect()
    }

    /// How the devices are that the pod's containers have by claims.
    pub(crate) fn health(&self, pod: &Pod) -> DeviceHealth {
        let (shared, now) = (self.0.lock(), self.0.clock.wall_nanos());
        let mut all = DeviceHealth::new();
        for (container, claim) in pod.containers.iter().flat_map(|c| c.claims.iter().map(move |of| (c, of))) {
            let listed = pod.resource_claims.listed.iter().find(|listed| listed.name == claim.name);
            let object = listed.and_then(|listed| listed.object(&pod.full_name()).ok()?);
            let Some((object, _)) = object else { continue };
            let Some(drivers) = shared.claims.devices(&(pod.namespace.clone(), object.to_owned())) else {
                continue;
            };
            let resource = match claim.request.as_str() {
                "" => format!("{CLAIM}{}", claim.name),
                request => format!("{CLAIM}{}/{request}", claim.name),
            };
            // Drivers name requests without what comes after the slash.
            let request = claim.request.split('/').next().unwrap_or_default();
            for (driver, device) in drivers.iter().flat_map(|(name, own)| own.iter().map(move |d| (name, d)))
            {
                if !is_for(device, request) {
                    continue;
                }
                let (key, named) = (
                    (device.pool.clone(), device.device.clone()),
                    format!("{driver}/{}/{}", device.pool, device.device),
                );
                let condition = shared.book.get(driver, &key, now);
                let id = device.cdi.first().cloned().unwrap_or(named);
                let resources = all.entry(container.name.clone()).or_default();
                resources.entry(resource.clone()).or_default().entry(id).or_insert(condition);
            }
        }
        all
    }

    /// When to look at that again. Of a pod that has no claims: never.
    pub(crate) fn health_changes(&self, pod: &Pod) -> channel::Receiver<u64> {
        if pod.resource_claims.is_empty() { channel::channel(0).1 } else { self.0.health.subscribe() }
    }

    /// Waits for the turns of these claims, always in the same order. They are given back together.
    async fn turns(&self, keys: BTreeSet<ClaimKey>) -> Turns {
        let mut held = Turns { manager: self.clone(), guards: Vec::new() };
        for key in keys {
            let turn = self.0.lock().turns.entry(key).or_default().clone();
            held.guards.push(turn.lock_owned().await);
        }
        held
    }

    fn count_claims(&self, shared: &DraBooks) {
        let (by_driver, all) = shared.claims.in_use();
        #[expect(clippy::cast_precision_loss, reason = "a number of claims")]
        let count = |(driver, number): (String, usize)| ([driver], number as f64);
        let all = by_driver.into_iter().chain([(ANY_DRIVER.to_owned(), all)]);
        self.0.metrics.dra_resource_claims_in_use.replace(all.map(count));
    }

    /// Writes down what is known of claims.
    async fn save(&self) -> Result<(), String> {
        let content =
            |shared: &DraBooks| encode(Some(shared.claims.checkpoint())).map_err(|error| chain(&error));
        let written = self.write(CHECKPOINT, content).await;
        written.map_err(|why| format!("could not save checkpoint {CHECKPOINT}: {why}"))
    }

    async fn write(
        &self,
        name: &'static str,
        content: impl FnOnce(&DraBooks) -> Result<Vec<u8>, String> + Send + 'static,
    ) -> Result<(), String> {
        let Some(root) = self.0.root.clone() else { return Ok(()) };
        let writing = self.0.writing.clone().lock_owned().await;
        let inner = self.0.clone();
        let written = tokio::task::spawn_blocking(move || {
            let _writing = writing;
            let content = content(&inner.lock())?;
            files::replace(&root.join(name), &content, 0o600).map_err(|error| chain(&error))
        });
        written.await.unwrap_or_else(|died| Err(died.to_string()))
    }
}

/// Turns of claims.
#[derive(Debug)]
struct Turns {
    manager: DraManager,
    guards: Vec<OwnedMutexGuard<()>>,
}

impl Drop for Turns {
    fn drop(&mut self) {
        self.guards.clear();
        // Nobody waits for these.
        self.manager.0.lock().turns.retain(|_, turn| Arc::strong_count(turn) > 1);
    }
}

/// Whether a device is of that request, or of no request in particular.
fn is_for(device: &PreparedDevice, request: &str) -> bool {
    request.is_empty() || device.requests.is_empty() || device.requests.iter().any(|own| own == request)
}

/// What is in the checkpoint, which is made when there is none.
fn restore(path: &Path) -> Result<ClaimBook, OpenError> {
    let form = |source: CheckpointError| OpenError::Form { path: path.to_owned(), source };
    let file = |source: io::Error| OpenError::File { path: path.to_owned(), source };
    match std::fs::read(path) {
        Ok(content) => Ok(ClaimBook::restore(decode(&content).map_err(form)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            files::replace(path, &encode(None).map_err(form)?, 0o600).map_err(file)?;
            Ok(ClaimBook::default())
        }
        Err(error) => Err(file(error)),
    }
}

/// Drivers tell it again: what cannot be read is passed over, as upstream.
fn restore_health(path: &Path) -> HealthBook {
    let read = match std::fs::read(path) {
        Ok(content) => HealthBook::decode(&content).map_err(|error| chain(&error)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(HealthBook::default()),
        Err(error) => Err(chain(&error)),
    };
    read.unwrap_or_else(|error| {
        let path = path.display();
        tracing::warn!(%path, error, "the health of devices is not known until their drivers tell it again");
        HealthBook::default()
    })
}

#[cfg(test)]
mod tests;
