//! The tree of QoS classes and pods below the node's cgroup root. Owns the trait; never a
//! container's own cgroup (the runtime makes it). Called by [`crate::pod::run`].

#[cfg(any(test, feature = "testing"))]
pub mod contract;
mod existing;
#[cfg(any(test, feature = "testing"))]
pub mod fake;
pub mod tree;
mod units;

use std::fmt;

use futures_util::future::BoxFuture;
use gantry_model::cgroup::limits::{Limits, Rules};
use gantry_model::cgroup::{Reserved, Together};
use gantry_model::pod::{Pod, PodUid};

/// Cgroups of pods. All calls are idempotent.
pub trait Cgroups: Send + Sync + fmt::Debug {
    /// Makes the pod's cgroup with these limits; returns what CRI calls cgroup_parent, empty when
    /// there is no tree (cgroupsPerQOS off).
    fn set_up<'a>(&'a self, pod: &'a Pod, limits: &'a Limits) -> BoxFuture<'a, Result<String, Error>>;
    /// By what pods are held.
    fn rules(&self) -> Rules;
    /// The pod's cgroup, which is there, gets these limits; those that are none stay.
    fn update<'a>(&'a self, pod: &'a Pod, limits: &'a Limits) -> BoxFuture<'a, Result<(), Error>>;
    /// Bytes that the pod has in use; none where nobody counts.
    fn memory_in_use<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<Option<u64>, Error>>;
    /// From now on all pods together get no more than this.
    fn hold<'a>(&'a self, all: &'a Together) -> BoxFuture<'a, Result<(), Error>>;
    /// Holds a cgroup that others made and live in, as a configuration names it. None is made. Where nothing is
    /// reserved there is nothing to hold it to, which is an error.
    fn enforce<'a>(&'a self, name: &'a str, to: Option<Reserved>) -> BoxFuture<'a, Result<(), Error>>;
    /// Kills what is left in it and removes it; succeeds when it is not there.
    fn tear_down<'a>(&'a self, uid: &'a PodUid) -> BoxFuture<'a, Result<(), Error>>;
}

/// Sizes of huge pages that the kernel has, in KiB, in order; they do not change.
#[must_use]
pub fn page_sizes() -> Vec<i64> {
    let sizes = std::fs::read_dir("/sys/kernel/mm/hugepages").into_iter().flatten().flatten();
    let size = |entry: std::fs::DirEntry| {
        entry.file_name().to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()
    };
    let mut sizes: Vec<i64> = sizes.filter_map(size).collect();
    sizes.sort_unstable();
    sizes
}

/// A cgroup could not be made or removed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// Names the cgroup and the cause.
    pub message: String,
}
