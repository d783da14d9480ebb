//! Cgroups below a cgroup. Who may divide a cgroup can nest deeper than any path is long and than there are
//! descriptors, so neither is held for each level; only names are. Called by `cgroup`. Blocks.

use std::ffi::{CStr, CString};
use std::io::Read as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Signal};

/// Removes `top` and all below it; one that is not there is removed already.
///
/// # Errors
/// The first that stays, as one with members does.
pub(super) fn remove(top: &Path) -> Result<(), Errno> {
    match open(CWD, top) {
        Err(Errno::NOENT) => return Ok(()),
        folder => below(folder?, |at, name| gone(rustix::fs::unlinkat(at, name, AtFlags::REMOVEDIR)))?,
    }
    gone(rustix::fs::unlinkat(CWD, top, AtFlags::REMOVEDIR))
}

/// Kills the members of `top` and of all below it, and lets those below go on to their end. What can't be read or
/// killed shows when it is to be removed.
pub(super) fn kill(top: &Path) {
    let Ok(folder) = open(CWD, top) else { return };
    kill_members(folder.as_fd());
    let each = |at: BorrowedFd<'_>, name: &CStr| {
        if let Ok(folder) = open(at, name) {
            kill_members(folder.as_fd());
            let file = OFlags::WRONLY | OFlags::CLOEXEC;
            // Frozen by the container itself, maybe; not on every hierarchy.
            if let Ok(state) = rustix::fs::openat(&folder, "freezer.state", file, Mode::empty()) {
                let _ = rustix::io::write(state, b"THAWED");
            }
        }
        Ok(())
    };
    // As above.
    let _ = below(folder, each);
}

fn kill_members(folder: BorrowedFd<'_>) {
    let Ok(file) =
        rustix::fs::openat(folder, "cgroup.procs", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
    else {
        return;
    };
    let mut text = String::new();
    if std::fs::File::from(file).read_to_string(&mut text).is_err() {
        return;
    }
    for pid in text.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)) {
        // Gone already: what was wanted.
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
}

/// Comes to every cgroup below `top`, to those inside before those around them: by the folder that it is in, and its
/// name there.
fn below(
    top: OwnedFd,
    mut each: impl FnMut(BorrowedFd<'_>, &CStr) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let mut left = children(&top)?;
    let mut at = top;
    // Names from the top to here, each with those that come after it.
    let mut above: Vec<(CString, Vec<CString>)> = Vec::new();
    loop {
        let Some(name) = left.pop() else {
            let Some((name, others)) = above.pop() else { return Ok(()) };
            at = open(at.as_fd(), c"..")?;
            each(at.as_fd(), &name)?;
            left = others;
            continue;
        };
        match open(at.as_fd(), &*name) {
            Ok(inner) => {
                let found = children(&inner)?;
                above.push((name, std::mem::replace(&mut left, found)));
                at = inner;
            }
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
    }
}

fn gone(removed: Result<(), Errno>) -> Result<(), Errno> {
    match removed {
        Err(Errno::NOENT) => Ok(()),
        result => result,
    }
}

fn open<P: rustix::path::Arg>(at: BorrowedFd<'_>, name: P) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(at, name, flags, Mode::empty())
}

fn children(folder: &OwnedFd) -> Result<Vec<CString>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if entry.file_type() == FileType::Directory && !matches!(name.to_bytes(), b"." | b"..") {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{Child, Command};

    use super::*;

    /// Two folders beside each other at each level; the deepest.
    fn nest(top: &Path, depth: usize) -> OwnedFd {
        let mut at = open(CWD, top).unwrap();
        for _ in 0..depth {
            for name in ["a", "b"] {
                rustix::fs::mkdirat(&at, name, Mode::RWXU).unwrap();
            }
            at = open(at.as_fd(), "a").unwrap();
        }
        at
    }

    #[test]
    fn cgroups_nested_deeper_than_a_path_is_long_go() {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path().join("pod");
        fs::create_dir(&top).unwrap();
        drop(nest(&top, 2500));
        remove(&top).unwrap();
        assert!(!top.exists());
        remove(&top).unwrap();
    }

    #[test]
    fn one_that_is_not_empty_stays_and_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path().join("pod");
        fs::create_dir_all(top.join("a/b")).unwrap();
        fs::write(top.join("a/b/file"), "").unwrap();
        assert_eq!(remove(&top), Err(Errno::NOTEMPTY));
        assert!(top.join("a/b/file").exists());
    }

    #[test]
    fn members_are_killed_however_deep_they_are_and_nobody_stays_frozen() {
        let folder = tempfile::tempdir().unwrap();
        let deepest = nest(folder.path(), 2500);
        let member = |at: BorrowedFd<'_>| -> Child {
            let child = Command::new("sleep").arg("1000").spawn().unwrap();
            let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
            for (name, text) in [("cgroup.procs", child.id().to_string()), ("freezer.state", "FROZEN".into())]
            {
                let file = rustix::fs::openat(at, name, flags, Mode::RUSR).unwrap();
                rustix::io::write(file, text.as_bytes()).unwrap();
            }
            child
        };
        let top = open(CWD, folder.path()).unwrap();
        let children = [member(top.as_fd()), member(deepest.as_fd())];
        kill(folder.path());
        for mut child in children {
            assert_eq!(child.wait().unwrap().signal(), Some(9));
        }
        let state = rustix::fs::openat(&deepest, "freezer.state", OFlags::RDONLY, Mode::empty()).unwrap();
        let mut text = String::new();
        fs::File::from(state).read_to_string(&mut text).unwrap();
        assert_eq!(text, "THAWED");
        assert_eq!(fs::read_to_string(folder.path().join("freezer.state")).unwrap(), "FROZEN");
        gantry_image::remove::tree(&folder.path().join("a")).unwrap();
    }
}
