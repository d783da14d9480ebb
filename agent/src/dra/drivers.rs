//! The DRA drivers that are registered with this node. Owns the list, the connection to each, and when the ResourceSlices of
//! one that is away are deleted; never calls one. Called by [`crate::plugins`] when a driver comes or goes, and by
//! [`super::DraManager`].
//!
//! ```text
//!  (registers) ──▶ Away ◀──its socket does not answer, or closes── Connected ──▶ (deregisters)
//!                   │ └─────────────────answers───────────────────────▲
//!                   └── 30 s without any plugin of the driver ──▶ its ResourceSlices are deleted
//! ```

#![expect(clippy::disallowed_methods, reason = "each task is aborted with its plugin, or ends by itself")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gantry_grpc::kept::{Kept, keep};
use gantry_metrics::Metrics;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tonic::transport::Channel;

use super::driver::{Connection, DraService, Driver, PATIENCE};
use super::slices::{Slices, wipe};

/// `defaultWipingDelay`: a driver that comes back within it finds its ResourceSlices.
const WIPING_DELAY: Duration = Duration::from_secs(30);
/// Of one try to connect: a socket is on this machine.
const DIAL: Duration = Duration::from_secs(10);
/// Between tries. gRPC of upstream waits up to two minutes, which keeps pods waiting for nothing.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// Clones share the list.
#[derive(Debug, Clone)]
pub(super) struct Drivers(Arc<DriverTable>);

#[derive(Debug)]
struct DriverTable {
    metrics: Arc<Metrics>,
    /// Of one call.
    patience: Duration,
    list: Mutex<List>,
}

#[derive(Debug, Default)]
struct List {
    /// None without an API server.
    slices: Option<Arc<dyn Slices>>,
    /// By driver, in the order in which they registered.
    plugins: BTreeMap<String, Vec<DriverPlugin>>,
    /// Of drivers that are away.
    wipes: BTreeMap<String, Wipe>,
}

/// One plugin of a driver. A driver that is being replaced has two.
#[derive(Debug)]
struct DriverPlugin {
    endpoint: PathBuf,
    service: DraService,
    connection: watch::Receiver<Connection>,
    /// Of the task that connects.
    task: AbortHandle,
}

impl DriverPlugin {
    fn is_connected(&self) -> bool {
        self.connection.borrow().is_ok()
    }
}

impl Drop for DriverPlugin {
    fn drop(&mut self) {
        // That closes the connection, and ends what follows the driver's health.
        self.task.abort();
    }
}

/// A deletion that is due in a while.
#[derive(Debug)]
struct Wipe(AbortHandle);

impl Drop for Wipe {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl DriverTable {
    fn lock(&self) -> MutexGuard<'_, List> {
        // Each change is one call: none is half done.
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drivers {
    /// None yet; calls of them are counted there.
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        Self::with_patience(PATIENCE, metrics)
    }

    /// None yet; a call may take so long.
    pub(super) fn with_patience(patience: Duration, metrics: Arc<Metrics>) -> Self {
        Self(Arc::new(DriverTable { metrics, patience, list: Mutex::default() }))
    }

    /// From now on ResourceSlices of drivers that are away are deleted; first those of all, since none is here yet.
    pub(super) fn wipe(&self, slices: Arc<dyn Slices>) {
        self.0.lock().slices = Some(slices.clone());
        // Ends when they are gone.
        tokio::spawn(async move { wipe(slices.as_ref(), None).await });
    }

    /// Whether a plugin that speaks those can be used.
    ///
    /// # Errors
    /// Why not, in upstream's words; the plugin is told.
    pub(super) fn validate(
        &self,
        name: &str,
        endpoint: &Path,
        services: &[String],
    ) -> Result<DraService, String> {
        DraService::choose(services).map_err(|why| {
            let at = endpoint.display();
            format!("invalid supported gRPC versions of DRA driver plugin {name} at endpoint {at}: {why}")
        })
    }

    /// Uses the plugin from now on, whether it answers yet or not. `follow` is run with each connection, and given up with it.
    ///
    /// # Errors
    /// In upstream's words, when it cannot be used.
    pub(super) async fn register<F: Future<Output = ()> + Send + 'static>(
        &self,
        name: &str,
        endpoint: &Path,
        services: &[String],
        follow: impl Fn(Channel) -> F + Send + Sync + 'static,
    ) -> Result<(), String> {
        let service = self.validate(name, endpoint, services)?;
        // One instance cannot take the endpoint of another.
        let taken = |list: &List| {
            list.plugins.get(name).is_some_and(|all| all.iter().any(|p| p.endpoint == endpoint))
        };
        let twice =
            || format!("endpoint {} already registered for DRA driver plugin {name}", endpoint.display());
        if taken(&self.0.lock()) {
            return Err(twice());
        }
        // Before it counts as registered: a pod that waits for it finds it.
        let first = keep(endpoint, DIAL).await;
        let (told, connection) =
            watch::channel(first.as_ref().map(|kept| kept.channel.clone()).map_err(Clone::clone));
        let mut list = self.0.lock();
        if taken(&list) {
            return Err(twice());
        }
        let (drivers, driver, at) = (self.clone(), name.to_owned(), endpoint.to_owned());
        let task = tokio::spawn(async move { drivers.connect(&driver, &at, (first, told), follow).await });
        let plugin =
            DriverPlugin { endpoint: endpoint.to_owned(), service, connection, task: task.abort_handle() };
        list.plugins.entry(name.to_owned()).or_default().push(plugin);
        self.settle(&mut list, name);
        tracing::info!(driver = name, endpoint = %endpoint.display(), ?service, "a DRA driver has registered");
        Ok(())
    }

    /// Keeps the connection to one plugin, which begins with `first`. Never ends.
    async fn connect<F: Future<Output = ()>>(
        &self,
        driver: &str,
        endpoint: &Path,
        (first, told): (Result<Kept, String>, watch::Sender<Connection>),
        follow: impl Fn(Channel) -> F,
    ) {
        let (mut next, mut wait) = (first, FIRST_WAIT);
        loop {
            match next {
                Ok(mut kept) => {
                    wait = FIRST_WAIT;
                    self.tell(driver, &told, Ok(kept.channel.clone()));
                    let channel = kept.channel.clone();
                    // Both arms are given up with the connection.
                    tokio::select! {
                        () = kept.wait_ended() => {}
                        () = follow(channel) => kept.wait_ended().await,
                    }
                    let endpoint = endpoint.display();
                    tracing::info!(driver, %endpoint, "a DRA driver has closed its connection");
                }
                Err(why) => {
                    self.tell(driver, &told, Err(why));
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(LONGEST_WAIT);
                }
            }
            next = keep(endpoint, DIAL).await;
        }
    }

    /// It has gone. Another plugin of the same driver stays.
    pub(super) fn deregister(&self, name: &str, endpoint: &Path) {
        let mut list = self.0.lock();
        let Some(plugins) = list.plugins.get_mut(name) else { return };
        plugins.retain(|plugin| plugin.endpoint != endpoint);
        if plugins.is_empty() {
            list.plugins.remove(name);
        }
        self.settle(&mut list, name);
        tracing::info!(driver = name, endpoint = %endpoint.display(), "a DRA driver has deregistered");
    }

    fn tell(&self, name: &str, told: &watch::Sender<Connection>, now: Connection) {
        told.send_modify(|connection| *connection = now);
        self.settle(&mut self.0.lock(), name);
    }

    /// Begins the wait before its ResourceSlices are deleted, or ends it.
    fn settle(&self, list: &mut List, name: &str) {
        let Some(slices) = list.slices.clone() else { return };
        let is_usable = list.plugins.get(name).is_some_and(|all| all.iter().any(DriverPlugin::is_connected));
        if is_usable {
            list.wipes.remove(name);
        } else if list.wipes.get(name).is_none_or(|wipe| wipe.0.is_finished()) {
            let driver = name.to_owned();
            let task = tokio::spawn(async move {
                tokio::time::sleep(WIPING_DELAY).await;
                wipe(slices.as_ref(), Some(&driver)).await;
            });
            list.wipes.insert(name.to_owned(), Wipe(task.abort_handle()));
        }
    }

    /// Whether its ResourceSlices are to be deleted.
    #[cfg(test)]
    pub(super) fn is_to_be_wiped(&self, name: &str) -> bool {
        self.0.lock().wipes.contains_key(name)
    }

    /// The driver of that name: the plugin that registered last of those that are connected, else of all.
    ///
    /// # Errors
    /// In upstream's words, when none is registered.
    pub(super) fn get(&self, name: &str) -> Result<Driver, String> {
        if name.is_empty() {
            return Err("DRA driver name is empty".to_owned());
        }
        let list = self.0.lock();
        let plugins = list.plugins.get(name).map(Vec::as_slice).unwrap_or_default();
        let plugin = plugins.iter().rev().find(|plugin| plugin.is_connected()).or(plugins.last());
        let plugin = plugin.ok_or_else(|| format!("DRA driver {name} is not registered"))?;
        Ok(Driver {
            name: name.to_owned(),
            service: plugin.service,
            connection: plugin.connection.clone(),
            patience: self.0.patience,
            metrics: self.0.metrics.clone(),
        })
    }
}
