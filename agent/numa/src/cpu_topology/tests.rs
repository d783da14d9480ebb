//! Counts, questions and alignment, on machines as upstream's tests have them.

use super::*;

fn set(text: &str) -> CpuSet {
    text.parse().unwrap()
}

/// 2 sockets of 2 NUMA nodes each; a NUMA node has 10 cores of 2 CPUs.
fn xeon() -> CpuTopology {
    let info = |cpu: u32| CpuInfo {
        core: cpu % 40,
        socket: cpu % 40 / 20,
        numa: cpu % 40 / 10,
        uncore_cache: cpu % 40 / 20,
    };
    CpuTopology::new((0..80).map(|cpu| (cpu, info(cpu))).collect())
}

#[test]
fn cores_sockets_nodes_and_caches_are_counted() {
    let xeon = xeon();
    assert_eq!((xeon.cores, xeon.sockets, xeon.numa_nodes, xeon.uncore_caches), (40, 2, 4, 2));
    assert_eq!((xeon.cpus_per_core(), xeon.cpus_per_socket(), xeon.cpus_per_uncore_cache()), (2, 40, 40));
    let none = CpuTopology::default();
    assert_eq!((none.cpus_per_core(), none.cpus_per_socket(), none.cpus_per_uncore_cache()), (0, 0, 0));
}

#[test]
fn cpus_are_found_by_what_holds_them() {
    let xeon = xeon();
    assert_eq!(xeon.all(), set("0-79"));
    assert_eq!(xeon.cpus_in_numa_nodes([0, 3]), set("0-9,30-49,70-79"));
    assert_eq!(xeon.cpus_in_sockets([1]), set("20-39,60-79"));
    assert_eq!(xeon.cpus_in_uncore_caches([0]), set("0-19,40-59"));
    assert_eq!(xeon.cpus_in_cores([4, 39]), set("4,39,44,79"));
    assert_eq!(xeon.cpus_in_cores([40, 79]), CpuSet::new());
    assert_eq!(xeon.cpus_in_sockets([]), CpuSet::new());
}

#[test]
fn what_holds_cpus_is_found() {
    let xeon = xeon();
    assert_eq!(xeon.ids(Level::NumaNode), BTreeSet::from([0, 1, 2, 3]));
    assert_eq!(xeon.sockets_in_numa_nodes([0, 1]), BTreeSet::from([0]));
    assert_eq!(xeon.sockets_in_numa_nodes([1, 2]), BTreeSet::from([0, 1]));
    assert_eq!(xeon.ids_in(Level::NumaNode, Level::Socket, [1]), BTreeSet::from([2, 3]));
    assert_eq!(xeon.ids_of(Level::Core, &set("4,44,45,99")), BTreeSet::from([4, 5]));
    assert_eq!(xeon.keep_only(&set("79-99")).keys().copied().collect::<Vec<_>>(), [79]);
}

#[test]
fn cpus_are_aligned_that_share_an_uncore_cache() {
    let info = |cpu: u32| CpuInfo { core: cpu, socket: 0, numa: 0, uncore_cache: cpu / 4 };
    let machine = CpuTopology::new((0..32).map(|cpu| (cpu, info(cpu))).collect());
    let aligned = ["", "11", "29-31", "8-11", "99"];
    let not = ["9-11,23", "8-11,16-19", "31-32", "98-99"];
    for (texts, is) in [(&aligned[..], true), (&not[..], false)] {
        for text in texts {
            assert_eq!(machine.is_aligned_at_uncore_cache(&set(text)), is, "{text:?}");
        }
    }
}
