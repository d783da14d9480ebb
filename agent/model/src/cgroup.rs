//! Cgroups of pods by the kubelet's arithmetic: their names ([`names`]) and numbers ([`limits`]). Owns what all pods have
//! together; never touches a file system. Called by `cgroups`, the CRI mapping and the statistics. Pure.

pub mod limits;
pub mod names;

use std::collections::BTreeMap;

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

/// What daemons beside the pods have together: of the system, or Kubernetes' own. None of it is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reserved {
    /// Thousandths of cores; a weight, not a limit.
    pub cpu: Option<i64>,
    /// Bytes.
    pub memory: Option<i64>,
    /// Processes and threads.
    pub pids: Option<i64>,
}
