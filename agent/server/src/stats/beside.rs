//! Cgroups beside those of pods and containers: of daemons that a configuration names, with all below them, and of pods
//! together. Owns which ones they are; the numbers are [`super::machine`]'s. Called by [`crate::scrape`]. Blocks.

use std::path::{Path, PathBuf};

use super::machine::Machine;
use super::summary::ContainerStats;

/// A node of many services has a hundred; one that somebody fills with cgroups is still answered.
const MOST: usize = 512;

/// Where they begin.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Groups {
    /// The cgroup of all pods.
    pub pods: String,
    /// Of the kubelet, of the runtime and of the system; an empty one is none.
    pub daemons: Vec<String>,
}

impl Machine {
    /// Each once, with its path as its ID, by path. Pods are not among them, and the root is not: those have rows of
    /// their own. One that is not there is left out.
    pub(crate) fn beside_pods(&self, groups: &Groups) -> Vec<ContainerStats> {
        let Some(mount) = self.layout.mount_of("memory") else { return Vec::new() };
        let paths = paths(mount, groups);
        let told = |path: String| {
            let group = self.group("", &path)?;
            Some(ContainerStats { id: path, ..group })
        };
        paths.into_iter().filter_map(told).collect()
    }
}

fn paths(mount: &Path, groups: &Groups) -> Vec<String> {
    let pods = groups.pods.trim_matches('/');
    let mut found = vec![PathBuf::from(pods)];
    found.extend(below(mount, Path::new(pods)).into_iter().filter(|path| is_class(path)));
    let daemons = groups.daemons.iter().map(|path| PathBuf::from(path.trim_matches('/')));
    let mut open: Vec<PathBuf> = daemons.filter(|path| !path.as_os_str().is_empty()).collect();
    // Nearer ones first: they are kept where there are too many.
    let mut next = 0;
    while let Some(path) = open.get(next).cloned().filter(|_| next < MOST) {
        next += 1;
        if !path.starts_with(pods) {
            open.extend(below(mount, &path));
            found.push(path);
        }
    }
    found.retain(|path| !path.as_os_str().is_empty());
    found.sort();
    found.dedup();
    found.into_iter().map(|path| format!("/{}", path.display())).collect()
}

/// `burstable` and `kubepods-burstable.slice`, not a pod's.
fn is_class(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let stem = name.strip_suffix(".slice").unwrap_or(&name);
    ["burstable", "besteffort"].contains(&stem.rsplit('-').next().unwrap_or_default())
}

fn below(mount: &Path, path: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(mount.join(path)).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.map(|entry| path.join(entry.file_name())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(folders: &[&str], pods: &str, daemons: &[&str]) -> Vec<String> {
        let mount = tempfile::tempdir().unwrap();
        for folder in folders {
            std::fs::create_dir_all(mount.path().join(folder)).unwrap();
        }
        let daemons = daemons.iter().map(|path| (*path).to_owned()).collect();
        paths(mount.path(), &Groups { pods: pods.to_owned(), daemons })
    }

    #[test]
    fn services_and_classes_have_rows_and_pods_have_their_own() {
        let folders = [
            "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podu.slice/cri-c.scope",
            "kubepods.slice/kubepods-podv.slice",
            "system.slice/kubelet.service",
            "system.slice/ssh.service/inner",
            "user.slice",
        ];
        let kubelet = "/system.slice/kubelet.service";
        let of_pods = ["/kubepods.slice", "/kubepods.slice/kubepods-burstable.slice"];
        assert_eq!(told(&folders, "/kubepods.slice", &[kubelet, "", ""]), [of_pods[0], of_pods[1], kubelet]);
        let all = told(&folders, "/kubepods.slice", &[kubelet, "", "/system.slice/"]);
        let system =
            ["/system.slice", kubelet, "/system.slice/ssh.service", "/system.slice/ssh.service/inner"];
        assert_eq!(all, [&of_pods[..], &system].concat());
        // A kubelet in the root cgroup: everything else would be below it.
        assert_eq!(told(&folders, "/kubepods.slice", &["/"]), of_pods);
    }

    #[test]
    fn a_cgroup_that_somebody_fills_is_told_in_part() {
        let many: Vec<String> = (0..2 * MOST).map(|number| format!("s/{number}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let all = told(&many, "/kubepods", &["/s"]);
        assert_eq!(all.len(), MOST + 1);
        assert!(all.contains(&"/s".to_owned()) && all.contains(&"/kubepods".to_owned()));
    }

    #[test]
    fn one_that_is_not_there_has_no_row() {
        let machine = Machine::new().unwrap();
        let daemons = vec!["/no/such/service".to_owned()];
        let groups = Groups { pods: "/no/such/pods".to_owned(), daemons };
        assert_eq!(machine.beside_pods(&groups), []);
    }
}
