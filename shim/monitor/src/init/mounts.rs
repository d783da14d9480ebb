//! Everything mounted below the container's root: kernel file systems, the pod's shared memory,
//! the mounts of the request, and what hides and protects /proc. Targets are found with openat2
//! inside the root and mounted on by descriptor, so that a link in an image leads nowhere else
//! (CVE-2021-30465, CVE-2019-19921). Called by `init::container`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use gantry_proto::monitor::{CgroupTarget, Mount, Propagation, StartContainer, UserMapping};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags,
};

use super::cgroups::{self, View};
use super::{StepContext, StepError, edits, refuse, users};
use crate::within;
use gantry_sys as sys;

pub(super) const PROTECTED: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSUID
    .union(MountAttrFlags::MOUNT_ATTR_NODEV)
    .union(MountAttrFlags::MOUNT_ATTR_NOEXEC);

/// `PROC_SUPER_MAGIC` of linux/magic.h.
const PROC_MAGIC: rustix::fs::FsWord = 0x9fa0;

/// Files of /proc that a pod may have its own of.
const EMULATED: [&str; 10] = [
    "/proc/cpuinfo",
    "/proc/diskstats",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/slabinfo",
    "/proc/stat",
    "/proc/swaps",
    "/proc/sys/crypto/fips_enabled",
    "/proc/sys/kernel/ns_last_pid",
    "/proc/uptime",
];

/// As many links as the kernel follows in one path.
const MAX_LINKS: u32 = 40;

/// A new, detached mount of a kernel file system.
pub(super) fn new_filesystem(
    kind: &str,
    options: &[(&str, &str)],
    attributes: MountAttrFlags,
) -> Result<OwnedFd, StepError> {
    let context = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)
        .step(|| format!("open a {kind} file system"))?;
    for (key, value) in options {
        if value.is_empty() {
            rustix::mount::fsconfig_set_flag(context.as_fd(), *key)
        } else {
            rustix::mount::fsconfig_set_string(context.as_fd(), *key, *value)
        }
        .step(|| format!("set {key}={value} of {kind}"))?;
    }
    rustix::mount::fsconfig_create(context.as_fd()).step(|| format!("make a {kind} file system"))?;
    rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
        .step(|| format!("mount a {kind} file system"))
}

/// Puts a detached mount on an open target.
pub(super) fn attach(mount: BorrowedFd<'_>, target: BorrowedFd<'_>, path: &str) -> Result<(), StepError> {
    rustix::mount::move_mount(
        mount,
        "",
        target,
        "",
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH,
    )
    .step(|| format!("mount on {path} of the container"))
}

/// A copy of a mount of the host (or of one folder or file of it), detached.
pub(super) fn copy_tree(path: &str, recursive: bool) -> Result<OwnedFd, StepError> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    if recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    rustix::mount::open_tree(CWD, path, flags).step(|| format!("open the mount source {path}"))
}

/// The same of what an open descriptor stands for, whatever its name leads to by now.
pub(super) fn copy_of(source: BorrowedFd<'_>, recursive: bool, name: &str) -> Result<OwnedFd, StepError> {
    let mut flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    if recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    rustix::mount::open_tree(source, "", flags).step(|| format!("copy the mount of {name}"))
}

/// Opens `path` inside `root` as a mount target, making what is missing.
pub(super) fn target(
    root: BorrowedFd<'_>,
    path: &str,
    directory: bool,
    resolve: ResolveFlags,
) -> Result<OwnedFd, StepError> {
    make_target(root, path, directory, resolve, MAX_LINKS)
}

fn make_target(
    root: BorrowedFd<'_>,
    path: &str,
    directory: bool,
    resolve: ResolveFlags,
    links: u32,
) -> Result<OwnedFd, StepError> {
    let open = |name: &str| within::open(root, name, OFlags::PATH | OFlags::CLOEXEC, resolve);
    match open(path) {
        Ok(fd) => return Ok(fd),
        Err(Errno::NOENT) => {}
        Err(error) => return Err(error).step(|| format!("find {path} in the container")),
    }
    let (parent, name) = match Path::new(path).parent().zip(Path::new(path).file_name()) {
        Some((parent, name)) => (parent.to_str().unwrap_or("/"), name),
        None => return refuse(libc::EINVAL, format!("mount target {path} has no name")),
    };
    let above = parent;
    let parent = if parent.is_empty() || parent == "/" {
        open("/").step(|| "open /".into())?
    } else {
        make_target(root, parent, true, resolve, links)?
    };
    let made = if directory {
        rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o755))
    } else {
        rustix::fs::openat(
            &parent,
            name,
            OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW,
            Mode::from_raw_mode(0o644),
        )
        .map(drop)
    };
    if made == Err(Errno::EXIST) && links > 0 && !resolve.contains(ResolveFlags::NO_SYMLINKS) {
        // A link that leads nowhere yet, as /etc/resolv.conf of systemd's images: what it names is made.
        let link =
            rustix::fs::readlinkat(&parent, name, Vec::new()).step(|| format!("read the link {path}"))?;
        let link = link.to_string_lossy();
        let next = if link.starts_with('/') { link.into_owned() } else { format!("{above}/{link}") };
        return make_target(root, &next, directory, resolve, links - 1);
    }
    made.step(|| format!("make {path} in the container"))?;
    rustix::fs::openat2(
        &parent,
        name,
        OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW,
        Mode::empty(),
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
    )
    .step(|| format!("open {path} in the container"))
}

/// The attributes of what shows the kernel's own: only a privileged container may change it.
fn attributes(privileged: bool) -> MountAttrFlags {
    if privileged { PROTECTED } else { PROTECTED | MountAttrFlags::MOUNT_ATTR_RDONLY }
}

/// A sysfs, of the network namespace that its mounter is in; who belongs to other users than that
/// namespace gets none (runtime-traps P17).
pub(super) fn sysfs(privileged: bool) -> Result<OwnedFd, StepError> {
    new_filesystem("sysfs", &[], attributes(privileged))
}

/// /proc, /sys and the cgroup view. `/proc` must be a plain folder: a link there would let an image
/// choose where the kernel's files appear.
pub(super) fn kernel_filesystems(
    root: BorrowedFd<'_>,
    sys: &OwnedFd,
    cgroup: &CgroupTarget,
    start: &StartContainer,
) -> Result<(), StepError> {
    let proc = new_filesystem("proc", &[], PROTECTED)?;
    attach(proc.as_fd(), target(root, "/proc", true, ResolveFlags::NO_SYMLINKS)?.as_fd(), "/proc")?;
    attach(sys.as_fd(), target(root, "/sys", true, ResolveFlags::NO_SYMLINKS)?.as_fd(), "/sys")?;
    cgroups::mount(root, cgroup, View::of(start), attributes(start.privileged))
}

/// The trees of the request's sources. Taken before the container's mount namespace lets go of the
/// host's: a copy made then is still a peer of a shared mount, made later only its slave. None for an
/// image, which is mounted after that.
pub(super) fn sources(
    mounts: &[Mount],
    pod: Option<(&UserMapping, &OwnedFd)>,
) -> Result<Vec<Option<OwnedFd>>, StepError> {
    let of_the_host = |mount: &Mount| {
        if mount.image.is_some() {
            return Ok(None);
        }
        let tree = edits::source(mount)?;
        if let Some(wanted) = &mount.users {
            users::map_owners(&tree, wanted, pod).map_err(|error| StepError {
                what: format!("mount {} on {}: {}", mount.source, mount.destination, error.what),
                source: error.source,
            })?;
        }
        Ok(Some(tree))
    };
    mounts.iter().map(of_the_host).collect()
}

/// One mount of the request: the source's tree on the destination. `confined`: the mount namespace belongs
/// to the pod's users, who must not mount on the host.
pub(super) fn bind(
    root: BorrowedFd<'_>,
    mount: &Mount,
    source: &OwnedFd,
    confined: bool,
) -> Result<(), StepError> {
    let kind = rustix::fs::fstat(source).step(|| format!("look at the mount source {}", mount.source))?;
    let directory = rustix::fs::FileType::from_raw_mode(kind.st_mode).is_dir();
    let place = target(root, &mount.destination, directory, ResolveFlags::empty())?;
    outside_proc(root, &mount.destination, source, &place)?;
    attach(source.as_fd(), place.as_fd(), &mount.destination)?;
    // By its own descriptor, never by looking the destination up again: a link put there meanwhile,
    // in a volume that others write to, would get the flags instead (as in CVE-2021-30465).
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(source));
    let propagation = match mount.propagation() {
        Propagation::Private => MountPropagationFlags::PRIVATE,
        Propagation::Slave => MountPropagationFlags::DOWNSTREAM,
        Propagation::Shared => MountPropagationFlags::SHARED,
    };
    let propagate = |how| {
        rustix::mount::mount_change(path.as_str(), how | MountPropagationFlags::REC)
            .step(|| format!("set the propagation of {}", mount.destination))
    };
    if confined {
        // As the kernel does with a mount namespace that others make of the host's.
        propagate(MountPropagationFlags::DOWNSTREAM)?;
    }
    propagate(propagation)?;
    edits::attributes(mount, source)?;
    if mount.recursive_readonly {
        sys::mount::make_tree_read_only(source.as_fd())
            .step(|| format!("make {} and all below it read-only", mount.destination))?;
    } else if mount.readonly {
        remount_read_only(&path).step(|| format!("make {} read-only", mount.destination))?;
    }
    Ok(())
}

/// Refuses what would stand over the kernel's own files in /proc: the masks of others, and what a runtime
/// writes there (CVE-2019-16884, CVE-2025-52881). By where the destination has led, not by its name. As
/// runc: another /proc may take the place of the whole, and files that lxcfs emulates that of a few.
fn outside_proc(
    root: BorrowedFd<'_>,
    name: &str,
    source: &OwnedFd,
    place: &OwnedFd,
) -> Result<(), StepError> {
    let proc = rustix::fs::statat(root, "proc", AtFlags::SYMLINK_NOFOLLOW)
        .step(|| "look at /proc of the container".into())?;
    let there = rustix::fs::fstat(place).step(|| format!("look at {name} of the container"))?;
    if there.st_dev != proc.st_dev || EMULATED.contains(&name) {
        return Ok(());
    }
    if there.st_ino != proc.st_ino {
        return refuse(libc::EPERM, format!("{name:?} cannot be mounted because it is inside /proc"));
    }
    let kind = rustix::fs::fstatfs(source).step(|| format!("look at the source of {name}"))?.f_type;
    if kind == PROC_MAGIC {
        return Ok(());
    }
    refuse(libc::EPERM, format!("{name:?} cannot be mounted because it is not of type proc"))
}

/// Read-only for this mount; what protects the source's mount (nosuid, nodev, noexec) stays.
fn remount_read_only(path: &str) -> rustix::io::Result<()> {
    let kept = rustix::fs::statvfs(path)?.f_flag;
    let mut flags = MountFlags::BIND | MountFlags::RDONLY;
    for (held, flag) in [
        (rustix::fs::StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (rustix::fs::StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (rustix::fs::StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
    ] {
        if kept.contains(held) {
            flags |= flag;
        }
    }
    rustix::mount::mount_remount(path, flags, "")
}

/// Opens `path` of the new root without following any link; None when it is not there.
fn plain(path: &str) -> Result<Option<OwnedFd>, StepError> {
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    match rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
        Ok(fd) => Ok(Some(fd)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(error) => Err(error).step(|| format!("open {path} to protect it")),
    }
}

/// Hides `path`: a folder under an empty read-only tmpfs, anything else under /dev/null. The null
/// device is checked to be one: an image can't pass its own file off as it (CVE-2025-31133).
pub(super) fn mask(path: &str) -> Result<(), StepError> {
    let Some(found) = plain(path)? else { return Ok(()) };
    let kind = rustix::fs::fstat(&found).step(|| format!("look at {path}"))?;
    if rustix::fs::FileType::from_raw_mode(kind.st_mode).is_dir() {
        let empty = new_filesystem(
            "tmpfs",
            &[("size", "0"), ("nr_inodes", "2")],
            PROTECTED | MountAttrFlags::MOUNT_ATTR_RDONLY,
        )?;
        return attach(empty.as_fd(), found.as_fd(), path);
    }
    let null = copy_tree("/dev/null", false)?;
    let device = rustix::fs::fstat(&null).step(|| "look at /dev/null".into())?;
    let character = rustix::fs::FileType::from_raw_mode(device.st_mode).is_char_device();
    if !character || device.st_rdev != rustix::fs::makedev(1, 3) {
        return refuse(libc::EPERM, "/dev/null of the container is not the null device");
    }
    attach(null.as_fd(), found.as_fd(), path)
}

/// Makes the part of /proc or /sys at `path` read-only. By the descriptor of what was found there: a name
/// looked up twice may lead to two places (CVE-2025-52881).
pub(super) fn protect(path: &str) -> Result<(), StepError> {
    let Some(found) = plain(path)? else { return Ok(()) };
    let copy = copy_of(found.as_fd(), true, path)?;
    sys::mount::make_read_only(copy.as_fd()).step(|| format!("make {path} read-only"))?;
    attach(copy.as_fd(), found.as_fd(), path)
}
