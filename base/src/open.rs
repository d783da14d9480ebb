//! Opens what is to be read of a folder that pods may write to, as a collector of logs does. Owns that
//! neither a link is followed, nor a pipe waited for, nor a device touched; never reads. Called by
//! whoever reads, compresses or follows a log.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Component, Path};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, open, openat, openat2};

/// Opens nothing yet: a device would notice, and a pipe would be waited for.
const LOOK: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// The file itself. Folders on the way may be links: a path whose folder is known is opened [`beneath`].
///
/// # Errors
/// When it is not there, or is no regular file.
pub fn plain(path: &Path) -> io::Result<File> {
    regular(&openat(CWD, path, LOOK, Mode::empty())?)
}

/// A file below `root`, with no link on the way from there.
///
/// # Errors
/// When it is not there, is no regular file, or is not below the folder.
pub fn beneath(root: &Path, path: &Path) -> io::Result<File> {
    let outside = || io::Error::other(format!("it is not in {}", root.display()));
    let inside = path.strip_prefix(root).map_err(|_| outside())?;
    if inside.components().any(|part| part == Component::ParentDir) {
        return Err(outside());
    }
    let base = open(root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    regular(&openat2(&base, inside, LOOK, Mode::empty(), how)?)
}

/// What was found is opened, whatever stands under its name by now.
fn regular(found: &OwnedFd) -> io::Result<File> {
    if FileType::from_raw_mode(fstat(found)?.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("it is not a regular file"));
    }
    let itself = format!("/proc/self/fd/{}", found.as_fd().as_raw_fd());
    Ok(File::from(open(itself, READ, Mode::empty())?))
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::symlink;

    use super::*;

    /// A pipe that nobody writes to.
    fn fifo(path: &Path) {
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(CWD, path, FileType::Fifo, mode, 0).unwrap();
    }

    #[test]
    fn only_a_regular_file_is_opened() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("0.log"), "text").unwrap();
        symlink(at("0.log"), at("link")).unwrap();
        fifo(&at("pipe"));
        std::fs::create_dir(at("folder")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        for open in [plain as fn(&Path) -> io::Result<File>, |path| beneath(path.parent().unwrap(), path)] {
            let mut text = String::new();
            open(&at("0.log")).unwrap().read_to_string(&mut text).unwrap();
            assert_eq!(text, "text");
            for other in ["link", "pipe", "folder", "socket"] {
                let error = open(&at(other)).unwrap_err();
                assert!(error.to_string().contains("not a regular file"), "{other}: {error}");
            }
            assert_eq!(open(&at("1.log")).unwrap_err().kind(), io::ErrorKind::NotFound);
        }
        assert!(plain(Path::new("/dev/null")).is_err());
    }

    #[test]
    fn no_link_is_followed_beneath_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let (root, other) = (folder.path().join("pods"), folder.path().join("other"));
        for made in [root.join("web"), other.clone()] {
            std::fs::create_dir_all(&made).unwrap();
            std::fs::write(made.join("0.log"), "").unwrap();
        }
        symlink(&other, root.join("link")).unwrap();
        symlink(&root, folder.path().join("moved")).unwrap();
        assert!(beneath(&root, &root.join("web/0.log")).is_ok());
        // The administrator may keep all logs elsewhere.
        let moved = folder.path().join("moved");
        assert!(beneath(&moved, &moved.join("web/0.log")).is_ok());
        for bad in ["link/0.log", "../other/0.log", "web/../../other/0.log"] {
            assert!(beneath(&root, &root.join(bad)).is_err(), "{bad}");
        }
        assert!(beneath(&root, &other.join("0.log")).is_err());
        assert!(beneath(&root, &root).is_err());
    }
}
