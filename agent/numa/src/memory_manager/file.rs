//! The file `memory_manager_state` of the kubelet's root. Owns when it is read and written; its form is [`super::checkpoint`].
//! Part of [`super`].

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use gantry_base::files;

use super::checkpoint::{FormError, MemoryCheckpoint};
use super::machine::{self, StateError};
use super::{MemoryManager, MemoryPolicy};

/// Its name, in the kubelet's root.
pub const FILE: &str = "memory_manager_state";

/// What stands in the way of the agent's start, in upstream's words. By design: pods run by an account that is not this
/// machine's any more (kubernetes #84333, #110478), or by another policy (#55736).
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(
        "could not restore state from checkpoint: {why}, please drain this node and delete the memory manager checkpoint \
         file {path:?} before restarting Kubelet"
    )]
    Restore { why: RestoreError, path: PathBuf },
    #[error(transparent)]
    State(#[from] StateError),
}

/// Why a checkpoint cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    #[error(transparent)]
    Form(#[from] FormError),
    #[error("[memorymanager] configured policy {configured:?} differs from state checkpoint policy {told:?}")]
    Policy { configured: &'static str, told: String },
    #[error(transparent)]
    File(#[from] std::io::Error),
}

impl MemoryManager {
    /// Takes up what a kubelet before this one has left in its root, and writes down what there is where it left nothing.
    /// Blocks.
    ///
    /// # Errors
    /// When it is of another policy or of another machine, or is no checkpoint. The agent must not start then.
    pub fn restore(&mut self, root: &Path) -> Result<(), StartError> {
        let path = root.join(FILE);
        let restored = self.read(&path).and_then(|told| match told {
            Some(told) => Ok(Some(told)),
            None => self.save(root).map(|()| None).map_err(RestoreError::from),
        });
        let told = restored.map_err(|why| StartError::Restore { why, path })?;
        let Some(MemoryCheckpoint { machine: had, assignments, .. }) = told else { return Ok(()) };
        if self.policy == MemoryPolicy::Static {
            machine::compare(&had, self.machine.clone(), &assignments)?;
        }
        (self.machine, self.assignments) = (had, assignments);
        Ok(())
    }

    /// Writes down what there is. Upstream logs an error of it and goes on. Blocks.
    ///
    /// # Errors
    /// When the file cannot be replaced: then the old one stays.
    pub fn save(&self, root: &Path) -> std::io::Result<()> {
        let checkpoint = MemoryCheckpoint {
            policy: self.policy.name().to_owned(),
            machine: self.machine.clone(),
            assignments: self.assignments.clone(),
        };
        let content = checkpoint.encode().map_err(std::io::Error::other)?;
        files::replace(&root.join(FILE), content.as_bytes(), 0o600)
    }

    /// None: no kubelet has left any, or one that had not looked at the machine yet.
    fn read(&self, path: &Path) -> Result<Option<MemoryCheckpoint>, RestoreError> {
        let content = match std::fs::read(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            content => content?,
        };
        let told = MemoryCheckpoint::decode(&content)?;
        let configured = self.policy.name();
        if told.policy != configured {
            return Err(RestoreError::Policy { configured, told: told.policy });
        }
        let is_empty = told.machine.is_empty() && told.assignments.is_empty();
        Ok(Some(told).filter(|_| !is_empty))
    }
}
