//! The checkpoint of the memory manager, in upstream's format: `ROOT/memory_manager_state`. Pure: owns its form and its
//! checksum, so that one kubelet can follow another; never reads or writes a file. Part of [`super`].
//!
//! `{"policyName":"Static","machineState":{"0":{"numberOfAssignments":1,"memoryMap":{"memory":{"total":…,"systemReserved":…,
//! "allocatable":…,"reserved":…,"free":…}},"cells":[0]}},"entries":{UID:{NAME:[{"numaAffinity":[0],"type":"memory",
//! "size":…}]}},"checksum":NUMBER}`
//!
//! The checksum is FNV-1a (32 bits) over how Go's spew prints the data (`%#v`, maps sorted by key) with a checksum of 0.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use gantry_model::go_json;
use serde::{Deserialize, Serialize};

use super::machine::{MemoryNode, MemoryTable, NodeMap};
use super::{Assignments, MemoryBlock};
use crate::go_dump::{fnv32a, print_list, print_map};
use crate::node_mask::NodeMask;

/// The name of Go's type, which is part of what is summed.
const TYPE: &str = "MemoryManagerCheckpoint";
/// Another name that upstream takes.
const TYPE_V1: &str = "MemoryManagerCheckpointV1";

/// Why a checkpoint says nothing.
#[derive(Debug, thiserror::Error)]
pub enum FormError {
    #[error("not a checkpoint of the memory manager: {0}")]
    Json(#[from] serde_json::Error),
    /// Upstream's words.
    #[error("checkpoint is corrupted")]
    Checksum,
    #[error("{0} is no number of a NUMA node")]
    Node(String),
}

/// What a checkpoint says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct MemoryCheckpoint {
    pub(super) policy: String,
    pub(super) machine: NodeMap,
    pub(super) assignments: Assignments,
}

/// Go's lists and maps may be null, and null is summed otherwise than empty.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CheckpointFile {
    #[serde(default)]
    policy_name: String,
    #[serde(default = "empty")]
    machine_state: Option<BTreeMap<String, NodeEntry>>,
    #[serde(default = "empty", skip_serializing_if = "is_left_out")]
    entries: Option<BTreeMap<String, Option<ContainerEntries>>>,
    #[serde(default)]
    checksum: u64,
}

type ContainerEntries = BTreeMap<String, Option<Vec<BlockEntry>>>;

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct NodeEntry {
    number_of_assignments: i64,
    memory_map: Option<BTreeMap<String, MemoryTable>>,
    cells: Option<Vec<u32>>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct BlockEntry {
    numa_affinity: Option<Vec<u32>>,
    r#type: String,
    size: u64,
}

/// What Go's constructor begins with.
fn empty<T>() -> Option<BTreeMap<String, T>> {
    Some(BTreeMap::new())
}

fn is_left_out<T>(map: &Option<BTreeMap<String, T>>) -> bool {
    map.as_ref().is_none_or(BTreeMap::is_empty)
}

impl MemoryCheckpoint {
    /// The file's content.
    ///
    /// # Errors
    /// When it cannot be written as JSON.
    pub(super) fn encode(&self) -> Result<String, FormError> {
        let list = |nodes: NodeMask| Some(nodes.iter().collect());
        let node = |(number, node): (&u32, &MemoryNode)| {
            let MemoryNode { assignments, memory, cells } = node;
            let (memory_map, cells) = (Some(memory.clone()), list(*cells));
            (number.to_string(), NodeEntry { number_of_assignments: *assignments, memory_map, cells })
        };
        let block = |block: &MemoryBlock| BlockEntry {
            numa_affinity: list(block.nodes),
            r#type: block.resource.clone(),
            size: block.size,
        };
        let container = |(name, blocks): (&String, &Vec<MemoryBlock>)| {
            (name.clone(), Some(blocks.iter().map(block).collect()))
        };
        let pod = |(uid, containers): (&String, &BTreeMap<String, Vec<MemoryBlock>>)| {
            (uid.clone(), Some(containers.iter().map(container).collect()))
        };
        let mut file = CheckpointFile {
            policy_name: self.policy.clone(),
            machine_state: Some(self.machine.iter().map(node).collect()),
            entries: Some(self.assignments.iter().map(pod).collect()),
            checksum: 0,
        };
        file.checksum = u64::from(fnv32a(&print(&file, TYPE)?));
        Ok(go_json::text(&file)?)
    }

    /// What such a file says.
    ///
    /// # Errors
    /// When it is none, or its checksum is another's. As upstream, one of 0 is not looked at.
    pub(super) fn decode(content: &[u8]) -> Result<Self, FormError> {
        let file: CheckpointFile = serde_json::from_slice(content)?;
        let is = |name| Ok::<_, FormError>(u64::from(fnv32a(&print(&file, name)?)) == file.checksum);
        if file.checksum != 0 && !is(TYPE)? && !is(TYPE_V1)? {
            return Err(FormError::Checksum);
        }
        let mut machine = NodeMap::new();
        for (number, entry) in by_number(file.machine_state.as_ref())?.into_iter().flatten() {
            let memory = entry.memory_map.clone().unwrap_or_default();
            let cells = mask(entry.cells.as_deref())?;
            machine.insert(number, MemoryNode { assignments: entry.number_of_assignments, memory, cells });
        }
        let mut assignments = Assignments::new();
        for (pod, containers) in file.entries.into_iter().flatten() {
            let own = assignments.entry(pod).or_default();
            for (container, entries) in containers.into_iter().flatten() {
                let blocks =
                    entries.into_iter().flatten().map(|BlockEntry { numa_affinity, r#type, size }| {
                        let nodes = mask(numa_affinity.as_deref())?;
                        Ok(MemoryBlock { nodes, resource: r#type, size })
                    });
                own.insert(container, blocks.collect::<Result<_, FormError>>()?);
            }
        }
        Ok(Self { policy: file.policy_name, machine, assignments })
    }
}

fn mask(nodes: Option<&[u32]>) -> Result<NodeMask, FormError> {
    let nodes = nodes.unwrap_or_default();
    match nodes.iter().find(|node| NodeMask::of([**node]).is_empty()) {
        Some(node) => Err(FormError::Node(node.to_string())),
        None => Ok(NodeMask::of(nodes.iter().copied())),
    }
}

/// JSON has them by text, spew by number.
fn by_number(
    nodes: Option<&BTreeMap<String, NodeEntry>>,
) -> Result<Option<BTreeMap<u32, &NodeEntry>>, FormError> {
    let number = |(key, entry)| {
        let key: &String = key;
        Ok((key.parse().map_err(|_| FormError::Node(key.clone()))?, entry))
    };
    nodes.map(|nodes| nodes.iter().map(number).collect()).transpose()
}

/// As spew prints it: a type in parentheses before each value but those within lists and maps, whose type is known.
fn print(file: &CheckpointFile, name: &str) -> Result<String, FormError> {
    let mut text =
        format!("(*state.{name}){{PolicyName:(string){} MachineState:(state.NUMANodeMap)", file.policy_name);
    print_map(&mut text, by_number(file.machine_state.as_ref())?.as_ref(), |text, node| {
        let _ = write!(
            text,
            "<*>{{NumberOfAssignments:(int){} MemoryMap:(map[v1.ResourceName]*state.MemoryTable)",
            node.number_of_assignments
        );
        print_map(text, node.memory_map.as_ref(), print_table);
        text.push_str(" Cells:([]int)");
        print_list(text, node.cells.as_deref(), |text, cell| text.push_str(&cell.to_string()));
        text.push('}');
    });
    text.push_str(" Entries:(state.ContainerMemoryAssignments)");
    print_map(&mut text, file.entries.as_ref(), |text, containers| {
        print_map(text, containers.as_ref(), |text, blocks| {
            print_list(text, blocks.as_deref(), print_block);
        });
    });
    text.push_str(" Checksum:(checksum.Checksum)0}");
    Ok(text)
}

fn print_table(text: &mut String, table: &MemoryTable) {
    let MemoryTable { total, system_reserved, allocatable, reserved, free } = table;
    // Writing into a String does not fail.
    let _ = write!(
        text,
        "<*>{{TotalMemSize:(uint64){total} SystemReserved:(uint64){system_reserved} Allocatable:(uint64){allocatable} \
         Reserved:(uint64){reserved} Free:(uint64){free}}}"
    );
}

fn print_block(text: &mut String, block: &BlockEntry) {
    text.push_str("{NUMAAffinity:([]int)");
    print_list(text, block.numa_affinity.as_deref(), |text, node| text.push_str(&node.to_string()));
    let _ = write!(text, " Type:(v1.ResourceName){} Size:(uint64){}}}", block.r#type, block.size);
}

#[cfg(test)]
mod tests;
