//! Descriptors that tokio waits for. Called by the runtime, for terminals, pidfds and what the kernel notifies of.

#![allow(unsafe_code, reason = "every block has its SAFETY")]

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Hands a descriptor to tokio.
///
/// # Errors
/// `EPERM` for a file that can't be waited for.
pub(crate) fn watch(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the descriptor is owned by what is returned, and is closed with it.
    unsafe { AsyncFd::register(fd) }.map_err(Into::into)
}

/// Hands a descriptor to tokio that tells its news as an exceptional condition (`EPOLLPRI`): kernfs files do.
///
/// # Errors
/// `EPERM` for a file that can't be waited for.
pub(crate) fn watch_exceptions(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the descriptor is owned by what is returned, and is closed with it.
    unsafe { AsyncFd::register_with_interest(fd, Interest::PRIORITY) }.map_err(Into::into)
}
