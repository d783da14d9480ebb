//! clone3(2): a child straight into its cgroup and namespaces, with a pidfd. Called by the
//! monitor and what it has cloned only, which have one thread: a fork of a threaded process could inherit
//! held locks.

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

use super::check;

/// What the child is born into.
#[derive(Debug)]
pub struct CloneArgs<'a> {
    /// `CLONE_NEW*` flags.
    pub namespaces: u64,
    /// A cgroup v2 folder (`CLONE_INTO_CGROUP`, Linux 5.7).
    pub cgroup: Option<BorrowedFd<'a>>,
    /// The child is the caller's parent's (`CLONE_PARENT`), which hears of its end as of the caller's.
    pub sibling: bool,
}

/// Which side of the clone this is.
#[derive(Debug)]
pub enum Cloned {
    /// The caller, with the child's pid as its own pid namespace sees it.
    Parent {
        /// Pid of the child.
        pid: i32,
        /// Pollable: readable once the child has ended.
        pidfd: OwnedFd,
    },
    /// The child, on a copy of the caller's memory.
    Child,
}

/// `struct clone_args` of Linux 5.7 (clone3(2)).
#[repr(C)]
#[derive(Default)]
struct KernelCloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
const CLONE_PIDFD: u64 = 0x1000;
const CLONE_PARENT: u64 = 0x8000;

/// Clones the calling process.
///
/// # Errors
/// `EBUSY` when the v2 cgroup has controllers enabled below it, `ENOMEM` when the current pid
/// namespace's init is gone, `ENOSYS` where a seccomp filter of the caller hides clone3.
pub fn clone3(args: &CloneArgs<'_>) -> io::Result<Cloned> {
    use std::os::fd::AsRawFd;
    let mut pidfd: RawFd = -1;
    let mut kernel = KernelCloneArgs {
        flags: args.namespaces | CLONE_PIDFD,
        pidfd: std::ptr::from_mut(&mut pidfd) as u64,
        exit_signal: u64::from(libc::SIGCHLD.unsigned_abs()),
        ..KernelCloneArgs::default()
    };
    if args.sibling {
        // The signal is the caller's own then, and must not be named.
        (kernel.flags, kernel.exit_signal) = (kernel.flags | CLONE_PARENT, 0);
    }
    if let Some(cgroup) = args.cgroup {
        kernel.flags |= CLONE_INTO_CGROUP;
        kernel.cgroup = u64::from(cgroup.as_raw_fd().unsigned_abs());
    }
    // SAFETY: the struct is the kernel's, its size is passed, and `pidfd` outlives the call. No
    // CLONE_VM: the child runs on its own copy of memory, so nothing of the caller is aliased.
    let result = check(unsafe {
        libc::syscall(libc::SYS_clone3, std::ptr::from_mut(&mut kernel), size_of::<KernelCloneArgs>())
    })?;
    if result == 0 {
        return Ok(Cloned::Child);
    }
    // SAFETY: the kernel has just made this descriptor for us (CLONE_PIDFD); nobody else owns it.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    let pid = i32::try_from(result).map_err(|_| io::Error::from_raw_os_error(libc::EOVERFLOW))?;
    Ok(Cloned::Parent { pid, pidfd })
}
