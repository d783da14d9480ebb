//! The CSI drivers that are registered with this node. Owns the list, and who may be on it; what the cluster is told of
//! them is [`super::node_info`]'s. Called by [`crate::plugins`] when a driver comes or goes, and by whoever calls one.
//!
//! ```text
//!  (registers) ──▶ Asked ──its name and its node are known──▶ Told ──Node, CSINode──▶ Registered ──▶ (deregisters)
//!                    └── does not answer, lies, is refused ──▶ (not on the list; asked again later) ◀──┘
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gantry_metrics::Metrics;
use tokio::sync::watch;

use super::driver::{Driver, PATIENCE};
use super::files::is_driver_name;
use super::node_info::NodeInfo;

/// Of the API that a driver speaks: major, minor, and the rest of it.
type Version = Vec<u64>;

/// Clones share the list.
#[derive(Debug, Clone)]
pub(crate) struct Drivers {
    list: watch::Sender<BTreeMap<String, RegisteredDriver>>,
    /// With each call.
    patience: Duration,
    metrics: Arc<Metrics>,
}

/// Who answers to a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RegisteredDriver {
    socket: PathBuf,
    version: Version,
}

impl Drivers {
    /// None yet; calls of them are counted there.
    pub(crate) fn new(metrics: Arc<Metrics>) -> Self {
        Self { list: watch::channel(BTreeMap::new()).0, patience: PATIENCE, metrics }
    }

    /// Of calls, and of volumes.
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    fn at(&self, name: &str, socket: &Path) -> Driver {
        let (patience, metrics) = (self.patience, self.metrics.clone());
        Driver { name: name.to_owned(), socket: socket.to_owned(), patience, metrics }
    }

    /// The list, and when it changes.
    pub(super) fn follow(&self) -> watch::Receiver<BTreeMap<String, RegisteredDriver>> {
        self.list.subscribe()
    }

    fn insert(&self, name: &str, driver: RegisteredDriver) {
        self.list.send_modify(|list| drop(list.insert(name.to_owned(), driver)));
    }

    /// Whether a driver that speaks those versions may have that name.
    ///
    /// # Errors
    /// Why not; the driver is told.
    pub(crate) fn validate(&self, name: &str, socket: &Path, versions: &[String]) -> Result<(), String> {
        self.version(name, versions, "ValidatePlugin").map(drop).map_err(|why| {
            format!("validation failed for CSI Driver {name} at endpoint {}: {why}", socket.display())
        })
    }

    fn version(&self, name: &str, versions: &[String], at: &str) -> Result<Version, String> {
        let failed = |why: String| format!("kubernetes.io/csi: {at} for CSI driver {name:?} failed. {why}");
        if versions.is_empty() {
            return Err(failed("Plugin returned an empty list for supported versions".to_owned()));
        }
        // It becomes the name of a folder.
        if !is_driver_name(name) {
            return Err(failed("Its name is none that an object of the API can have".to_owned()));
        }
        let highest = highest(versions).map_err(|why| {
            failed(format!("None of the versions specified {versions:?} are supported. err={why}"))
        })?;
        if let Some(known) = self.list.borrow().get(name).filter(|known| known.version >= highest) {
            let known: Vec<String> = known.version.iter().map(ToString::to_string).collect();
            return Err(failed(format!(
                "Another driver with the same name is already registered with a higher supported version: {:?}",
                known.join(".")
            )));
        }
        Ok(highest)
    }

    /// Asks the driver who it is and tells the cluster; from then on it is on the list.
    ///
    /// # Errors
    /// Why it is not used; the driver is told, and asked again later.
    pub(crate) async fn register(
        &self,
        name: &str,
        socket: &Path,
        versions: &[String],
        cluster: &NodeInfo,
    ) -> Result<(), String> {
        let version = self.version(name, versions, "RegisterPlugin")?;
        let driver = self.at(name, socket);
        let told = driver.name().await.map_err(|error| error.why().to_owned())?;
        if let Some(other) = told.filter(|told| told != name) {
            return Err(format!(
                "kubernetes.io/csi: the driver at {} is registered as {name:?} and calls itself {other:?}",
                socket.display()
            ));
        }
        let facts = driver.node_facts().await.map_err(|error| error.why().to_owned())?;
        // Before the cluster sends pods: their volumes are to find it.
        self.insert(name, RegisteredDriver { socket: socket.to_owned(), version });
        let installed = cluster.install(name, &facts).await;
        if installed.is_err() {
            self.deregister(name, socket, cluster).await;
        }
        installed
    }

    /// It has gone. One that has taken its name meanwhile stays.
    pub(crate) async fn deregister(&self, name: &str, socket: &Path, cluster: &NodeInfo) {
        let removed = self.list.send_if_modified(|list| {
            let is_there = list.get(name).is_some_and(|known| known.socket == socket);
            is_there && list.remove(name).is_some()
        });
        if !removed {
            return;
        }
        if let Err(why) = cluster.uninstall(name).await {
            tracing::error!(driver = name, why, "the cluster is not told that a CSI driver has gone");
        }
    }

    /// The driver of that name.
    ///
    /// # Errors
    /// In upstream's words, when none is registered.
    pub(crate) fn get(&self, name: &str) -> Result<Driver, String> {
        match self.list.borrow().get(name) {
            Some(entry) => Ok(self.at(name, &entry.socket)),
            None => Err(format!("driver name {name} not found in the list of registered CSI drivers")),
        }
    }

    /// Whether that one is the driver of its name, now.
    pub(super) fn is_here(&self, driver: &Driver) -> bool {
        self.list.borrow().get(&driver.name).is_some_and(|known| known.socket == driver.socket)
    }

    /// None yet; a call may take so long.
    #[cfg(test)]
    pub(crate) fn with_patience(patience: Duration, metrics: Arc<Metrics>) -> Self {
        Self { patience, ..Self::new(metrics) }
    }

    /// As if it had registered.
    #[cfg(test)]
    pub(crate) fn put(&self, name: &str, socket: &Path) {
        self.insert(name, RegisteredDriver { socket: socket.to_owned(), version: vec![1, 0, 0] });
    }

    /// As if it had gone.
    #[cfg(test)]
    pub(crate) fn remove(&self, name: &str) {
        self.list.send_modify(|list| drop(list.remove(name)));
    }

    /// All of them.
    pub(crate) fn names(&self) -> BTreeSet<String> {
        self.list.borrow().keys().cloned().collect()
    }
}

/// The highest of those that this kubelet speaks, which are all of 1.
fn highest(versions: &[String]) -> Result<Version, String> {
    let mut wrong = String::new();
    let mut best: Option<Version> = None;
    for text in versions {
        match parse(text) {
            Ok(version) if version.first().is_some_and(|major| *major > 1) => {}
            Ok(version) => best = best.max(Some(version)),
            Err(why) => wrong = why,
        }
    }
    match best {
        Some(best) if best.first() == Some(&1) => Ok(best),
        Some(best) => {
            let best: Vec<String> = best.iter().map(ToString::to_string).collect();
            Err(format!("highest supported version reported is {}, must be v1.x", best.join(".")))
        }
        None => Err(format!(
            "could not find a highest supported version from versions ([{}]) reported: {}",
            versions.join(" "),
            if wrong.is_empty() { "<nil>" } else { &wrong }
        )),
    }
}

/// `1.0.0`, `v1.2`, `1.0.0-rc1`: at least two numbers.
fn parse(text: &str) -> Result<Version, String> {
    let wrong = || format!("could not parse {text:?} as version");
    let plain = text.trim().trim_start_matches('v');
    let end = plain.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(plain.len());
    let numbers = plain.get(..end).unwrap_or_default().trim_end_matches('.').split('.');
    let version = numbers.map(str::parse).collect::<Result<Version, _>>().map_err(|_| wrong())?;
    if version.len() < 2 { Err(wrong()) } else { Ok(version) }
}

#[cfg(test)]
mod tests;
