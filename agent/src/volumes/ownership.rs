//! fsGroup: whose files a volume's are. Owns the kubelet's arithmetic of modes; never follows a
//! link. Called by [`super::host`] and [`super::atomic`].

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, lchown};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags};
use rustix::io::Errno;

/// What a group may do with a folder beyond what it may with files.
const FOLDER: u32 = 0o2110;
const READ_WRITE: u32 = 0o660;
const READ: u32 = 0o440;
/// Two descriptors are held for each level.
const MAX_DEPTH: usize = 256;

/// The root of an empty folder that the pod may write to; what is made in it inherits the group.
pub(super) fn set_empty_dir(folder: &Path, fs_group: Option<u32>) -> io::Result<()> {
    // The sticky bit that a tmpfs has of its own stays, as upstream.
    let sticky = folder.symlink_metadata()?.permissions().mode() & 0o1000;
    let mode = sticky | fs_group.map_or(0o777, |_| 0o777 | READ_WRITE | FOLDER);
    if fs_group.is_some() {
        lchown(folder, None, fs_group)?;
    }
    // After the owner: changing that takes the set-group-ID bit away.
    fs::set_permissions(folder, fs::Permissions::from_mode(mode))
}

/// The volume's root and the fresh folder with everything in it. Made by us a moment ago, and
/// containers can only read it.
pub(super) fn set_projected(volume: &Path, fresh: &Path, fs_group: Option<u32>) -> io::Result<()> {
    if fs_group.is_none() {
        return Ok(());
    }
    set_one(volume, fs_group)?;
    let mut open = vec![fresh.to_owned()];
    while let Some(path) = open.pop() {
        set_one(&path, fs_group)?;
        if path.symlink_metadata()?.is_dir() {
            for entry in fs::read_dir(&path)? {
                open.push(entry?.path());
            }
        }
    }
    Ok(())
}

pub(super) fn set_link(link: &Path, fs_group: Option<u32>) -> io::Result<()> {
    if fs_group.is_some() { lchown(link, None, fs_group) } else { Ok(()) }
}

/// A folder that was there before the pod, with all that is in it. `on_mismatch`: not when its root
/// looks as if it had been done before. Other pods may be at work in it: no name is looked up twice.
/// `count` is of what was looked at.
pub(super) fn set_tree(
    folder: &Path,
    fs_group: Option<u32>,
    on_mismatch: bool,
    count: &AtomicU64,
) -> io::Result<()> {
    let Some(group) = fs_group else { return Ok(()) };
    let root = rustix::fs::open(folder, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    if on_mismatch && is_done(&rustix::fs::fstat(&root)?, group) {
        return Ok(());
    }
    set_below(&root, group, 0, count)
}

/// As far as the kubelet looks: the root's group, mode and set-group-ID bit.
fn is_done(root: &rustix::fs::Stat, group: u32) -> bool {
    let wanted = READ_WRITE | FOLDER;
    root.st_gid == group && root.st_mode & wanted == wanted && FileType::from_raw_mode(root.st_mode).is_dir()
}

fn set_below(file: &OwnedFd, group: u32, depth: usize, count: &AtomicU64) -> io::Result<()> {
    count.fetch_add(1, Ordering::Relaxed);
    let found = rustix::fs::fstat(file)?;
    let kind = FileType::from_raw_mode(found.st_mode);
    rustix::fs::chownat(file, "", None, Some(Gid::from_raw(group)), AtFlags::EMPTY_PATH)?;
    if kind == FileType::Symlink {
        return Ok(());
    }
    let more = if kind.is_dir() { READ_WRITE | FOLDER } else { READ_WRITE };
    let mode = fs::Permissions::from_mode(found.st_mode & 0o7777 | more);
    // The very file that was looked at, whatever its name is by now.
    fs::set_permissions(format!("/proc/self/fd/{}", file.as_raw_fd()), mode)?;
    if !kind.is_dir() {
        return Ok(());
    }
    if depth >= MAX_DEPTH {
        return Err(io::Error::other(format!("folders are nested more than {MAX_DEPTH} deep")));
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let listed = rustix::fs::openat(file, ".", flags, Mode::empty())?;
    for entry in rustix::fs::Dir::new(listed)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        match rustix::fs::openat(file, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
        {
            Ok(child) => set_below(&child, group, depth + 1, count)?,
            // Removed meanwhile.
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn set_one(path: &Path, fs_group: Option<u32>) -> io::Result<()> {
    lchown(path, None, fs_group)?;
    let found = path.symlink_metadata()?;
    if found.is_symlink() {
        return Ok(());
    }
    let more = if found.is_dir() { READ | FOLDER } else { READ };
    fs::set_permissions(path, fs::Permissions::from_mode(found.permissions().mode() & 0o7777 | more))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    /// A group that an unprivileged test may give its files to: its own.
    fn own_group(path: &Path) -> u32 {
        path.metadata().unwrap().gid()
    }

    #[test]
    fn modes_are_the_kubelets() {
        let root = tempfile::tempdir().unwrap();
        let group = own_group(root.path());
        let (volume, fresh) = (root.path().join("v"), root.path().join("v/..fresh"));
        fs::create_dir_all(fresh.join("sub")).unwrap();
        for (name, mode) in [("a", 0o400), ("sub/b", 0o604)] {
            fs::write(fresh.join(name), "x").unwrap();
            fs::set_permissions(fresh.join(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        fs::set_permissions(&fresh, fs::Permissions::from_mode(0o755)).unwrap();
        set_projected(&volume, &fresh, Some(group)).unwrap();
        let mode = |path: &Path| path.metadata().unwrap().mode() & 0o7777;
        assert_eq!(mode(&fresh), 0o2755);
        assert_eq!(mode(&fresh.join("a")), 0o440);
        assert_eq!(mode(&fresh.join("sub/b")), 0o644);
        let empty = root.path().join("e");
        fs::create_dir(&empty).unwrap();
        set_empty_dir(&empty, None).unwrap();
        assert_eq!(mode(&empty), 0o777);
        set_empty_dir(&empty, Some(group)).unwrap();
        assert_eq!(mode(&empty), 0o2777);
    }

    #[test]
    fn a_whole_tree_gets_the_group_and_links_are_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let group = own_group(root.path());
        let (volume, outside) = (root.path().join("v"), root.path().join("outside"));
        fs::create_dir_all(volume.join("a/b")).unwrap();
        fs::write(volume.join("a/b/file"), "x").unwrap();
        fs::write(&outside, "x").unwrap();
        std::os::unix::fs::symlink(&outside, volume.join("a/link")).unwrap();
        for path in [&outside, &volume.join("a/b/file")] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
        }
        let count = AtomicU64::new(0);
        let set_tree = |group, on_mismatch| set_tree(&volume, group, on_mismatch, &count);
        set_tree(None, false).unwrap();
        let mode = |path: &Path| path.metadata().unwrap().mode() & 0o7777;
        assert_eq!(mode(&volume.join("a/b/file")), 0o600);
        set_tree(Some(group), true).unwrap();
        assert_eq!(count.load(Ordering::Relaxed), 5, "the root, two folders, a file and a link");
        assert_eq!(mode(&volume.join("a/b/file")), 0o660);
        assert_eq!(mode(&volume.join("a/b")) & 0o2770, 0o2770);
        assert_eq!(mode(&outside), 0o600);
        // Its root looks done: what is below is taken as done, too.
        fs::set_permissions(volume.join("a/b/file"), fs::Permissions::from_mode(0o600)).unwrap();
        set_tree(Some(group), true).unwrap();
        assert_eq!(mode(&volume.join("a/b/file")), 0o600);
        set_tree(Some(group), false).unwrap();
        assert_eq!(mode(&volume.join("a/b/file")), 0o660);
    }
}
