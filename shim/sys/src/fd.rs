//! Descriptor hygiene: close_range(2), and taking over descriptors a process was started with.
//! Called by the monitor at its start and by the cloned child before exec.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
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

/// Closes every descriptor from 3 on but `keep`. For the cloned child only, whose copies of the
/// monitor's pipes, sockets and logs nobody in the container may reach, and which would keep them open
/// were its set-up to hang.
///
/// # Errors
/// `ENOSYS` before Linux 5.9.
pub fn close_all_but(keep: &[&OwnedFd]) -> io::Result<()> {
    let mut kept: Vec<u32> = keep.iter().map(|fd| fd.as_raw_fd().unsigned_abs()).collect();
    kept.sort_unstable();
    let mut first = 3;
    for number in kept.into_iter().map(Some).chain([None]) {
        let last = number.map_or(libc::c_uint::MAX, |number| number.saturating_sub(1));
        if first <= last {
            // SAFETY: the owners of these descriptors are frames of the monitor's copied stack, which
            // the child never returns to: it ends by exec or `exit_now`.
            check(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) })?;
        }
        first = first.max(number.unwrap_or(0).saturating_add(1));
    }
    Ok(())
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
