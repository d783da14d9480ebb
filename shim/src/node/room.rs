//! The memory that the outputs of all ExecSyncs share. Owns how much that is. Taken by `exec::output`.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What all streams of all execs keep beyond what each may always keep; bytes.
pub(crate) const SHARED: usize = 256 << 20;

/// The memory that the outputs of all execs share.
#[derive(Debug, Clone)]
pub(crate) struct Room {
    bytes: Arc<Semaphore>,
}

impl Default for Room {
    fn default() -> Self {
        Self::of(SHARED)
    }
}

impl Room {
    pub(crate) fn of(bytes: usize) -> Self {
        Self { bytes: Arc::new(Semaphore::new(bytes)) }
    }

    /// Some of it, if there is as much left.
    pub(crate) fn take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let bytes = u32::try_from(bytes).ok()?;
        self.bytes.clone().try_acquire_many_owned(bytes).ok()
    }

    #[cfg(test)]
    pub(crate) fn left(&self) -> usize {
        self.bytes.available_permits()
    }
}
