//! The machines of upstream's tests. Pure. Used by the tests of the choice.

use crate::cpu_topology::{CpuInfo, CpuTopology};

pub(super) fn machine(cpus: u32, info: impl Fn(u32) -> [u32; 4]) -> CpuTopology {
    let info = |cpu| {
        let [core, socket, numa, uncore_cache] = info(cpu);
        CpuInfo { core, socket, numa, uncore_cache }
    };
    CpuTopology::new((0..cpus).map(|cpu| (cpu, info(cpu))).collect())
}

/// 4 cores of 2 CPUs.
pub(super) fn single_socket_ht() -> CpuTopology {
    machine(8, |cpu| [cpu % 4, 0, 0, 0])
}

/// 2 sockets of 3 cores of 2 CPUs; the numbers go from socket to socket.
pub(super) fn dual_socket_ht() -> CpuTopology {
    machine(12, |cpu| [cpu % 6, cpu % 2, cpu % 2, 0])
}

pub(super) fn dual_socket_no_ht() -> CpuTopology {
    machine(8, |cpu| [cpu, cpu / 4, cpu / 4, 0])
}

/// 3 sockets of 3 cores of 2 CPUs; the first CPUs are in socket 1.
pub(super) fn triple_socket_ht() -> CpuTopology {
    let socket = |cpu: u32| [1, 0, 2][(cpu / 6) as usize];
    machine(18, move |cpu| [cpu / 2, socket(cpu), socket(cpu), 0])
}

/// 2 sockets of 2 NUMA nodes of 10 cores of 2 CPUs.
pub(super) fn two_nodes_a_socket() -> CpuTopology {
    machine(80, |cpu| [cpu % 40, cpu % 40 / 20, cpu % 40 / 10, 0])
}

/// 2 NUMA nodes of 2 sockets of 10 cores of 2 CPUs.
pub(super) fn two_sockets_a_node() -> CpuTopology {
    machine(80, |cpu| [cpu % 40, cpu % 40 / 10, cpu % 40 / 20, 0])
}

/// 2 sockets of 4 NUMA nodes of 16 cores of 2 CPUs.
pub(super) fn four_nodes_a_socket() -> CpuTopology {
    machine(256, |cpu| [cpu % 128, cpu % 128 / 64, cpu % 128 / 16, 0])
}

/// 4 uncore caches of 4 CPUs, in 2 sockets of one NUMA node.
pub(super) fn uncore_dual_socket() -> CpuTopology {
    machine(16, |cpu| [cpu, cpu / 8, 0, cpu / 4])
}

/// 4 uncore caches of 4 CPUs, in 2 NUMA nodes of one socket.
pub(super) fn uncore_two_nodes() -> CpuTopology {
    machine(16, |cpu| [cpu, 0, cpu / 8, cpu / 4])
}

/// 2 uncore caches of 4 cores of 2 CPUs.
pub(super) fn uncore_smt() -> CpuTopology {
    machine(16, |cpu| [cpu % 8, 0, 0, cpu % 8 / 4])
}

/// 4 uncore caches of 4 CPUs.
pub(super) fn uncore_no_smt() -> CpuTopology {
    machine(16, |cpu| [cpu, 0, 0, cpu / 4])
}

/// 6 NUMA nodes of 4 CPUs.
pub(super) fn six_nodes() -> CpuTopology {
    machine(24, |cpu| [cpu, 0, cpu / 4, 0])
}

/// 4 NUMA nodes of 4 cores of 2 CPUs; a core's CPUs are neighbours.
pub(super) fn four_nodes() -> CpuTopology {
    machine(32, |cpu| [cpu / 2 * 2, 0, cpu / 8, 0])
}

/// 2 cores of 2 CPUs and 4 of one.
pub(super) fn hybrid() -> CpuTopology {
    machine(8, |cpu| [if cpu < 4 { cpu / 2 * 2 } else { cpu }, 0, 0, 0])
}
