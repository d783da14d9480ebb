//! Why a container can't be the one whose pid namespace another joins. Owns the words. Returned by `container::target`.

use crate::store::LookupError;

/// Why a container can't be the target, in the words of containerd.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("container {id:?} does not exist")]
    Missing {
        id: String,
        #[source]
        source: LookupError,
    },
    #[error("container {id:?} (sandbox {theirs}) does not belong to sandbox {ours}")]
    Elsewhere { id: String, theirs: String, ours: String },
    #[error("container {id:?} is not running - in state {state}")]
    NotRunning { id: String, state: &'static str },
}
