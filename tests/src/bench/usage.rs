//! What a node costs, its control plane and the bench left out: processor time with that of processes that have ended,
//! memory by program. Owns the cgroup that it puts the node's daemons in; measures nothing that happens by itself. Called
//! by `bench::pods`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::leakcheck::{HARNESS, mounts};
use crate::proc;

/// The daemons of the node.
const NODE: &str = "bench-node";

/// The v2 hierarchy of a cell, whose processes are in two parts: the bench's own leaf, and the node's.
#[derive(Debug)]
pub(super) struct NodeUsage {
    root: PathBuf,
}

impl NodeUsage {
    /// Moves the daemons out of the bench's leaf. What they start from now on follows them, or goes to cgroups of the node.
    pub(super) fn begin(daemons: &[i32]) -> Result<Self> {
        let root =
            mounts()?.into_iter().find(|mount| mount.kind == "cgroup2").context("no cgroup2 is mounted")?;
        let usage = Self { root: root.point };
        let own = usage.root.join(NODE);
        std::fs::create_dir_all(&own).with_context(|| own.display().to_string())?;
        daemons.iter().try_for_each(|pid| usage.add(*pid))?;
        Ok(usage)
    }

    /// One more: a daemon that was started again.
    pub(super) fn add(&self, pid: i32) -> Result<()> {
        let file = self.root.join(NODE).join("cgroup.procs");
        std::fs::write(&file, pid.to_string()).with_context(|| format!("{pid} to {}", file.display()))
    }

    /// User and system time of the node until now (`usage_usec` of `cpu.stat`, cgroup-v2.rst).
    pub(super) fn processor_time(&self) -> Result<Duration> {
        let all = usage_of(&self.root)?;
        Ok(all.saturating_sub(usage_of(&self.root.join(HARNESS))?))
    }

    /// Proportional set size by program, in kB: pages that several processes share count once.
    pub(super) fn memory(&self) -> Result<BTreeMap<String, u64>> {
        let mut found = BTreeMap::new();
        for process in proc::all()?.into_iter().filter(|process| self.is_of_node(process.pid)) {
            // It may have ended since.
            let Ok(rollup) = std::fs::read_to_string(proc::folder(process.pid).join("smaps_rollup")) else {
                continue;
            };
            *found.entry(process.name).or_default() += pss(&rollup);
        }
        Ok(found)
    }

    fn is_of_node(&self, pid: i32) -> bool {
        let cgroups = std::fs::read_to_string(proc::folder(pid).join("cgroup")).unwrap_or_default();
        cgroups
            .lines()
            .any(|line| line.strip_prefix("0::/").is_some_and(|path| path.split('/').next() != Some(HARNESS)))
    }

    /// Takes the cgroup away, once the daemons have ended.
    pub(super) fn end(self) -> Result<()> {
        let own = self.root.join(NODE);
        std::fs::remove_dir(&own).with_context(|| own.display().to_string())
    }
}

fn usage_of(folder: &Path) -> Result<Duration> {
    let file = folder.join("cpu.stat");
    let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let usage = text.lines().find_map(|line| line.strip_prefix("usage_usec "));
    let micros = usage.and_then(|number| number.trim().parse().ok());
    Ok(Duration::from_micros(micros.with_context(|| format!("{} has no usage_usec", file.display()))?))
}

/// The line `Pss:` of `smaps_rollup`, in kB (proc_pid_smaps(5)).
fn pss(rollup: &str) -> u64 {
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
    line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse().ok()).unwrap_or_default()
}

/// `MemAvailable` of this machine, in kB (proc_meminfo(5)).
pub(super) fn available_memory() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").context("read /proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse().ok())
        .context("/proc/meminfo: no MemAvailable")
}

/// User and system time of one process until now, in steps of a hundredth of a second.
pub(super) fn processor_time_of(pid: i32) -> Result<Duration> {
    processor_time_in(&proc::folder(pid).join("stat"))
}

/// User and system time of a process, in which a tick is a hundredth of a second (`proc_pid_stat(5)`, fields 14 and 15).
fn processor_time_in(stat: &Path) -> Result<Duration> {
    let text = std::fs::read_to_string(stat).with_context(|| stat.display().to_string())?;
    // The name before it may hold anything.
    let fields = text.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Ok(Duration::from_millis(ticks * 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processs_time_is_that_of_user_and_system() {
        let folder = tempfile::tempdir().unwrap();
        let stat = folder.path().join("stat");
        std::fs::write(&stat, "7 (a ) b) S 1 7 7 0 -1 4194560 1 2 3 4 150 25 9 9 20 0 1 0 5 6 7\n").unwrap();
        assert_eq!(processor_time_in(&stat).unwrap(), Duration::from_millis(1750));
    }

    #[test]
    fn a_processs_share_of_memory_is_its_pss() {
        assert_eq!(pss("00400000-7fff [rollup]\nRss:    9000 kB\nPss:    1234 kB\nPss_Anon:  77 kB\n"), 1234);
    }

    #[test]
    fn processor_time_is_that_of_the_whole_cgroup() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("cpu.stat"), "usage_usec 1500000\nuser_usec 1\nsystem_usec 2\n")
            .unwrap();
        assert_eq!(usage_of(folder.path()).unwrap(), Duration::from_millis(1500));
        std::fs::write(folder.path().join("cpu.stat"), "user_usec 1\n").unwrap();
        assert!(usage_of(folder.path()).is_err());
    }
}
