//! Memory that a burst of pods has left. Owns when it is given back. Called by the daemons.

use std::time::Duration;

use gantry_sys::heap;

/// A burst is over by then, and a heap of 100 MB is looked through in milliseconds.
const INTERVAL: Duration = Duration::from_secs(60);

/// Gives free memory back to the kernel every minute, for as long as the process lives.
pub(crate) fn keep_small() {
    // Ends with the process.
    tokio::spawn(async {
        loop {
            tokio::time::sleep(INTERVAL).await;
            if let Err(error) = tokio::task::spawn_blocking(heap::trim).await {
                tracing::warn!("give free memory back: {error}");
                return;
            }
        }
    });
}
