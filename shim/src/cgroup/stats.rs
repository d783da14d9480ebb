//! What a cgroup has used: its accounting files on v1 and v2, parsed. Pure but for `read`. Which file
//! gives which number is containerd's choice (and cAdvisor's before it): working set is usage less
//! inactive file pages, RSS on v2 is `anon`. Called by `stats`.

use std::fs;
use std::io;
use std::path::PathBuf;

use super::{Cgroup, Error};

/// Above this a limit is none: the kernel rounds "no limit" to pages.
pub(super) const UNLIMITED: u64 = 1 << 62;

/// One reading. None where this node has no such controller or file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Usage {
    /// CPU time of all members so far, in nanoseconds.
    pub cpu_nanos: Option<u64>,
    /// Memory.
    pub memory: Option<MemoryStats>,
    /// Swap; none without swap accounting.
    pub swap: Option<Swap>,
    /// Tasks.
    pub pids: Option<u64>,
    /// Pressure (PSI): v2 with `psi` on only.
    pub pressure: Pressure,
}

/// Bytes and counts of the memory controller.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Charged.
    pub usage: u64,
    /// Charged and not reclaimable at will.
    pub working_set: u64,
    /// None without a limit.
    pub limit: Option<u64>,
    /// Anonymous.
    pub rss: u64,
    /// All page faults.
    pub page_faults: u64,
    /// Those that read a disk.
    pub major_page_faults: u64,
}

/// Bytes of swap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Swap {
    /// In use.
    pub usage: u64,
    /// None without a limit.
    pub limit: Option<u64>,
}

/// Pressure stall information by resource.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pressure {
    /// `cpu.pressure`.
    pub cpu: Option<Psi>,
    /// `memory.pressure`.
    pub memory: Option<Psi>,
    /// `io.pressure`.
    pub io: Option<Psi>,
}

/// One pressure file.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Psi {
    /// Some tasks stalled.
    pub some: Stall,
    /// All tasks stalled.
    pub full: Stall,
}

/// One line of it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Stall {
    /// Per cent of the last 10, 60 and 300 seconds.
    pub averages: [f64; 3],
    /// Microseconds.
    pub total: u64,
}

/// Text of a controller's file; None when there is none.
pub(super) type Read<'a> = &'a dyn Fn(&str, &str) -> Result<Option<String>, Error>;

impl Cgroup {
    /// Reads the accounting files.
    ///
    /// # Errors
    /// When the cgroup is gone, or a file can't be read.
    pub fn usage(&self) -> Result<Usage, Error> {
        let read = self.reader();
        if self.layout.is_unified() { v2(&read) } else { v1(&read) }
    }

    /// Reads a controller's file.
    pub(super) fn reader(&self) -> impl Fn(&str, &str) -> Result<Option<String>, Error> {
        |controller, file| {
            let Some(folder) = self.layout.folder_of(controller, &self.path) else { return Ok(None) };
            let path = folder.join(file);
            match fs::read_to_string(&path) {
                Ok(text) => Ok(Some(text)),
                Err(error) if error.kind() == io::ErrorKind::NotFound && folder.exists() => Ok(None),
                // EOPNOTSUPP: PSI is compiled in and switched off.
                Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(None),
                Err(source) => Err(Error::Read { path, source }),
            }
        }
    }

    /// Bytes charged and not reclaimable at will; None when this node accounts no memory.
    ///
    /// # Errors
    /// As [`Cgroup::usage`].
    pub fn working_set(&self) -> Result<Option<u64>, Error> {
        Ok(self.usage()?.memory.map(|memory| memory.working_set))
    }

    /// The folders, for messages.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.path.clone().into()
    }
}

pub(super) fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

fn limit(text: &str) -> Option<u64> {
    number(text).filter(|limit| *limit < UNLIMITED)
}

/// The value of `key` in a file of `key value` lines; 0 when it is not there.
pub(crate) fn field(text: &str, key: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
    line.and_then(number).unwrap_or(0)
}

fn v1(read: Read<'_>) -> Result<Usage, Error> {
    let value = |controller: &str, file: &str| -> Result<Option<u64>, Error> {
        Ok(read(controller, file)?.as_deref().and_then(number))
    };
    let mut usage = Usage {
        cpu_nanos: value("cpuacct", "cpuacct.usage")?,
        pids: value("pids", "pids.current")?,
        ..Usage::default()
    };
    let (used, stat) = (value("memory", "memory.usage_in_bytes")?, read("memory", "memory.stat")?);
    if let (Some(used), Some(stat)) = (used, stat) {
        let memory_limit = read("memory", "memory.limit_in_bytes")?;
        usage.memory = Some(MemoryStats {
            usage: used,
            working_set: used.saturating_sub(field(&stat, "total_inactive_file")),
            limit: memory_limit.as_deref().and_then(limit),
            rss: field(&stat, "total_rss"),
            page_faults: field(&stat, "total_pgfault"),
            major_page_faults: field(&stat, "total_pgmajfault"),
        });
        // v1 counts memory and swap together.
        if let Some(both) = value("memory", "memory.memsw.usage_in_bytes")? {
            let together = read("memory", "memory.memsw.limit_in_bytes")?;
            let memory_limit = memory_limit.as_deref().and_then(limit);
            let together = together.as_deref().and_then(limit);
            usage.swap = Some(Swap {
                usage: both.saturating_sub(used),
                limit: together.zip(memory_limit).map(|(both, memory)| both.saturating_sub(memory)),
            });
        }
    }
    Ok(usage)
}

fn v2(read: Read<'_>) -> Result<Usage, Error> {
    let psi = |file: &str| -> Result<Option<Psi>, Error> { Ok(read("psi", file)?.as_deref().and_then(psi)) };
    let value =
        |file: &str| -> Result<Option<u64>, Error> { Ok(read("memory", file)?.as_deref().and_then(number)) };
    let mut usage = Usage {
        cpu_nanos: read("cpu", "cpu.stat")?.map(|stat| field(&stat, "usage_usec").saturating_mul(1000)),
        pids: value("pids.current")?,
        pressure: Pressure {
            cpu: psi("cpu.pressure")?,
            memory: psi("memory.pressure")?,
            io: psi("io.pressure")?,
        },
        ..Usage::default()
    };
    if let (Some(used), Some(stat)) = (value("memory.current")?, read("memory", "memory.stat")?) {
        usage.memory = Some(MemoryStats {
            usage: used,
            working_set: used.saturating_sub(field(&stat, "inactive_file")),
            limit: read("memory", "memory.max")?.as_deref().and_then(limit),
            rss: field(&stat, "anon"),
            page_faults: field(&stat, "pgfault"),
            major_page_faults: field(&stat, "pgmajfault"),
        });
    }
    if let Some(used) = value("memory.swap.current")? {
        let limit = read("memory", "memory.swap.max")?.as_deref().and_then(limit);
        usage.swap = Some(Swap { usage: used, limit });
    }
    Ok(usage)
}

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`, and the same for `full`.
fn psi(text: &str) -> Option<Psi> {
    let stall = |kind: &str| -> Option<Stall> {
        let line = text.lines().find_map(|line| line.strip_prefix(kind)?.strip_prefix(' '))?;
        let value = |key: &str| line.split(' ').find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='));
        let average = |key: &str| value(key)?.parse::<f64>().ok();
        Some(Stall {
            averages: [average("avg10")?, average("avg60")?, average("avg300")?],
            total: value("total")?.parse().ok()?,
        })
    };
    // Before Linux 5.13 cpu.pressure has no line "full".
    Some(Psi { some: stall("some")?, full: stall("full").unwrap_or_default() })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn reading<'a>(
        files: &'a [(&'a str, &'a str)],
    ) -> impl Fn(&str, &str) -> Result<Option<String>, Error> {
        |_: &str, file: &str| {
            Ok(files.iter().find(|(name, _)| *name == file).map(|(_, text)| (*text).to_owned()))
        }
    }

    #[test]
    fn v1_counts_the_whole_tree_and_splits_swap_from_memory() {
        let usage = v1(&reading(&[
            ("cpuacct.usage", "12345\n"),
            ("memory.usage_in_bytes", "1000\n"),
            ("memory.limit_in_bytes", "4096\n"),
            ("memory.memsw.usage_in_bytes", "1500\n"),
            ("memory.memsw.limit_in_bytes", "5096\n"),
            (
                "memory.stat",
                "rss 1\ntotal_rss 700\ntotal_inactive_file 300\ntotal_pgfault 9\ntotal_pgmajfault 2\n",
            ),
            ("pids.current", "3\n"),
        ]))
        .unwrap();
        assert_eq!((usage.cpu_nanos, usage.pids), (Some(12345), Some(3)));
        let memory = usage.memory.unwrap();
        assert_eq!((memory.working_set, memory.rss, memory.limit), (700, 700, Some(4096)));
        assert_eq!(usage.swap, Some(Swap { usage: 500, limit: Some(1000) }));
    }

    #[test]
    fn v2_has_microseconds_max_and_pressure() {
        let usage = v2(&reading(&[
            ("cpu.stat", "usage_usec 7\nuser_usec 5\n"),
            ("memory.current", "1000\n"),
            ("memory.max", "max\n"),
            ("memory.stat", "anon 600\nfile 300\ninactive_file 100\npgfault 4\npgmajfault 1\n"),
            ("cpu.pressure", "some avg10=1.50 avg60=0.20 avg300=0.00 total=77\n"),
        ]))
        .unwrap();
        assert_eq!((usage.cpu_nanos, usage.swap.clone(), usage.pids), (Some(7000), None, None));
        let memory = usage.memory.unwrap();
        assert_eq!((memory.working_set, memory.rss, memory.limit), (900, 600, None));
        let psi = usage.pressure.cpu.unwrap();
        assert_eq!((psi.some.total, psi.some.averages, psi.full), (77, [1.5, 0.2, 0.0], Stall::default()));
    }

    #[test]
    fn an_absurdly_high_v1_limit_is_none() {
        assert_eq!(limit("9223372036854771712\n"), None);
        assert_eq!(limit("65536"), Some(65536));
    }
}
