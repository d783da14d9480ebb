//! The container's /dev: a tmpfs with the nodes and links of the OCI runtime specification
//! (config-linux.md, "Default Devices"), a devpts of its own, mqueue, and the pod's shared memory.
//! Called by `init::container` before the pivot.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use gantry_proto::monitor::Device;
use rustix::fs::{AtFlags, FileType, Mode, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::MountAttrFlags;

use super::mounts::{attach, new_filesystem, target};
use super::{Step, StepError, lsm, refuse};

const NODES: [(&str, u32, u32); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];

const LINKS: [(&str, &str); 6] = [
    ("/proc/self/fd", "fd"),
    ("/proc/self/fd/0", "stdin"),
    ("/proc/self/fd/1", "stdout"),
    ("/proc/self/fd/2", "stderr"),
    ("/proc/kcore", "core"),
    ("pts/ptmx", "ptmx"),
];

/// Terminals are made by the container's own devpts, whichever way the node has this one (runc leaves it
/// out as well).
const PTMX: &str = "/dev/ptmx";

const NOSUID_NOEXEC: MountAttrFlags =
    MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NOEXEC);

const TMPFS: [(&str, &str); 2] = [("mode", "755"), ("size", "65536k")];

const DEVPTS: [(&str, &str); 4] = [("newinstance", ""), ("ptmxmode", "0666"), ("mode", "0620"), ("gid", "5")];

/// Builds /dev under `root`. `shm` is a detached copy of the pod's /dev/shm.
pub(super) fn build(
    root: BorrowedFd<'_>,
    shm: &OwnedFd,
    devices: &[Device],
    mount_label: &str,
) -> Result<(), StepError> {
    let context = lsm::context(mount_label);
    let plain = ResolveFlags::NO_SYMLINKS;
    let tmpfs = new_filesystem("tmpfs", &[&TMPFS[..], &context].concat(), MountAttrFlags::MOUNT_ATTR_NOSUID)?;
    attach(tmpfs.as_fd(), target(root, "/dev", true, plain)?.as_fd(), "/dev")?;
    let dev = target(root, "/dev", true, plain)?;
    for (name, major, minor) in NODES {
        node(&dev, name, FileType::CharacterDevice, rustix::fs::makedev(major, minor), 0o666)?;
    }
    for (to, name) in LINKS {
        rustix::fs::symlinkat(to, &dev, name).step(|| format!("make /dev/{name}"))?;
    }
    let pts = new_filesystem("devpts", &[&DEVPTS[..], &context].concat(), NOSUID_NOEXEC)?;
    attach(pts.as_fd(), target(root, "/dev/pts", true, plain)?.as_fd(), "/dev/pts")?;
    let queues = new_filesystem("mqueue", &[], NOSUID_NOEXEC | MountAttrFlags::MOUNT_ATTR_NODEV)?;
    attach(queues.as_fd(), target(root, "/dev/mqueue", true, plain)?.as_fd(), "/dev/mqueue")?;
    attach(shm.as_fd(), target(root, "/dev/shm", true, plain)?.as_fd(), "/dev/shm")?;
    devices.iter().try_for_each(|device| passed_through(root, device))
}

fn node(dev: &OwnedFd, name: &str, kind: FileType, number: u64, mode: u32) -> Result<(), StepError> {
    let mode = Mode::from_raw_mode(mode);
    rustix::fs::mknodat(dev, name, kind, mode, number).step(|| format!("make the device /dev/{name}"))?;
    // mknod subtracts the umask.
    rustix::fs::chmodat(dev, name, mode, AtFlags::empty()).step(|| format!("set the mode of /dev/{name}"))
}

/// A device of the node, under the name the request gives it, with the node's own mode and owner.
fn passed_through(root: BorrowedFd<'_>, device: &Device) -> Result<(), StepError> {
    let made = wanted(device)?;
    if device.container_path == PTMX {
        return Ok(());
    }
    let Some((folder, name)) = device.container_path.rsplit_once('/') else {
        return refuse(libc::EINVAL, format!("device path {} is not absolute", device.container_path));
    };
    let folder = target(root, if folder.is_empty() { "/" } else { folder }, true, ResolveFlags::empty())?;
    match rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => {}
        // Every container has those of `NODES`, and a privileged one is given the node's, too.
        Ok(there) if FileType::from_raw_mode(there.st_mode) == made.kind && there.st_rdev == made.number => {
            return Ok(());
        }
        Ok(_) => {
            let (from, to) = (&device.host_path, &device.container_path);
            return refuse(libc::EEXIST, format!("make the device {from} as {to}: something else is there"));
        }
        Err(errno) => return Err(errno).step(|| format!("look at {}", device.container_path)),
    }
    node(&folder, name, made.kind, made.number, made.mode)?;
    rustix::fs::chownat(
        &folder,
        name,
        Some(rustix::fs::Uid::from_raw(made.uid)),
        Some(rustix::fs::Gid::from_raw(made.gid)),
        AtFlags::SYMLINK_NOFOLLOW,
    )
    .step(|| format!("set the owner of {}", device.container_path))
}

struct Made {
    kind: FileType,
    number: u64,
    mode: u32,
    uid: u32,
    gid: u32,
}

/// As a CDI file says, or as it is on the node.
fn wanted(device: &Device) -> Result<Made, StepError> {
    if let Some(node) = &device.node {
        let kind = match node.kind.as_str() {
            "b" => FileType::BlockDevice,
            "c" => FileType::CharacterDevice,
            "p" => FileType::Fifo,
            other => {
                return refuse(
                    libc::EINVAL,
                    format!("{}: {other:?} is no kind of device", device.container_path),
                );
            }
        };
        let number = rustix::fs::makedev(node.major, node.minor);
        return Ok(Made { kind, number, mode: node.mode, uid: node.uid, gid: node.gid });
    }
    let found = rustix::fs::stat(device.host_path.as_str())
        .step(|| format!("look at the device {}", device.host_path))?;
    let kind = FileType::from_raw_mode(found.st_mode);
    if !matches!(kind, FileType::CharacterDevice | FileType::BlockDevice) {
        return refuse(libc::ENODEV, format!("{} is not a device", device.host_path));
    }
    Ok(Made {
        kind,
        number: found.st_rdev,
        mode: found.st_mode & 0o7777,
        uid: found.st_uid,
        gid: found.st_gid,
    })
}
