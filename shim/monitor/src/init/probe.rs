//! Whether this kernel and the file system of the layers can do what a pod with users of its own needs: a user
//! namespace, idmapped mounts of layers (Linux 5.12, by file system) and of tmpfs (6.3), overlays on them
//! (5.19). Tried, not guessed from versions, in a mount namespace that is gone with the process. Run by
//! the program `gantry-monitor` when the runtime starts.

use std::fs;
use std::os::fd::AsFd;

use gantry_proto::monitor::{IdMapping, UserMapping};
use rustix::fs::{Mode, OFlags};
use rustix::mount::MountFlags;

use super::container::INERT;
use super::{StepContext, StepError, mounts, overlay, rootfs, users};
use gantry_sys as sys;

/// Tries it all. `scratch` is any folder of the runtime's own.
///
/// # Errors
/// What can't be done.
pub fn user_namespaces(layers: &str, scratch: &str) -> Result<(), StepError> {
    sys::task::new_namespaces(libc::CLONE_NEWNS).step(|| "make a mount namespace".into())?;
    rootfs::detach_from_host()?;
    let line = Some(IdMapping { container_id: 0, host_id: 65_536, length: 65_536 });
    let held = users::create_userns(&UserMapping { uids: line, gids: line }, true)?;
    let tmpfs = mounts::new_filesystem("tmpfs", &[("mode", "700")], INERT)?;
    let place = rustix::fs::open(scratch, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .step(|| format!("open {scratch}"))?;
    mounts::attach(tmpfs.as_fd(), place.as_fd(), scratch)?;
    for name in ["lower", "merged"] {
        fs::create_dir(format!("{scratch}/{name}")).step(|| format!("make {scratch}/{name}"))?;
    }
    let copy = mounts::copy_tree(scratch, false)?;
    sys::mount::map_owners(copy.as_fd(), held.namespace.as_fd())
        .step(|| "map the owners of a tmpfs (Linux 6.3 can)".into())?;
    rootfs::map_layers(layers, &held.namespace)?;
    let merged = format!("{scratch}/merged");
    let lower = [layers.to_owned(), format!("{scratch}/lower")];
    overlay::mount(&lower, &overlay::OPTIONS, MountFlags::RDONLY, &merged).map_err(|error| StepError {
        what: format!("{} with mapped owners (Linux 5.19 can)", error.what),
        ..error
    })
}
