//! Who is in a cgroup and what they hold open: processes, file descriptors, sockets, the limit of the
//! first of them, the interfaces it sees. Owns the bounds of the look; never counts a part and calls it
//! all. Called by [`crate::scrape`]. Blocks.

use std::fs;
use std::path::Path;

use super::machine::{Machine, interfaces};
use super::summary::InterfaceStats;

/// Of a cgroup with more processes, or more descriptors, nothing but their number is told.
const MOST: usize = 4096;
const MOST_OPEN: u64 = 1 << 16;

const PROC: &str = "/proc";

/// One cgroup's own; those of cgroups below it are theirs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Processes {
    /// How many.
    pub count: u64,
    /// What they have open together.
    pub open: Option<Open>,
    /// The one that was there first: the container's own.
    pub first: Option<u32>,
}

/// Descriptors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Open {
    /// All.
    pub files: u64,
    /// Those among them.
    pub sockets: u64,
}

impl Machine {
    /// Of the cgroup at this path; nothing when it is not there.
    pub(crate) fn members(&self, path: &str) -> Option<Processes> {
        Some(look(Path::new(PROC), &self.file("cpu", path, "cgroup.procs")?))
    }
}

fn look(proc: &Path, listed: &str) -> Processes {
    let count = listed.lines().count();
    // 0 is one of a pid namespace that is not ours.
    let pids: Vec<u32> = listed.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 0).collect();
    let count = u64::try_from(count).unwrap_or(u64::MAX);
    if pids.len() > MOST {
        return Processes { count, ..Processes::default() };
    }
    let first = pids.iter().filter_map(|pid| Some((start_time(proc, *pid)?, *pid))).min().map(|(_, pid)| pid);
    Processes { count, open: open(proc, &pids), first }
}

/// Ticks since boot.
fn start_time(proc: &Path, pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(proc.join(pid.to_string()).join("stat")).ok()?;
    // A name may hold anything, brackets and spaces, too.
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

fn open(proc: &Path, pids: &[u32]) -> Option<Open> {
    let mut open = Open::default();
    for pid in pids {
        // It has ended meanwhile, and holds nothing.
        let Ok(entries) = fs::read_dir(proc.join(pid.to_string()).join("fd")) else { continue };
        for entry in entries.flatten() {
            open.files += 1;
            if open.files > MOST_OPEN {
                return None;
            }
            let target = fs::read_link(entry.path());
            open.sockets +=
                u64::from(target.is_ok_and(|to| to.as_os_str().as_encoded_bytes().starts_with(b"socket")));
        }
    }
    Some(open)
}

/// How many files a process may have open; -1 is any number.
pub(crate) fn most_open(pid: u32) -> Option<i64> {
    soft_limit(&fs::read_to_string(format!("{PROC}/{pid}/limits")).ok()?)
}

fn soft_limit(limits: &str) -> Option<i64> {
    let rest = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    match rest.split_ascii_whitespace().next()? {
        "unlimited" => Some(-1),
        number => number.parse().ok(),
    }
}

/// The interfaces of the network namespace that a process is in.
pub(crate) fn interfaces_of(pid: u32) -> Option<Vec<InterfaceStats>> {
    Some(interfaces(&fs::read_to_string(format!("{PROC}/{pid}/net/dev")).ok()?))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn process(proc: &Path, pid: u32, begun: u64, open: &[&str]) {
        let folder = proc.join(pid.to_string());
        fs::create_dir_all(folder.join("fd")).unwrap();
        let zeros = "0 ".repeat(18);
        fs::write(folder.join("stat"), format!("{pid} (a ) b) S {zeros}{begun} 9 9\n")).unwrap();
        for (number, target) in open.iter().enumerate() {
            symlink(target, folder.join("fd").join(number.to_string())).unwrap();
        }
    }

    #[test]
    fn what_a_container_holds_open() {
        let proc = tempfile::tempdir().unwrap();
        process(proc.path(), 7, 200, &["/dev/null", "socket:[5]"]);
        process(proc.path(), 30, 100, &["pipe:[1]", "socket:[6]", "socket:[7]"]);
        // One has ended, one is somebody else's.
        let found = look(proc.path(), "7\n30\n31\n0\n");
        let open = Some(Open { files: 5, sockets: 3 });
        assert_eq!(found, Processes { count: 4, open, first: Some(30) });
        assert_eq!(look(proc.path(), ""), Processes { open: Some(Open::default()), ..Processes::default() });
    }

    #[test]
    fn of_too_many_only_the_number_is_told() {
        let proc = tempfile::tempdir().unwrap();
        let listed: String = (1..=MOST + 1).map(|pid| format!("{pid}\n")).collect();
        assert_eq!(look(proc.path(), &listed), Processes { count: 4097, ..Processes::default() });
    }

    #[test]
    fn limits_as_the_kernel_writes_them() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
                      Max processes             95999                95999                processes \n\
                      Max open files            1024                 524288               files     \n";
        assert_eq!(soft_limit(limits), Some(1024));
        assert_eq!(
            soft_limit("Max open files            unlimited            unlimited            files\n"),
            Some(-1)
        );
        assert_eq!(soft_limit("Max processes 1 1 processes\n"), None);
        assert!(most_open(std::process::id()).is_some());
    }
}
