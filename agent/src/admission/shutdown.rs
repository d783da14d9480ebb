//! Whether a node that goes down takes a pod in. Pure: owns the words. Called by [`crate::pod_workers`].

use gantry_model::shutdown::Shutdown;

use super::Rejection;

/// Of such a rejection.
pub(crate) const NODE_SHUTDOWN: &str = "NodeShutdown";

/// It takes none, not even a critical one.
///
/// # Errors
/// The rejection, in upstream's words.
pub(crate) fn while_up(shutdown: Shutdown) -> Result<(), Rejection> {
    match shutdown.is_on() {
        true => Err(Rejection::new(NODE_SHUTDOWN, "Pod was rejected as the node is shutting down.")),
        false => Ok(()),
    }
}
