//! What the machine has left, and what pods use of it. Owns the types; never a number of its own. The server of the
//! kubelet's API measures, eviction decides by it. Pure.

use std::collections::BTreeMap;

use crate::pod::PodUid;
use crate::signal::Signal;

/// How much of something is left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reading {
    /// Left.
    pub available: i64,
    /// Of so much.
    pub capacity: i64,
    /// When it was measured, in Unix nanoseconds; 0 when that is not known.
    pub at: i64,
}

/// By signal; what cannot be measured is missing.
pub type Readings = BTreeMap<Signal, Reading>;

/// Which file systems are others than the kubelet's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Disks {
    /// Images are on a file system of their own.
    pub images_apart: bool,
    /// Writable layers are not where images are.
    pub layers_apart: bool,
}

/// One look at the machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observation {
    /// What is left.
    pub readings: Readings,
    /// Where things are.
    pub disks: Disks,
}

/// On a disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Used {
    /// Bytes.
    pub bytes: u64,
    /// Files and folders.
    pub inodes: u64,
}

impl Used {
    /// Both together.
    #[must_use]
    pub fn plus(self, more: Self) -> Self {
        Self { bytes: self.bytes.saturating_add(more.bytes), inodes: self.inodes.saturating_add(more.inodes) }
    }
}

/// What one container uses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContainerUse {
    /// Of the pod's spec.
    pub name: String,
    /// Its working set, in bytes.
    pub memory: Option<u64>,
    /// Its writable layer.
    pub layer: Option<Used>,
    /// Its logs.
    pub logs: Option<Used>,
}

/// What one pod uses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodUse {
    /// Its working set, in bytes.
    pub memory: u64,
    /// Processes and threads.
    pub processes: u64,
    /// Those that the runtime tells of.
    pub containers: Vec<ContainerUse>,
    /// By name.
    pub volumes: BTreeMap<String, Used>,
    /// Its /etc/hosts, which containers may write.
    pub hosts_file: Used,
}

/// By pod; one that the runtime does not tell of is missing.
pub type Usage = BTreeMap<PodUid, PodUse>;
