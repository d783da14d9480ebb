//! Which sets of NUMA nodes could give a container its memory. Pure: owns upstream's rules of it. Part of [`super`].

use super::MemoryBlock;
use super::machine::{self, NodeMap};
use super::request::Sizes;
use super::reuse::{self, OfPod};
use crate::hint::{Hints, TopologyHint};
use crate::node_mask::NodeMask;

/// A set of nodes that has enough of everything, and whether it is as small as any could be.
pub(super) type Fit = (NodeMask, bool);

/// The small sets first. The memory of the pod's own init containers counts as free.
///
/// A node gives either by itself, or within one group of several nodes.
pub(super) fn calculate(map: &NodeMap, sizes: &Sizes, reusable: &OfPod) -> Vec<Fit> {
    let numbers: Vec<u32> = map.keys().copied().collect();
    let mut least = numbers.len();
    let mut fits = Vec::new();
    for nodes in NodeMask::combinations(&numbers) {
        let could = |(resource, size): (&String, &u64)| {
            machine::sum(map, nodes, resource, |table| table.allocatable) >= *size
        };
        if !sizes.iter().all(could) {
            continue;
        }
        least = least.min(nodes.count());
        let can = |(resource, size): (&String, &u64)| {
            let free = machine::sum(map, nodes, resource, |table| table.free);
            free.saturating_add(reuse::size(reusable, nodes, resource)) >= *size
        };
        if !is_taken(map, nodes) && sizes.iter().all(can) {
            fits.push(nodes);
        }
    }
    fits.into_iter().map(|nodes| (nodes, nodes.count() == least)).collect()
}

/// Whether a node is in a group that is not this one.
fn is_taken(map: &NodeMap, nodes: NodeMask) -> bool {
    let in_group = |node: u32| map.get(&node).is_some_and(|state| state.cells.count() > 1);
    machine::is_split(map, nodes) || (nodes.count() == 1 && nodes.iter().any(in_group))
}

/// The same for each resource. Where nothing fits, upstream tells nothing: the allocation is then refused, with its reason.
pub(super) fn of_all(map: &NodeMap, sizes: &Sizes, reusable: &OfPod) -> Hints {
    let fits = calculate(map, sizes, reusable);
    if fits.is_empty() {
        return Hints::new();
    }
    let hint = |(nodes, preferred): &Fit| TopologyHint { nodes: Some(*nodes), preferred: *preferred };
    let list: Vec<TopologyHint> = fits.iter().map(hint).collect();
    sizes.keys().map(|resource| (resource.clone(), Some(list.clone()))).collect()
}

/// What a container has already. Nothing where it asks for something else now.
pub(super) fn again(blocks: &[MemoryBlock], sizes: &Sizes) -> Hints {
    let same = |block: &MemoryBlock| sizes.get(&block.resource) == Some(&block.size);
    if blocks.len() != sizes.len() || !blocks.iter().all(same) {
        return Hints::new();
    }
    let mut hints: Hints = sizes.keys().map(|resource| (resource.clone(), Some(Vec::new()))).collect();
    for block in blocks {
        let list = hints.entry(block.resource.clone()).or_default().get_or_insert_default();
        list.push(TopologyHint { nodes: Some(block.nodes), preferred: true });
    }
    hints
}

/// A preferred one, with as few nodes as there are.
pub(super) fn best(fits: &[Fit]) -> Option<Fit> {
    fits.iter().copied().reduce(|best, fit| match (fit.1, best.1) {
        (true, false) => fit,
        (false, true) => best,
        _ if fit.0.is_narrower_than(best.0) => fit,
        _ => best,
    })
}
