//! Who holds a lock of flock(2), for an error that names the process in the way. Owns the look at `/proc`; takes no
//! lock and waits for none. Called by whoever was refused one.

use std::fmt;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;

/// Letters of a command line that are shown.
const SHOWN: usize = 80;

/// Whose lock it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockHolder {
    /// It has just gone, is of another process namespace, or only root may see what it has open.
    Unknown,
    /// A process that runs.
    Process {
        /// Its id, in this process's namespace.
        pid: u32,
        /// What was typed to start it, on one line; empty when it cannot be read.
        command: String,
    },
}

impl fmt::Display for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("another process"),
            Self::Process { pid, command } if command.is_empty() => write!(f, "process {pid}"),
            Self::Process { pid, command } => write!(f, "process {pid} (`{command}`)"),
        }
    }
}

/// The process that took the lock on this file.
#[must_use]
pub fn holder(file: &File) -> LockHolder {
    find(file).unwrap_or(LockHolder::Unknown)
}

fn find(file: &File) -> Option<LockHolder> {
    let own = file.metadata().ok()?;
    let locks = fs::read_to_string("/proc/locks").ok()?;
    // Of two file systems with one inode number each, the process has only one open. Devices are not compared: btrfs
    // and overlayfs show stat(2) another one than /proc/locks.
    let has_open = |pid: &u32| {
        let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
        let same = |meta: fs::Metadata| (meta.dev(), meta.ino()) == (own.dev(), own.ino());
        entries.flatten().any(|entry| fs::metadata(entry.path()).is_ok_and(same))
    };
    let pid = pids(&locks, own.ino()).find(has_open)?;
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    Some(LockHolder::Process { pid, command: shown(&command) })
}

/// Who holds a lock of flock(2) on an inode of this number, by the table `/proc/locks` (proc_locks(5)).
fn pids(locks: &str, inode: u64) -> impl Iterator<Item = u32> {
    locks.lines().filter_map(move |line| {
        // `2: FLOCK  ADVISORY  WRITE 4711 08:01:131 0 EOF`; one who waits has `->` before its kind.
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, pid, file, ..] = words.as_slice() else { return None };
        let is_it = file.rsplit(':').next()?.parse() == Ok(inode);
        // 0 is a process that this namespace does not have.
        pid.parse().ok().filter(|pid| is_it && *pid > 0)
    })
}

/// Words with spaces between them, and nothing that would change a terminal.
fn shown(command: &[u8]) -> String {
    let text = String::from_utf8_lossy(command);
    let words = text.trim_end_matches('\0');
    let mut line: String = words.chars().map(|c| if c.is_control() { ' ' } else { c }).take(SHOWN).collect();
    if words.chars().count() > SHOWN {
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_of_a_lock_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let (held, other) =
            (File::create(&path).unwrap(), File::create(folder.path().join("other")).unwrap());
        assert_eq!(holder(&held), LockHolder::Unknown, "nobody holds it");
        held.lock().unwrap();
        let asked = File::open(&path).unwrap();
        let own = shown(&fs::read("/proc/self/cmdline").unwrap());
        assert!(!own.is_empty());
        assert_eq!(holder(&asked), LockHolder::Process { pid: std::process::id(), command: own });
        assert_eq!(holder(&other), LockHolder::Unknown);
        drop(held);
        assert_eq!(holder(&asked), LockHolder::Unknown);
    }

    #[test]
    fn who_waits_and_other_kinds_of_locks_are_passed_over() {
        let table = "\
1: POSIX  ADVISORY  WRITE 10 08:01:77 0 EOF
2: FLOCK  ADVISORY  WRITE 11 00:2f:770 0 EOF
3: FLOCK  ADVISORY  WRITE 12 00:2f:77 0 EOF
3: -> FLOCK  ADVISORY  WRITE 13 00:2f:77 0 EOF
4: FLOCK  ADVISORY  READ  14 08:01:77 0 EOF
5: FLOCK  ADVISORY  WRITE 0 08:02:77 0 EOF
";
        assert_eq!(pids(table, 77).collect::<Vec<_>>(), [12, 14]);
    }

    #[test]
    fn a_command_line_is_one_short_line() {
        assert_eq!(shown(b"gantry\0pull\0a\x1b[2J\nb\0"), "gantry pull a [2J b");
        assert_eq!(shown("ä".repeat(81).as_bytes()), "ä".repeat(80) + "…");
        let of = |command: &str| LockHolder::Process { pid: 7, command: command.into() }.to_string();
        assert_eq!(of("gantry pull web"), "process 7 (`gantry pull web`)");
        assert_eq!(of(""), "process 7");
        assert_eq!(LockHolder::Unknown.to_string(), "another process");
    }
}
