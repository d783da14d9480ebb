//! mount_setattr(2), which rustix lacks. Called by the cloned child for read-only mounts, the attributes of
//! CDI files, and mounts whose owners are mapped.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::check;

const AT_EMPTY_PATH: libc::c_long = 0x1000;
const AT_RECURSIVE: libc::c_long = 0x8000;
const MOUNT_ATTR_RDONLY: u64 = 1;
const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;
/// MOUNT_ATTR__ATIME, the mask of all ways.
const MOUNT_ATTR_ATIME: u64 = 0x70;

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
    set_attributes(mount, MOUNT_ATTR_RDONLY, true)
}

/// Makes a mount read-only; what is mounted below it stays as it is.
///
/// # Errors
/// As `make_tree_read_only`.
pub fn make_read_only(mount: BorrowedFd<'_>) -> io::Result<()> {
    set_attributes(mount, MOUNT_ATTR_RDONLY, false)
}

/// Sets `MOUNT_ATTR_*` bits of a mount, or of all mounts below it, too.
///
/// # Errors
/// As `make_tree_read_only`.
pub fn set_attributes(mount: BorrowedFd<'_>, set: u64, recursive: bool) -> io::Result<()> {
    // The ways of keeping access times exclude each other: one is set in the place of another.
    let clear = if set & MOUNT_ATTR_ATIME == 0 { 0 } else { MOUNT_ATTR_ATIME };
    let attributes = MountAttr { attr_set: set, attr_clr: clear, ..MountAttr::default() };
    let flags = AT_EMPTY_PATH | if recursive { AT_RECURSIVE } else { 0 };
    change(mount, flags, &attributes)
}

/// Has the owners of a detached mount appear through the maps of a user namespace: what is on the disk as
/// the namespace's 0 is the kernel's id that 0 is mapped to. The mounts below it stay as they are.
///
/// # Errors
/// `EINVAL` when the file system can't (or the kernel, for this file system), `EPERM` when the mount is
/// mapped already.
pub fn map_owners(mount: BorrowedFd<'_>, users: BorrowedFd<'_>) -> io::Result<()> {
    let userns_fd = u64::from(users.as_raw_fd().unsigned_abs());
    let attributes = MountAttr { attr_set: MOUNT_ATTR_IDMAP, userns_fd, ..MountAttr::default() };
    change(mount, AT_EMPTY_PATH, &attributes)
}

fn change(mount: BorrowedFd<'_>, flags: libc::c_long, attributes: &MountAttr) -> io::Result<()> {
    // SAFETY: the path is a null-terminated string, the struct is the kernel's and its size is passed.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            std::ptr::from_ref(attributes),
            size_of::<MountAttr>(),
        )
    })
    .map(|_| ())
}
