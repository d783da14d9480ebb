//! CPUs that are as near to each other as can be: whole sockets and NUMA nodes, uncore caches, cores, and then single CPUs.
//! Pure. Called by the CPU manager, and for each NUMA node by the choice that distributes.

use super::accumulator::{Accumulator, signed};
use super::{AssignmentError, CpuSort};
use crate::cpu_topology::{CpuTopology, Level};
use crate::cpuset::CpuSet;

/// `prefer_uncore`: CPUs that share an uncore cache before whole cores (`prefer-align-cpus-by-uncorecache`). Upstream's
/// `takeByTopologyNUMAPacked`.
///
/// As upstream's, it may give CPUs that are not available where cores or sockets differ in size, and another number of them
/// where sockets, NUMA nodes and uncore caches overlap. The caller checks both.
///
/// # Errors
/// Fewer than `count` CPUs are available.
pub fn take_packed(
    topology: &CpuTopology,
    available: &CpuSet,
    count: usize,
    sort: CpuSort,
    prefer_uncore: bool,
) -> Result<CpuSet, AssignmentError> {
    let mut cpus = Accumulator::new(topology, available, count, sort)?;
    let large_first =
        if cpus.numa_first() { [Level::NumaNode, Level::Socket] } else { [Level::Socket, Level::NumaNode] };
    for level in large_first {
        if !cpus.is_satisfied() {
            cpus.take_whole(level);
        }
    }
    if prefer_uncore && !cpus.is_satisfied() {
        take_by_uncore_cache(&mut cpus);
    }
    if sort == CpuSort::Packed && !cpus.is_satisfied() {
        cpus.take_whole(Level::Core);
    }
    for cpu in cpus.cpus() {
        if cpus.is_satisfied() {
            break;
        }
        cpus.take(&[cpu].into_iter().collect());
    }
    if cpus.is_satisfied() { Ok(cpus.taken) } else { Err(AssignmentError::Failed) }
}

fn take_by_uncore_cache(cpus: &mut Accumulator<'_>) {
    let size = signed(cpus.topology.cpus_per_uncore_cache());
    for cache in cpus.uncore_caches() {
        if cpus.needed >= size {
            cpus.take_whole(Level::UncoreCache);
        }
        if !cpus.is_satisfied() {
            take_part(cpus, cache);
        }
        if cpus.is_satisfied() {
            return;
        }
    }
}

/// What is still needed from this cache, or nothing: whole cores by their number, and of the last core one CPU if the need is
/// odd.
fn take_part(cpus: &mut Accumulator<'_>, cache: u32) {
    let size = cpus.topology.cpus_per_core().max(1);
    let needed = usize::try_from(cpus.needed).unwrap_or(0);
    let mut part: Vec<u32> = cpus
        .ids_in(Level::Core, Level::UncoreCache, cache)
        .into_iter()
        .take(needed.div_ceil(size))
        .flat_map(|core| cpus.free_in(Level::Core, core).iter().collect::<Vec<_>>())
        .collect();
    part.sort_unstable();
    if needed % 2 != 0 && size > 1 && part.len() > needed {
        part.pop();
    }
    if part.len() == needed {
        cpus.take(&part.into_iter().collect());
    }
}
