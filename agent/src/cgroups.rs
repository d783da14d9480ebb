//! The tree of QoS classes and pods below the node's cgroup root. Owns the trait; never a
//! container's own cgroup (the runtime makes it). Called by [`crate::pod::run`].

#[cfg(any(test, feature = "testing"))]
pub mod contract;
#[cfg(any(test, feature = "testing"))]
pub mod fake;
pub mod limits;
pub mod names;
pub mod tree;
mod units;

use std::collections::BTreeMap;
use std::fmt;

use futures_util::future::BoxFuture;

use crate::pod::spec::{Pod, PodUid};

/// Cgroups of pods. All calls are idempotent.
pub trait Cgroups: Send + Sync + fmt::Debug {
    /// Makes the pod's cgroup with its limits; returns what CRI calls cgroup_parent, empty when
    /// there is no tree (cgroupsPerQOS off).
    fn set_up<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<String, Error>>;
    /// From now on all pods together get no more than this.
    fn hold<'a>(&'a self, all: &'a Together) -> BoxFuture<'a, Result<(), Error>>;
    /// Kills what is left in it and removes it; succeeds when it is not there.
    fn tear_down<'a>(&'a self, uid: &'a PodUid) -> BoxFuture<'a, Result<(), Error>>;
}

/// What all pods have together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Together {
    /// Thousandths of cores; a weight, not a limit.
    pub cpu: i64,
    /// Bytes.
    pub memory: Option<i64>,
    /// Processes and threads.
    pub pids: Option<i64>,
    /// Bytes by size of a page, in KiB.
    pub huge_pages: BTreeMap<i64, i64>,
}

/// A cgroup could not be made or removed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// Names the cgroup and the cause.
    pub message: String,
}
