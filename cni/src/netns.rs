//! Network namespaces as bind mounts: making one, running a job inside one, removing one.
//!
//! Owns the file and the mount at a namespace's path. Never changes the namespace of a thread that outlives the call:
//! `setns(2)` and `unshare(2)` act on the calling thread, and a pool thread left in a pod's namespace would run other
//! pods' work there. Called by the runtime for each sandbox, and by the plugins.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::mount::UnmountFlags;
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

/// `NSFS_MAGIC` of `linux/magic.h`: the file system type of an open namespace file.
const NSFS_MAGIC: i64 = 0x6e73_6673;

/// The calling thread's own network namespace. `/proc/self` would be that of the process's first thread.
const OWN: &str = "/proc/thread-self/ns/net";

/// What can go wrong with a network namespace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The namespace's file cannot be opened.
    #[error("cannot open network namespace {path}")]
    Open {
        /// The namespace's file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// The path is an ordinary file: the bind mount is gone (a reboot, or a creation that was cut short).
    #[error("{path} is not a network namespace (its mount is gone)")]
    NotMounted {
        /// The file.
        path: PathBuf,
    },
    /// No thread could be started for the job.
    #[error("cannot start a thread for network namespace {path}")]
    Thread {
        /// The namespace's file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// `setns(2)` refused.
    #[error("cannot enter network namespace {path}")]
    Enter {
        /// The namespace's file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// The folder for namespaces cannot be made.
    #[error("cannot make folder {path} for network namespaces")]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// The file to mount the namespace on cannot be made.
    #[error("cannot make the mount point {path} of a network namespace")]
    MountPoint {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// `unshare(2)` refused.
    #[error("cannot make a network namespace for {path}")]
    Unshare {
        /// Where it would have been mounted.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// The bind mount failed.
    #[error("cannot mount a network namespace on {path}")]
    Mount {
        /// The mount point.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// The mount cannot be taken away.
    #[error("cannot unmount network namespace {path}")]
    Unmount {
        /// The mount point.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// The file cannot be removed.
    #[error("cannot remove the mount point {path} of a network namespace")]
    Unlink {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
}

impl Error {
    /// Whether this says that the namespace no longer exists, which DEL takes for "nothing to do here".
    pub fn is_gone(&self) -> bool {
        match self {
            Error::Open { source, .. } => source.kind() == io::ErrorKind::NotFound,
            Error::NotMounted { .. } => true,
            _ => false,
        }
    }
}

/// Makes a network namespace and mounts it on `dir/name`, which is returned. The folder is made if need be.
///
/// # Errors
/// When `dir/name` exists already, or any step fails; nothing is left behind then.
pub fn create(dir: &Path, name: &str) -> Result<PathBuf, Error> {
    let path = mount_point(dir, name)?;
    let mounted = on_fresh_thread(&path, || unshare_and_mount(&path)).and_then(|mounted| mounted);
    remove_on_error(path, mounted)
}

fn mount_point(dir: &Path, name: &str) -> Result<PathBuf, Error> {
    let path = dir.join(name);
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(dir)
        .map_err(|source| Error::Folder { path: dir.into(), source })?;
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o444)
        .open(&path)
        .map_err(|source| Error::MountPoint { path: path.clone(), source })?;
    Ok(path)
}

/// What was made for a mount that failed goes again.
fn remove_on_error(path: PathBuf, mounted: Result<(), Error>) -> Result<PathBuf, Error> {
    match mounted {
        Ok(()) => Ok(path),
        Err(error) => {
            if let Err(cleanup) = remove(&path) {
                tracing::warn!(path = %path.display(), error = %cleanup, "mount point left behind");
            }
            Err(error)
        }
    }
}

/// Mounts the network namespace of the process `pid` on `dir/name`, which is returned. The caller knows that
/// the process is the one it means: its parent has not collected it.
///
/// # Errors
/// As [`create`].
pub fn bind_process_netns(dir: &Path, name: &str, pid: i32) -> Result<PathBuf, Error> {
    let path = mount_point(dir, name)?;
    let of = format!("/proc/{pid}/ns/net");
    let mounted = open(Path::new(&of)).and_then(|_| {
        rustix::mount::mount_bind(of.as_str(), &path)
            .map_err(|errno| Error::Mount { path: path.clone(), source: errno.into() })
    });
    remove_on_error(path, mounted)
}

#[expect(
    deprecated,
    reason = "rustix deprecates unshare for CLONE_FILES, which is not used; no unsafe in this crate"
)]
fn unshare_and_mount(path: &Path) -> Result<(), Error> {
    rustix::thread::unshare(UnshareFlags::NEWNET)
        .map_err(|errno| Error::Unshare { path: path.into(), source: errno.into() })?;
    rustix::mount::mount_bind(OWN, path)
        .map_err(|errno| Error::Mount { path: path.into(), source: errno.into() })
}

/// Takes away the mount at `path` and the file under it. What is absent already is fine. The namespace itself, with
/// its links, goes when its last process and socket are gone.
///
/// # Errors
/// When the mount or the file is there and cannot be removed.
pub fn remove(path: &Path) -> Result<(), Error> {
    // EINVAL: not a mount point, so only the file is left to remove (umount2(2)).
    match rustix::mount::unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
        Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => {}
        Err(errno) => return Err(Error::Unmount { path: path.into(), source: errno.into() }),
    }
    match std::fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(Error::Unlink { path: path.into(), source })
        }
        _ => Ok(()),
    }
}

/// Opens a namespace's file, making sure that it is one.
///
/// # Errors
/// When the file is absent or no namespace is mounted on it; [`Error::is_gone`] tells these apart from others.
pub fn open(path: &Path) -> Result<File, Error> {
    let file = File::open(path).map_err(|source| Error::Open { path: path.into(), source })?;
    let info = rustix::fs::fstatfs(&file)
        .map_err(|errno| Error::Open { path: path.into(), source: errno.into() })?;
    if info.f_type != NSFS_MAGIC {
        return Err(Error::NotMounted { path: path.into() });
    }
    Ok(file)
}

/// Whether this is the namespace of the calling thread.
///
/// # Errors
/// When it is no namespace, or cannot be looked at.
pub(crate) fn is_own(path: &Path) -> Result<bool, Error> {
    let stat = |file: &File, path: &Path| {
        rustix::fs::fstat(file).map_err(|errno| Error::Open { path: path.into(), source: errno.into() })
    };
    let (theirs, own) = (stat(&open(path)?, path)?, stat(&open(Path::new(OWN))?, Path::new(OWN))?);
    Ok((theirs.st_dev, theirs.st_ino) == (own.st_dev, own.st_ino))
}

/// Runs `job` on a fresh thread inside the network namespace mounted at `path`. Sockets opened by the job stay bound
/// to that namespace; `/proc/sys/net` opened by the job is that namespace's.
///
/// # Errors
/// When the namespace is gone or cannot be entered. The job's own outcome is the value.
pub fn run<T: Send>(path: &Path, job: impl FnOnce() -> T + Send) -> Result<T, Error> {
    let netns = open(path)?;
    on_fresh_thread(path, || {
        rustix::thread::move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|errno| Error::Enter { path: path.into(), source: errno.into() })?;
        Ok(job())
    })?
}

fn on_fresh_thread<T: Send>(path: &Path, job: impl FnOnce() -> T + Send) -> Result<T, Error> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("netns".into())
            .spawn_scoped(scope, job)
            .map_err(|source| Error::Thread { path: path.into(), source })?;
        // A panic of the job goes on in the caller, as if it had been called directly.
        thread.join().map_err(|panic| std::panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_namespace_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let error = run(&dir.path().join("none"), || ()).unwrap_err();
        assert!(error.is_gone(), "{error}");
    }

    #[test]
    fn a_plain_file_is_a_namespace_that_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plain");
        std::fs::write(&path, "").unwrap();
        let error = run(&path, || ()).unwrap_err();
        assert!(matches!(error, Error::NotMounted { .. }), "{error}");
        assert!(error.is_gone());
    }

    #[test]
    fn a_namespace_is_recognised_as_one() {
        // Entering one needs CAP_SYS_ADMIN: tests/netlink.rs does that.
        assert!(open(Path::new(OWN)).is_ok());
    }

    #[test]
    fn removing_what_is_absent_is_fine() {
        let dir = tempfile::tempdir().unwrap();
        remove(&dir.path().join("none")).unwrap();
    }
}
