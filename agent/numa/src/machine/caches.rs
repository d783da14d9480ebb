//! The uncore cache of a core. Reads only. Called by the look at the cores of a NUMA node.

use std::path::Path;

use super::MachineError;
use super::files::{Expected, list, number, numbered, text, wrong};

/// Level 2 and below is the core's own.
const OF_A_CORE: u32 = 2;

/// What a CPU's folder tells of a cache above level 2.
pub(super) enum Uncore {
    Cache(u32),
    /// The whole NUMA node shares it, or there is none.
    None,
    /// Nothing is told: some virtual machines have no such files.
    Unknown,
}

/// Of the first cache above level 2 that not just `node_cpus` CPUs share. `folder` is that of a CPU.
pub(super) fn uncore(folder: &Path, node_cpus: usize) -> Result<Uncore, MachineError> {
    let folder = folder.join("cache");
    if !folder.exists() {
        return Ok(Uncore::Unknown);
    }
    let mut found = Uncore::None;
    for name in numbered::<u32>(&folder, "index", "")?.values() {
        let Some((id, level, cpus)) = cache(&folder.join(name))? else { return Ok(Uncore::Unknown) };
        if level > OF_A_CORE && cpus != node_cpus && matches!(found, Uncore::None) {
            found = Uncore::Cache(id);
        }
    }
    Ok(found)
}

/// Its number, its level, and how many CPUs share it. None: a file is missing that cAdvisor reads, if only for the cache's size;
/// then it takes nothing as told.
fn cache(folder: &Path) -> Result<Option<(u32, u32, usize)>, MachineError> {
    let Some(id) = number(&folder.join("id"))? else { return Ok(None) };
    let path = folder.join("size");
    let Some(size) = text(&path)? else { return Ok(None) };
    if size.strip_suffix('K').and_then(|size| size.parse::<u64>().ok()).is_none() {
        return Err(wrong(&path, &size, Expected::CacheSize));
    }
    let Some(level) = number(&folder.join("level"))? else { return Ok(None) };
    if text(&folder.join("type"))?.is_none() {
        return Ok(None);
    }
    let path = folder.join("shared_cpu_list");
    let Some(shared) = text(&path)? else { return Ok(None) };
    Ok(Some((id, level, list(&path, &shared)?.len())))
}
