//! The memory that the outputs of all ExecSyncs share. Owns how much that is. Taken by `exec::output`.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What all streams of all execs keep beyond what each may always keep; bytes.
pub(crate) const SHARED: usize = 256 << 20;

/// The memory that the outputs of all execs share.
#[derive(Debug, Clone)]
pub(crate) struct OutputBudget {
    bytes: Arc<Semaphore>,
}

impl Default for OutputBudget {
    fn default() -> Self {
        Self::with_bytes(SHARED)
    }
}

impl OutputBudget {
    pub(crate) fn with_bytes(bytes: usize) -> Self {
        Self { bytes: Arc::new(Semaphore::new(bytes)) }
    }

    /// Some of it, if there is as much left.
    pub(crate) fn try_take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let bytes = u32::try_from(bytes).ok()?;
        self.bytes.clone().try_acquire_many_owned(bytes).ok()
    }

    #[cfg(test)]
    pub(crate) fn left(&self) -> usize {
        self.bytes.available_permits()
    }
}
