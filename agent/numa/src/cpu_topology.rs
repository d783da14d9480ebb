//! The CPUs of a machine: the core, the socket, the NUMA node and the uncore cache that each is in. Pure. Made by the look at
//! the machine; asked by the choice of CPUs and by the CPU manager.

use std::collections::{BTreeMap, BTreeSet};

use crate::cpuset::CpuSet;

/// Where a CPU is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct CpuInfo {
    /// The lowest number of the core's CPUs: the kernel's own number of a core is told only once in a socket.
    pub core: u32,
    pub socket: u32,
    pub numa: u32,
    /// A cache above level 2 that a part of the NUMA node's CPUs share. Where there is none, the number of the socket.
    pub uncore_cache: u32,
}

/// What holds more than one CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    NumaNode,
    Socket,
    UncoreCache,
    Core,
}

impl CpuInfo {
    /// The number of what holds this CPU at that level.
    #[must_use]
    pub const fn at(&self, level: Level) -> u32 {
        match level {
            Level::NumaNode => self.numa,
            Level::Socket => self.socket,
            Level::UncoreCache => self.uncore_cache,
            Level::Core => self.core,
        }
    }
}

/// All CPUs that are online, and how many there are of what holds them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuTopology {
    pub cpus: BTreeMap<u32, CpuInfo>,
    pub cores: usize,
    pub sockets: usize,
    pub numa_nodes: usize,
    pub uncore_caches: usize,
}

impl CpuTopology {
    /// Counts what holds the CPUs.
    #[must_use]
    pub fn new(cpus: BTreeMap<u32, CpuInfo>) -> Self {
        let count = |level| cpus.values().map(|info| info.at(level)).collect::<BTreeSet<_>>().len();
        let (cores, sockets) = (count(Level::Core), count(Level::Socket));
        let (numa_nodes, uncore_caches) = (count(Level::NumaNode), count(Level::UncoreCache));
        Self { cpus, cores, sockets, numa_nodes, uncore_caches }
    }

    /// The mean, rounded down. 0: there is no core.
    #[must_use]
    pub fn cpus_per_core(&self) -> usize {
        self.cpus.len().checked_div(self.cores).unwrap_or(0)
    }

    /// The mean, rounded down. 0: there is no socket.
    #[must_use]
    pub fn cpus_per_socket(&self) -> usize {
        self.cpus.len().checked_div(self.sockets).unwrap_or(0)
    }

    /// The mean, rounded down. 0: there is no uncore cache.
    #[must_use]
    pub fn cpus_per_uncore_cache(&self) -> usize {
        self.cpus.len().checked_div(self.uncore_caches).unwrap_or(0)
    }

    #[must_use]
    pub fn all(&self) -> CpuSet {
        self.cpus.keys().copied().collect()
    }

    /// What this machine has of `cpus`.
    #[must_use]
    pub fn keep_only(&self, cpus: &CpuSet) -> BTreeMap<u32, CpuInfo> {
        self.cpus.iter().filter(|(cpu, _)| cpus.contains(**cpu)).map(|(cpu, info)| (*cpu, *info)).collect()
    }

    /// The numbers of all that there is at that level.
    #[must_use]
    pub fn ids(&self, level: Level) -> BTreeSet<u32> {
        self.cpus.values().map(|info| info.at(level)).collect()
    }

    /// The numbers of what holds `cpus`. A CPU that the machine has not is left out.
    #[must_use]
    pub fn ids_of(&self, level: Level, cpus: &CpuSet) -> BTreeSet<u32> {
        cpus.iter().filter_map(|cpu| self.cpus.get(&cpu)).map(|info| info.at(level)).collect()
    }

    /// The CPUs that one of `ids` holds.
    #[must_use]
    pub fn cpus_in(&self, level: Level, ids: impl IntoIterator<Item = u32>) -> CpuSet {
        let ids: BTreeSet<u32> = ids.into_iter().collect();
        self.cpus.iter().filter(|(_, info)| ids.contains(&info.at(level))).map(|(cpu, _)| *cpu).collect()
    }

    /// The numbers at the level `of`, of all that shares a CPU with one of `ids` at the level `within`.
    #[must_use]
    pub fn ids_in(&self, of: Level, within: Level, ids: impl IntoIterator<Item = u32>) -> BTreeSet<u32> {
        let ids: BTreeSet<u32> = ids.into_iter().collect();
        self.cpus.values().filter(|info| ids.contains(&info.at(within))).map(|info| info.at(of)).collect()
    }

    #[must_use]
    pub fn cpus_in_numa_nodes(&self, nodes: impl IntoIterator<Item = u32>) -> CpuSet {
        self.cpus_in(Level::NumaNode, nodes)
    }

    #[must_use]
    pub fn cpus_in_sockets(&self, sockets: impl IntoIterator<Item = u32>) -> CpuSet {
        self.cpus_in(Level::Socket, sockets)
    }

    #[must_use]
    pub fn cpus_in_uncore_caches(&self, caches: impl IntoIterator<Item = u32>) -> CpuSet {
        self.cpus_in(Level::UncoreCache, caches)
    }

    #[must_use]
    pub fn cpus_in_cores(&self, cores: impl IntoIterator<Item = u32>) -> CpuSet {
        self.cpus_in(Level::Core, cores)
    }

    #[must_use]
    pub fn sockets_in_numa_nodes(&self, nodes: impl IntoIterator<Item = u32>) -> BTreeSet<u32> {
        self.ids_in(Level::Socket, Level::NumaNode, nodes)
    }

    /// Whether one uncore cache serves all of `cpus`. So it is of none and of one, whatever its number.
    #[must_use]
    pub fn is_aligned_at_uncore_cache(&self, cpus: &CpuSet) -> bool {
        if cpus.len() <= 1 {
            return true;
        }
        let known = cpus.iter().all(|cpu| self.cpus.contains_key(&cpu));
        known && self.ids_of(Level::UncoreCache, cpus).len() == 1
    }
}

#[cfg(test)]
mod tests;
