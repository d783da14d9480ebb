//! Mounts that CDI files describe and CRI cannot: a tmpfs, a source without what is mounted below it, and
//! attributes of a mount. Called by `init::mounts`.

use std::os::fd::{AsFd, OwnedFd};

use gantry_proto::monitor::{Mount, Tmpfs};
use rustix::mount::MountAttrFlags;

use super::{StepContext, StepError, mounts};
use gantry_sys as sys;

/// What is mounted: a copy of the host's tree, or a new tmpfs.
pub(super) fn source(mount: &Mount) -> Result<OwnedFd, StepError> {
    match &mount.tmpfs {
        Some(tmpfs) => new_tmpfs(tmpfs),
        None => mounts::copy_tree(&mount.source, !mount.single),
    }
}

fn new_tmpfs(tmpfs: &Tmpfs) -> Result<OwnedFd, StepError> {
    let options: Vec<(&str, &str)> =
        tmpfs.options.iter().map(|option| option.split_once('=').unwrap_or((option, ""))).collect();
    mounts::new_filesystem("tmpfs", &options, MountAttrFlags::empty())
}

/// Sets what is asked for besides read-only.
pub(super) fn attributes(mount: &Mount, tree: &OwnedFd) -> Result<(), StepError> {
    for (set, recursive) in [(mount.attributes, false), (mount.recursive_attributes, true)] {
        if set != 0 {
            sys::mount::set_attributes(tree.as_fd(), set, recursive)
                .step(|| format!("set the mount attributes {set:#x} of {}", mount.destination))?;
        }
    }
    Ok(())
}
