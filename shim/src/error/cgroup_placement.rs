//! Why a sandbox can't be where the caller wants its cgroup. Owns the words. Returned by `sandbox::cgroup_placement`.

use gantry_systemd as systemd;

/// A `cgroup_parent` that this node's driver can't use.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "the cgroup driver is systemd, and the cgroup parent {parent:?} is no slice: tell the client to use the driver \
         systemd, or start the runtime without --systemd-cgroup"
    )]
    NoSlice {
        parent: String,
        #[source]
        source: systemd::BadSlice,
    },
    #[error(
        "the cgroup driver is cgroupfs, and the cgroup parent {0:?} is a slice of systemd: tell the client to use the \
         driver cgroupfs, or start the runtime with --systemd-cgroup"
    )]
    Slice(String),
}
