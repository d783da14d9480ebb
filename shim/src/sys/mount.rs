//! mount_setattr(2), which rustix lacks. Called by the cloned child for recursive read-only mounts.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::check;

const AT_EMPTY_PATH: libc::c_long = 0x1000;
const AT_RECURSIVE: libc::c_long = 0x8000;
const MOUNT_ATTR_RDONLY: u64 = 1;

/// `struct mount_attr` of Linux 5.12.
#[repr(C)]
#[derive(Default)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

/// Makes a mount and all mounts below it read-only, or none of them.
///
/// # Errors
/// `EBUSY` when one is written to, `EPERM` without CAP_SYS_ADMIN, `ENOSYS` before Linux 5.12.
pub fn make_tree_read_only(mount: BorrowedFd<'_>) -> io::Result<()> {
    let attributes = MountAttr { attr_set: MOUNT_ATTR_RDONLY, ..MountAttr::default() };
    // SAFETY: the path is a null-terminated string, the struct is the kernel's and its size is passed.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            AT_EMPTY_PATH | AT_RECURSIVE,
            &raw const attributes,
            size_of::<MountAttr>(),
        )
    })
    .map(|_| ())
}
