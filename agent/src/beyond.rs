//! What some runtimes tell beyond CRI: how far pulls have come, and which containers ran out of memory.
//! Owns the choice of who is listened to; nothing of a pod's life depends on it, and a runtime that tells
//! nothing of the kind is as good. Called by the wiring; held by [`crate::pod::run::Deps`].

#[cfg(feature = "containerd")]
mod containerd;
pub mod ooms;
pub mod outlived;
pub mod pulls;

use tokio::sync::watch;
use tonic::transport::Channel;

use self::ooms::Ooms;
use self::pulls::Pulls;

/// Both are missing where the runtime's name or this build says so.
#[derive(Debug, Clone, Default)]
pub struct Beyond {
    /// Pulls under way.
    pub pulls: Option<Pulls>,
    /// Containers that ran out of memory.
    pub ooms: Option<watch::Receiver<Ooms>>,
}

impl Beyond {
    /// From now on, of the runtime behind `channel` that calls itself so.
    #[cfg(feature = "containerd")]
    #[must_use]
    pub fn of(runtime: &str, channel: &Channel) -> Self {
        match runtime {
            "containerd" => containerd::listen(channel),
            _ => Self::default(),
        }
    }

    /// This build listens to nobody.
    #[cfg(not(feature = "containerd"))]
    #[must_use]
    pub fn of(runtime: &str, channel: &Channel) -> Self {
        tracing::debug!(runtime, ?channel, "built without the feature containerd: it is asked by CRI alone");
        Self::default()
    }

    /// How often containers ran out of memory, as far as they are remembered.
    #[must_use]
    pub fn out_of_memory(&self, container: &str) -> Option<u64> {
        self.ooms.as_ref().and_then(|ooms| ooms.borrow().of(container))
    }
}
