//! Devices and the NUMA nodes that they are near to: which ways there are to give some, and which are chosen for a container
//! that should be near to some nodes. Pure: owns upstream's rules of both. Called by [`super::state`].

use std::collections::{BTreeMap, BTreeSet};

use gantry_numa::hint::TopologyHint;
use gantry_numa::node_mask::{MOST_COMBINED, NodeMask};

use super::state::{Choice, Device};

/// Whether any of them tells where it is.
pub(super) fn is_aligned(devices: &BTreeMap<String, Device>) -> bool {
    devices.values().any(|device| !device.numa.is_empty())
}

fn nodes_of(device: &Device) -> NodeMask {
    NodeMask::of(device.numa.iter().filter_map(|node| u32::try_from(*node).ok()))
}

/// Every set of nodes that has enough of them. Preferred are those with as few nodes as if all were free. None: they are near
/// to more nodes than can be looked at, so that none is better.
pub(super) fn hints(
    devices: &BTreeMap<String, Device>,
    count: usize,
    available: &BTreeSet<String>,
    reusable: &BTreeSet<String>,
    machine: &[u32],
) -> Option<Vec<TopologyHint>> {
    let near = |id: &String| devices.get(id).map(nodes_of).unwrap_or_default();
    let all = devices.values().map(nodes_of).fold(NodeMask::default(), NodeMask::or);
    // Of a machine with many nodes, only those with devices: others would add nothing but combinations.
    let mut bearing: Vec<u32> = machine.iter().copied().filter(|node| all.contains(*node)).collect();
    if bearing.is_empty() {
        bearing = machine.to_vec();
    }
    if bearing.len() > MOST_COMBINED {
        return None;
    }
    let (mut fewest, mut ways) = (bearing.len(), Vec::new());
    for mask in NodeMask::combinations(&bearing) {
        let is_near = |nodes: NodeMask| !nodes.and(mask).is_empty();
        if devices.values().filter(|device| is_near(nodes_of(device))).count() >= count {
            fewest = fewest.min(mask.count());
        }
        let placed: Vec<NodeMask> = reusable.iter().map(near).filter(|nodes| !nodes.is_empty()).collect();
        let free = available.iter().filter(|id| is_near(near(id))).count();
        if placed.iter().all(|nodes| is_near(*nodes)) && placed.len() + free >= count {
            ways.push(mask);
        }
    }
    let hint = |mask: NodeMask| TopologyHint { nodes: Some(mask), preferred: mask.count() == fewest };
    Some(ways.into_iter().map(hint).collect())
}

/// Those near to `nodes` first, then those near to others, then those near to none.
pub(super) fn choice(
    devices: &BTreeMap<String, Device>,
    nodes: Option<NodeMask>,
    reused: BTreeSet<String>,
    available: BTreeSet<String>,
    missing: usize,
) -> Choice {
    let Some(mask) = nodes.filter(|_| is_aligned(devices)) else {
        return Choice { taken: reused, groups: vec![available], missing };
    };
    let near = |id: &String| devices.get(id).map(nodes_of).unwrap_or_default();
    let (aligned, others): (BTreeSet<String>, BTreeSet<String>) =
        available.into_iter().partition(|id| !near(id).and(mask).is_empty());
    if missing < aligned.len() {
        return Choice { taken: reused, groups: vec![aligned], missing };
    }
    let missing = missing - aligned.len();
    let (placed, anywhere) = others.into_iter().partition(|id| !near(id).is_empty());
    Choice { taken: reused.into_iter().chain(aligned).collect(), groups: vec![placed, anywhere], missing }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(numa: &[i64]) -> Device {
        Device { healthy: true, numa: numa.to_vec() }
    }

    fn ids(of: &[&str]) -> BTreeSet<String> {
        of.iter().map(|id| (*id).to_owned()).collect()
    }

    fn four() -> BTreeMap<String, Device> {
        [("a", device(&[0])), ("b", device(&[0])), ("c", device(&[1])), ("d", device(&[]))]
            .map(|(id, device)| (id.to_owned(), device))
            .into()
    }

    fn shown(hints: &[TopologyHint]) -> Vec<(Vec<u32>, bool)> {
        let nodes = |hint: &TopologyHint| hint.nodes.into_iter().flat_map(NodeMask::iter).collect();
        hints.iter().map(|hint| (nodes(hint), hint.preferred)).collect()
    }

    #[test]
    fn hints_are_all_nodes_that_have_enough() {
        let (devices, nothing) = (four(), BTreeSet::new());
        let all = ids(&["a", "b", "c", "d"]);
        let hints = |count, available: &BTreeSet<String>, reusable: &BTreeSet<String>, machine: &[u32]| {
            hints(&devices, count, available, reusable, machine).unwrap()
        };
        let two = hints(2, &all, &nothing, &[0, 1]);
        assert_eq!(shown(&two), [(vec![0], true), (vec![0, 1], false)]);
        // Node 0 would have been enough, were it free.
        let taken = hints(2, &ids(&["b", "c"]), &nothing, &[0, 1]);
        assert_eq!(shown(&taken), [(vec![0, 1], false)]);
        let reused = hints(2, &ids(&["b"]), &ids(&["c"]), &[0, 1]);
        assert_eq!(shown(&reused), [(vec![0, 1], false)]);
        assert_eq!(hints(4, &all, &nothing, &[0, 1]), []);
        // Nodes without devices are in no combination.
        assert_eq!(hints(1, &all, &nothing, &[0, 1, 2, 3]).len(), 3);
    }

    #[test]
    fn a_plugin_that_names_many_nodes_costs_no_time() {
        let wide = device(&(0..40).collect::<Vec<i64>>());
        let devices = BTreeMap::from([("a".to_owned(), wide)]);
        let machine: Vec<u32> = (0..40).collect();
        assert_eq!(hints(&devices, 1, &ids(&["a"]), &BTreeSet::new(), &machine), None);
    }

    #[test]
    fn near_devices_are_chosen_first() {
        let devices = four();
        let all = || ids(&["a", "b", "c", "d"]);
        let at = |nodes: &[u32], missing| {
            let mask = NodeMask::of(nodes.iter().copied());
            choice(&devices, Some(mask), BTreeSet::new(), all(), missing).pick(&["d".to_owned()])
        };
        assert_eq!(at(&[1], 1), ids(&["c"]));
        assert_eq!(at(&[0], 1), ids(&["a"]));
        // The plugin chooses among the rest alone.
        assert_eq!(at(&[1], 2), ids(&["c", "d"]));
        assert_eq!(at(&[0], 4), all());
        let anywhere = choice(&devices, None, BTreeSet::new(), all(), 1);
        assert_eq!(anywhere.pick(&["d".to_owned()]), ids(&["d"]));
    }
}
