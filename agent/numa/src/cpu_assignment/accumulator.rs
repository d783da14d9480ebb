//! The CPUs that are free, those that are taken, and the orders in which more are taken. Pure. Driven by both ways to choose.

use std::collections::{BTreeMap, BTreeSet};

use super::{AssignmentError, CpuSort};
use crate::cpu_topology::{CpuInfo, CpuTopology, Level};
use crate::cpuset::CpuSet;

pub(super) struct Accumulator<'a> {
    pub(super) topology: &'a CpuTopology,
    free: BTreeMap<u32, CpuInfo>,
    /// Below 0 where upstream counts one CPU twice.
    pub(super) needed: i64,
    pub(super) taken: CpuSet,
    sort: CpuSort,
}

pub(super) fn signed(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

impl<'a> Accumulator<'a> {
    /// Fails if fewer are available than are needed.
    pub(super) fn new(
        topology: &'a CpuTopology,
        available: &CpuSet,
        count: usize,
        sort: CpuSort,
    ) -> Result<Self, AssignmentError> {
        let free = topology.keep_only(available);
        if count > free.len() {
            return Err(AssignmentError::NotEnough { requested: count, available: available.len() });
        }
        Ok(Self { topology, free, needed: signed(count), taken: CpuSet::new(), sort })
    }

    pub(super) fn is_satisfied(&self) -> bool {
        self.needed < 1
    }

    /// A NUMA node is as large as a socket, or larger.
    pub(super) fn numa_first(&self) -> bool {
        self.topology.sockets >= self.topology.numa_nodes
    }

    pub(super) fn free_in(&self, level: Level, id: u32) -> CpuSet {
        self.free.iter().filter(|(_, info)| info.at(level) == id).map(|(cpu, _)| *cpu).collect()
    }

    /// What has a free CPU and shares one with `id` at the level `within`, by number.
    pub(super) fn ids_in(&self, level: Level, within: Level, id: u32) -> BTreeSet<u32> {
        self.free.values().filter(|info| info.at(within) == id).map(|info| info.at(level)).collect()
    }

    /// Those with the fewest free CPUs first, and of as many by their number.
    fn sorted(&self, level: Level, within: Option<(Level, u32)>) -> Vec<u32> {
        let mut free: BTreeMap<u32, usize> = BTreeMap::new();
        for info in self.free.values() {
            *free.entry(info.at(level)).or_default() += 1;
        }
        let is_within = |info: &CpuInfo| within.is_none_or(|(above, id)| info.at(above) == id);
        let ids: BTreeSet<u32> =
            self.free.values().filter(|info| is_within(info)).map(|info| info.at(level)).collect();
        let mut ids: Vec<u32> = ids.into_iter().collect();
        ids.sort_by_key(|id| (free.get(id).copied().unwrap_or(0), *id));
        ids
    }

    /// One that is in two of those above comes twice.
    fn sorted_below(&self, above: Level, ids: Vec<u32>, level: Level) -> Vec<u32> {
        ids.into_iter().flat_map(|id| self.sorted(level, Some((above, id)))).collect()
    }

    pub(super) fn numa_nodes(&self) -> Vec<u32> {
        if self.numa_first() {
            return self.sorted(Level::NumaNode, None);
        }
        self.sorted_below(Level::Socket, self.sockets(), Level::NumaNode)
    }

    fn sockets(&self) -> Vec<u32> {
        if !self.numa_first() {
            return self.sorted(Level::Socket, None);
        }
        self.sorted_below(Level::NumaNode, self.numa_nodes(), Level::Socket)
    }

    pub(super) fn uncore_caches(&self) -> Vec<u32> {
        self.sorted_below(Level::NumaNode, self.numa_nodes(), Level::UncoreCache)
    }

    fn cores(&self) -> Vec<u32> {
        if self.numa_first() {
            return self.sorted_below(Level::Socket, self.sockets(), Level::Core);
        }
        self.sorted_below(Level::NumaNode, self.numa_nodes(), Level::Core)
    }

    /// One by one.
    pub(super) fn cpus(&self) -> Vec<u32> {
        let (level, ids) = match self.sort {
            CpuSort::Packed => (Level::Core, self.cores()),
            CpuSort::Spread => (Level::Socket, self.sockets()),
        };
        ids.into_iter().flat_map(|id| self.free_in(level, id).iter().collect::<Vec<_>>()).collect()
    }

    /// The mean size of a core and of a socket counts. So where they differ, a large one is never free, and one of which just the
    /// mean is free counts as whole.
    fn is_free(&self, level: Level, id: u32) -> bool {
        let size = match level {
            Level::Socket => self.topology.cpus_per_socket(),
            Level::Core => self.topology.cpus_per_core(),
            Level::NumaNode | Level::UncoreCache => self.topology.cpus_in(level, [id]).len(),
        };
        self.free_in(level, id).len() == size
    }

    /// In the order in which they are taken.
    pub(super) fn whole(&self, level: Level) -> Vec<u32> {
        let mut ids = match level {
            Level::NumaNode => self.numa_nodes(),
            Level::Socket => self.sockets(),
            Level::UncoreCache => self.uncore_caches(),
            Level::Core => self.cores(),
        };
        ids.retain(|id| self.is_free(level, *id));
        ids
    }

    pub(super) fn take(&mut self, cpus: &CpuSet) {
        self.taken.extend(cpus.iter());
        self.free.retain(|cpu, _| !cpus.contains(*cpu));
        self.needed = self.needed.saturating_sub(signed(cpus.len()));
    }

    /// Every whole one that does not give more than is needed.
    pub(super) fn take_whole(&mut self, level: Level) {
        for id in self.whole(level) {
            let cpus = self.topology.cpus_in(level, [id]);
            if self.needed >= signed(cpus.len()) {
                self.take(&cpus);
            }
        }
    }
}
