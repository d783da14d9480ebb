//! Cgroup folders, in every hierarchy that is mounted here. Owns the search; removes only empty
//! folders, when asked to. Called by `leakcheck`, `node` and xtask.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::files;
use super::mounts::mounts;

/// The folder that the tests themselves are in, where the hierarchies are their own.
pub const HARNESS: &str = "harness";

/// Where cgroup hierarchies are mounted: each place once, though one may be mounted over another.
fn hierarchies() -> Result<BTreeSet<PathBuf>> {
    let all = mounts()?.into_iter();
    Ok(all.filter(|mount| mount.kind.starts_with("cgroup")).map(|mount| mount.point).collect())
}

/// Cgroup folders whose path below their mount holds `tag`, parents first; none for an empty one.
///
/// # Errors
/// Without /proc.
pub fn tagged_cgroups(tag: &str) -> Result<Vec<PathBuf>> {
    if tag.is_empty() {
        return Ok(Vec::new());
    }
    cgroups(&|below| below.contains(tag))
}

/// All cgroup folders but the tests' own.
pub(super) fn all() -> Result<Vec<PathBuf>> {
    cgroups(&|below| below != HARNESS)
}

fn cgroups(wanted: &dyn Fn(&str) -> bool) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for hierarchy in hierarchies()? {
        files(&hierarchy, &mut |path| {
            let below = path.strip_prefix(&hierarchy).unwrap_or(path).to_string_lossy().into_owned();
            if wanted(&below) && path.is_dir() {
                found.push(path.to_owned());
            }
        })?;
    }
    Ok(found)
}

/// Removes a node's two root cgroups, `/TAG` and `/TAG-monitors`, in every hierarchy.
///
/// # Errors
/// When one is not empty, or /proc cannot be read.
pub fn remove_node_cgroups(tag: &str) -> Result<()> {
    for folder in tagged_cgroups(tag)?.iter().rev() {
        std::fs::remove_dir(folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    Ok(())
}
