//! The layers of an image put together for a look, before there is a container. Owns the overlay, which
//! is gone with its thread; what is looked for is the caller's. Called by `accounts` and `image_mounts`,
//! on a blocking thread.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags};

use crate::error::Error;
use gantry_monitor::init::overlay;
use gantry_sys::task;

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Has `job` look at the root of the layers, topmost first, through a read-only overlay. On a thread of its
/// own: a mount namespace and a working folder belong to the thread, and end with it. `mount_point` is an
/// empty folder, used only there.
///
/// # Errors
/// When the layers can't be put together, or the job's.
pub(super) fn with<T: Send>(
    layers_dir: &Path,
    layers: &[String],
    mount_point: &Path,
    job: impl FnOnce(&OwnedFd) -> Result<T, Errno> + Send,
) -> Result<T, Error> {
    let wrap = |what, source| Error::Files { what, path: layers_dir.to_owned(), source };
    let work = || -> io::Result<T> {
        let root = match layers {
            [] => rustix::fs::open(mount_point, FOLDER, Mode::empty())?,
            [single] => rustix::fs::open(layers_dir.join(single), FOLDER, Mode::empty())?,
            _ => mount(layers_dir, layers, mount_point)?,
        };
        Ok(job(&root)?)
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("layers".to_owned()).spawn_scoped(scope, work);
        let thread = thread.map_err(|source| wrap("start a thread for", source))?;
        let result = thread.join().unwrap_or_else(|_| Err(Errno::IO.into()));
        result.map_err(|source| wrap("put together the layers of the image in", source))
    })
}

fn mount(layers_dir: &Path, layers: &[String], target: &Path) -> io::Result<OwnedFd> {
    task::new_namespaces(libc::CLONE_NEWNS)?;
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    // Relative names keep the options short, as in init::rootfs.
    rustix::process::chdir(layers_dir)?;
    let flags = MountFlags::RDONLY | MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOEXEC;
    overlay::mount(layers, &overlay::OPTIONS, flags, &target.to_string_lossy())
        .map_err(|error| io::Error::new(error.source.kind(), error))?;
    Ok(rustix::fs::open(target, FOLDER, Mode::empty())?)
}
