//! Where a container may run, as its cgroup is told. Pure. Made of what the managers gave, read by the runtime's client.

/// Where a container may run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Affinity {
    /// A list for cpuset.cpus; empty: anywhere.
    pub cpus: String,
    /// A list for cpuset.mems; empty: anywhere.
    pub memory_nodes: String,
    /// Nobody else runs on these CPUs: no quota holds it back there.
    pub has_own_cpus: bool,
}
