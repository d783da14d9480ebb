//! The runtime's sandboxes and containers: in memory, and as records on disk. Owns both and keeps
//! them the same; never acts on a process. Called by the RPC handlers, the event task and recovery.

pub(crate) mod container;
pub(crate) mod event_order;
pub(crate) mod index;
pub(crate) mod names;
mod persisted;
pub(crate) mod pins;
pub(crate) mod record;
pub(crate) mod sandbox;

use std::sync::{Arc, Mutex};

pub(crate) use container::{Container, ContainerState};
pub(crate) use index::IndexKey;
pub(crate) use names::Names;
pub(crate) use sandbox::{Sandbox, SandboxState};

use gantry_base::mutex::lock;
use index::Index;

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
pub(crate) struct RecordStore {
    sandboxes: Mutex<Index<Sandbox>>,
    containers: Mutex<Index<Container>>,
    /// Names that a request or an object holds.
    pub names: Names,
}

impl RecordStore {
    /// The sandbox with this id or unique prefix.
    ///
    /// # Errors
    /// None or several.
    pub(crate) fn sandbox(&self, id: &str) -> Result<Arc<Sandbox>, LookupError> {
        lock(&self.sandboxes).find(id)
    }

    /// The container with this id or unique prefix.
    ///
    /// # Errors
    /// None or several.
    pub(crate) fn container(&self, id: &str) -> Result<Arc<Container>, LookupError> {
        lock(&self.containers).find(id)
    }

    /// All sandboxes, by id.
    #[must_use]
    pub(crate) fn sandboxes(&self) -> Vec<Arc<Sandbox>> {
        lock(&self.sandboxes).all()
    }

    /// All containers, by id.
    #[must_use]
    pub(crate) fn containers(&self) -> Vec<Arc<Container>> {
        lock(&self.containers).all()
    }

    /// The containers of one sandbox.
    #[must_use]
    pub(crate) fn containers_of(&self, sandbox: &str) -> Vec<Arc<Container>> {
        self.containers_in(&IndexKey::Sandbox(sandbox.to_owned()))
    }

    /// The sandboxes of a group, by id.
    #[must_use]
    pub(crate) fn sandboxes_in(&self, group: &IndexKey) -> Vec<Arc<Sandbox>> {
        lock(&self.sandboxes).of(group)
    }

    /// The containers of a group, by id.
    #[must_use]
    pub(crate) fn containers_in(&self, group: &IndexKey) -> Vec<Arc<Container>> {
        lock(&self.containers).of(group)
    }

    /// Adds a sandbox.
    pub(crate) fn add_sandbox(&self, sandbox: Arc<Sandbox>) {
        lock(&self.sandboxes).insert(sandbox);
    }

    /// Adds a container.
    pub(crate) fn add_container(&self, container: Arc<Container>) {
        lock(&self.containers).insert(container);
    }

    /// Forgets a sandbox and frees its name.
    pub(crate) fn forget_sandbox(&self, id: &str) {
        if lock(&self.sandboxes).remove(id) {
            self.names.release(id);
        }
    }

    /// Forgets a container and frees its name.
    pub(crate) fn forget_container(&self, id: &str) {
        if lock(&self.containers).remove(id) {
            self.names.release(id);
        }
    }
}
