//! Descriptor hygiene: close_range(2), and taking over descriptors a process was started with.
//! Called by the monitor at its start and by the cloned child before exec.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use super::check;

const CLOSE_RANGE_CLOEXEC: libc::c_uint = 4;

/// Marks every descriptor from `first` on close-on-exec (Linux 5.11).
///
/// # Errors
/// `ENOSYS` on an older kernel, `EINVAL` before 5.11.
pub fn cloexec_from(first: u32) -> io::Result<()> {
    // SAFETY: only sets a flag on descriptors; none is closed while this program runs.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, CLOSE_RANGE_CLOEXEC) })
        .map(|_| ())
}

/// The descriptors 0 and 1 that the monitor is started with: its first connection and its listener.
/// Whatever else its starter forgot to close is closed.
///
/// # Errors
/// `EALREADY` on a second call, `EBADF` when one of them is not open.
pub fn take_inherited() -> io::Result<(OwnedFd, OwnedFd)> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if TAKEN.swap(true, Ordering::SeqCst) {
        return Err(io::Error::from_raw_os_error(libc::EALREADY));
    }
    // SAFETY: this runs once, as the program's first act: no descriptor above 2 is its own yet.
    check(unsafe { libc::syscall(libc::SYS_close_range, 3 as libc::c_uint, libc::c_uint::MAX, 0) })?;
    let duplicate = |fd: i32| -> io::Result<OwnedFd> {
        // SAFETY: fcntl on a number; a closed one gives EBADF.
        let copy = check(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) }.into())?;
        let copy = i32::try_from(copy).map_err(|_| io::Error::from_raw_os_error(libc::EBADF))?;
        // SAFETY: fcntl has just made this descriptor; nobody else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(copy) })
    };
    Ok((duplicate(0)?, duplicate(1)?))
}
