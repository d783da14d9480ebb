//! The container's root: overlay of the image's layers, and the way into it. Mounted only inside
//! the container's own mount namespace, so that nothing can leak into the host's table
//! (runtime-traps §6). Called by `init::container`.

use std::os::fd::{AsFd, OwnedFd};

use gantry_proto::monitor::Rootfs;
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};

use super::{StepContext, StepError, lsm, mounts, overlay};
use gantry_sys as sys;

/// With an upper: the last unmount happens in the exit path, where a sync would stall it (P6), and an upper
/// is never used twice.
const UPPER_OPTION: &str = "volatile";

/// Makes the mount namespace the child's own: what the host mounts still arrives, nothing goes back.
pub(super) fn detach_from_host() -> Result<(), StepError> {
    rustix::mount::mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
        .step(|| "make the mount namespace a slave of the host's".into())
}

/// Mounts the overlay on `rootfs.target` and returns the new root as an O_PATH descriptor.
pub(super) fn mount(rootfs: &Rootfs, mount_label: &str) -> Result<OwnedFd, StepError> {
    // The names of the layers are relative, to keep the options short.
    rustix::process::chdir(rootfs.layers_dir.as_str())
        .step(|| format!("enter the folder of layers {}", rootfs.layers_dir))?;
    let mut options = vec![("upperdir", rootfs.upper.as_str()), ("workdir", rootfs.work.as_str())];
    options.extend(overlay::OPTIONS);
    options.push((UPPER_OPTION, ""));
    options.extend(lsm::context(mount_label));
    overlay::mount(&rootfs.lower, &options, MountFlags::empty(), &rootfs.target)?;
    folder(&rootfs.target)
}

fn folder(path: &str) -> Result<OwnedFd, StepError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::open(path, flags, Mode::empty()).step(|| format!("open the folder {path}"))
}

/// Has the files of all layers be those of the pod's users, in this mount namespace: overlays that are
/// mounted later find them so (Linux 5.19; runtime-traps 1.4).
pub(super) fn map_layers(layers_dir: &str, users: &OwnedFd) -> Result<(), StepError> {
    let mapped = mounts::copy_tree(layers_dir, false)?;
    sys::mount::map_owners(mapped.as_fd(), users.as_fd())
        .step(|| format!("map the owners of the layers in {layers_dir}"))?;
    mounts::attach(mapped.as_fd(), folder(layers_dir)?.as_fd(), layers_dir)
}

/// Takes the root file system off its place, for a mount namespace to come, and goes there.
pub(super) fn lift(rootfs: &Rootfs) -> Result<OwnedFd, StepError> {
    let target = rootfs.target.as_str();
    let lifted = mounts::copy_tree(target, false)?;
    rustix::mount::unmount(target, UnmountFlags::DETACH).step(|| format!("unmount {target}"))?;
    rustix::process::chdir(target).step(|| format!("enter {target}"))?;
    Ok(lifted)
}

/// The folder that the process stands in, as a place for a root: after a step into another mount
/// namespace it may have no path that can be walked.
pub(super) fn here() -> Result<OwnedFd, StepError> {
    folder(".")
}

/// Makes `root` the root of this mount namespace and lets go of the host's (pivot_root(2), whose
/// notes describe the `.`, `.` form: the old root ends up on top and is detached).
pub(super) fn pivot(root: &OwnedFd) -> Result<(), StepError> {
    rustix::process::fchdir(root).step(|| "enter the root file system".into())?;
    rustix::process::pivot_root(".", ".").step(|| "pivot into the root file system".into())?;
    // The old root is a slave since `detach_from_host`, so this reaches nobody else. A change of "." itself
    // would be one of the new root: only umount looks for what is mounted on top.
    rustix::mount::unmount(".", UnmountFlags::DETACH).step(|| "let go of the old root".into())?;
    rustix::process::chdir("/").step(|| "enter the new root".into())
}

/// Makes `/` read-only, after everything was mounted into it.
pub(super) fn seal_root() -> Result<(), StepError> {
    rustix::mount::mount_remount("/", MountFlags::BIND | MountFlags::RDONLY, "")
        .step(|| "make the root file system read-only".into())
}
