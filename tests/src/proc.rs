//! What /proc says of processes: who runs, who ended. Owns the parsing; never signals anyone
//! but the pids it is given. Called by leakcheck, node and the tests.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal};

use crate::poll::poll;

/// A process as its stat line shows it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process {
    pub pid: i32,
    /// Clock ticks since boot: with the pid, an identity.
    pub start_time: u64,
    pub parent: i32,
    pub state: char,
    pub name: String,
}

/// All processes of this pid namespace, kernel threads left out.
///
/// # Errors
/// Without /proc.
pub fn all() -> Result<Vec<Process>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").context("read /proc")? {
        let name = entry.context("read /proc")?.file_name();
        let Some(pid) = name.to_str().and_then(|text| text.parse().ok()) else { continue };
        if let Some(process) = one(pid)
            && process.parent != 2
            && pid != 2
        {
            found.push(process);
        }
    }
    found.sort();
    Ok(found)
}

/// One process; `None` when it is gone.
#[must_use]
pub fn one(pid: i32) -> Option<Process> {
    parse(pid, &std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The name stands in parentheses and may hold anything, also `)`: proc_pid_stat(5).
fn parse(pid: i32, stat: &str) -> Option<Process> {
    let (head, tail) = stat.rsplit_once(')')?;
    let name = head.split_once('(')?.1.to_owned();
    let fields: Vec<&str> = tail.split_whitespace().collect();
    Some(Process {
        pid,
        start_time: fields.get(19)?.parse().ok()?,
        parent: fields.get(1)?.parse().ok()?,
        state: fields.first()?.chars().next()?,
        name,
    })
}

/// Direct children of a process.
///
/// # Errors
/// Without /proc.
pub fn children(parent: i32) -> Result<Vec<Process>> {
    Ok(all()?.into_iter().filter(|process| process.parent == parent).collect())
}

/// The command line of a process, its words parted by spaces; empty when it is gone.
#[must_use]
pub fn command_line(pid: i32) -> String {
    std::fs::read_to_string(folder(pid).join("cmdline")).unwrap_or_default().replace('\0', " ")
}

/// Waits until no process has these words in its command line.
///
/// # Errors
/// When one has after a minute.
pub fn await_end_of(words: &str) -> Result<()> {
    poll("the process to end by itself", Duration::from_secs(60), || {
        let all = all().map_err(|error| format!("{error:#}"))?;
        let left: Vec<_> = all.iter().filter(|process| command_line(process.pid).contains(words)).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
}

/// SIGKILL to one process by its pid; one that is gone is no error.
///
/// # Errors
/// When the kernel refuses.
pub fn kill(pid: i32) -> Result<()> {
    let Some(pid) = Pid::from_raw(pid) else { return Ok(()) };
    match rustix::process::kill_process(pid, Signal::KILL) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("kill {}", pid.as_raw_nonzero())),
    }
}

/// The folder of a process's namespaces and descriptors.
#[must_use]
pub fn folder(pid: i32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_parentheses() {
        let stat = "7 (a) b) S 3 7 7 0 -1 0 0 0 0 0 1 2 3 4 20 0 1 0 4242 100 1 0";
        let process = parse(7, stat).unwrap();
        assert_eq!((process.name.as_str(), process.parent, process.start_time), ("a) b", 3, 4242));
    }

    #[test]
    fn finds_this_process() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(all().unwrap().iter().any(|process| process.pid == own));
    }
}
