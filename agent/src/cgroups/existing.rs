//! Cgroups that others made and live in: whether one is there with all that the kubelet counts on, and its limits.
//! Owns upstream's words for what is missing or does not fit; never makes one. Called by [`super::tree`].

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use gantry_cgroup::{Hierarchy, Layout};
use gantry_model::cgroup::Reserved;
use gantry_model::cgroup::limits::CgroupFile;

use super::tree::{set, write_file};

/// What upstream looks for, where the node has it.
const CONTROLLERS: [&str; 5] = ["cpu", "cpuset", "hugetlb", "memory", "pids"];
/// The same of v1.
const HIERARCHIES: [&str; 7] = ["cpu", "cpuacct", "cpuset", "hugetlb", "memory", "name=systemd", "pids"];
const MEMORY_V1: &str = "memory.limit_in_bytes";

/// `steps` are for the words.
///
/// # Errors
/// When it is not there, or some controller of it.
pub(super) fn check(layout: &Layout, path: &Path, steps: &[&str]) -> Result<(), String> {
    let name = in_go(steps);
    match layout {
        Layout::Unified { mount } => {
            let file = mount.join(path).join("cgroup.controllers");
            let has = fs::read_to_string(&file).map_err(|error| {
                format!("could not read controllers for cgroup {name}: open {}: {error}", file.display())
            })?;
            let root = fs::read_to_string(mount.join("cgroup.controllers")).unwrap_or_default();
            let listed = |list: &str, one: &str| list.split_whitespace().any(|other| other == one);
            let wanted = CONTROLLERS.into_iter().filter(|one| listed(&root, one));
            let missing: Vec<&str> = wanted.filter(|one| !listed(&has, one)).collect();
            if missing.is_empty() {
                return Ok(());
            }
            Err(format!("cgroup {name} has some missing controllers: {}", missing.join(", ")))
        }
        Layout::Legacy { hierarchies } => {
            let ours = |one: &&Hierarchy| HIERARCHIES.iter().any(|controller| one.has(controller));
            let folders = hierarchies.iter().filter(ours).map(|one| one.mount.join(path));
            let missing: Vec<String> = folders
                .filter(|folder| !folder.is_dir())
                .map(|folder| folder.display().to_string())
                .collect();
            if missing.is_empty() {
                return Ok(());
            }
            Err(format!("cgroup {name} has some missing paths: {}", missing.join(", ")))
        }
    }
}

/// Writes the limits of one that is there.
///
/// # Errors
/// The first file that does not take its value.
pub(super) fn hold(layout: &Layout, path: &Path, to: Reserved) -> Result<(), String> {
    let files = if layout.is_unified() { to.v2() } else { to.v1() };
    files.iter().try_for_each(|held| match layout.mount_of(held.controller) {
        Some(mount) if held.file == MEMORY_V1 => limit_memory_v1(&mount.join(path), held),
        Some(mount) => set(&mount.join(path).join(&held.file), &held.value),
        None if held.is_optional() => Ok(()),
        None => Err(format!("no cgroup file system has the controller {}: mount it", held.controller)),
    })
}

/// v1 refuses a limit below what is in use and cannot be reclaimed.
fn limit_memory_v1(folder: &Path, held: &CgroupFile) -> Result<(), String> {
    let file = folder.join(&held.file);
    match write_file(&file, &held.value) {
        Err(error) if error.kind() == ErrorKind::ResourceBusy => {
            let number = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
            Err(format!(
                "unable to set memory limit to {} (current usage: {}, peak usage: {})",
                held.value,
                number("memory.usage_in_bytes").trim(),
                number("memory.max_usage_in_bytes").trim(),
            ))
        }
        _ => set(&file, &held.value),
    }
}

/// v2 takes such a limit: the kernel ends processes then, the kubelet perhaps. Upstream writes it all the same.
pub(super) fn warn_if_tight(layout: &Layout, path: &Path, to: Reserved) {
    let (Layout::Unified { mount }, Some(limit)) = (layout, to.held_to().memory) else { return };
    let stat = fs::read_to_string(mount.join(path).join("memory.stat")).unwrap_or_default();
    if let Some(used) = more_than(&stat, limit) {
        let cgroup = path.display();
        tracing::warn!(
            %cgroup, used, limit,
            "the memory that is reserved for a cgroup of daemons is less than they use: the kernel will end some"
        );
    }
}

/// What cannot be reclaimed without swap, when it is more than the limit.
fn more_than(stat: &str, limit: i64) -> Option<i64> {
    let used: i64 = stat.lines().find_map(|line| line.strip_prefix("anon "))?.trim().parse().ok()?;
    (used > limit).then_some(used)
}

/// As Go prints a list of texts by %q.
pub(super) fn in_go(steps: &[&str]) -> String {
    let parts: Vec<String> = steps.iter().map(|step| format!("{step:?}")).collect();
    format!("[{}]", parts.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_that_is_not_there_or_lacks_a_controller_is_told_as_upstream_tells_it() {
        let folder = tempfile::tempdir().unwrap();
        let mount = folder.path().to_owned();
        fs::create_dir_all(mount.join("system")).unwrap();
        fs::write(mount.join("cgroup.controllers"), "cpuset cpu io memory pids\n").unwrap();
        fs::write(mount.join("system/cgroup.controllers"), "cpu io memory\n").unwrap();
        let layout = Layout::Unified { mount: mount.clone() };
        assert_eq!(
            check(&layout, Path::new("system"), &["system"]).unwrap_err(),
            "cgroup [\"system\"] has some missing controllers: cpuset, pids"
        );
        fs::write(mount.join("system/cgroup.controllers"), "cpuset cpu io memory pids\n").unwrap();
        check(&layout, Path::new("system"), &["system"]).unwrap();
        let missing = check(&layout, Path::new("a/b"), &["a", "b"]).unwrap_err();
        let file = mount.join("a/b/cgroup.controllers");
        let words = format!("could not read controllers for cgroup [\"a\" \"b\"]: open {}: ", file.display());
        assert!(missing.starts_with(&words), "{missing}");
    }

    #[test]
    fn on_v1_it_is_there_in_each_hierarchy_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let of =
            |options: &str| Hierarchy { options: options.to_owned(), mount: folder.path().join(options) };
        let hierarchies = ["cpu,cpuacct", "memory", "name=systemd", "blkio", ""].map(of).to_vec();
        let layout = Layout::Legacy { hierarchies };
        for made in ["cpu,cpuacct/daemons", "memory/daemons"] {
            fs::create_dir_all(folder.path().join(made)).unwrap();
        }
        let missing = folder.path().join("name=systemd/daemons");
        assert_eq!(
            check(&layout, Path::new("daemons"), &["daemons"]).unwrap_err(),
            format!("cgroup [\"daemons\"] has some missing paths: {}", missing.display())
        );
        fs::create_dir_all(missing).unwrap();
        check(&layout, Path::new("daemons"), &["daemons"]).unwrap();
    }

    #[test]
    fn only_what_is_reserved_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let mount = folder.path().to_owned();
        fs::create_dir(mount.join("d")).unwrap();
        let read = |name: &str| fs::read_to_string(mount.join("d").join(name)).unwrap();
        for name in ["cpu.weight", "memory.max", "pids.max"] {
            fs::write(mount.join("d").join(name), "").unwrap();
        }
        let layout = Layout::Unified { mount: mount.clone() };
        hold(&layout, Path::new("d"), Reserved { pids: Some(7), memory: Some(4096), cpu: None }).unwrap();
        assert_eq!(
            (read("cpu.weight"), read("memory.max"), read("pids.max")),
            ("".into(), "4096".into(), "7".into())
        );
        let told =
            hold(&layout, Path::new("e"), Reserved { pids: Some(7), ..Reserved::default() }).unwrap_err();
        assert!(told.contains("/e/pids.max: No such file"), "{told}");
    }

    /// Issue 25, card F13: the kubelet itself is ended in a cgroup that is too small for it.
    #[test]
    fn a_limit_below_what_daemons_use_is_told() {
        let stat = "anon 4096\nfile 8192\nanon_thp 0\n";
        assert_eq!(more_than(stat, 4095), Some(4096));
        assert_eq!(more_than(stat, 4096), None, "the rest is given back");
        assert_eq!(more_than("", 1), None);
    }
}
