//! Mounts, in every mount namespace that a process here lives in. Owns the reading of mountinfo;
//! never mounts. Called by `leakcheck` and by tests.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::proc;

/// A line of a mountinfo file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    pub point: PathBuf,
    pub kind: String,
    /// What of the file system is mounted: for a namespace, its name.
    pub root: String,
    /// Options of the file system: for v1 cgroups, its controllers.
    pub options: String,
}

/// This mount namespace's mounts.
///
/// # Errors
/// Without /proc.
pub fn mounts() -> Result<Vec<Mount>> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").context("read /proc/self/mountinfo")?;
    Ok(parse(&text))
}

/// The mounts of the other mount namespaces in use here, by the namespace's name.
pub(super) fn elsewhere() -> Result<BTreeMap<String, Vec<Mount>>> {
    let own = std::fs::read_link("/proc/self/ns/mnt").context("read /proc/self/ns/mnt")?;
    let mut found = BTreeMap::new();
    for process in proc::all()? {
        let folder = proc::folder(process.pid);
        // A process that ends meanwhile takes its namespace along, or another one shows it.
        let Ok(name) = std::fs::read_link(folder.join("ns/mnt")) else { continue };
        let key = name.to_string_lossy().into_owned();
        if name == own || found.contains_key(&key) {
            continue;
        }
        if let Ok(text) = std::fs::read_to_string(folder.join("mountinfo")) {
            found.insert(key, parse(&text));
        }
    }
    Ok(found)
}

fn parse(text: &str) -> Vec<Mount> {
    text.lines().filter_map(parse_mount).collect()
}

/// `36 35 98:0 /root /point options [optional]... - kind source options`: proc_pid_mountinfo(5).
fn parse_mount(line: &str) -> Option<Mount> {
    let (head, tail) = line.split_once(" - ")?;
    let mut head = head.split(' ').skip(3);
    let root = head.next()?.to_owned();
    let point = head.next()?.replace("\\040", " ").into();
    let mut tail = tail.split(' ');
    let kind = tail.next()?.to_owned();
    Some(Mount { point, kind, root, options: tail.nth(1).unwrap_or_default().to_owned() })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn reads_a_mountinfo_line() {
        let line = "38 31 0:35 / /sys/fs/cgroup/my\\040own rw,relatime shared:1 - cgroup cgroup rw,pids";
        let mount = parse_mount(line).unwrap();
        assert_eq!(mount.point, Path::new("/sys/fs/cgroup/my own"));
        assert_eq!((mount.kind.as_str(), mount.options.as_str()), ("cgroup", "rw,pids"));
        let line = "90 31 0:4 net:[4026532] /run/netns/x rw shared:9 - nsfs nsfs rw";
        assert_eq!(parse_mount(line).unwrap().root, "net:[4026532]");
    }
}
