//! Mounting and unmounting by descriptors, and what is mounted where. Owns the system calls; never
//! decides what a volume is. Called by the other files of [`super::host`].

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use gantry_base::mountinfo::{self, MountInfo};
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, lstat, statfs, statx};
use rustix::io::Errno;
use rustix::mount::{
    FsOpenFlags, MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
    fsconfig_set_flag, fsopen, mount, mount_bind_recursive, mount_change, move_mount, open_tree, unmount,
};

/// `HUGETLBFS_MAGIC` of linux/magic.h.
const HUGETLBFS: rustix::fs::FsWord = 0x958458f6;

/// What the kernel has mounted.
pub(super) struct Table;

impl super::removal::Mounts for Table {
    fn below(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        // Below a folder that is not there is none. It is in the kubelet's own, where no server keeps one waiting.
        if matches!(lstat(folder), Err(Errno::NOENT)) {
            return Ok(Vec::new());
        }
        below(folder)
    }

    fn is_mount_point(&self, path: &Path) -> io::Result<bool> {
        is_mount_point(path)
    }

    fn detach(&self, point: &Path) -> io::Result<()> {
        detach(point)
    }
}

/// Every mount point at or below `folder`, the deepest first. By the table: asks no file system, which may hang.
pub(super) fn below(folder: &Path) -> io::Result<Vec<PathBuf>> {
    Ok(in_order(mountinfo::points_below(folder)?))
}

/// The same of mounts of NFS servers alone.
pub(super) fn exports_below(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut mounts = mountinfo::own()?;
    mounts.retain(|mount| matches!(mount.kind.as_str(), "nfs" | "nfs4") && mount.point.starts_with(folder));
    Ok(in_order(mounts.into_iter().map(|mount| mount.point).collect()))
}

/// What lies on top of another was mounted later.
fn in_order(mut points: Vec<PathBuf>) -> Vec<PathBuf> {
    points.reverse();
    points.sort_by_key(|point| std::cmp::Reverse(point.components().count()));
    points
}

/// Where else the folder is mounted, whose path leads over no link, as upstream's GetMountRefs finds it.
pub(super) fn copies<'a>(mounts: &'a [MountInfo], folder: &Path) -> impl Iterator<Item = &'a Path> + use<'a> {
    // What covers it was mounted last.
    let over = mounts.iter().rfind(|mount| folder.starts_with(&mount.point));
    let of = over.and_then(|over| {
        let below = folder.strip_prefix(&over.point).ok()?;
        Some((over.id, over.device.clone(), over.root.join(below)))
    });
    let is_same = move |mount: &&MountInfo| {
        let (id, device, root) = of.as_ref()?;
        (mount.id != *id && mount.device == *device && mount.root == *root).then_some(())
    };
    mounts.iter().filter(move |mount| is_same(mount).is_some()).map(|mount| mount.point.as_path())
}

/// The same, as they are now.
pub(super) fn list_copies(folder: &Path) -> io::Result<Vec<PathBuf>> {
    Ok(copies(&mountinfo::own()?, folder).map(Path::to_owned).collect())
}

/// Lets mounts below a kubelet's root reach others and theirs reach it: mounts of Bidirectional and
/// HostToContainer need that. A root that is no mount becomes one, with all that is mounted below it.
///
/// # Errors
/// The kernel's.
pub fn share(root: &Path) -> io::Result<()> {
    let root = root.canonicalize()?;
    let Some(cover) = cover(&mountinfo::own()?, &root) else {
        return Err(io::ErrorKind::NotFound.into());
    };
    if cover.shared {
        return Ok(());
    }
    if cover.point != root {
        mount_bind_recursive(&root, &root)?;
    }
    Ok(mount_change(&root, MountPropagationFlags::SHARED | MountPropagationFlags::REC)?)
}

/// The mount that a folder is in.
#[derive(Debug, PartialEq, Eq)]
struct Cover {
    point: PathBuf,
    shared: bool,
}

/// The deepest, and of those the last: it lies on top.
fn cover(mounts: &[MountInfo], folder: &Path) -> Option<Cover> {
    let over = mounts.iter().filter(|mount| folder.starts_with(&mount.point));
    let over = over.max_by_key(|mount| mount.point.components().count())?;
    let shared = over.tags.iter().any(|tag| tag.starts_with("shared:"));
    Some(Cover { point: over.point.clone(), shared })
}

/// Whether something is mounted exactly there, by the table: asks no file system, which may hang.
pub(super) fn is_listed(path: &Path) -> io::Result<bool> {
    Ok(below(path)?.iter().any(|point| point == path))
}

/// Whether something is mounted exactly there. Asks the kernel about this one path: the table has a line for each mount
/// of the node.
pub(super) fn is_mount_point(path: &Path) -> io::Result<bool> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    match statx(CWD, path, flags, StatxFlags::empty()) {
        Ok(found) => Ok(found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// A tmpfs of at most `size` bytes. Without swap where the kernel can (6.4), for secrets.
pub(super) fn tmpfs(path: &Path, size: i64) -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    let size = if size > 0 { format!("size={size}") } else { "size=50%".to_owned() };
    let attempt = |options: String| -> io::Result<()> {
        let options = CString::new(options)?;
        Ok(mount("tmpfs", path, "tmpfs", flags, Some(options.as_c_str()))?)
    };
    without_swap(&NOSWAP_REFUSED, size, attempt)
}

/// Whether the kernel has a tmpfs whose files never come to the disk. It is asked once, and nothing is mounted.
#[must_use]
pub fn keeps_out_of_swap() -> bool {
    static KEEPS: OnceLock<bool> = OnceLock::new();
    *KEEPS.get_or_init(|| {
        let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC);
        context.and_then(|context| fsconfig_set_flag(context, "noswap")).is_ok()
    })
}

/// A hugetlbfs with pages of `size` bytes. What is in it is taken from the pages that the pod may have.
pub(super) fn hugetlbfs(path: &Path, size: i64) -> io::Result<()> {
    let options = CString::new(format!("pagesize={size}"))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    Ok(mount("nodev", path, "hugetlbfs", flags, Some(options.as_c_str()))?)
}

/// Bytes of a page of the hugetlbfs that the path is on; none of any other file system.
pub(super) fn huge_page_size(path: &Path) -> io::Result<Option<i64>> {
    let found = statfs(path)?;
    Ok((found.f_type == HUGETLBFS).then_some(found.f_bsize))
}

/// The kernel has refused the option: it writes a line to its log each time, and is asked once.
static NOSWAP_REFUSED: AtomicBool = AtomicBool::new(false);

fn without_swap(
    refused: &AtomicBool,
    options: String,
    mut attempt: impl FnMut(String) -> io::Result<()>,
) -> io::Result<()> {
    if refused.load(Ordering::Relaxed) {
        return attempt(options);
    }
    match attempt(format!("{options},noswap")) {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            attempt(options)?;
            // Only now: another option may have been what it refused.
            refused.store(true, Ordering::Relaxed);
            Ok(())
        }
        result => result,
    }
}

/// Binds what `source` is open on to `target`: no name is looked up a second time.
pub(super) fn bind(source: BorrowedFd<'_>, target: &Path) -> io::Result<()> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = open_tree(source, OsStr::from_bytes(b""), flags)?;
    let empty = OsStr::from_bytes(b"");
    Ok(move_mount(tree.as_fd(), empty, CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// Not what a link at the end of the path leads to.
pub(super) fn detach(path: &Path) -> io::Result<()> {
    Ok(unmount(path, UnmountFlags::NOFOLLOW)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_refuses_noswap_is_asked_once() {
        let refused = AtomicBool::new(false);
        let mut asked = Vec::new();
        let mut mount = |fails: &[&str]| {
            without_swap(&refused, "size=1".to_owned(), |options| {
                asked.push(options.clone());
                match fails.contains(&options.as_str()) {
                    true => Err(io::ErrorKind::InvalidInput.into()),
                    false => Ok(()),
                }
            })
        };
        assert!(mount(&["size=1,noswap", "size=1"]).is_err(), "it is not the option that is refused");
        mount(&["size=1,noswap"]).unwrap();
        mount(&[]).unwrap();
        assert_eq!(asked, ["size=1,noswap", "size=1", "size=1,noswap", "size=1", "size=1"]);
    }

    #[test]
    fn a_mount_point_is_known_without_the_table() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("/proc", &link).unwrap();
        let is = |path: &Path| is_mount_point(path).unwrap();
        assert!(is(Path::new("/proc")));
        assert!(
            !is(folder.path()) && !is(&folder.path().join("none")) && !is(&link) && !is(&link.join("self"))
        );
        for path in [Path::new("/proc"), folder.path()] {
            assert_eq!(is_listed(path).unwrap(), is(path), "{path:?}");
        }
    }

    #[test]
    fn a_folder_is_shared_as_the_topmost_mount_over_it_is() {
        let table = b"22 1 0:1 / / rw shared:1 - ext4 a rw\n\
            23 22 0:2 / /var rw - tmpfs shared:9 rw\n\
            24 22 0:2 / /srv rw - ext4 b rw\n\
            25 22 0:3 / /srv rw master:3 shared:2 - ext4 b rw\n";
        let mounts = mountinfo::parse(table);
        let of = |path| cover(&mounts, Path::new(path)).unwrap();
        let is = |point: &str, shared| Cover { point: point.into(), shared };
        assert_eq!(of("/opt/kubelet"), is("/", true));
        assert_eq!(of("/var/lib/kubelet"), is("/var", false));
        assert_eq!(of("/variable"), is("/", true));
        assert_eq!(of("/srv"), is("/srv", true));
    }

    #[test]
    fn where_else_a_folder_is_mounted_is_known_by_its_file_system_and_root() {
        let table = b"22 1 0:1 / / rw - ext4 a rw\n\
            23 22 0:2 / /mnt rw - ext4 b rw\n\
            24 22 0:2 /disk /k/pods/u/pv rw - ext4 b rw\n\
            25 22 0:1 /disk /k/pods/v/pv rw - ext4 a rw\n\
            26 22 0:2 / /k/pods/w/pv rw - ext4 b rw\n\
            27 22 0:1 /mnt /k/pods/x/pv rw - ext4 a rw\n";
        let mounts = mountinfo::parse(table);
        let of = |folder| copies(&mounts, Path::new(folder)).collect::<Vec<_>>();
        assert_eq!(of("/mnt/disk"), [Path::new("/k/pods/u/pv")]);
        assert_eq!(of("/mnt"), [Path::new("/k/pods/w/pv")]);
        assert_eq!(of("/disk"), [Path::new("/k/pods/v/pv")]);
        assert_eq!(of("/none"), Vec::<&Path>::new());
    }

    #[test]
    fn mount_points_come_deepest_and_newest_first() {
        let points = ["/u/volumes/a", "/u/volumes/a/deep", "/u/volumes/b c", "/u"].map(PathBuf::from);
        let ordered = ["/u/volumes/a/deep", "/u/volumes/b c", "/u/volumes/a", "/u"].map(PathBuf::from);
        assert_eq!(in_order(points.to_vec()), ordered);
        let below = |folder| super::super::removal::Mounts::below(&Table, Path::new(folder)).unwrap();
        assert!(below("/proc").contains(&"/proc".into()));
        assert_eq!(below("/proc/none"), Vec::<PathBuf>::new());
    }
}
