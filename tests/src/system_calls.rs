//! The system calls that a process and those it starts make in a while: strace counts them. Owns strace's process and the
//! reading of its table; judges nothing. Called by the tier cri.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal};

use crate::poll::poll;
use crate::proc;

/// Calls whose number hangs on how threads take turns, or on the allocator, and not on what is done.
pub const OF_CHANCE: [&str; 15] = [
    "brk",
    "clock_nanosleep",
    "epoll_pwait",
    "epoll_wait",
    "futex",
    "madvise",
    "mmap",
    "mprotect",
    "mremap",
    "munmap",
    "poll",
    "restart_syscall",
    "rt_sigprocmask",
    "rt_sigreturn",
    "sched_yield",
];

/// A count under way; given up on drop.
#[derive(Debug)]
pub struct SystemCalls {
    strace: Child,
    table: PathBuf,
    _folder: tempfile::TempDir,
}

impl SystemCalls {
    /// Begins with all threads of a process, and goes on with every process that they start.
    ///
    /// # Errors
    /// When strace is missing, or does not come to trace all threads within 10 s.
    pub fn begin(pid: Pid) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("gantry-calls-").tempdir()?;
        let table = folder.path().join("table");
        let pid = pid.as_raw_nonzero().get();
        let mut command = Command::new("strace");
        command.args(["-f", "-c", "-p", &pid.to_string(), "-o"]).arg(&table);
        let started = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let strace = started.with_context(|| gantry_needs::remedy("strace"))?;
        let calls = Self { strace, table, _folder: folder };
        poll("strace to trace all threads", Duration::from_secs(10), || match untraced(pid) {
            Ok(0) => Ok(()),
            Ok(threads) => Err(format!("{threads} are not")),
            Err(error) => Err(format!("{error:#}")),
        })?;
        Ok(calls)
    }

    /// How often each call was made since; those [`OF_CHANCE`] are left out.
    ///
    /// # Errors
    /// When strace cannot be ended, or its table not be read.
    pub fn end(mut self) -> Result<BTreeMap<String, u64>> {
        let pid = i32::try_from(self.strace.id()).ok().and_then(Pid::from_raw).context("strace's pid")?;
        // It lets go of everyone and writes.
        rustix::process::kill_process(pid, Signal::INT).context("end strace")?;
        self.strace.wait().context("wait for strace")?;
        let text = std::fs::read_to_string(&self.table).context("strace's table")?;
        let counts = parse(&text);
        ensure!(!counts.is_empty(), "strace counted nothing: {text}");
        Ok(counts)
    }
}

impl Drop for SystemCalls {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.strace.kill();
        let _ = self.strace.wait();
    }
}

/// Threads without a tracer.
fn untraced(pid: i32) -> Result<usize> {
    let tasks = proc::folder(pid).join("task");
    let mut count = 0;
    for task in std::fs::read_dir(&tasks).with_context(|| tasks.display().to_string())? {
        // A thread may have ended since.
        let status = std::fs::read_to_string(task?.path().join("status")).unwrap_or_default();
        count += usize::from(status.lines().any(|line| line == "TracerPid:\t0"));
    }
    Ok(count)
}

/// A row has share, seconds, microseconds a call, calls, errors where there were any, and the name.
fn parse(table: &str) -> BTreeMap<String, u64> {
    let row = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let calls = fields.get(3)?.parse().ok()?;
        let name = *fields.last()?;
        (name != "total" && !OF_CHANCE.contains(&name)).then(|| (name.to_owned(), calls))
    };
    table.lines().filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_read_with_and_without_errors_and_without_what_is_of_chance() {
        let table = "\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 90.00    0.000100           5        20           futex
  9.00    0.000010           1         7         2 openat
  1.00    0.000000           0         3           clone3
------ ----------- ----------- --------- --------- ----------------
100.00    0.000110           1        30         2 total
";
        let expected = BTreeMap::from([("clone3".to_owned(), 3), ("openat".to_owned(), 7)]);
        assert_eq!(parse(table), expected);
    }
}
