//! Images that a container mounts: their layers put together, read-only, and the part that is asked for.
//! Owns the overlays, which exist in the container's own mount namespace only and are gone with it. Called by
//! `init::container`, once that namespace passes nothing on to the host's.

use std::os::fd::{AsFd, OwnedFd};

use gantry_proto::monitor::{ImageTree, Mount, Rootfs};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::mount::{MountFlags, OpenTreeFlags, UnmountFlags};

use super::{Progress, StepContext, StepError, mounts, overlay, refuse};
use crate::within;

/// Puts the tree of each image beside those of the host's mounts.
pub(super) fn fill(
    sources: &mut [Option<OwnedFd>],
    mounts: &[Mount],
    rootfs: &Rootfs,
    note: &mut dyn FnMut(Progress<'_>) -> Result<(), StepError>,
) -> Result<(), StepError> {
    for (source, mount) in sources.iter_mut().zip(mounts) {
        let Some(image) = &mount.image else { continue };
        note(Progress::Step(&format!("put together the image for {}", mount.destination)))?;
        let named = |error: StepError| StepError {
            what: format!("mount an image on {}: {}", mount.destination, error.what),
            source: error.source,
        };
        *source = Some(tree(rootfs, image).map_err(named)?);
    }
    Ok(())
}

/// The image, detached. What is mounted for it on the container's own mount point is taken away again:
/// the root file system comes there.
fn tree(rootfs: &Rootfs, image: &ImageTree) -> Result<OwnedFd, StepError> {
    let [.., _, _] = image.lower.as_slice() else {
        // Without layers: the empty folder.
        let Some(empty) = image.lower.first() else { return refuse(libc::EINVAL, "it has no layers") };
        return mounts::copy_tree(empty, false);
    };
    let target = rootfs.target.as_str();
    mount(rootfs, image)?;
    let part = part(target, &image.sub_path);
    // Also when the part is not there: this is no place to leave things in.
    rustix::mount::unmount(target, UnmountFlags::DETACH)
        .step(|| format!("unmount the image from {target}"))?;
    part
}

fn mount(rootfs: &Rootfs, image: &ImageTree) -> Result<(), StepError> {
    rustix::process::chdir(rootfs.layers_dir.as_str())
        .step(|| format!("enter the folder of layers {}", rootfs.layers_dir))?;
    overlay::mount(&image.lower, &overlay::OPTIONS, MountFlags::RDONLY, &rootfs.target)
}

/// A copy of the folder `sub_path` of what is mounted on `target`. Links stay within the image.
fn part(target: &str, sub_path: &str) -> Result<OwnedFd, StepError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(target, flags | OFlags::NOFOLLOW, Mode::empty())
        .step(|| format!("open the image on {target}"))?;
    let path = if sub_path.is_empty() { "." } else { sub_path };
    let folder = within::open(&root, path, flags, ResolveFlags::empty())
        .step(|| format!("open the folder {sub_path:?} of the image"))?;
    let copy =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    rustix::mount::open_tree(folder.as_fd(), "", copy)
        .step(|| format!("copy the mount of the folder {sub_path:?} of the image"))
}
