//! The look at this machine: its CPUs and its NUMA nodes, as cAdvisor finds them, and so as upstream's managers see them.
//! Reads files of sysfs and procfs, and never changes one. Called once, when the agent starts.

mod caches;
mod cores;
mod files;
mod memory;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use crate::cpu_topology::{CpuInfo, CpuTopology};
use crate::cpuset::CpuSet;
use files::{Expected, list, numbered, text};

/// What the managers give out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Machine {
    /// Of the CPUs that are online.
    pub topology: CpuTopology,
    /// By their numbers. One may have memory and no CPU.
    pub numa: Vec<NumaNode>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NumaNode {
    pub id: u32,
    /// In bytes. 0: the kernel does not tell.
    pub memory: u64,
    /// How many pages there are, by the bytes of a page.
    pub huge_pages: BTreeMap<u64, u64>,
    /// To each NUMA node, in their order. Empty: the kernel does not tell.
    pub distances: Vec<u64>,
}

#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    #[error("cannot read {}: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    #[error("{} is longer than {most} bytes, as no file of the kernel is", path.display())]
    TooLong { path: PathBuf, most: u64 },
    #[error("{} has more than {most} entries, as no folder of the kernel has", path.display())]
    TooMany { path: PathBuf, most: usize },
    /// `text` is its beginning.
    #[error("{} has {text:?}, not {expected}", path.display())]
    Content { path: PathBuf, text: String, expected: &'static str },
    #[error("{} names CPU {cpu}, which another NUMA node has", path.display())]
    InTwoNodes { path: PathBuf, cpu: u32 },
    /// Upstream's words.
    #[error("could not detect number of cpus")]
    NoCpu,
}

impl Machine {
    /// `sys` and `proc` are where sysfs and procfs are: `/sys` and `/proc`. A kernel without NUMA has a node for each socket, as
    /// cAdvisor has it. The only one then has all memory; of two or more, the kernel does not tell what each has.
    ///
    /// # Errors
    /// A file cannot be read or has what no kernel writes, or no CPU is found.
    pub fn read(sys: &Path, proc: &Path) -> Result<Self, MachineError> {
        let system = sys.join("devices/system");
        let nodes = numbered(&system.join("node"), "node", "")?;
        let machine =
            if nodes.is_empty() { without_numa(sys, proc)? } else { with_numa(&system, nodes.keys())? };
        if machine.topology.cpus.is_empty() { Err(MachineError::NoCpu) } else { Ok(machine) }
    }
}

/// None: this kernel cannot take a CPU offline.
fn online(system: &Path) -> Result<Option<CpuSet>, MachineError> {
    let path = system.join("cpu/online");
    text(&path)?.map(|text| list(&path, &text)).transpose()
}

fn with_numa<'a>(system: &Path, nodes: impl Iterator<Item = &'a u32>) -> Result<Machine, MachineError> {
    let online = online(system)?;
    let mut cpus: BTreeMap<u32, CpuInfo> = BTreeMap::new();
    let mut numa = Vec::new();
    for id in nodes {
        let folder = system.join(format!("node/node{id}"));
        let path = folder.join("cpulist");
        let mut own = text(&path)?.map_or_else(|| Ok(CpuSet::new()), |text| list(&path, &text))?;
        if let Some(online) = &online {
            own = own.intersection(online);
        }
        if let Some(cpu) = own.iter().find(|cpu| cpus.contains_key(cpu)) {
            return Err(MachineError::InTwoNodes { path, cpu });
        }
        cpus.extend(cores::of_node(&system.join("cpu"), *id, &own)?);
        numa.push(NumaNode {
            id: *id,
            memory: memory::total(&folder.join("meminfo"))?.unwrap_or(0),
            huge_pages: memory::huge_pages(&folder.join("hugepages"))?,
            distances: memory::distances(&folder.join("distance"))?,
        });
    }
    Ok(Machine { topology: CpuTopology::new(cpus), numa })
}

fn without_numa(sys: &Path, proc: &Path) -> Result<Machine, MachineError> {
    let system = sys.join("devices/system");
    let folder = system.join("cpu");
    let online = online(&system)?;
    let mut sockets: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for cpu in numbered(&folder, "cpu", "")?.into_keys() {
        if online.as_ref().is_none_or(|online| online.contains(cpu))
            && let Some(socket) = cores::socket(&folder, cpu)?
        {
            sockets.entry(socket).or_default().insert(cpu);
        }
    }
    let (mut cpus, mut numa) = (BTreeMap::new(), Vec::new());
    for (id, own) in &sockets {
        cpus.extend(cores::of_node(&folder, *id, &own.iter().copied().collect())?);
        numa.push(NumaNode { id: *id, ..NumaNode::default() });
    }
    if let [only] = numa.as_mut_slice() {
        let path = proc.join("meminfo");
        let missing = || files::wrong(&path, "", Expected::Memory);
        only.memory = memory::total(&path)?.ok_or_else(missing)?;
        only.huge_pages = memory::huge_pages(&sys.join("kernel/mm/hugepages"))?;
    }
    Ok(Machine { topology: CpuTopology::new(cpus), numa })
}

#[cfg(test)]
mod tests;
