//! Attributes of the calling task that rustix has no call for: keyring, personality, I/O priority,
//! scheduling policy. Called by the cloned child before exec (runtime-traps 2.8).

use std::io;

use super::check;

const KEYCTL_JOIN_SESSION_KEYRING: libc::c_long = 1;
const IOPRIO_WHO_PROCESS: libc::c_long = 1;

/// A new, empty session keyring: the container must not see the node's keys.
///
/// # Errors
/// `ENOSYS` in a kernel without keyrings, `EDQUOT` when the user's key quota is used up.
pub fn new_session_keyring(name: &std::ffi::CStr) -> io::Result<()> {
    // SAFETY: keyctl reads a null-terminated name.
    check(unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, name.as_ptr()) }).map(|_| ())
}

/// Execution domain, I/O priority and CPU scheduling policy back to a new process's defaults.
///
/// # Errors
/// The first call that the kernel refused.
pub fn reset_scheduling() -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: plain numbers and one struct that outlives the call.
    unsafe {
        check(libc::personality(0).into())?;
        check(libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0 as libc::c_long, 0 as libc::c_long))?;
        check(libc::syscall(
            libc::SYS_sched_setscheduler,
            0 as libc::c_long,
            libc::c_long::from(libc::SCHED_OTHER),
            &raw const parameters,
        ))?;
    }
    Ok(())
}

/// A cgroup namespace rooted at the folders the caller stands in now.
///
/// # Errors
/// `EPERM` without CAP_SYS_ADMIN.
pub fn new_cgroup_namespace() -> io::Result<()> {
    // SAFETY: CLONE_NEWCGROUP only changes how the caller sees cgroups; nothing of memory or files.
    check(unsafe { libc::unshare(libc::CLONE_NEWCGROUP) }.into()).map(|_| ())
}
