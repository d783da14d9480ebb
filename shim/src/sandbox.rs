//! Sandboxes: made, stopped, removed. One teardown path serves stop, remove and a run that failed.
//! Called by the RPC handlers and recovery.

mod files;
pub(crate) mod launch;
pub(crate) mod network;
pub(crate) mod run;
pub(crate) mod stop;

pub(crate) use files::HOST_FILES;

use crate::store::record::{PodName, SandboxRecord};

impl PodName {
    /// The name that may exist once, as containerd builds it.
    #[must_use]
    pub(crate) fn reserved(&self) -> String {
        format!("{}_{}_{}_{}", self.name, self.namespace, self.uid, self.attempt)
    }
}

impl SandboxRecord {
    /// Cgroup of pause.
    #[must_use]
    pub(crate) fn pause_cgroup(&self) -> String {
        format!("{}/{}", self.cgroup_parent, self.id)
    }
}
