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
use crate::sys::task;

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
    let work = || {
        let root = match layers {
            [] => rustix::fs::open(mount_point, FOLDER, Mode::empty())?,
            [single] => rustix::fs::open(layers_dir.join(single), FOLDER, Mode::empty())?,
            _ => mount(layers_dir, layers, mount_point)?,
        };
        job(&root)
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("layers".to_owned()).spawn_scoped(scope, work);
        let thread = thread.map_err(|source| wrap("start a thread for", source))?;
        let result = thread.join().unwrap_or(Err(Errno::IO));
        result.map_err(|errno| wrap("put together the layers of the image in", io::Error::from(errno)))
    })
}

fn mount(layers_dir: &Path, layers: &[String], target: &Path) -> Result<OwnedFd, Errno> {
    task::new_namespaces(libc::CLONE_NEWNS)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    // Relative names keep the options short, as in init::rootfs.
    rustix::process::chdir(layers_dir)?;
    let options =
        format!("lowerdir={},index=off,redirect_dir=nofollow,metacopy=off,xino=off", layers.join(":"));
    let options = std::ffi::CString::new(options).map_err(|_| Errno::INVAL)?;
    let flags = MountFlags::RDONLY | MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOEXEC;
    rustix::mount::mount("overlay", target, "overlay", flags, options.as_c_str())?;
    rustix::fs::open(target, FOLDER, Mode::empty())
}
