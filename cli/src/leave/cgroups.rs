//! The cgroups that a kubelet keeps beyond its own end: `kubepods` with its classes, and below systemd the slices of
//! that name. Owns their removal, when nothing runs in them; never ends a process. Called by [`super::undo`].

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use gantry_systemd::Systemd;

const ROOT: &str = "/sys/fs/cgroup";
const NAMES: [&str; 2] = ["kubepods", "kubepods.slice"];

/// Removes them in each hierarchy; none is fine.
///
/// # Errors
/// When something runs in one, or it stays.
pub(super) fn remove() -> Result<()> {
    let found = list_cgroups(Path::new(ROOT));
    for folder in &found {
        let processes = processes(folder)?;
        ensure!(
            processes.is_empty(),
            "the processes {} run in {}: end them first",
            processes.join(", "),
            folder.display()
        );
    }
    if found.iter().any(|folder| folder.ends_with("kubepods.slice")) {
        // Its classes require it and end with it. Where systemd does not run, somebody else made the folder.
        match Systemd::default().stop("kubepods.slice") {
            Err(gantry_systemd::Error::Absent { .. }) => {}
            done => done.context("end kubepods.slice")?,
        }
    }
    found.iter().try_for_each(|folder| prune(folder))
}

/// In the root, and in those of version 1 below it.
fn list_cgroups(root: &Path) -> Vec<PathBuf> {
    let below = fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.path());
    // Links such as cpu -> cpu,cpuacct are the same folder again.
    let roots: Vec<PathBuf> = std::iter::once(root.to_owned())
        .chain(below.filter(|path| path.is_dir() && !path.is_symlink()))
        .collect();
    let named = roots.iter().flat_map(|root| NAMES.map(|name| root.join(name)));
    named.filter(|path| path.is_dir()).collect()
}

fn processes(folder: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for folder in tree(folder)? {
        let path = folder.join("cgroup.procs");
        match fs::read_to_string(&path) {
            Ok(text) => found.extend(text.lines().map(str::to_owned)),
            // It went meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("read {}", path.display())),
        }
    }
    Ok(found)
}

/// Inner ones first.
fn tree(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(all),
        entries => entries.with_context(|| format!("read {}", folder.display()))?,
    };
    for entry in entries {
        let path = entry.with_context(|| format!("read {}", folder.display()))?.path();
        if path.is_dir() && !path.is_symlink() {
            all.extend(tree(&path)?);
        }
    }
    all.push(folder.to_owned());
    Ok(all)
}

/// A cgroup is removed by rmdir, with its files.
fn prune(folder: &Path) -> Result<()> {
    for folder in tree(folder)? {
        match fs::remove_dir(&folder) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("remove the cgroup {}", folder.display()));
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_hierarchies_are_looked_at_and_each_once() {
        let root = tempfile::tempdir().unwrap();
        for path in
            ["kubepods/burstable/pod1", "cpu,cpuacct/kubepods", "unified/kubepods.slice", "memory/other"]
        {
            fs::create_dir_all(root.path().join(path)).unwrap();
        }
        std::os::unix::fs::symlink("cpu,cpuacct", root.path().join("cpu")).unwrap();
        let mut all = list_cgroups(root.path());
        all.sort();
        let names: Vec<_> =
            all.iter().map(|path| path.strip_prefix(root.path()).unwrap().to_owned()).collect();
        assert_eq!(names, ["cpu,cpuacct/kubepods", "kubepods", "unified/kubepods.slice"].map(PathBuf::from));
        all.iter().for_each(|folder| prune(folder).unwrap());
        assert_eq!(list_cgroups(root.path()), Vec::<PathBuf>::new());
        assert!(root.path().join("memory/other").is_dir());
        prune(&root.path().join("kubepods")).unwrap();
    }

    #[test]
    fn what_runs_is_found_in_the_depth() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("kubepods/besteffort/pod1");
        fs::create_dir_all(&inner).unwrap();
        fs::write(inner.join("cgroup.procs"), "12\n13\n").unwrap();
        assert_eq!(processes(&root.path().join("kubepods")).unwrap(), ["12", "13"]);
    }
}
