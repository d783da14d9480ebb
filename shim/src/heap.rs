//! Gives back what a long-lived program's heap holds and does not use. Owns when; never what is allocated. Called by
//! `cli` for the daemons.
//!
//! A burst of pods leaves holes between what stays. The allocator keeps them for the next burst, and gives back only what
//! is free at the end of an arena.

#![expect(clippy::disallowed_methods, reason = "it is for the whole life of the program")]

use std::time::Duration;

/// Between two looks. A burst is over by then, and a look costs milliseconds.
const EVERY: Duration = Duration::from_secs(60);

/// Until the program ends; beside everything else.
pub fn trim_regularly() {
    tokio::spawn(async {
        loop {
            tokio::time::sleep(EVERY).await;
            // It waits for locks of the allocator, and must not keep a thread of the executor.
            if let Err(error) = tokio::task::spawn_blocking(gantry_sys::heap::trim).await {
                tracing::error!(%error, "the heap cannot be trimmed any more");
                return;
            }
        }
    });
}
