//! What a pidfd tells after its process has ended (`PIDFD_GET_INFO`, Linux 6.15), and signals by
//! number. Called by the runtime: when a monitor died and could not record an exit, and to stop.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::check;

/// `struct pidfd_info` up to the fields of Linux 6.15.
#[repr(C)]
#[derive(Default)]
struct PidfdInfo {
    mask: u64,
    cgroupid: u64,
    pid: u32,
    tgid: u32,
    ppid: u32,
    ruid: u32,
    rgid: u32,
    euid: u32,
    egid: u32,
    suid: u32,
    sgid: u32,
    fsuid: u32,
    fsgid: u32,
    exit_code: i32,
}

const PIDFD_INFO_EXIT: u64 = 1 << 3;
/// `_IOWR(0xFF, 11, struct pidfd_info)` with the size above.
const PIDFD_GET_INFO: u64 = (3 << 30) | ((size_of::<PidfdInfo>() as u64) << 16) | (0xFF << 8) | 11;

/// The wait status of a process that was reaped by somebody else; None while it is not reaped, or
/// where the kernel keeps no such record.
///
/// # Errors
/// Those of ioctl(2) but the ones that mean "this kernel cannot".
pub fn wait_status(pidfd: BorrowedFd<'_>) -> io::Result<Option<i32>> {
    let mut info = PidfdInfo { mask: PIDFD_INFO_EXIT, ..PidfdInfo::default() };
    // SAFETY: the request carries the struct's size, and the kernel writes no more than that.
    match check(unsafe { libc::ioctl(pidfd.as_raw_fd(), PIDFD_GET_INFO, &raw mut info) }.into()) {
        Ok(_) if info.mask & PIDFD_INFO_EXIT != 0 => Ok(Some(info.exit_code)),
        Ok(_) => Ok(None),
        Err(error) => match error.raw_os_error() {
            Some(libc::ENOTTY | libc::EINVAL | libc::ESRCH) => Ok(None),
            _ => Err(error),
        },
    }
}

/// pidfd_send_signal(2) of any signal number, real-time ones too.
///
/// # Errors
/// `ESRCH` when the process has been reaped, `EINVAL` for a number that is no signal.
pub fn send_signal(pidfd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    // SAFETY: numbers and a null siginfo, which the call allows.
    check(unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            signal,
            std::ptr::null::<libc::c_void>(),
            0,
        )
    })
    .map(|_| ())
}
