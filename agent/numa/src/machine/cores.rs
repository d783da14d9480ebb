//! The cores of a NUMA node, and where each of their CPUs is. Reads only. Called by the look at the machine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::MachineError;
use super::caches::{Uncore, uncore};
use super::files::number;
use crate::cpu_topology::CpuInfo;
use crate::cpuset::CpuSet;

fn file(folder: &Path, cpu: u32, name: &str) -> PathBuf {
    folder.join(format!("cpu{cpu}/topology/{name}"))
}

/// None: the kernel does not tell. A kernel that does not know the number says -1: that is socket 0. `folder` is that of all CPUs.
pub(super) fn socket(folder: &Path, cpu: u32) -> Result<Option<u32>, MachineError> {
    let package: Option<i32> = number(&file(folder, cpu, "physical_package_id"))?;
    Ok(package.map(|package| u32::try_from(package).unwrap_or(0)))
}

/// A CPU of which the kernel does not tell the core or the socket is left out.
pub(super) fn of_node(
    folder: &Path,
    numa: u32,
    cpus: &CpuSet,
) -> Result<BTreeMap<u32, CpuInfo>, MachineError> {
    let mut cores: BTreeMap<(u32, i64), Vec<u32>> = BTreeMap::new();
    for cpu in cpus.iter() {
        if let Some(core) = number(&file(folder, cpu, "core_id"))?
            && let Some(socket) = socket(folder, cpu)?
        {
            cores.entry((socket, core)).or_default().push(cpu);
        }
    }
    let count = cores.len();
    // From the lowest CPU on.
    let mut cores: Vec<(u32, Vec<u32>)> =
        cores.into_iter().map(|((socket, _), cpus)| (socket, cpus)).collect();
    cores.sort_by(|(_, one), (_, other)| one.cmp(other));
    let mut found = BTreeMap::new();
    let mut told = true;
    for (socket, cpus) in cores {
        let Some(core) = cpus.first().copied() else { continue };
        let mut uncore_cache = socket;
        if told {
            match uncore(&folder.join(format!("cpu{core}")), count.saturating_mul(cpus.len()))? {
                Uncore::Cache(id) => uncore_cache = id,
                Uncore::None => {}
                Uncore::Unknown => told = false,
            }
        }
        found.extend(cpus.iter().map(|cpu| (*cpu, CpuInfo { core, socket, numa, uncore_cache })));
    }
    Ok(found)
}
