//! Extensions of a runtime beside CRI: progress of pulls, and which containers ran out of memory.
//! Owns the choice of the listener; nothing of a pod's life depends on it, and a runtime without
//! extensions is as good. Called by the wiring; held by [`crate::pod::run::Deps`].

#[cfg(feature = "containerd")]
mod containerd;
mod gantry;
pub mod oom_counts;
pub mod pulls;
mod renew;

use tokio::sync::watch;
use tonic::transport::Channel;

use self::oom_counts::Ooms;
use self::pulls::Pulls;

/// Both are missing where the runtime's name or this build says so.
#[derive(Debug, Clone, Default)]
pub struct RuntimeExtensions {
    /// Pulls under way.
    pub pulls: Option<Pulls>,
    /// Containers that ran out of memory.
    pub ooms: Option<watch::Receiver<Ooms>>,
}

impl RuntimeExtensions {
    /// From now on, of the runtime behind `channel` that calls itself so.
    #[must_use]
    pub fn of(runtime: &str, channel: &Channel) -> Self {
        match runtime {
            "gantry" => gantry::listen(channel),
            #[cfg(feature = "containerd")]
            "containerd" => containerd::listen(channel),
            _ => {
                tracing::debug!(
                    runtime,
                    "asked by CRI alone: built without the feature containerd, or not known"
                );
                Self::default()
            }
        }
    }

    /// How often containers ran out of memory, as far as they are remembered.
    #[must_use]
    pub fn out_of_memory(&self, container: &str) -> Option<u64> {
        self.ooms.as_ref().and_then(|ooms| ooms.borrow().of(container))
    }
}
