//! Descriptors that tokio waits for. Called by the runtime, for terminals and pidfds.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::unix::AsyncFd;

/// Hands a descriptor to tokio.
///
/// # Errors
/// `EPERM` for a file that can't be waited for.
pub fn watch(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the descriptor is owned by what is returned, and is closed with it.
    unsafe { AsyncFd::register(fd) }.map_err(Into::into)
}
