//! The runtime's sandboxes and containers: in memory, and as records on disk. Owns both and keeps
//! them the same; never acts on a process. Called by the RPC handlers, the event task and recovery.

pub(crate) mod container;
pub(crate) mod event_order;
pub(crate) mod names;
mod persisted;
pub(crate) mod pins;
pub(crate) mod record;
pub(crate) mod sandbox;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

pub(crate) use container::{Container, ContainerState};
pub(crate) use names::Names;
pub(crate) use sandbox::{Sandbox, SandboxState};

use gantry_base::mutex::lock;

/// No object, or more than one, has an id that begins so.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    /// None.
    #[error("{kind} {id:?} is not found")]
    NotFound {
        /// "sandbox" or "container".
        kind: &'static str,
        /// As asked.
        id: String,
    },
    /// Several.
    #[error("{kind} id {id:?} is ambiguous: give more of it")]
    Ambiguous {
        /// "sandbox" or "container".
        kind: &'static str,
        /// As asked.
        id: String,
    },
}

/// All objects by id.
#[derive(Debug, Default)]
pub(crate) struct Store {
    sandboxes: Mutex<BTreeMap<String, Arc<Sandbox>>>,
    containers: Mutex<BTreeMap<String, Arc<Container>>>,
    /// Names that a request or an object holds.
    pub names: Names,
}

/// The object with this id, or the only one whose id begins with it.
fn find<T>(map: &BTreeMap<String, Arc<T>>, kind: &'static str, id: &str) -> Result<Arc<T>, LookupError> {
    if let Some(found) = map.get(id) {
        return Ok(found.clone());
    }
    let mut matching = map.range(id.to_owned()..).take_while(|(known, _)| known.starts_with(id));
    match (matching.next(), matching.next()) {
        (Some((_, found)), None) if !id.is_empty() => Ok(found.clone()),
        (Some(_), Some(_)) if !id.is_empty() => Err(LookupError::Ambiguous { kind, id: id.to_owned() }),
        _ => Err(LookupError::NotFound { kind, id: id.to_owned() }),
    }
}

impl Store {
    /// The sandbox with this id or unique prefix.
    ///
    /// # Errors
    /// None or several.
    pub(crate) fn sandbox(&self, id: &str) -> Result<Arc<Sandbox>, LookupError> {
        find(&lock(&self.sandboxes), "sandbox", id)
    }

    /// The container with this id or unique prefix.
    ///
    /// # Errors
    /// None or several.
    pub(crate) fn container(&self, id: &str) -> Result<Arc<Container>, LookupError> {
        find(&lock(&self.containers), "container", id)
    }

    /// All sandboxes, by id.
    #[must_use]
    pub(crate) fn sandboxes(&self) -> Vec<Arc<Sandbox>> {
        lock(&self.sandboxes).values().cloned().collect()
    }

    /// All containers, by id.
    #[must_use]
    pub(crate) fn containers(&self) -> Vec<Arc<Container>> {
        lock(&self.containers).values().cloned().collect()
    }

    /// The containers of one sandbox.
    #[must_use]
    pub(crate) fn containers_of(&self, sandbox: &str) -> Vec<Arc<Container>> {
        lock(&self.containers).values().filter(|container| container.sandbox_id == sandbox).cloned().collect()
    }

    /// Adds a sandbox.
    pub(crate) fn add_sandbox(&self, sandbox: Arc<Sandbox>) {
        lock(&self.sandboxes).insert(sandbox.id.clone(), sandbox);
    }

    /// Adds a container.
    pub(crate) fn add_container(&self, container: Arc<Container>) {
        lock(&self.containers).insert(container.id.clone(), container);
    }

    /// Forgets a sandbox and frees its name.
    pub(crate) fn forget_sandbox(&self, id: &str) {
        if lock(&self.sandboxes).remove(id).is_some() {
            self.names.release(id);
        }
    }

    /// Forgets a container and frees its name.
    pub(crate) fn forget_container(&self, id: &str) {
        if lock(&self.containers).remove(id).is_some() {
            self.names.release(id);
        }
    }
}
