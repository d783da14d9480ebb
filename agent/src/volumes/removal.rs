//! Removing a pod's folder without ever leaving its file system. Owns the order (unmount, look, remove)
//! and the walk; what is mounted is [`Mounts`]'. Called by [`super::host`].
//!
//! What a container left may be hostile: links, folders nested deeper than a stack is, and mounts
//! that nobody removed. No name is followed, every step down is checked by the kernel
//! (openat2, RESOLVE_NO_XDEV also stops at bind mounts of the same disk), and the way up is checked
//! by inode. Trap 11: a mistake here deletes users' data.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, ResolveFlags, fstat, openat, openat2, unlinkat};
use rustix::io::Errno;

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A folder on the way down: its name in the one above, and who it is.
struct OpenedFolder {
    name: CString,
    id: (u64, u64),
}

/// What is mounted, and no more.
pub(super) trait Mounts {
    /// Every mount point at or below `folder`, the deepest first.
    fn below(&self, folder: &Path) -> io::Result<Vec<PathBuf>>;
    /// Whether something is mounted exactly there.
    fn is_mount_point(&self, path: &Path) -> io::Result<bool> {
        Ok(self.below(path)?.iter().any(|point| point == path))
    }
    /// Takes one mount off; who is in it keeps it there.
    fn detach(&self, point: &Path) -> io::Result<()>;
}

/// Unmounts what is below, checks that nothing of it is left, and only then removes. What somebody mounts elsewhere in the
/// folder meanwhile stops the walk.
pub(super) fn take_down(folder: &Path, mounts: &dyn Mounts) -> Result<(), String> {
    let table = || mounts.below(folder).map_err(|error| format!("read the mount table: {error}"));
    let (points, mut failures) = (table()?, Vec::new());
    for point in &points {
        if let Err(error) = mounts.detach(point) {
            failures.push(format!("unmount {}: {error}", point.display()));
        }
    }
    // The table has a line for each mount of the node: it is read again only where one did not come off, which may hang.
    let left = match failures.is_empty() {
        true => first_mounted(&points, mounts)?,
        false => table()?.into_iter().next(),
    };
    if let Some(point) = left {
        let why = if failures.is_empty() { "a mount came back".to_owned() } else { failures.join("; ") };
        return Err(format!(
            "orphaned pod folder {} is kept: {} is still mounted: {why}",
            folder.display(),
            point.display()
        ));
    }
    remove_folder(folder).map_err(|error| format!("remove {}: {error}", folder.display()))
}

fn first_mounted(points: &[PathBuf], mounts: &dyn Mounts) -> Result<Option<PathBuf>, String> {
    for point in points {
        let failed = |error: io::Error| format!("stat {}: {error}", point.display());
        if mounts.is_mount_point(point).map_err(failed)? {
            return Ok(Some(point.clone()));
        }
    }
    Ok(None)
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
    let mut steps = vec![OpenedFolder { name: name.clone(), id: (0, 0) }];
    let mut ids = vec![identity(parent.as_fd())?];
    let mut here = enter(parent.as_fd(), &name)?;
    while let Some(step) = steps.last_mut() {
        step.id = identity(here.as_fd())?;
        match clear(here.as_fd())? {
            Some(child) => {
                ids.push(step.id);
                let below = enter(here.as_fd(), &child)?;
                steps.push(OpenedFolder { name: child, id: (0, 0) });
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
    use std::cell::{Cell, RefCell};
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

    /// Mounts of a machine that is made up: what is in a mount is in its folder until it is taken off.
    #[derive(Default)]
    struct Fake {
        points: RefCell<Vec<PathBuf>>,
        busy: RefCell<Vec<PathBuf>>,
        /// Somebody mounts it again.
        back: Cell<bool>,
        unread: Cell<bool>,
    }

    impl Mounts for Fake {
        fn below(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
            if self.unread.get() {
                return Err(io::ErrorKind::PermissionDenied.into());
            }
            let points = self.points.borrow();
            Ok(points.iter().rev().filter(|point| point.starts_with(folder)).cloned().collect())
        }

        fn detach(&self, point: &Path) -> io::Result<()> {
            if self.busy.borrow().iter().any(|busy| busy == point) {
                return Err(io::ErrorKind::ResourceBusy.into());
            }
            if !self.back.get() {
                self.points.borrow_mut().retain(|mounted| mounted != point);
                // The folder that it was mounted on comes to light, an empty one.
                fs::rename(point, elsewhere(point))?;
                fs::create_dir(point)?;
            }
            Ok(())
        }
    }

    /// Where the content of a mount really is.
    fn elsewhere(point: &Path) -> PathBuf {
        let root = point.ancestors().find(|path| path.join("elsewhere").is_dir()).unwrap();
        root.join("elsewhere").join(point.file_name().unwrap())
    }

    /// An orphan with a hostPath that somebody bound into it and a tmpfs that is still in use.
    #[test]
    fn trap_11_an_orphan_is_removed_only_when_nothing_is_mounted_below_it() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("pods/uid-1");
        let volumes = folder.join("volumes/kubernetes.io~empty-dir");
        let (data, memory) = (volumes.join("data"), volumes.join("memory"));
        for point in [&data, &memory] {
            fs::create_dir_all(point).unwrap();
            fs::write(point.join("file"), "precious").unwrap();
        }
        fs::create_dir(root.path().join("elsewhere")).unwrap();
        let kept = |path: &Path| fs::read_to_string(path.join("file")).is_ok_and(|text| text == "precious");
        let fake = Fake::default();
        *fake.points.borrow_mut() = vec![data.clone(), memory.clone()];
        // What is mounted cannot be known.
        fake.unread.set(true);
        assert!(take_down(&folder, &fake).unwrap_err().starts_with("read the mount table: "));
        assert!(kept(&data) && kept(&memory));
        // It is unmounted, and is there again.
        fake.unread.set(false);
        fake.back.set(true);
        let error = take_down(&folder, &fake).unwrap_err();
        assert!(error.ends_with("memory is still mounted: a mount came back"), "{error}");
        assert!(kept(&data) && kept(&memory));
        // Somebody is in it.
        fake.back.set(false);
        fake.busy.borrow_mut().push(memory.clone());
        let error = take_down(&folder, &fake).unwrap_err();
        assert!(error.contains("memory is still mounted: unmount "), "{error}");
        assert!(kept(&memory) && kept(&elsewhere(&data)) && folder.exists());
        // Nothing is: the folder goes, and not one file of what was mounted.
        fake.busy.borrow_mut().clear();
        take_down(&folder, &fake).unwrap();
        assert!(!folder.exists() && kept(&elsewhere(&data)) && kept(&elsewhere(&memory)));
        take_down(&folder, &fake).unwrap();
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
