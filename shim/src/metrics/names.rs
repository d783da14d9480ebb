//! Names, kinds and labels of the metrics that CRI gives: cAdvisor's, as containerd 2.3 serves them, and
//! cAdvisor's for pressure. Pure. Used by `metrics`.

use gantry_proto::cri;
use gantry_proto::cri::MetricType::{self, Counter, Gauge};

/// Labels that every metric begins with.
pub(super) const BASE: [&str; 5] = ["pod", "namespace", "container", "id", "image"];

/// One metric.
#[derive(Debug)]
pub(super) struct Family {
    pub(super) name: &'static str,
    help: &'static str,
    pub(super) kind: MetricType,
    /// After [`BASE`].
    pub(super) labels: &'static [&'static str],
}

impl Family {
    pub(super) fn descriptor(&self) -> cri::MetricDescriptor {
        cri::MetricDescriptor {
            name: self.name.to_owned(),
            help: self.help.to_owned(),
            label_keys: BASE.iter().chain(self.labels).map(|&label| label.to_owned()).collect(),
        }
    }
}

macro_rules! families {
    ($($constant:ident: $kind:ident $name:literal $labels:expr, $help:literal;)*) => {
        $(pub(super) const $constant: Family =
            Family { name: $name, help: $help, kind: $kind, labels: &$labels };)*
        /// All of them.
        pub(super) const ALL: &[Family] = &[$($constant),*];
    };
}

families! {
    CPU_USER: Counter "container_cpu_user_seconds_total" [], "CPU time spent in programs, in seconds.";
    CPU_SYSTEM: Counter "container_cpu_system_seconds_total" [], "CPU time spent in the kernel, in seconds.";
    CPU_USAGE: Counter "container_cpu_usage_seconds_total" [], "CPU time, in seconds.";
    CFS_PERIODS: Counter "container_cpu_cfs_periods_total" [],
        "Enforcement periods of the CPU quota that have passed.";
    CFS_THROTTLED: Counter "container_cpu_cfs_throttled_periods_total" [],
        "Enforcement periods in which the container was throttled.";
    CFS_THROTTLED_TIME: Counter "container_cpu_cfs_throttled_seconds_total" [],
        "Time for which the container was throttled, in seconds.";
    MEMORY_CACHE: Gauge "container_memory_cache" [], "Page cache, in bytes.";
    MEMORY_RSS: Gauge "container_memory_rss" [], "Anonymous memory, in bytes.";
    MEMORY_KERNEL: Gauge "container_memory_kernel_usage" [], "Kernel memory, in bytes.";
    MEMORY_MAPPED: Gauge "container_memory_mapped_file" [], "Files mapped into memory, in bytes.";
    MEMORY_SWAP: Gauge "container_memory_swap" [], "Swap in use, in bytes.";
    MEMORY_FAILCNT: Counter "container_memory_failcnt" [], "How often the memory limit was hit.";
    MEMORY_USAGE: Gauge "container_memory_usage_bytes" [], "Memory in use of every kind, in bytes.";
    MEMORY_PEAK: Gauge "container_memory_max_usage_bytes" [],
        "The most memory that was ever in use, in bytes.";
    MEMORY_WORKING_SET: Gauge "container_memory_working_set_bytes" [],
        "Memory in use that cannot be reclaimed at will, in bytes.";
    MEMORY_ACTIVE_FILE: Gauge "container_memory_total_active_file_bytes" [],
        "Page cache in active use, in bytes.";
    MEMORY_INACTIVE_FILE: Gauge "container_memory_total_inactive_file_bytes" [],
        "Page cache not in active use, in bytes.";
    MEMORY_FAILURES: Counter "container_memory_failures_total" ["failure_type", "scope"],
        "Page faults: all of them, and those that read a disk.";
    OOM_EVENTS: Counter "container_oom_events_total" [],
        "Processes that the kernel has killed for want of memory.";
    RECEIVE_BYTES: Counter "container_network_receive_bytes_total" ["interface"], "Bytes received.";
    RECEIVE_PACKETS: Counter "container_network_receive_packets_total" ["interface"], "Packets received.";
    RECEIVE_DROPPED: Counter "container_network_receive_packets_dropped_total" ["interface"],
        "Packets dropped while receiving.";
    RECEIVE_ERRORS: Counter "container_network_receive_errors_total" ["interface"], "Errors while receiving.";
    TRANSMIT_BYTES: Counter "container_network_transmit_bytes_total" ["interface"], "Bytes sent.";
    TRANSMIT_PACKETS: Counter "container_network_transmit_packets_total" ["interface"], "Packets sent.";
    TRANSMIT_DROPPED: Counter "container_network_transmit_packets_dropped_total" ["interface"],
        "Packets dropped while sending.";
    TRANSMIT_ERRORS: Counter "container_network_transmit_errors_total" ["interface"], "Errors while sending.";
    FS_INODES_FREE: Gauge "container_fs_inodes_free" ["device"], "Free inodes of the file system.";
    FS_INODES: Gauge "container_fs_inodes_total" ["device"], "Inodes of the file system.";
    FS_LIMIT: Gauge "container_fs_limit_bytes" ["device"],
        "Size of the file system that the container writes to, in bytes.";
    FS_USAGE: Gauge "container_fs_usage_bytes" ["device"],
        "What the container has written and kept, in bytes.";
    FS_READ_BYTES: Counter "container_fs_reads_bytes_total" ["device"], "Bytes read.";
    FS_READS: Counter "container_fs_reads_total" ["device"], "Reads done.";
    FS_WRITTEN_BYTES: Counter "container_fs_writes_bytes_total" ["device"], "Bytes written.";
    FS_WRITES: Counter "container_fs_writes_total" ["device"], "Writes done.";
    BLKIO: Counter "container_blkio_device_usage_total" ["device", "major", "minor", "operation"],
        "Bytes of each kind of transfer.";
    PROCESSES: Gauge "container_processes" [], "Processes.";
    FILE_DESCRIPTORS: Gauge "container_file_descriptors" [], "Open files of all processes.";
    SOCKETS: Gauge "container_sockets" [], "Open sockets of all processes.";
    THREADS_MAX: Gauge "container_threads_max" [], "How many threads there may be; 0 without a limit.";
    THREADS: Gauge "container_threads" [], "Threads.";
    ULIMITS: Gauge "container_ulimits_soft" ["ulimit"], "Soft resource limits of the first process.";
    LAST_SEEN: Gauge "container_last_seen" [], "When the container was looked at, in seconds since 1970.";
    START_TIME: Gauge "container_start_time_seconds" [],
        "When the container was started, in seconds since 1970.";
    SPEC_CPU_PERIOD: Gauge "container_spec_cpu_period" [], "Period of the CPU quota, in microseconds.";
    SPEC_CPU_SHARES: Gauge "container_spec_cpu_shares" [], "CPU shares.";
    SPEC_MEMORY: Gauge "container_spec_memory_limit_bytes" [], "Memory limit, in bytes.";
    SPEC_RESERVATION: Gauge "container_spec_memory_reservation_limit_bytes" [],
        "Memory that is kept from reclaim, in bytes.";
    SPEC_SWAP: Gauge "container_spec_memory_swap_limit_bytes" [],
        "Limit of memory and swap together, in bytes.";
    PRESSURE_CPU_WAITING: Counter "container_pressure_cpu_waiting_seconds_total" [],
        "Time for which some tasks waited for CPU, in seconds.";
    PRESSURE_CPU_STALLED: Counter "container_pressure_cpu_stalled_seconds_total" [],
        "Time for which all tasks waited for CPU, in seconds.";
    PRESSURE_MEMORY_WAITING: Counter "container_pressure_memory_waiting_seconds_total" [],
        "Time for which some tasks waited for memory, in seconds.";
    PRESSURE_MEMORY_STALLED: Counter "container_pressure_memory_stalled_seconds_total" [],
        "Time for which all tasks waited for memory, in seconds.";
    PRESSURE_IO_WAITING: Counter "container_pressure_io_waiting_seconds_total" [],
        "Time for which some tasks waited for I/O, in seconds.";
    PRESSURE_IO_STALLED: Counter "container_pressure_io_stalled_seconds_total" [],
        "Time for which all tasks waited for I/O, in seconds.";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_name_is_there_once_and_says_what_it_counts() {
        let names: BTreeSet<&str> = ALL.iter().map(|family| family.name).collect();
        assert_eq!(names.len(), ALL.len());
        for family in ALL {
            assert!(family.name.starts_with("container_"), "{family:?}");
            let total = family.name.ends_with("_total") && family.name != "container_fs_inodes_total";
            let counts = total || family.name == "container_memory_failcnt";
            assert_eq!(counts, family.kind == Counter, "{family:?}");
            assert!(family.help.ends_with('.'), "{family:?}");
        }
    }
}
