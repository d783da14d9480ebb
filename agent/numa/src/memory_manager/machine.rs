//! The account of each NUMA node's memory. Pure: owns the sums and upstream's comparison with what a checkpoint says. Part
//! of [`super`].

use std::collections::BTreeMap;

use gantry_model::quantity::binary;
use serde::{Deserialize, Serialize};

use super::request::Sizes;
use super::reserved::SystemReserved;
use super::{Assignments, MEMORY, MemoryBlock};
use crate::node_mask::NodeMask;

/// What the machine has on one NUMA node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NumaMemory {
    pub node: u32,
    /// Bytes, with those of the huge pages.
    pub memory: u64,
    /// How many, by their size in bytes.
    pub huge_pages: BTreeMap<u64, u64>,
}

/// What one node has of one resource, in bytes. The names are the checkpoint's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct MemoryTable {
    pub total: u64,
    /// Not for pods.
    pub system_reserved: u64,
    /// For pods.
    pub allocatable: u64,
    /// Of these, set aside for containers.
    pub reserved: u64,
    /// And not.
    pub free: u64,
}

/// One NUMA node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryNode {
    /// One for each resource of each container that has any from here.
    pub assignments: i64,
    /// By resource.
    pub memory: BTreeMap<String, MemoryTable>,
    /// The nodes that containers have their memory from together with this one. A node is in one such group at a time.
    pub cells: NodeMask,
}

/// By number.
pub type NodeMap = BTreeMap<u32, MemoryNode>;

/// Why a checkpoint is not of this machine as it is now, in upstream's words. The node must be drained and the file removed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    #[error("[memorymanager] machine state can not be empty when it has memory assignments")]
    NoMachine,
    #[error(
        "[memorymanager] (pod: {pod}, container: {container}) the memory assignment uses the NUMA that does not exist"
    )]
    NoNode { pod: String, container: String },
    #[error(
        "[memorymanager] (pod: {pod}, container: {container}) the memory assignment uses memory resource that does not exist"
    )]
    NoResource { pod: String, container: String },
    #[error("[memorymanager] the expected machine state is different from the real one")]
    Different(#[source] Difference),
}

/// What the checkpoint and the machine do not agree on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: the checkpoint has {had}, the machine {has}")]
pub struct Difference {
    place: String,
    had: String,
    has: String,
}

/// Nothing is given yet.
pub(super) fn build(nodes: &[NumaMemory], reserved: &SystemReserved) -> NodeMap {
    let mut map = NodeMap::new();
    for node in nodes {
        let reserved =
            |resource: &str| reserved.get(&node.node).and_then(|own| own.get(resource)).copied().unwrap_or(0);
        let mut memory = BTreeMap::new();
        let mut in_huge_pages = 0_u64;
        for (page, count) in &node.huge_pages {
            let resource = format!("hugepages-{}", binary(i64::try_from(*page).unwrap_or(i64::MAX)));
            let total = page.saturating_mul(*count);
            in_huge_pages = in_huge_pages.saturating_add(total);
            let reserved = reserved(&resource);
            memory.insert(resource, table(total, reserved, total.saturating_sub(reserved)));
        }
        let own = reserved(MEMORY);
        let allocatable = node.memory.saturating_sub(own).saturating_sub(in_huge_pages);
        memory.insert(MEMORY.to_owned(), table(node.memory, own, allocatable));
        map.insert(node.node, MemoryNode { assignments: 0, memory, cells: NodeMask::of([node.node]) });
    }
    map
}

fn table(total: u64, system_reserved: u64, allocatable: u64) -> MemoryTable {
    MemoryTable { total, system_reserved, allocatable, reserved: 0, free: allocatable }
}

/// Sets a size aside, from the lowest node on. Each of the nodes is in the group, even where it gives nothing.
pub(super) fn take(map: &mut NodeMap, nodes: NodeMask, resource: &str, mut size: u64) {
    for node in nodes.iter() {
        let Some(state) = map.get_mut(&node) else { continue };
        state.assignments = state.assignments.saturating_add(1);
        state.cells = nodes;
        let Some(table) = state.memory.get_mut(resource) else { continue };
        let given = table.free.min(size);
        table.reserved = table.reserved.saturating_add(given);
        table.free -= given;
        size -= given;
    }
}

/// The other way round. A node that gives nothing any more is in a group by itself.
pub(super) fn give_back(map: &mut NodeMap, block: &MemoryBlock) {
    let mut size = block.size;
    for node in block.nodes.iter() {
        let Some(state) = map.get_mut(&node) else { continue };
        state.assignments = state.assignments.saturating_sub(1);
        if state.assignments == 0 {
            state.cells = NodeMask::of([node]);
        }
        let Some(table) = state.memory.get_mut(&block.resource) else { continue };
        let given = table.reserved.min(size);
        table.free = table.free.saturating_add(given);
        table.reserved -= given;
        size -= given;
    }
}

/// Of these nodes together.
pub(super) fn sum(map: &NodeMap, nodes: NodeMask, resource: &str, of: fn(&MemoryTable) -> u64) -> u64 {
    let tables = nodes.iter().filter_map(|node| map.get(&node)?.memory.get(resource));
    tables.map(of).fold(0, u64::saturating_add)
}

pub(super) fn has_free(map: &NodeMap, nodes: NodeMask, sizes: &Sizes) -> bool {
    sizes.iter().all(|(resource, size)| sum(map, nodes, resource, |table| table.free) >= *size)
}

/// Whether one of several nodes gives to another group already.
pub(super) fn is_split(map: &NodeMap, nodes: NodeMask) -> bool {
    let in_other = |node: &MemoryNode| node.assignments > 0 && node.cells != nodes;
    nodes.count() > 1 && nodes.iter().filter_map(|node| map.get(&node)).any(in_other)
}

/// Whether a checkpoint's account is what a machine without any container, `map`, comes to with these.
pub(super) fn compare(had: &NodeMap, map: NodeMap, assignments: &Assignments) -> Result<(), StateError> {
    if had.is_empty() && !assignments.is_empty() {
        return Err(StateError::NoMachine);
    }
    let has = with_assignments(map, assignments)?;
    differs(|| "NUMA nodes".to_owned(), &had.len(), &has.len())?;
    for (number, node) in had {
        let place = format!("NUMA node {number}");
        match has.get(number) {
            None => return Err(different(place, "it", "not")),
            Some(other) => compare_nodes(&place, node, other)?,
        }
        for (resource, table) in &node.memory {
            let place = format!("{place}, {resource}");
            match has.get(number).and_then(|node| node.memory.get(resource)) {
                None => return Err(different(place, "it", "not")),
                Some(other) => compare_tables(&place, table, other)?,
            }
            // Which node of a group gave what hangs on the order in which containers came.
            let sums = |of: fn(&MemoryTable) -> u64| {
                (sum(had, node.cells, resource, of), sum(&has, node.cells, resource, of))
            };
            let (free, reserved) = (sums(|table| table.free), sums(|table| table.reserved));
            differs(|| format!("{place}, free in its group"), &free.0, &free.1)?;
            differs(|| format!("{place}, reserved in its group"), &reserved.0, &reserved.1)?;
        }
    }
    Ok(())
}

fn compare_nodes(place: &str, had: &MemoryNode, has: &MemoryNode) -> Result<(), StateError> {
    let of = |what: &str| format!("{place}, {what}");
    differs(|| of("numberOfAssignments"), &had.assignments, &has.assignments)?;
    if had.cells != has.cells {
        let list = |nodes: NodeMask| format!("{:?}", nodes.iter().collect::<Vec<_>>());
        return Err(different(of("cells"), &list(had.cells), &list(has.cells)));
    }
    differs(|| of("resources"), &had.memory.len(), &has.memory.len())
}

fn compare_tables(place: &str, had: &MemoryTable, has: &MemoryTable) -> Result<(), StateError> {
    let of = |what: &str| format!("{place}, {what}");
    differs(|| of("total"), &had.total, &has.total)?;
    differs(|| of("systemReserved"), &had.system_reserved, &has.system_reserved)?;
    differs(|| of("allocatable"), &had.allocatable, &has.allocatable)
}

fn with_assignments(mut map: NodeMap, assignments: &Assignments) -> Result<NodeMap, StateError> {
    for (pod, containers) in assignments {
        for (container, blocks) in containers {
            for block in blocks {
                for node in block.nodes.iter() {
                    let (pod, container) = (pod.clone(), container.clone());
                    let Some(state) = map.get(&node) else {
                        return Err(StateError::NoNode { pod, container });
                    };
                    if !state.memory.contains_key(&block.resource) {
                        return Err(StateError::NoResource { pod, container });
                    }
                }
                take(&mut map, block.nodes, &block.resource, block.size);
            }
        }
    }
    Ok(map)
}

fn differs<T: PartialEq + ToString>(
    place: impl FnOnce() -> String,
    had: &T,
    has: &T,
) -> Result<(), StateError> {
    if had == has { Ok(()) } else { Err(different(place(), &had.to_string(), &has.to_string())) }
}

fn different(place: String, had: &str, has: &str) -> StateError {
    StateError::Different(Difference { place, had: had.to_owned(), has: has.to_owned() })
}
