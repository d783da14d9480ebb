//! The container's /dev: a tmpfs with the nodes and links of the OCI runtime specification
//! (config-linux.md, "Default Devices"), a devpts of its own, mqueue, and the pod's shared memory.
//! Called by `init::container` before the pivot; with a user namespace in two parts, `prepare` before the
//! step into it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use gantry_proto::monitor::{Device, StartContainer};
use rustix::fs::{AtFlags, FileType, Mode, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::MountAttrFlags;

use super::mounts::{attach, copy_tree, new_filesystem, target};
use super::users::UsernsEntry;
use super::{StepContext, StepError, lsm, refuse};

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

const DEVPTS: [(&str, &str); 3] = [("newinstance", ""), ("ptmxmode", "0666"), ("mode", "0620")];

/// The group of terminals.
const TTY: [(&str, &str); 1] = [("gid", "5")];

/// What only the node's root can make, for a container whose users are its own: nodes in a file system of
/// the node (in one of the pod's they would be dead), and the node's devices.
#[derive(Debug)]
pub(super) struct PreparedDev<'a> {
    tmpfs: OwnedFd,
    /// Mounts of the node's own files: owner and mode are the node's, as runc has it.
    devices: Vec<(&'a Device, OwnedFd)>,
    /// Whether the pod has the group of terminals.
    tty: bool,
}

/// Makes it, before the step into the user namespace.
pub(super) fn prepare<'a>(
    devices: &'a [Device],
    entry: &UsernsEntry<'_>,
    mount_label: &str,
) -> Result<PreparedDev<'a>, StepError> {
    let (uid, gid) = entry.root()?;
    let [owner, group] = [uid.as_raw().to_string(), gid.as_raw().to_string()];
    let owners = [("uid", owner.as_str()), ("gid", group.as_str())];
    let options = [&TMPFS[..], &owners, &lsm::context(mount_label)].concat();
    let tmpfs = new_filesystem("tmpfs", &options, MountAttrFlags::MOUNT_ATTR_NOSUID)?;
    for (name, major, minor) in NODES {
        node(&tmpfs, name, FileType::CharacterDevice, rustix::fs::makedev(major, minor), 0o666)?;
        rustix::fs::chownat(&tmpfs, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
            .step(|| format!("set the owner of /dev/{name}"))?;
    }
    let own = devices.iter().filter(|device| device.container_path != PTMX && !has_gone(device));
    let copy = |device: &'a Device| {
        stat_node_device(device)?;
        Ok((device, copy_tree(&device.host_path, false)?))
    };
    let tty = crate::user_mapping::to_host(entry.mapping.gids.as_ref(), 5).is_some();
    Ok(PreparedDev { tmpfs, devices: own.map(copy).collect::<Result<_, StepError>>()?, tty })
}

/// Builds /dev under `root`. `shm` is a detached copy of the pod's /dev/shm.
pub(super) fn build(
    root: BorrowedFd<'_>,
    shm: &OwnedFd,
    start: &StartContainer,
    carried: Option<&PreparedDev<'_>>,
) -> Result<(), StepError> {
    let context = lsm::context(&start.mount_label);
    let plain = ResolveFlags::NO_SYMLINKS;
    let made = match carried {
        Some(carried) => carried.tmpfs.try_clone().step(|| "copy a descriptor".into())?,
        None => new_filesystem("tmpfs", &[&TMPFS[..], &context].concat(), MountAttrFlags::MOUNT_ATTR_NOSUID)?,
    };
    attach(made.as_fd(), target(root, "/dev", true, plain)?.as_fd(), "/dev")?;
    let dev = target(root, "/dev", true, plain)?;
    if carried.is_none() {
        for (name, major, minor) in NODES {
            node(&dev, name, FileType::CharacterDevice, rustix::fs::makedev(major, minor), 0o666)?;
        }
    }
    for (to, name) in LINKS {
        rustix::fs::symlinkat(to, &dev, name).step(|| format!("make /dev/{name}"))?;
    }
    let tty = if carried.is_none_or(|carried| carried.tty) { &TTY[..] } else { &[] };
    let pts = new_filesystem("devpts", &[&DEVPTS[..], tty, &context].concat(), NOSUID_NOEXEC)?;
    attach(pts.as_fd(), target(root, "/dev/pts", true, plain)?.as_fd(), "/dev/pts")?;
    let queues = new_filesystem("mqueue", &[], NOSUID_NOEXEC | MountAttrFlags::MOUNT_ATTR_NODEV)?;
    attach(queues.as_fd(), target(root, "/dev/mqueue", true, plain)?.as_fd(), "/dev/mqueue")?;
    attach(shm.as_fd(), target(root, "/dev/shm", true, plain)?.as_fd(), "/dev/shm")?;
    match carried {
        None => {
            let mut own = start.devices.iter().filter(|device| !has_gone(device));
            own.try_for_each(|device| make_node_device(root, device))
        }
        Some(carried) => {
            carried.devices.iter().try_for_each(|(device, copy)| bind_device(root, device, copy))
        }
    }
}

/// A device of the node, mounted under the name the request gives it.
fn bind_device(root: BorrowedFd<'_>, device: &Device, copy: &OwnedFd) -> Result<(), StepError> {
    let path = &device.container_path;
    let place = target(root, path, false, ResolveFlags::empty())?;
    let look = |fd: &OwnedFd| rustix::fs::fstat(fd).step(|| format!("look at {path}"));
    let (there, wanted) = (look(&place)?, look(copy)?);
    match FileType::from_raw_mode(there.st_mode) {
        // Every container has those of `NODES`, and a privileged one is given the node's, too.
        kind if kind == FileType::from_raw_mode(wanted.st_mode) && there.st_rdev == wanted.st_rdev => Ok(()),
        FileType::RegularFile => attach(copy.as_fd(), place.as_fd(), path),
        _ => {
            let from = &device.host_path;
            refuse(libc::EEXIST, format!("make the device {from} as {path}: something else is there"))
        }
    }
}

fn node(dev: &OwnedFd, name: &str, kind: FileType, number: u64, mode: u32) -> Result<(), StepError> {
    let mode = Mode::from_raw_mode(mode);
    rustix::fs::mknodat(dev, name, kind, mode, number).step(|| format!("make the device /dev/{name}"))?;
    // mknod subtracts the umask.
    rustix::fs::chmodat(dev, name, mode, AtFlags::empty()).step(|| format!("set the mode of /dev/{name}"))
}

/// Whether it is one of all the node's, and the node does not have it any more.
fn has_gone(device: &Device) -> bool {
    let gone = [Some(libc::ENOENT), Some(libc::ENODEV)];
    device.optional
        && stat_node_device(device).is_err_and(|error| gone.contains(&error.source.raw_os_error()))
}

/// What the node has as this device.
fn stat_node_device(device: &Device) -> Result<rustix::fs::Stat, StepError> {
    let found = rustix::fs::stat(device.host_path.as_str())
        .step(|| format!("look at the device {}", device.host_path))?;
    match FileType::from_raw_mode(found.st_mode) {
        FileType::CharacterDevice | FileType::BlockDevice => Ok(found),
        _ => refuse(libc::ENODEV, format!("{} is not a device", device.host_path)),
    }
}

/// A device of the node, under the name the request gives it, with the node's own mode and owner.
fn make_node_device(root: BorrowedFd<'_>, device: &Device) -> Result<(), StepError> {
    let made = device_attributes(device)?;
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

struct DeviceAttributes {
    kind: FileType,
    number: u64,
    mode: u32,
    uid: u32,
    gid: u32,
}

/// As a CDI file says, or as it is on the node.
fn device_attributes(device: &Device) -> Result<DeviceAttributes, StepError> {
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
        return Ok(DeviceAttributes { kind, number, mode: node.mode, uid: node.uid, gid: node.gid });
    }
    let found = stat_node_device(device)?;
    let kind = FileType::from_raw_mode(found.st_mode);
    Ok(DeviceAttributes {
        kind,
        number: found.st_rdev,
        mode: found.st_mode & 0o7777,
        uid: found.st_uid,
        gid: found.st_gid,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_all_devices_may_go_and_one_that_was_asked_for_may_not() {
        let of = |path: &str, optional| Device { host_path: path.into(), optional, ..Device::default() };
        // Another file in its place is not it either.
        let gone =
            [("/dev/gone", true), ("/dev/gone", false), ("/dev/null", true), ("/proc/self/stat", true)];
        let gone = gone.map(|(path, optional)| has_gone(&of(path, optional)));
        assert_eq!(gone, [true, false, false, true]);
    }
}
