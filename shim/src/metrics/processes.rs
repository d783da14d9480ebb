//! What the processes of a container have open, from /proc. Owns how many are looked at: a container decides how many
//! there are, and must not decide how long a scrape takes. Called by `metrics`.

use std::fs;
use std::os::unix::ffi::OsStrExt;

use rustix::process::Pid;

use crate::store::record::Process;

/// Processes of one container that are counted.
pub(super) const MOST: usize = 4096;

/// Open files of one container that are looked at; with more there is no figure.
const MOST_FILES: u64 = 65_536;

/// Open files of some processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct OpenFiles {
    pub(super) files: u64,
    pub(super) sockets: u64,
}

/// None when there are too many to look at. A process that has ended meanwhile has none.
pub(super) fn open_files(pids: &[Pid]) -> Option<OpenFiles> {
    if pids.len() >= MOST {
        return None;
    }
    let mut open = OpenFiles::default();
    for pid in pids {
        let folder = format!("/proc/{}/fd", pid.as_raw_nonzero());
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            open.files += 1;
            if open.files > MOST_FILES {
                return None;
            }
            let target = fs::read_link(entry.path()).unwrap_or_default();
            open.sockets += u64::from(target.as_os_str().as_bytes().starts_with(b"socket:"));
        }
    }
    Some(open)
}

/// The soft limit of open files of this process and no other that has its number since.
pub(super) fn open_files_limit(process: Process) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{}/limits", process.pid)).ok()?;
    let ticks = gantry_monitor::monitor::start_time_ticks(process.pid).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    let soft = line.split_whitespace().next()?.parse().ok()?;
    (ticks == process.start_time_ticks).then_some(soft)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_sockets_of_a_process_are_counted() {
        let own = rustix::process::getpid();
        let before = open_files(&[own]).unwrap();
        let _pair = std::os::unix::net::UnixStream::pair().unwrap();
        let after = open_files(&[own]).unwrap();
        assert!(after.sockets >= before.sockets + 2, "{before:?} {after:?}");
        assert!(after.files >= after.sockets);
        assert_eq!(open_files(&[own; MOST]), None);
    }

    #[test]
    fn a_limit_is_of_the_process_itself() {
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        let start_time_ticks = gantry_monitor::monitor::start_time_ticks(pid).unwrap();
        let own = Process { pid, start_time_ticks };
        assert!(open_files_limit(own).unwrap() > 0);
        assert_eq!(open_files_limit(Process { start_time_ticks: start_time_ticks + 1, ..own }), None);
    }
}
