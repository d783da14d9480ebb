//! Removing folders that containers wrote to. A container can nest folders deeper than any path is long
//! and than there are descriptors, so neither a path nor a descriptor is held for each level. Follows no
//! link and leaves no file system: a mount point is an error. Called by whoever deletes a container, a
//! sandbox or a layer. Blocks.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

/// Removes `path` and everything below; one that is not there is removed already.
///
/// # Errors
/// The first thing that can't be removed; a retry goes on from there.
pub fn tree(path: &Path) -> io::Result<()> {
    let top = match open(CWD, path) {
        Err(Errno::NOENT) => return Ok(()),
        // No folder: a link goes itself.
        Err(Errno::NOTDIR | Errno::LOOP) => return std::fs::remove_file(path),
        top => top?,
    };
    let mut raised = 0;
    while empty(&top, &mut raised)? {}
    match rustix::fs::unlinkat(CWD, path, AtFlags::REMOVEDIR) {
        Err(Errno::NOENT) => Ok(()),
        result => Ok(result?),
    }
}

fn open<P: rustix::path::Arg>(at: BorrowedFd<'_>, name: P) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(at, name, flags, Mode::empty())
}

/// One pass over the top folder; tells whether it found anything, raised folders included.
fn empty(top: &OwnedFd, raised: &mut u64) -> Result<bool, Errno> {
    let mut found = false;
    for entry in entries(top)? {
        let (name, kind) = entry?;
        found = true;
        if !unlink(top.as_fd(), &name, kind)? {
            flatten(top, &name, raised)?;
        }
    }
    Ok(found)
}

/// Empties a folder of the top one: files go, folders in it that are not empty move up beside it, where a
/// later pass finds them.
fn flatten(top: &OwnedFd, name: &CStr, raised: &mut u64) -> Result<(), Errno> {
    let folder = open(top.as_fd(), name)?;
    for entry in entries(&folder)? {
        let (inner, kind) = entry?;
        if unlink(folder.as_fd(), &inner, kind)? {
            continue;
        }
        loop {
            *raised += 1;
            let free = format!(".gantry-removed-{raised}");
            match rustix::fs::renameat_with(&folder, &*inner, top, free, RenameFlags::NOREPLACE) {
                // An earlier attempt's, or the container's own.
                Err(Errno::EXIST) => {}
                moved => break moved?,
            }
        }
    }
    rustix::fs::unlinkat(top, name, AtFlags::REMOVEDIR)
}

type FolderEntry = (std::ffi::CString, FileType);

/// What stands in a folder, but for itself and its parent.
fn entries(folder: &OwnedFd) -> Result<impl Iterator<Item = Result<FolderEntry, Errno>>, Errno> {
    let named = |entry: rustix::fs::DirEntry| (entry.file_name().to_owned(), entry.file_type());
    let all = Dir::read_from(folder)?.map(move |entry| entry.map(named));
    Ok(all.filter(|entry| !matches!(entry, Ok((name, _)) if matches!(name.to_bytes(), b"." | b".."))))
}

/// Removes a file or an empty folder; false for a folder that is not empty.
fn unlink(at: BorrowedFd<'_>, name: &CStr, kind: FileType) -> Result<bool, Errno> {
    if !matches!(kind, FileType::Directory) {
        match rustix::fs::unlinkat(at, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(true),
            // Its file system does not tell kinds apart.
            Err(Errno::ISDIR) => {}
            Err(error) => return Err(error),
        }
    }
    match rustix::fs::unlinkat(at, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nested by descriptors, as a container does it.
    fn nest(top: &Path, depth: usize) {
        let mut at = open(CWD, top).unwrap();
        for _ in 0..depth {
            rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
            let flags = OFlags::CREATE | OFlags::WRONLY;
            drop(rustix::fs::openat(&at, "file", flags, Mode::RUSR).unwrap());
            at = open(at.as_fd(), "d").unwrap();
        }
    }

    #[test]
    fn folders_nested_deeper_than_paths_and_descriptors_go() {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path().join("upper");
        std::fs::create_dir(&top).unwrap();
        // Over PATH_MAX, and over any usual limit of open files.
        nest(&top, 2500);
        // What an earlier attempt left, and what a container may put in the way.
        std::fs::create_dir_all(top.join(".gantry-removed-1/x/y")).unwrap();
        std::fs::write(top.join(".gantry-removed-2"), "").unwrap();
        tree(&top).unwrap();
        assert!(!top.exists());
        tree(&top).unwrap();
    }

    #[test]
    fn a_link_goes_and_what_it_leads_to_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (kept, top) = (folder.path().join("kept"), folder.path().join("top"));
        std::fs::create_dir_all(kept.join("inner")).unwrap();
        std::fs::create_dir_all(top.join("a/b")).unwrap();
        std::os::unix::fs::symlink(&kept, top.join("a/b/link")).unwrap();
        std::os::unix::fs::symlink(&kept, folder.path().join("self")).unwrap();
        tree(&top).unwrap();
        tree(&folder.path().join("self")).unwrap();
        assert!(kept.join("inner").exists() && !top.exists());
        assert!(std::fs::symlink_metadata(folder.path().join("self")).is_err());
    }
}
