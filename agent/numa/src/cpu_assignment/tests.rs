//! Upstream's tables of the choice: machines and results are facts of its tests.

use super::accumulator::Accumulator;
use super::machines::*;
use super::*;
use crate::cpu_topology::{CpuTopology, Level};
use crate::cpuset::CpuSet;

/// A machine, the CPUs that are available, how many are asked for, and those that are given.
type Row = (CpuTopology, &'static str, usize, &'static str);

fn set(text: &str) -> CpuSet {
    text.parse().unwrap()
}

fn are_packed(rows: Vec<Row>, sort: CpuSort, prefer_uncore: bool) {
    for (machine, available, count, given) in rows {
        let result = take_packed(&machine, &set(available), count, sort, prefer_uncore);
        assert_eq!(result, Ok(set(given)), "{count} of {available}");
    }
}

fn whole(rows: Vec<(CpuTopology, &str, Vec<u32>)>, level: Level) {
    for (machine, available, free) in rows {
        let cpus = Accumulator::new(&machine, &set(available), 0, CpuSort::Packed).unwrap();
        assert_eq!(cpus.whole(level), free, "{level:?} of {available}");
    }
}

/// What both ways to choose give alike.
fn common() -> Vec<Row> {
    vec![
        (single_socket_ht(), "0-7", 0, ""),
        (single_socket_ht(), "0-7", 1, "0"),
        (single_socket_ht(), "1,3,5-7", 1, "6"),
        (single_socket_ht(), "0-7", 2, "0,4"),
        (single_socket_ht(), "0-7", 8, "0-7"),
        (single_socket_ht(), "0-3,6", 2, "2,6"),
        (dual_socket_ht(), "0-11", 6, "0,2,4,6,8,10"),
        (two_nodes_a_socket(), "0-79", 40, "0-19,40-59"),
        (two_nodes_a_socket(), "0-79", 20, "0-9,40-49"),
        (two_nodes_a_socket(), "10-39,50-79", 20, "10-19,50-59"),
        (two_nodes_a_socket(), "0-79", 60, "0-29,40-69"),
        (two_nodes_a_socket(), "1-39,41-79", 60, "10-39,50-79"),
    ]
}

#[test]
fn sockets_are_free_of_which_every_cpu_is() {
    let rows = vec![
        (single_socket_ht(), "0-7", vec![0]),
        (single_socket_ht(), "1-7", vec![]),
        (dual_socket_ht(), "0-11", vec![0, 1]),
        (dual_socket_ht(), "0-9,11", vec![1]),
        (dual_socket_ht(), "0,2-9,11", vec![]),
        (two_nodes_a_socket(), "0-79", vec![0, 1]),
        (two_nodes_a_socket(), "1-79", vec![1]),
        (two_nodes_a_socket(), "1-78", vec![]),
        (two_sockets_a_node(), "0-79", vec![0, 1, 2, 3]),
        // Node 1 has fewer free CPUs: its socket comes first.
        (two_sockets_a_node(), "0-19,21-79", vec![3, 0, 1]),
        (two_sockets_a_node(), "0-59,61-78", vec![0, 1]),
        (two_sockets_a_node(), "1-19,21-38,41-60,61-78", vec![1]),
        (two_sockets_a_node(), "0-40,42-49,51-68,71-79", vec![]),
    ];
    whole(rows, Level::Socket);
}

#[test]
fn numa_nodes_are_free_of_which_every_cpu_is() {
    let rows = vec![
        (single_socket_ht(), "0-7", vec![0]),
        (single_socket_ht(), "1-7", vec![]),
        (dual_socket_ht(), "0-11", vec![0, 1]),
        (dual_socket_ht(), "0-9,11", vec![1]),
        (dual_socket_ht(), "0,2-9,11", vec![]),
        (two_nodes_a_socket(), "0-79", vec![0, 1, 2, 3]),
        (two_nodes_a_socket(), "1-79", vec![1, 2, 3]),
        (two_nodes_a_socket(), "1-9,11-79", vec![2, 3]),
        (two_nodes_a_socket(), "1-59,61-79", vec![1, 3]),
        (two_nodes_a_socket(), "1-9,11-59,61-79", vec![3]),
        (two_nodes_a_socket(), "1-9,11-59,61-78", vec![]),
        (two_sockets_a_node(), "0-79", vec![0, 1]),
        (two_sockets_a_node(), "0-9,11-79", vec![1]),
        (two_sockets_a_node(), "0-9,11-59,61-79", vec![]),
    ];
    whole(rows, Level::NumaNode);
}

#[test]
fn free_cores_of_the_fullest_socket_come_first() {
    let rows = vec![
        (single_socket_ht(), "0-7", vec![0, 1, 2, 3]),
        (single_socket_ht(), "0-2,4-6", vec![0, 1, 2]),
        (single_socket_ht(), "0-6", vec![0, 1, 2]),
        (single_socket_ht(), "", vec![]),
        (single_socket_ht(), "0-3", vec![]),
        (dual_socket_ht(), "0-11", vec![0, 2, 4, 1, 3, 5]),
        (dual_socket_ht(), "1-5,7-11", vec![2, 4, 1, 3, 5]),
        (dual_socket_ht(), "2-5,8-11", vec![2, 4, 3, 5]),
    ];
    whole(rows, Level::Core);
}

#[test]
fn single_cpus_come_from_cores_that_are_partly_taken_first() {
    let rows: Vec<(CpuTopology, &str, Vec<u32>)> = vec![
        (single_socket_ht(), "0-7", vec![0, 4, 1, 5, 2, 6, 3, 7]),
        (single_socket_ht(), "3-7", vec![4, 5, 6, 3, 7]),
        (dual_socket_ht(), "0-11", vec![0, 6, 2, 8, 4, 10, 1, 7, 3, 9, 5, 11]),
        (dual_socket_ht(), "1-11", vec![6, 2, 8, 4, 10, 1, 7, 3, 9, 5, 11]),
        (dual_socket_ht(), "1-5,7-11", vec![2, 8, 4, 10, 1, 7, 3, 9, 5, 11]),
        (triple_socket_ht(), "0-3,6-13", vec![12, 13, 0, 1, 2, 3, 6, 7, 8, 9, 10, 11]),
    ];
    for (machine, available, order) in rows {
        let cpus = Accumulator::new(&machine, &set(available), 0, CpuSort::Packed).unwrap();
        assert_eq!(cpus.cpus(), order, "{available}");
    }
}

#[test]
fn cpus_that_are_taken_are_no_longer_free_or_needed() {
    let machine = single_socket_ht();
    let mut cpus = Accumulator::new(&machine, &set("0-7"), 8, CpuSort::Packed).unwrap();
    for cpu in 0..8 {
        assert!(!cpus.is_satisfied());
        cpus.take(&[cpu].into_iter().collect());
        assert_eq!((cpus.needed, cpus.cpus().contains(&cpu)), (7 - i64::from(cpu), false));
    }
    assert!(cpus.is_satisfied());
    assert_eq!(cpus.taken, set("0-7"));
}

#[test]
fn more_than_is_available_is_refused() {
    let error = take_packed(&single_socket_ht(), &set("0,2,4,6"), 5, CpuSort::Packed, false).unwrap_err();
    let words = "not enough cpus available to satisfy request: requested=5, available=4";
    assert_eq!(error.to_string(), words);
}

#[test]
fn cpus_are_packed_into_as_few_nodes_and_cores_as_can_be() {
    are_packed(common(), CpuSort::Packed, false);
    let rows = vec![
        (dual_socket_ht(), "1-5,7-11", 1, "2"),
        (dual_socket_ht(), "0-11", 8, "0-2,4,6-8,10"),
        (two_nodes_a_socket(), "0-79", 64, "0-31,40-71"),
    ];
    are_packed(rows, CpuSort::Packed, false);
}

#[test]
fn cpus_share_an_uncore_cache_where_that_is_preferred() {
    let rows = vec![
        (uncore_no_smt(), "1-15", 10, "1-2,4-11"),
        (dual_socket_ht(), "1-5,7-11", 1, "1"),
        (uncore_dual_socket(), "0-15", 4, "0-3"),
        (uncore_dual_socket(), "2-15", 6, "2-7"),
        (uncore_dual_socket(), "8-15", 4, "8-11"),
        (uncore_two_nodes(), "3-8,12", 2, "4-5"),
        (uncore_smt(), "2-7,10-15", 6, "4-6,12-14"),
        (uncore_smt(), "1-7,9-15", 10, "1,4-7,9,12-15"),
    ];
    are_packed(rows, CpuSort::Packed, true);
}

#[test]
fn cpus_are_spread_over_the_cores_of_a_socket() {
    let rows = vec![
        (single_socket_ht(), "0-7", 3, "0-2"),
        (dual_socket_ht(), "0-11", 2, "0,2"),
        (dual_socket_ht(), "0-11", 3, "0,2,4"),
        (dual_socket_ht(), "0-11", 6, "0,2,4,6,8,10"),
        (dual_socket_ht(), "0-11", 8, "0-4,6,8,10"),
        (dual_socket_no_ht(), "0-7", 2, "0-1"),
        (two_nodes_a_socket(), "0-79", 8, "0-7"),
    ];
    are_packed(rows, CpuSort::Spread, false);
}

/// A machine, the CPUs that are available, how many are asked for and in which groups, and those that are given.
type Distribution = (CpuTopology, &'static str, usize, usize, &'static str);

fn are_distributed(rows: Vec<Distribution>) {
    for (machine, available, count, group_size, given) in rows {
        let result = take_distributed(&machine, &set(available), count, group_size, CpuSort::Packed);
        assert_eq!(result, Ok(set(given)), "{count} of {available} by {group_size}");
    }
}

#[test]
fn cpus_are_shared_evenly_by_as_few_nodes_as_can_be() {
    are_distributed(common().into_iter().map(|(on, of, count, given)| (on, of, count, 1, given)).collect());
    let low = "0-2,10-12,20-22,30-32,40-41,50-51,60-61,70-71";
    let uneven = "2-29,31-39,42-69,71-79";
    are_distributed(vec![
        (dual_socket_ht(), "0-11", 8, 1, "0-3,6-9"),
        (two_nodes_a_socket(), "0-79", 64, 1, "0-7,10-17,20-27,30-37,40-47,50-57,60-67,70-77"),
        (two_nodes_a_socket(), "0-79", 48, 1, "0-7,10-17,20-27,40-47,50-57,60-67"),
        (two_nodes_a_socket(), "1-29,32-39,41-69,72-79", 48, 1, "1-8,10-17,20-27,41-48,50-57,60-67"),
        (two_nodes_a_socket(), uneven, 48, 1, "10-17,20-27,31-38,50-57,60-67,71-78"),
        (two_nodes_a_socket(), low, 16, 1, "0-1,10-11,20-21,30-31,40-41,50-51,60-61,70-71"),
    ]);
}

#[test]
fn the_rest_goes_where_it_leaves_the_nodes_most_alike() {
    let uneven = "0-8,10-18,20-39,40-48,50-58,60-79";
    let poor = "0-3,10-13,20-23,30-36,40-43,50-53,60-63,70-76";
    let live = "0,128,30,31,158,159,43-47,171-175,62,63,190,191,75-79,203-207,94,96,222,223,101-111,229-239,126,\
                127,254,255";
    are_distributed(vec![
        (dual_socket_ht(), "1-5,7-11", 1, 1, "1"),
        (dual_socket_ht(), "1-5,7-11", 1, 2, "2"),
        (two_nodes_a_socket(), "0-79", 26, 1, "0-6,10-16,40-45,50-55"),
        (two_nodes_a_socket(), "0-79", 26, 2, "0-6,10-15,40-46,50-55"),
        (two_nodes_a_socket(), "0-79", 62, 1, "0-7,10-17,20-27,30-37,40-47,50-57,60-66,70-76"),
        (two_nodes_a_socket(), "0-79", 62, 2, "0-7,10-17,20-27,30-36,40-47,50-57,60-67,70-76"),
        (two_nodes_a_socket(), uneven, 62, 1, "0-7,10-17,20-27,30-37,40-46,50-56,60-67,70-77"),
        (two_nodes_a_socket(), uneven, 62, 2, "0-7,10-16,20-27,30-37,40-47,50-56,60-67,70-77"),
        (two_nodes_a_socket(), poor, 34, 1, "0-3,10-13,20-23,30-34,40-43,50-53,60-63,70-74"),
        (four_nodes_a_socket(), live, 28, 1, "43-47,75-79,96,101-105,171-174,203-206,229-232"),
    ]);
}

#[test]
fn more_than_is_available_cannot_be_distributed() {
    let error = take_distributed(&single_socket_ht(), &set("0,2,4,6"), 5, 1, CpuSort::Packed).unwrap_err();
    assert_eq!(error, AssignmentError::NotEnough { requested: 5, available: 4 });
    let none = take_distributed(&single_socket_ht(), &set("0-7"), 0, 1, CpuSort::Packed);
    assert_eq!(none, Ok(CpuSet::new()));
}

/// Upstream's function, run on these, gives just this: see `combination`. The best last node is node 3 and node 4.
#[test]
fn of_five_nodes_or_more_the_last_is_upstreams_last() {
    are_distributed(vec![
        (six_nodes(), "0,4,12,16,20", 4, 1, "0,4,12,20"),
        (six_nodes(), "0-1,4,8-9,12-13,16-17,20-21", 8, 1, "0-1,8-9,12-13,20-21"),
    ]);
}

/// Two nodes have six CPUs for the rest, but only two groups: upstream looks for the third for ever.
#[test]
fn a_rest_that_cannot_be_given_in_groups_ends() {
    let available = set("0-1,3-5,7,9-14,16,18-30");
    let given = take_distributed(&four_nodes(), &available, 22, 2, CpuSort::Packed).unwrap();
    assert_eq!((given.len(), given.is_subset(&available)), (22, true));
}

/// 8 CPUs of 6 cores are one CPU a core, rounded down: a core with one free CPU of two counts as free, and is taken whole.
#[test]
fn of_unlike_cores_upstream_gives_a_cpu_that_is_not_available() {
    are_packed(vec![(hybrid(), "1-7", 2, "0-1")], CpuSort::Packed, false);
}
