//! How much of the disk a folder takes: blocks and inodes, each file once however many names it has, as du(1)
//! counts. What stands in it may be a container's doing, and change meanwhile: no link is followed, no
//! other file system entered, and what is gone or out of reach is left out. Called for layers by
//! `image::usage`, for what containers write by `stats::disk`. Blocks for as long as the folder is large.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// Bytes and inodes on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Allocated, not apparent: holes are free.
    pub bytes: u64,
    /// Files, folders, links, devices; the folder itself too.
    pub inodes: u64,
}

impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.inodes += other.inodes;
    }
}

impl From<&rustix::fs::Stat> for Usage {
    fn from(of: &rustix::fs::Stat) -> Self {
        Self { bytes: u64::try_from(of.st_blocks).unwrap_or(0).saturating_mul(512), inodes: 1 }
    }
}

/// Counts a folder.
///
/// # Errors
/// When a folder in it can't be read; one that is gone is empty.
pub(crate) fn of_folder(path: &Path) -> io::Result<Usage> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let top = match rustix::fs::open(path, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(Usage::default()),
        top => top?,
    };
    let root = rustix::fs::fstat(&top)?;
    let (mut usage, mut linked) = (Usage::from(&root), HashSet::new());
    let mut folders = vec![PathBuf::from(".")];
    while let Some(folder) = folders.pop() {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let opened = match rustix::fs::openat2(&top, &folder, flags, Mode::empty(), resolve) {
            Err(errno) if is_out_of_reach(errno) => continue,
            opened => opened?,
        };
        for entry in Dir::read_from(&opened)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let found = match rustix::fs::statat(&opened, name, AtFlags::SYMLINK_NOFOLLOW) {
                Err(errno) if is_out_of_reach(errno) => continue,
                found => found?,
            };
            if found.st_dev != root.st_dev {
                continue;
            }
            if FileType::from_raw_mode(found.st_mode).is_dir() {
                folders.push(folder.join(OsStr::from_bytes(name.to_bytes())));
            } else if found.st_nlink > 1 && !linked.insert(found.st_ino) {
                continue;
            }
            usage += Usage::from(&found);
        }
    }
    Ok(usage)
}

/// Gone or replaced meanwhile, or nested deeper than a path can name.
fn is_out_of_reach(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::NAMETOOLONG | Errno::NOTDIR | Errno::LOOP | Errno::STALE)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn links_count_once_holes_and_their_targets_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let empty = of_folder(folder.path()).unwrap();
        fs::create_dir(at("d")).unwrap();
        fs::write(at("d/file"), vec![1; 100_000]).unwrap();
        fs::hard_link(at("d/file"), at("same")).unwrap();
        std::os::unix::fs::symlink("/usr", at("link")).unwrap();
        fs::File::create(at("hole")).unwrap().set_len(1 << 30).unwrap();
        let usage = of_folder(folder.path()).unwrap();
        assert_eq!(usage.inodes - empty.inodes, 4, "d, file, link, hole");
        let bytes = usage.bytes - empty.bytes;
        assert!((98_304..200_000).contains(&bytes), "{bytes}");
        assert_eq!(of_folder(&at("none")).unwrap(), Usage::default());
    }

    #[test]
    fn what_is_nested_deeper_than_a_path_can_name_spoils_no_count() {
        use rustix::fs::{Mode, OFlags};
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path().join("top");
        fs::create_dir(&top).unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let mut at = rustix::fs::open(&top, flags, Mode::empty()).unwrap();
        let name = "n".repeat(250);
        for _ in 0..20 {
            rustix::fs::mkdirat(&at, &name, Mode::RWXU).unwrap();
            at = rustix::fs::openat(&at, &name, flags, Mode::empty()).unwrap();
        }
        let inodes = of_folder(&top).unwrap().inodes;
        assert!((15..=20).contains(&inodes), "{inodes}");
        crate::remove::tree(&top).unwrap();
    }
}
