//! What was there before and what is there after: processes, and in every namespace of theirs
//! mounts, links and nftables rules; cgroups, leases and files. Owns the comparison; [`sweep`] ends
//! what a failed test left, so that it does not spoil the next. Called at the end of every kernel
//! test, of the demo, and by `cargo xtask leakcheck` around whole tiers. What stays by design:
//! docs/leakcheck.md.

mod cgroups;
mod mounts;
mod network;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::io::Errno;

pub use self::cgroups::{HARNESS, remove_node_cgroups, tagged_cgroups};
pub use self::mounts::{Mount, mounts};
pub use self::network::links;
use crate::poll::poll;
use crate::proc;

/// Where to look besides this process's own namespaces.
#[derive(Debug, Clone, Default)]
pub struct Scope {
    /// Cgroup folders whose path holds this text, in every hierarchy.
    pub cgroup_tag: String,
    /// Every cgroup but the tests' own counts: for a place whose hierarchies are its own.
    pub every_cgroup: bool,
    /// Folders whose every file counts.
    pub folders: Vec<PathBuf>,
    /// The folder of host-local's networks: every file but its lock and last address counts.
    pub leases: PathBuf,
    /// Processes that are the node's own, and may be other ones after a restart.
    pub own: Vec<i32>,
    /// Links that may come and stay: a bridge outlives its pods by design.
    pub bridges: Vec<String>,
    /// Lines of the ruleset that may come and stay, by how they begin: `table ip cni_x`.
    pub rules: Vec<String>,
}

impl Scope {
    /// The node's two root cgroups, `/TAG` (or `/TAG.slice`) and `/TAG-monitors`, stay while the node does; what is
    /// below them is its pods'.
    fn is_nodes_own(&self, folder: &Path) -> bool {
        let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let own = name.strip_suffix("-monitors").or_else(|| name.strip_suffix(".slice")).unwrap_or(name);
        own == self.cgroup_tag
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
        add_mounts(&mut things)?;
        add_networks(scope, &mut things)?;
        let tagged = tagged_cgroups(&scope.cgroup_tag)?;
        let groups = if scope.every_cgroup { cgroups::all()? } else { tagged };
        for folder in groups.into_iter().filter(|folder| !scope.is_nodes_own(folder)) {
            things.insert(format!("cgroup {}", folder.display()));
        }
        for folder in &scope.folders {
            files(folder, &mut |path| {
                things.insert(format!("file {}", path.display()));
            })?;
        }
        add_leases(scope, &mut things)?;
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

fn add_mounts(things: &mut BTreeSet<String>) -> Result<()> {
    let line = |mount: &Mount| format!("{} {}", mount.kind, mount.point.display());
    for mount in mounts()? {
        add_another(things, &format!("mount {}", line(&mount)));
    }
    for (name, list) in mounts::elsewhere()? {
        for mount in list {
            add_another(things, &format!("mount of {name} {}", line(&mount)));
        }
    }
    Ok(())
}

/// Of equal things, as one mount over another, each counts.
fn add_another(things: &mut BTreeSet<String>, thing: &str) {
    let mut numbered = thing.to_owned();
    let mut number = 1;
    while !things.insert(numbered) {
        number += 1;
        numbered = format!("{thing} #{number}");
    }
}

fn add_networks(scope: &Scope, things: &mut BTreeSet<String>) -> Result<()> {
    let may_stay = |line: &String| scope.rules.iter().any(|rule| line.starts_with(rule));
    let own = network::here()?;
    let links = own.links.into_iter().filter(|link| !scope.bridges.contains(link));
    things.extend(links.map(|link| format!("link {link}")));
    let rules = own.rules.into_iter().filter(|line| !may_stay(line));
    things.extend(rules.map(|line| format!("nft {line}")));
    for (name, other) in network::elsewhere()? {
        things.extend(other.links.iter().map(|link| format!("link of {name} {link}")));
        things.extend(other.rules.iter().map(|line| format!("nft of {name} {line}")));
    }
    Ok(())
}

fn add_leases(scope: &Scope, things: &mut BTreeSet<String>) -> Result<()> {
    files(&scope.leases, &mut |path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_file() && name != "lock" && !name.starts_with("last_reserved_ip") {
            things.insert(format!("lease {}", path.display()));
        }
    })
}

/// Every path below a folder, parents first; symbolic links are not followed. Things that vanish
/// meanwhile are left out; what cannot be looked into is an error, for a leak could hide there.
fn files(folder: &Path, see: &mut dyn FnMut(&Path)) -> Result<()> {
    let at = |path: &Path| format!("look into {}", path.display());
    let Some(entries) = there(std::fs::read_dir(folder)).with_context(|| at(folder))? else {
        return Ok(());
    };
    let mut paths: Vec<PathBuf> = Vec::new();
    for entry in entries {
        paths.extend(there(entry).with_context(|| at(folder))?.map(|entry| entry.path()));
    }
    paths.sort();
    for path in paths {
        see(&path);
        let meta = there(path.symlink_metadata()).with_context(|| at(&path))?;
        if meta.is_some_and(|meta| meta.is_dir()) {
            files(&path, see)?;
        }
    }
    Ok(())
}

/// None for what has gone, which the file systems of cgroups call ENODEV.
fn there<T>(looked: io::Result<T>) -> io::Result<Option<T>> {
    match looked {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => Ok(None),
        Err(error) => Err(error),
    }
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
    fn what_cannot_be_looked_into_is_no_empty_folder() {
        let folder = tempfile::tempdir().unwrap();
        let mut seen = Vec::new();
        files(&folder.path().join("none"), &mut |path| seen.push(path.to_owned())).unwrap();
        assert_eq!(seen, Vec::<PathBuf>::new());
        std::fs::write(folder.path().join("file"), "").unwrap();
        let error = files(&folder.path().join("file"), &mut |_| {}).unwrap_err();
        assert!(
            error.to_string().starts_with("look into ") && error.to_string().ends_with("/file"),
            "{error}"
        );
    }

    #[test]
    fn a_lease_counts_and_what_host_local_keeps_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let leases = folder.path().join("leases");
        std::fs::create_dir_all(leases.join("net")).unwrap();
        let scope = Scope { leases: leases.clone(), ..Scope::default() };
        for name in ["lock", "last_reserved_ip.0", "10.1.2.3"] {
            std::fs::write(leases.join("net").join(name), "").unwrap();
        }
        let mut things = BTreeSet::new();
        add_leases(&scope, &mut things).unwrap();
        let expected = format!("lease {}", leases.join("net/10.1.2.3").display());
        assert_eq!(things.into_iter().collect::<Vec<_>>(), [expected]);
    }
}
