//! fsGroup: whose files a volume's are. Owns the kubelet's arithmetic of modes; never follows a
//! link. Called by [`super::host`] and [`super::atomic`].

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, lchown};
use std::path::Path;

/// What a group may do with a folder beyond what it may with files.
const FOLDER: u32 = 0o2110;
const READ_WRITE: u32 = 0o660;
const READ: u32 = 0o440;

/// The root of an empty folder that the pod may write to; what is made in it inherits the group.
pub(super) fn set_empty_dir(folder: &Path, fs_group: Option<u32>) -> io::Result<()> {
    let mode = fs_group.map_or(0o777, |_| 0o777 | READ_WRITE | FOLDER);
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
}
