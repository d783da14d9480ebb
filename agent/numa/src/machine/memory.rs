//! The memory of a NUMA node, and how far it is from the others. Reads only. Called by the look at the machine.

use std::collections::BTreeMap;
use std::path::Path;

use super::MachineError;
use super::files::{Expected, number, numbered, text, wrong};

const KIB: u64 = 1024;

/// Bytes of MemTotal in a meminfo. None: there is no such file.
pub(super) fn total(path: &Path) -> Result<Option<u64>, MachineError> {
    let Some(text) = text(path)? else { return Ok(None) };
    let line = text.lines().find_map(|line| line.split_once("MemTotal:").map(|(_, rest)| rest.trim()));
    let kib = line.and_then(|rest| rest.strip_suffix(" kB")).and_then(|digits| digits.parse::<u64>().ok());
    let bytes = kib.and_then(|kib| kib.checked_mul(KIB));
    bytes.map(Some).ok_or_else(|| wrong(path, line.unwrap_or(&text), Expected::Memory))
}

/// None if there is no such folder: this kernel has no huge pages.
pub(super) fn huge_pages(folder: &Path) -> Result<BTreeMap<u64, u64>, MachineError> {
    let mut pages = BTreeMap::new();
    for (kib, name) in numbered::<u64>(folder, "hugepages-", "kB")? {
        let path = folder.join(&name).join("nr_hugepages");
        let size = kib.checked_mul(KIB).ok_or_else(|| wrong(&path, &name, Expected::Number))?;
        let count = number(&path)?.ok_or_else(|| wrong(&path, "", Expected::Number))?;
        pages.insert(size, count);
    }
    Ok(pages)
}

/// None if there is no such file.
pub(super) fn distances(path: &Path) -> Result<Vec<u64>, MachineError> {
    let Some(text) = text(path)? else { return Ok(Vec::new()) };
    let wrong = |_| wrong(path, &text, Expected::Distances);
    text.split(' ').map(|distance| distance.parse().map_err(wrong)).collect()
}
