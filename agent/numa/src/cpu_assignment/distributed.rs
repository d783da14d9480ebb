//! CPUs that are spread evenly over as few NUMA nodes as can be. Pure. Called by the CPU manager
//! (`distribute-cpus-across-numa`).

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use super::accumulator::{Accumulator, signed};
use super::combination::{Combination, walk};
use super::{AssignmentError, CpuSort, take_packed};
use crate::cpu_topology::{CpuTopology, Level};
use crate::cpuset::CpuSet;

/// CPUs are given in groups of `group_size`, such as all of a core; 0 counts as 1. A `count` that is no multiple of it is
/// packed, and so is one that no choice of NUMA nodes can share evenly. Upstream's `takeByTopologyNUMADistributed`.
///
/// # Errors
/// Fewer than `count` CPUs are available, or upstream's sum does not come out.
pub fn take_distributed(
    topology: &CpuTopology,
    available: &CpuSet,
    count: usize,
    group_size: usize,
    sort: CpuSort,
) -> Result<CpuSet, AssignmentError> {
    let group_size = group_size.max(1);
    if !count.is_multiple_of(group_size) {
        return take_packed(topology, available, count, sort, false);
    }
    let mut cpus = Accumulator::new(topology, available, count, sort)?;
    if cpus.is_satisfied() {
        return Ok(cpus.taken);
    }
    let nodes = cpus.numa_nodes();
    let free = nodes.iter().map(|node| (*node, signed(cpus.free_in(Level::NumaNode, *node).len()))).collect();
    let search = Search { nodes, free, count: signed(count), group_size: signed(group_size) };
    for size in nodes_needed(topology, &search, count, group_size) {
        if let Some(sharing) = search.best(size) {
            return give(&mut cpus, &search, &sharing, sort);
        }
    }
    take_packed(topology, available, count, sort, false)
}

/// The fewest and the most NUMA nodes that can be of use. At least one CPU is asked for.
fn nodes_needed(
    topology: &CpuTopology,
    search: &Search,
    count: usize,
    group_size: usize,
) -> std::ops::RangeInclusive<usize> {
    let groups = topology.cpus.len().div_ceil(group_size);
    let groups_a_node = groups.div_ceil(topology.ids(Level::NumaNode).len().max(1)).max(1);
    let needed = count.div_ceil(group_size);
    needed.div_ceil(groups_a_node)..=needed.min(search.free.len())
}

/// NUMA nodes that share the CPUs evenly, and those of them that give the rest.
struct Sharing {
    nodes: Combination,
    rest: Option<Combination>,
    /// How unevenly free CPUs would be left.
    score: f64,
}

struct Search {
    /// In upstream's order. One that is in two sockets comes twice.
    nodes: Vec<u32>,
    /// Free CPUs of each node.
    free: BTreeMap<u32, i64>,
    count: i64,
    group_size: i64,
}

impl Search {
    fn free(&self, node: u32) -> i64 {
        self.free.get(&node).copied().unwrap_or(0)
    }

    /// What each of `nodes` gives before the rest is given.
    fn share(&self, nodes: usize) -> i64 {
        (self.count / signed(nodes.max(1)) / self.group_size) * self.group_size
    }

    /// The best choice of `size` nodes.
    fn best(&self, size: usize) -> Option<Sharing> {
        let mut best: Option<Sharing> = None;
        walk(&self.nodes, size, &mut |nodes| {
            if best.as_ref().is_some_and(|sharing| sharing.score == 0.0) {
                return ControlFlow::Break(());
            }
            if let Some(sharing) = self.sharing(nodes)
                && best.as_ref().is_none_or(|best| sharing.score < best.score)
            {
                best = Some(sharing);
            }
            ControlFlow::Continue(())
        });
        best
    }

    fn sharing(&self, nodes: &Combination) -> Option<Sharing> {
        let ids = nodes.ids();
        let share = self.share(ids.len());
        let mut once = ids.clone();
        once.sort_unstable();
        once.dedup();
        let groups: i64 = ids.iter().map(|node| self.free(*node) / self.group_size).sum();
        if once.iter().map(|node| self.free(*node)).sum::<i64>() < self.count
            || groups * self.group_size < self.count
            || ids.iter().any(|node| self.free(*node) < share)
        {
            return None;
        }
        let mut left = self.free.clone();
        for node in &ids {
            *left.entry(*node).or_default() -= share;
        }
        let rest = self.count - share * signed(ids.len());
        if rest == 0 {
            return Some(Sharing { nodes: nodes.clone(), rest: None, score: standard_deviation(&left) });
        }
        let (score, rest) = self.best_rest(&ids, &left, rest)?;
        Some(Sharing { nodes: nodes.clone(), rest: Some(rest), score })
    }

    /// Which of `nodes` give the rest. As many as can be are tried first.
    fn best_rest(&self, nodes: &[u32], left: &BTreeMap<u32, i64>, rest: i64) -> Option<(f64, Combination)> {
        let has_group = |node: &u32| left.get(node).is_some_and(|left| *left >= self.group_size);
        let nodes: Vec<u32> = nodes.iter().copied().filter(has_group).collect();
        let mut best: Option<(f64, Combination)> = None;
        for size in (1..=nodes.len()).rev() {
            walk(&nodes, size, &mut |some| {
                if let Some(score) = self.score_of_rest(&some.ids(), left.clone(), rest)
                    && best.as_ref().is_none_or(|(best, _)| score < *best)
                {
                    best = Some((score, some.clone()));
                }
                ControlFlow::Continue(())
            });
        }
        best
    }

    /// None: these cannot give it. Upstream never ends where they have the CPUs but not in whole groups.
    fn score_of_rest(&self, nodes: &[u32], mut left: BTreeMap<u32, i64>, mut rest: i64) -> Option<f64> {
        if nodes.iter().filter_map(|node| left.get(node)).sum::<i64>() < rest {
            return None;
        }
        while rest > 0 {
            let before = rest;
            for node in nodes {
                match left.get_mut(node) {
                    Some(left) if rest > 0 && *left >= self.group_size => {
                        *left -= self.group_size;
                        rest -= self.group_size;
                    }
                    _ => {}
                }
            }
            if rest == before {
                return None;
            }
        }
        Some(standard_deviation(&left))
    }
}

/// Takes the even shares, and then the rest group by group.
fn give(
    cpus: &mut Accumulator<'_>,
    search: &Search,
    sharing: &Sharing,
    sort: CpuSort,
) -> Result<CpuSet, AssignmentError> {
    let nodes = sharing.nodes.ids();
    let share = search.share(nodes.len());
    for node in &nodes {
        take_of(cpus, *node, share, sort);
    }
    let mut rest = search.count - share * signed(nodes.len());
    let givers = sharing.rest.as_ref().map(Combination::ids).unwrap_or_default();
    while rest > 0 {
        let before = rest;
        for node in &givers {
            if rest > 0 && signed(cpus.free_in(Level::NumaNode, *node).len()) >= search.group_size {
                take_of(cpus, *node, search.group_size, sort);
                rest -= search.group_size;
            }
        }
        // Upstream would try for ever.
        if rest == before {
            break;
        }
    }
    match cpus.needed {
        0 => Ok(std::mem::take(&mut cpus.taken)),
        remaining if remaining > 0 => Err(AssignmentError::TooFewGiven { remaining }),
        remaining => Err(AssignmentError::TooManyGiven { remaining }),
    }
}

/// Takes nothing if the node has too few: the sum at the end tells.
fn take_of(cpus: &mut Accumulator<'_>, node: u32, count: i64, sort: CpuSort) {
    let free = cpus.free_in(Level::NumaNode, node);
    let count = usize::try_from(count).unwrap_or(0);
    if let Ok(some) = take_packed(cpus.topology, &free, count, sort, false) {
        cpus.take(&some);
    }
}

/// Rounded to thousandths, as is the mean it starts from.
fn standard_deviation(left: &BTreeMap<u32, i64>) -> f64 {
    let thousandths = |number: f64| (number * 1000.0).round() / 1000.0;
    let count = left.len() as f64;
    let mean = thousandths(left.values().map(|left| *left as f64).sum::<f64>() / count);
    let squares: f64 = left.values().map(|left| (*left as f64 - mean) * (*left as f64 - mean)).sum();
    thousandths((squares / count).sqrt())
}
