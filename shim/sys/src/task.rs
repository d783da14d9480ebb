//! Attributes of the calling task that rustix has no call for: keyring, personality, I/O priority,
//! scheduling policy. Called by the cloned child before exec (runtime-traps 2.8), and by those
//! that unpack layers.

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
    // SAFETY: plain numbers.
    unsafe {
        check(libc::personality(0).into())?;
        check(libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0 as libc::c_long, 0 as libc::c_long))?;
    }
    set_policy(libc::SCHED_OTHER)
}

/// A thread that does not take the processor from others as soon as there is something for it to do: of two that pass
/// bytes to each other both go on for longer, with fewer switches between them (sched(7), `SCHED_BATCH`). So are the
/// processes that it starts. Until this is dropped, and not where somebody gave the thread another policy.
#[derive(Debug)]
pub struct Batches(());

impl Batches {
    /// None: it goes on as before.
    #[must_use]
    pub fn begin() -> Option<Self> {
        // SAFETY: plain numbers.
        let own = unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0 as libc::c_long) };
        let usual = own == libc::c_long::from(libc::SCHED_OTHER);
        (usual && set_policy(libc::SCHED_BATCH).is_ok()).then_some(Self(()))
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        // Whoever may leave the usual policy for this one may come back.
        let _ = set_policy(libc::SCHED_OTHER);
    }
}

fn set_policy(policy: libc::c_int) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 0 };
    let (number, own) = (libc::SYS_sched_setscheduler, 0 as libc::c_long);
    // SAFETY: plain numbers and one struct that outlives the call.
    check(unsafe { libc::syscall(number, own, libc::c_long::from(policy), &raw const parameters) })
        .map(|_| ())
}

/// Every CPU that the cpuset allows, of 8192: `cpu_set_t` ends at 1024.
///
/// # Errors
/// `EPERM` when the kernel does not let this task choose.
pub fn any_cpu() -> io::Result<()> {
    let all = [u8::MAX; 1024];
    // SAFETY: the kernel reads as many bytes as it is told of an array that outlives the call.
    check(unsafe { libc::syscall(libc::SYS_sched_setaffinity, 0 as libc::c_long, all.len(), all.as_ptr()) })
        .map(|_| ())
}

/// Namespaces of the calling thread's own, by `CLONE_NEW*` flags. A thread that asks for a mount
/// namespace also stops sharing its working folder and root with the process's others.
///
/// # Errors
/// `EPERM` without CAP_SYS_ADMIN.
pub fn new_namespaces(flags: i32) -> io::Result<()> {
    let known = libc::CLONE_NEWNS | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    if flags & !known != 0 {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: of these flags none touches memory or descriptors (CLONE_FILES and CLONE_VM would).
    check(unsafe { libc::unshare(flags) }.into()).map(|_| ())
}
