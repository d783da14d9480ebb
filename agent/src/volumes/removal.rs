//! Removing a pod's folder without ever leaving its file system. Owns the walk; never unmounts.
//! Called by [`super::host`].
//!
//! What a container left may be hostile: links, folders nested deeper than a stack is, and mounts
//! that nobody removed. No name is followed, every step down is checked by the kernel
//! (openat2, RESOLVE_NO_XDEV also stops at bind mounts of the same disk), and the way up is checked
//! by inode. Trap 11: a mistake here deletes users' data.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, ResolveFlags, fstat, openat, openat2, unlinkat};
use rustix::io::Errno;

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A folder on the way down: its name in the one above, and who it is.
struct Step {
    name: CString,
    id: (u64, u64),
}

/// Removes the folder and what is in it; one that is not there is removed.
pub(super) fn remove_folder(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let parent = match openat(CWD, parent, FOLDER, Mode::empty()) {
        Ok(parent) => parent,
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let name = CString::new(name.as_encoded_bytes())?;
    if remove_plain(parent.as_fd(), &name)? {
        return Ok(());
    }
    let mut steps = vec![Step { name: name.clone(), id: (0, 0) }];
    let mut ids = vec![identity(parent.as_fd())?];
    let mut here = enter(parent.as_fd(), &name)?;
    while let Some(step) = steps.last_mut() {
        step.id = identity(here.as_fd())?;
        match clear(here.as_fd())? {
            Some(child) => {
                ids.push(step.id);
                let below = enter(here.as_fd(), &child)?;
                steps.push(Step { name: child, id: (0, 0) });
                here = below;
            }
            None => {
                let up = openat(&here, c"..", FOLDER, Mode::empty())?;
                // Someone who moved the folder meanwhile must not lead us elsewhere.
                if ids.pop() != Some(identity(up.as_fd())?) {
                    return Err(io::Error::other("a folder was moved while it was being removed"));
                }
                unlinkat(&up, &step.name, AtFlags::REMOVEDIR)?;
                here = up;
                steps.pop();
            }
        }
    }
    Ok(())
}

/// Removes what is no folder; false when it is one.
fn remove_plain(parent: BorrowedFd<'_>, name: &CString) -> io::Result<bool> {
    match unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        // EPERM is what POSIX says for folders; then entering tells.
        Err(Errno::ISDIR | Errno::PERM) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Never onto another mount, never through a link.
fn enter(parent: BorrowedFd<'_>, name: &CString) -> io::Result<OwnedFd> {
    let stay = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
    openat2(parent, name, FOLDER, Mode::empty(), stay).map_err(|errno| match errno {
        Errno::XDEV => io::Error::other(format!("{} is still a mount point", name.to_string_lossy())),
        errno => errno.into(),
    })
}

fn identity(folder: BorrowedFd<'_>) -> io::Result<(u64, u64)> {
    let stat = fstat(folder)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Removes what is plain in the folder; the first subfolder that is left, if any.
fn clear(folder: BorrowedFd<'_>) -> io::Result<Option<CString>> {
    for entry in Dir::read_from(folder)? {
        let name = entry?.file_name().to_owned();
        if !matches!(name.as_bytes(), b"." | b"..") && !remove_plain(folder, &name)? {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_tree_goes_and_what_its_links_lead_to_stays() {
        let root = tempfile::tempdir().unwrap();
        let kept = root.path().join("kept");
        fs::create_dir(&kept).unwrap();
        fs::write(kept.join("data"), "x").unwrap();
        let gone = root.path().join("gone");
        for folder in ["a/b/c", "a/d", "e"] {
            fs::create_dir_all(gone.join(folder)).unwrap();
            fs::write(gone.join(folder).join("file"), "x").unwrap();
        }
        symlink(&kept, gone.join("a/link")).unwrap();
        symlink(kept.join("data"), gone.join("link")).unwrap();
        symlink("/nowhere", gone.join("dangling")).unwrap();
        remove_folder(&gone).unwrap();
        assert!(!gone.exists());
        assert_eq!(fs::read_to_string(kept.join("data")).unwrap(), "x");
        remove_folder(&gone).unwrap();
        remove_folder(&root.path().join("no/such")).unwrap();
        // A link in the folder's place goes, not what it leads to.
        symlink(&kept, &gone).unwrap();
        remove_folder(&gone).unwrap();
        assert!(kept.join("data").exists() && gone.symlink_metadata().is_err());
    }

    #[test]
    fn folders_nested_deeper_than_a_path_can_name_are_removed() {
        let root = tempfile::tempdir().unwrap();
        let gone = root.path().join("gone");
        std::fs::create_dir(&gone).unwrap();
        let mut here = openat(CWD, &gone, FOLDER, Mode::empty()).unwrap();
        let name = "d".repeat(200);
        for _ in 0..50 {
            rustix::fs::mkdirat(&here, name.as_str(), Mode::RWXU).unwrap();
            here = openat(&here, name.as_str(), FOLDER, Mode::empty()).unwrap();
        }
        remove_folder(&gone).unwrap();
        assert!(!gone.exists());
    }
}
