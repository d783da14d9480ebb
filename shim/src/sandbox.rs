//! Sandboxes: made, stopped, removed. One teardown path serves stop, remove and a run that failed.
//! Called by the RPC handlers and recovery.

pub(crate) mod cgroup_placement;
mod files;
pub(crate) mod monitor_launch;
pub(crate) mod network;
mod pod_arguments;
pub(crate) mod run;
mod scope;
pub(crate) mod stop;
pub(crate) mod stuck_monitor;
pub(crate) mod update;

use crate::cgroup::Cgroup;
use crate::error::Error;
use crate::node::Node;
use crate::store::record::{PodName, SandboxRecord};

impl PodName {
    /// The name that may exist once, as containerd builds it.
    #[must_use]
    pub(crate) fn reserved_name(&self) -> String {
        format!("{}_{}_{}_{}", self.name, self.namespace, self.uid, self.attempt)
    }
}

impl SandboxRecord {
    /// Cgroup of pause or of a container, by its id.
    #[must_use]
    pub(crate) fn member_cgroup(&self, id: &str) -> String {
        match &self.scope {
            // A slice has units in it and no processes: they are in the scope.
            Some(scope) if !self.owns_cgroup_parent => format!("{}/{id}", scope.path),
            _ => format!("{}/{id}", self.cgroup_parent),
        }
    }

    /// Cgroup of pause.
    #[must_use]
    pub(crate) fn pause_cgroup(&self) -> String {
        self.member_cgroup(&self.id)
    }
}

/// Removes what the last pod leaves by design: the idle bridge of the built-in network, the empty
/// root cgroups. Blocks.
pub(crate) fn tidy_up(node: &Node) -> Result<(), Error> {
    if node.config.default_network {
        network::remove_idle(node)?;
    }
    let root = &node.config.cgroup_root;
    if node.config.systemd_cgroup {
        scope::leave_slice(node)?;
    }
    for path in [root.clone(), format!("{root}-monitors")] {
        Cgroup::new(&node.layout, &path)?.remove_if_empty()?;
    }
    Ok(())
}
