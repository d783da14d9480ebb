//! Which part of the cgroup tree a container sees below /sys/fs/cgroup, and in /proc/PID/cgroup. Owns the choice
//! and the mounts; the folders are made by the runtime. Called by `init::container` and, for the choice, by
//! `monitor::spawn` and `container::bundle`.

#![expect(clippy::disallowed_methods, reason = "a file of the kernel's")]

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use gantry_proto::monitor::{CgroupTarget, StartContainer};
use rustix::fs::ResolveFlags;
use rustix::mount::{MountAttrFlags, MountPropagationFlags};

use super::mounts::{PROTECTED, attach, copy_tree, new_filesystem, target};
use super::{StepContext, StepError};
use gantry_sys as sys;

/// As containerd has it:
///
/// ```text
///             │ cgroup v2                              │ v1
/// ────────────┼────────────────────────────────────────┼──────────────────────────────────────
///  privileged │ Node: no namespace, the whole tree     │ Folders: no namespace, its own folders
///  others     │ Own:  a namespace rooted at its folder │ Folders
/// ```
///
/// With users of the pod's own it is always `Own`: what is not theirs they could not mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    /// A cgroup namespace, and file systems mounted in it.
    Own,
    /// The node's tree.
    Node,
    /// Its folder of each hierarchy, by the node's names.
    Folders,
}

impl View {
    /// That of a container.
    #[must_use]
    pub fn of(start: &StartContainer) -> Self {
        match &start.cgroup {
            _ if start.users.is_some() => Self::Own,
            Some(cgroup) if !cgroup.unified => Self::Folders,
            // An older runtime does not say where the tree is.
            Some(cgroup) if start.privileged && !cgroup.mount.is_empty() => Self::Node,
            _ => Self::Own,
        }
    }
}

/// v2 put the child there at clone; v1 has one folder for each hierarchy.
pub(super) fn enter(target: Option<&CgroupTarget>) -> Result<(), StepError> {
    let Some(target) = target.filter(|target| !target.unified) else { return Ok(()) };
    for folder in &target.folders {
        fs::write(format!("{folder}/cgroup.procs"), "0").step(|| format!("enter the cgroup {folder}"))?;
    }
    Ok(())
}

/// Mounts the view on /sys/fs/cgroup of `root`.
pub(super) fn mount(
    root: BorrowedFd<'_>,
    cgroup: &CgroupTarget,
    view: View,
    attributes: MountAttrFlags,
) -> Result<(), StepError> {
    // The folder exists in every sysfs; on v1 it gets a tmpfs with one folder per hierarchy.
    let place = target(root, "/sys/fs/cgroup", true, ResolveFlags::NO_SYMLINKS)?;
    if view == View::Node {
        return show(&cgroup.mount, &place, "/sys/fs/cgroup", attributes);
    }
    if cgroup.unified {
        let mount = new_filesystem("cgroup2", &[], attributes)?;
        return attach(mount.as_fd(), place.as_fd(), "/sys/fs/cgroup");
    }
    let top = new_filesystem("tmpfs", &[("mode", "755")], PROTECTED)?;
    attach(top.as_fd(), place.as_fd(), "/sys/fs/cgroup")?;
    for (hierarchy, folder) in cgroup.hierarchies.iter().zip(&cgroup.folders) {
        let name = hierarchy.strip_prefix("name=").unwrap_or(hierarchy);
        let path = format!("/sys/fs/cgroup/{name}");
        let place = target(root, &path, true, ResolveFlags::NO_SYMLINKS)?;
        if view == View::Folders {
            show(folder, &place, &path, attributes)?;
        } else {
            let options: Vec<(&str, &str)> =
                hierarchy.split(',').map(|option| option.split_once('=').unwrap_or((option, ""))).collect();
            let mount = new_filesystem("cgroup", &options, attributes)?;
            attach(mount.as_fd(), place.as_fd(), &path)?;
        }
        let folder = target(root, "/sys/fs/cgroup", false, ResolveFlags::NO_SYMLINKS)?;
        for controller in together(name) {
            rustix::fs::symlinkat(name, &folder, controller)
                .step(|| format!("make /sys/fs/cgroup/{controller}"))?;
        }
    }
    Ok(())
}

/// The controllers of a v1 hierarchy that has several, as `cpu,cpuacct`: programs look for each by its own name.
fn together(hierarchy: &str) -> impl Iterator<Item = &str> {
    hierarchy.split(',').filter(move |controller| *controller != hierarchy)
}

/// A folder of the node's tree. A copy of the node's mount, never another mount of cgroup2: made outside of
/// a cgroup namespace that would set the options of the one superblock, and take nsdelegate and
/// memory_recursiveprot from the whole node. (containerd has the new mount repeat the old one's options.)
fn show(folder: &str, place: &OwnedFd, path: &str, attributes: MountAttrFlags) -> Result<(), StepError> {
    let copy = copy_tree(folder, false)?;
    sys::mount::set_attributes(copy.as_fd(), attributes.bits().into(), false)
        .step(|| format!("protect the mount of {path}"))?;
    attach(copy.as_fd(), place.as_fd(), path)?;
    let own = format!("/proc/self/fd/{}", copy.as_raw_fd());
    rustix::mount::mount_change(own.as_str(), MountPropagationFlags::PRIVATE)
        .step(|| format!("make the mount of {path} private"))
}

#[cfg(test)]
mod tests {
    use gantry_proto::monitor::UserMapping;

    use super::*;

    #[test]
    fn only_a_privileged_container_on_v2_sees_the_nodes_tree() {
        let target = |unified: bool, mount: &str| {
            Some(CgroupTarget { unified, mount: mount.into(), ..CgroupTarget::default() })
        };
        let with = |privileged, cgroup, users| {
            View::of(&StartContainer { privileged, cgroup, users, ..StartContainer::default() })
        };
        let v2 = || target(true, "/sys/fs/cgroup");
        assert_eq!(with(true, v2(), None), View::Node);
        assert_eq!(with(false, v2(), None), View::Own);
        assert_eq!(with(true, v2(), Some(UserMapping::default())), View::Own);
        assert_eq!(with(true, target(true, ""), None), View::Own);
        for privileged in [true, false] {
            assert_eq!(with(privileged, target(false, ""), None), View::Folders);
            assert_eq!(with(privileged, target(false, ""), Some(UserMapping::default())), View::Own);
        }
    }
}
