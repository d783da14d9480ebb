//! What was there before and what is there after: processes, mounts, links, network namespaces,
//! cgroups, leases and files. Owns the comparison; [`sweep`] ends what a failed test left, so that
//! it does not spoil the next. Called at the end of every kernel test and of the demo.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::poll::poll;
use crate::proc;

/// Where to look besides this process's own namespaces.
#[derive(Debug, Clone, Default)]
pub struct Scope {
    /// Cgroup folders whose path holds this text, in every hierarchy.
    pub cgroup_tag: String,
    /// Folders whose every file counts.
    pub folders: Vec<PathBuf>,
    /// The folder of host-local's networks: every file but its lock and last address counts.
    pub leases: PathBuf,
    /// Processes that are the node's own, and may be other ones after a restart.
    pub own: Vec<i32>,
    /// Links that may come and stay: a bridge outlives its pods by design.
    pub bridges: Vec<String>,
}

impl Scope {
    /// The node's two root cgroups, `/TAG` and `/TAG-monitors`, stay while the node does; what is
    /// below them is its pods'.
    fn is_nodes_own(&self, folder: &Path) -> bool {
        let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name == self.cgroup_tag || name.strip_suffix("-monitors") == Some(&self.cgroup_tag)
    }
}

/// Everything seen, one line for each thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    things: BTreeSet<String>,
}

impl Snapshot {
    /// Looks around.
    ///
    /// # Errors
    /// When /proc cannot be read.
    pub fn take(scope: &Scope) -> Result<Self> {
        let mut things = BTreeSet::new();
        let own = i32::try_from(std::process::id()).unwrap_or(0);
        let counts = |pid: i32| pid != own && !scope.own.contains(&pid);
        for process in proc::all()?.into_iter().filter(|process| counts(process.pid)) {
            things.insert(format!(
                "process {} {} state {} started {}",
                process.pid, process.name, process.state, process.start_time
            ));
        }
        for mount in mounts()? {
            things.insert(format!("mount {} {}", mount.kind, mount.point.display()));
        }
        for link in links()?.into_iter().filter(|link| !scope.bridges.contains(link)) {
            things.insert(format!("link {link}"));
        }
        for folder in
            tagged_cgroups(&scope.cgroup_tag)?.into_iter().filter(|folder| !scope.is_nodes_own(folder))
        {
            things.insert(format!("cgroup {}", folder.display()));
        }
        for folder in &scope.folders {
            files(folder, &mut |path| {
                things.insert(format!("file {}", path.display()));
            })?;
        }
        files(&scope.leases, &mut |path| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if path.is_file() && name != "lock" && !name.starts_with("last_reserved_ip") {
                things.insert(format!("lease {}", path.display()));
            }
        })?;
        Ok(Snapshot { things })
    }

    /// What stands in `later` and not here.
    #[must_use]
    pub fn added(&self, later: &Snapshot) -> Vec<String> {
        // A process that was there may have changed its state since.
        let known = |thing: &str| self.things.contains(thing) || self.same_process(thing);
        later.things.iter().filter(|thing| !known(thing)).cloned().collect()
    }

    fn same_process(&self, thing: &str) -> bool {
        let identity = |line: &str| -> Option<(String, String)> {
            let mut words = line.strip_prefix("process ")?.split(' ');
            Some((words.next()?.to_owned(), words.next_back()?.to_owned()))
        };
        let Some(wanted) = identity(thing) else { return false };
        self.things.iter().any(|known| identity(known).as_ref() == Some(&wanted))
    }

    /// Waits until nothing is left beyond this snapshot.
    ///
    /// # Errors
    /// After 15 s: lists what is left.
    pub fn await_clean(&self, scope: &Scope) -> Result<()> {
        poll("nothing to be left behind", Duration::from_secs(15), || {
            let now = Snapshot::take(scope).map_err(|error| format!("{error:#}"))?;
            let left = self.added(&now);
            if left.is_empty() { Ok(()) } else { Err(format!("left behind:\n  {}", left.join("\n  "))) }
        })
    }
}

/// A line of /proc/self/mountinfo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    pub point: PathBuf,
    pub kind: String,
    /// Options of the file system: for v1 cgroups, its controllers.
    pub options: String,
}

/// This mount namespace's mounts.
///
/// # Errors
/// Without /proc.
pub fn mounts() -> Result<Vec<Mount>> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").context("read /proc/self/mountinfo")?;
    Ok(text.lines().filter_map(parse_mount).collect())
}

/// `36 35 98:0 /root /point options [optional]... - kind source options`: proc_pid_mountinfo(5).
fn parse_mount(line: &str) -> Option<Mount> {
    let (head, tail) = line.split_once(" - ")?;
    let point = head.split(' ').nth(4)?.replace("\\040", " ");
    let mut tail = tail.split(' ');
    let kind = tail.next()?.to_owned();
    Some(Mount { point: point.into(), kind, options: tail.nth(1).unwrap_or_default().to_owned() })
}

/// The names of this network namespace's links. /sys/class/net would show those of the namespace
/// that /sys was mounted in; /proc/self/net follows the process.
///
/// # Errors
/// Without /proc.
pub fn links() -> Result<Vec<String>> {
    let text = std::fs::read_to_string("/proc/self/net/dev").context("read /proc/self/net/dev")?;
    Ok(text.lines().skip(2).filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned())).collect())
}

/// Cgroup folders whose path below their mount holds `tag`, parents first.
///
/// # Errors
/// Without /proc.
pub fn tagged_cgroups(tag: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    if tag.is_empty() {
        return Ok(found);
    }
    for mount in mounts()?.into_iter().filter(|mount| mount.kind.starts_with("cgroup")) {
        let at = mount.point.clone();
        files(&mount.point, &mut |path| {
            let below = path.strip_prefix(&at).unwrap_or(path).to_string_lossy().into_owned();
            if below.contains(tag) && path.is_dir() {
                found.push(path.to_owned());
            }
        })?;
    }
    Ok(found)
}

/// Every path below a folder, parents first; symbolic links are not followed. Things that vanish
/// meanwhile are left out.
fn files(folder: &Path, see: &mut dyn FnMut(&Path)) -> Result<()> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(()) };
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    for path in paths {
        see(&path);
        if path.symlink_metadata().is_ok_and(|meta| meta.is_dir()) {
            files(&path, see)?;
        }
    }
    Ok(())
}

/// Ends what is left in tagged cgroups, unmounts what is left below the folders, deletes the
/// bridges. For the end of a failed test: reports nothing, does what it can.
pub fn sweep(scope: &Scope, below: &Path) {
    for _ in 0..3 {
        let groups = tagged_cgroups(&scope.cgroup_tag).unwrap_or_default();
        for folder in groups.iter().rev() {
            let members = std::fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
            for pid in members.lines().filter_map(|line| line.parse().ok()) {
                // The next round sees those that could not be ended.
                let _ = proc::kill(pid);
            }
        }
        let empty = poll("the swept cgroups to go", Duration::from_secs(3), || {
            let left = tagged_cgroups(&scope.cgroup_tag).unwrap_or_default();
            for folder in left.iter().rev() {
                // Busy until its last process is gone; tried again until the deadline.
                let _ = std::fs::remove_dir(folder);
            }
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        });
        if empty.is_ok() {
            break;
        }
    }
    for mount in mounts().unwrap_or_default().iter().rev().filter(|mount| mount.point.starts_with(below)) {
        // The folder's removal fails, loudly, when this did.
        let _ = rustix::mount::unmount(&mount.point, rustix::mount::UnmountFlags::DETACH);
    }
    remove_bridges(&scope.bridges);
}

/// Removes a node's two root cgroups, `/TAG` and `/TAG-monitors`, in every hierarchy.
///
/// # Errors
/// When one is not empty, or /proc cannot be read.
pub fn remove_node_cgroups(tag: &str) -> Result<()> {
    for folder in tagged_cgroups(tag)?.iter().rev() {
        std::fs::remove_dir(folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    Ok(())
}

/// Deletes links by name; absent ones are fine.
pub fn remove_bridges(names: &[String]) {
    let present = links().unwrap_or_default();
    for name in names.iter().filter(|name| present.contains(name)) {
        // A bridge that stays shows in the next leak check.
        let _ = std::process::Command::new("ip").args(["link", "del", "dev", name]).status();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(things: &[&str]) -> Snapshot {
        Snapshot { things: things.iter().map(|&thing| thing.to_owned()).collect() }
    }

    #[test]
    fn tells_what_was_added_and_nothing_else() {
        let before = snapshot(&["process 7 sh state S started 99", "link lo"]);
        let after = snapshot(&["process 7 sh state R started 99", "link lo", "link veth1"]);
        assert_eq!(before.added(&after), ["link veth1"]);
        let reused = snapshot(&["process 7 sh state S started 120"]);
        assert_eq!(before.added(&reused), ["process 7 sh state S started 120"]);
    }

    #[test]
    fn reads_a_mountinfo_line() {
        let line = "38 31 0:35 / /sys/fs/cgroup/my\\040own rw,relatime shared:1 - cgroup cgroup rw,pids";
        let mount = parse_mount(line).unwrap();
        assert_eq!(mount.point, Path::new("/sys/fs/cgroup/my own"));
        assert_eq!((mount.kind.as_str(), mount.options.as_str()), ("cgroup", "rw,pids"));
    }

    #[test]
    fn sees_a_new_file_and_a_new_lease() {
        let folder = tempfile::tempdir().unwrap();
        let leases = folder.path().join("leases");
        std::fs::create_dir_all(leases.join("net")).unwrap();
        let scope = Scope { leases: leases.clone(), ..Scope::default() };
        let before = Snapshot::take(&scope).unwrap();
        std::fs::write(leases.join("net/lock"), "").unwrap();
        std::fs::write(leases.join("net/10.1.2.3"), "").unwrap();
        let added = before.added(&Snapshot::take(&scope).unwrap());
        let added: Vec<_> = added.iter().filter(|line| line.starts_with("lease")).collect();
        assert_eq!(added.len(), 1, "{added:?}");
        assert!(added[0].ends_with("net/10.1.2.3"));
    }
}
