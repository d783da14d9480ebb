//! What a cgroup counts beyond `stats`: the figures that only metrics show. Pure but for `detail` and `processes`.
//! Which file gives which number is cAdvisor's choice, and containerd's where that is silent. Called by `metrics`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use rustix::process::Pid;

use super::stats::{Read, UNLIMITED, field, number};
use super::{Cgroup, Error};

/// cpuacct.stat counts in USER_HZ, which is 100 on every architecture we build for.
const NANOS_OF_A_TICK: u64 = 10_000_000;

/// One reading. None where this node has no such controller or file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Detail {
    /// CPU time in programs and in the kernel, nanoseconds.
    pub cpu_user: Option<u64>,
    pub cpu_system: Option<u64>,
    pub throttling: Option<Throttling>,
    pub memory: Option<MemoryDetail>,
    /// Processes that the kernel has killed for memory, outlived or not.
    pub oom_kills: Option<u64>,
    /// 0 without a limit.
    pub task_limit: Option<u64>,
    /// By device (`MAJOR:MINOR`) and operation (`Read`, `Write`, and what else the kernel tells).
    pub io: BTreeMap<(String, String), Transfer>,
}

/// What a CPU quota has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Throttling {
    pub periods: u64,
    pub throttled: u64,
    pub nanos: u64,
}

/// Bytes, but for `failures`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct MemoryDetail {
    pub cache: u64,
    pub mapped_file: u64,
    pub active_file: u64,
    pub inactive_file: u64,
    pub kernel: Option<u64>,
    /// The most that was ever charged.
    pub peak: Option<u64>,
    /// How often the limit was hit.
    pub failures: Option<u64>,
    /// What is kept from reclaim; none without.
    pub reservation: Option<u64>,
}

/// Of one device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Transfer {
    pub bytes: u64,
    pub operations: u64,
}

impl Cgroup {
    /// Reads the accounting files.
    ///
    /// # Errors
    /// When the cgroup is gone, or a file can't be read.
    pub(crate) fn detail(&self) -> Result<Detail, Error> {
        let read = self.reader();
        if self.layout.is_unified() { v2(&read) } else { v1(&read) }
    }

    /// Processes in the cgroup and below, at most `most`.
    pub(crate) fn processes(&self, most: usize) -> Vec<Pid> {
        let mut found = Vec::new();
        if let Some(folder) = self.folders().first() {
            collect(folder, most, &mut found);
        }
        found
    }
}

fn collect(folder: &Path, most: usize, found: &mut Vec<Pid>) {
    let text = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    let pids = text.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?));
    found.extend(pids.take(most.saturating_sub(found.len())));
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if found.len() < most && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect(&entry.path(), most, found);
        }
    }
}

fn v1(read: Read<'_>) -> Result<Detail, Error> {
    let value = |controller: &str, file: &str| -> Result<Option<u64>, Error> {
        Ok(read(controller, file)?.as_deref().and_then(number))
    };
    let ticks = read("cpuacct", "cpuacct.stat")?;
    let time = |key| ticks.as_deref().map(|text| field(text, key).saturating_mul(NANOS_OF_A_TICK));
    let mut detail = Detail {
        cpu_user: time("user"),
        cpu_system: time("system"),
        throttling: read("cpu", "cpu.stat")?.map(|text| Throttling {
            periods: field(&text, "nr_periods"),
            throttled: field(&text, "nr_throttled"),
            nanos: field(&text, "throttled_time"),
        }),
        oom_kills: read("memory", "memory.oom_control")?.map(|text| field(&text, "oom_kill")),
        task_limit: read("pids", "pids.max")?.map(|text| number(&text).unwrap_or(0)),
        ..Detail::default()
    };
    if let Some(stat) = read("memory", "memory.stat")? {
        detail.memory = Some(MemoryDetail {
            cache: field(&stat, "total_cache"),
            mapped_file: field(&stat, "total_mapped_file"),
            active_file: field(&stat, "total_active_file"),
            inactive_file: field(&stat, "total_inactive_file"),
            kernel: value("memory", "memory.kmem.usage_in_bytes")?,
            peak: value("memory", "memory.max_usage_in_bytes")?,
            failures: value("memory", "memory.failcnt")?,
            reservation: value("memory", "memory.soft_limit_in_bytes")?.filter(|limit| *limit < UNLIMITED),
        });
    }
    for (file, bytes) in
        [("blkio.throttle.io_service_bytes_recursive", true), ("blkio.throttle.io_serviced_recursive", false)]
    {
        // `8:0 Read 4096`; the last line has the sum of all, without a device.
        for line in read("blkio", file)?.unwrap_or_default().lines() {
            let mut words = line.split(' ');
            let (Some(device), Some(operation), Some(count)) = (words.next(), words.next(), words.next())
            else {
                continue;
            };
            let of = detail.io.entry((device.to_owned(), operation.to_owned())).or_default();
            *(if bytes { &mut of.bytes } else { &mut of.operations }) = number(count).unwrap_or(0);
        }
    }
    Ok(detail)
}

fn v2(read: Read<'_>) -> Result<Detail, Error> {
    let value =
        |file: &str| -> Result<Option<u64>, Error> { Ok(read("memory", file)?.as_deref().and_then(number)) };
    let cpu = read("cpu", "cpu.stat")?;
    let cpu = cpu.as_deref();
    let micros = |key: &str| cpu.map(|text| field(text, key).saturating_mul(1000));
    let events = read("memory", "memory.events")?;
    let mut detail = Detail {
        cpu_user: micros("user_usec"),
        cpu_system: micros("system_usec"),
        // Without the controller the file has the times alone.
        throttling: cpu.filter(|text| text.contains("nr_periods")).map(|text| Throttling {
            periods: field(text, "nr_periods"),
            throttled: field(text, "nr_throttled"),
            nanos: field(text, "throttled_usec").saturating_mul(1000),
        }),
        oom_kills: events.as_deref().map(|text| field(text, "oom_kill")),
        task_limit: read("pids", "pids.max")?.map(|text| number(&text).unwrap_or(0)),
        ..Detail::default()
    };
    if let Some(stat) = read("memory", "memory.stat")? {
        // `kernel` is of Linux 5.18.
        let kernel = if stat.contains("\nkernel ") { "kernel" } else { "kernel_stack" };
        detail.memory = Some(MemoryDetail {
            cache: field(&stat, "file"),
            mapped_file: field(&stat, "file_mapped"),
            active_file: field(&stat, "active_file"),
            inactive_file: field(&stat, "inactive_file"),
            kernel: Some(field(&stat, kernel)),
            peak: value("memory.peak")?,
            failures: events.as_deref().map(|text| field(text, "max")),
            reservation: value("memory.low")?.filter(|low| *low > 0),
        });
    }
    // `8:0 rbytes=4096 wbytes=0 rios=1 wios=0 dbytes=0 dios=0`.
    for line in read("io", "io.stat")?.unwrap_or_default().lines() {
        let Some((device, counts)) = line.split_once(' ') else { continue };
        let count = |key: &str| {
            let pair = counts.split(' ').find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='));
            pair.and_then(number).unwrap_or(0)
        };
        for (operation, bytes, operations) in [("Read", "rbytes", "rios"), ("Write", "wbytes", "wios")] {
            let transfer = Transfer { bytes: count(bytes), operations: count(operations) };
            detail.io.insert((device.to_owned(), operation.to_owned()), transfer);
        }
    }
    Ok(detail)
}

#[cfg(test)]
mod tests {
    use super::super::stats::tests::reading;
    use super::*;

    fn transfer(detail: &Detail, device: &str, operation: &str) -> Option<(u64, u64)> {
        let found = detail.io.get(&(device.to_owned(), operation.to_owned()))?;
        Some((found.bytes, found.operations))
    }

    #[test]
    fn v1_counts_ticks_trees_and_each_device() {
        let detail = v1(&reading(&[
            ("cpuacct.stat", "user 150\nsystem 25\n"),
            ("cpu.stat", "nr_periods 9\nnr_throttled 4\nthrottled_time 123\n"),
            ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
            (
                "memory.stat",
                "cache 1\ntotal_cache 300\ntotal_mapped_file 5\ntotal_active_file 6\ntotal_inactive_file 7\n",
            ),
            ("memory.max_usage_in_bytes", "900\n"),
            ("memory.failcnt", "3\n"),
            ("memory.soft_limit_in_bytes", "9223372036854771712\n"),
            ("pids.max", "max\n"),
            (
                "blkio.throttle.io_service_bytes_recursive",
                "8:0 Read 4096\n8:0 Write 8192\n8:0 Discard 0\nTotal 12288\n",
            ),
            ("blkio.throttle.io_serviced_recursive", "8:0 Read 1\n8:0 Write 2\nTotal 3\n"),
        ]))
        .unwrap();
        assert_eq!((detail.cpu_user, detail.cpu_system), (Some(1_500_000_000), Some(250_000_000)));
        assert_eq!(detail.throttling, Some(Throttling { periods: 9, throttled: 4, nanos: 123 }));
        assert_eq!((detail.oom_kills, detail.task_limit), (Some(2), Some(0)));
        let memory = detail.memory.unwrap();
        assert_eq!(
            (memory.cache, memory.mapped_file, memory.active_file, memory.inactive_file),
            (300, 5, 6, 7)
        );
        assert_eq!(
            (memory.peak, memory.failures, memory.reservation, memory.kernel),
            (Some(900), Some(3), None, None)
        );
        assert_eq!(transfer(&detail, "8:0", "Read"), Some((4096, 1)));
        assert_eq!(transfer(&detail, "8:0", "Write"), Some((8192, 2)));
        assert_eq!(detail.io.len(), 3, "{:?}", detail.io);
    }

    #[test]
    fn v2_counts_microseconds_events_and_each_device() {
        let detail = v2(&reading(&[
            ("cpu.stat", "usage_usec 9\nuser_usec 7\nsystem_usec 2\nnr_periods 5\nnr_throttled 1\nthrottled_usec 8\n"),
            ("memory.events", "low 0\nhigh 0\nmax 6\noom 2\noom_kill 1\noom_group_kill 0\n"),
            ("memory.stat", "anon 1\nfile 300\nkernel 44\nkernel_stack 4\nfile_mapped 5\ninactive_file 7\nactive_file 6\n"),
            ("memory.peak", "900\n"),
            ("memory.low", "0\n"),
            ("pids.max", "64\n"),
            ("io.stat", "8:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0\n"),
        ]))
        .unwrap();
        assert_eq!((detail.cpu_user, detail.cpu_system), (Some(7000), Some(2000)));
        assert_eq!(detail.throttling, Some(Throttling { periods: 5, throttled: 1, nanos: 8000 }));
        assert_eq!((detail.oom_kills, detail.task_limit), (Some(1), Some(64)));
        let memory = detail.memory.unwrap();
        assert_eq!(
            (memory.kernel, memory.peak, memory.failures, memory.reservation),
            (Some(44), Some(900), Some(6), None)
        );
        assert_eq!(transfer(&detail, "8:0", "Write"), Some((8192, 2)));
        let bare = v2(&reading(&[("cpu.stat", "usage_usec 9\nuser_usec 7\nsystem_usec 2\n")])).unwrap();
        assert_eq!((bare.throttling, bare.memory, bare.oom_kills), (None, None, None));
    }
}
