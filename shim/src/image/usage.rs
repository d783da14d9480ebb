//! How much of the disk images and writable layers take: blocks and inodes, each file once however
//! many names it has, as du(1) counts. Owns the counting and what is remembered of it; never follows a
//! link and never leaves the folder's file system. Called by the CRI's ImageFsInfo. Blocks for as long as the folders are large.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::Images;

/// Bytes and inodes on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Allocated, not apparent: holes are free.
    pub bytes: u64,
    /// Files, folders, links, devices; the folder itself too.
    pub inodes: u64,
}

/// Layers never change, so each is counted once. The lock is held while counting: callers at the same
/// time wait for one count instead of each making their own.
#[derive(Debug, Default)]
pub(super) struct Cache(Mutex<HashMap<String, Usage>>);

impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.inodes += other.inodes;
    }
}

/// Counts a folder. What goes while it is looked at is not counted: a writable layer is in use.
///
/// # Errors
/// When a folder in it can't be read; one that is gone is empty.
fn of_folder(path: &Path) -> io::Result<Usage> {
    let mut usage = Usage::default();
    let root = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(usage),
        found => found?,
    };
    let mut linked = HashSet::new();
    let mut folders: Vec<PathBuf> = vec![path.to_owned()];
    usage += Usage { bytes: root.blocks() * 512, inodes: 1 };
    while let Some(folder) = folders.pop() {
        let entries = match std::fs::read_dir(&folder) {
            Err(error) if is_out_of_reach(&error) => continue,
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            // Of the link itself, not of what it leads to.
            let found = match entry.metadata() {
                Err(error) if is_out_of_reach(&error) => continue,
                found => found?,
            };
            if found.dev() != root.dev() {
                continue;
            }
            if found.is_dir() {
                folders.push(entry.path());
            } else if found.nlink() > 1 && !linked.insert(found.ino()) {
                continue;
            }
            usage += Usage { bytes: found.blocks() * 512, inodes: 1 };
        }
    }
    Ok(usage)
}

/// Gone or replaced meanwhile, or nested deeper than a path can name.
fn is_out_of_reach(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOENT | libc::ENAMETOOLONG | libc::ENOTDIR | libc::ELOOP | libc::ESTALE)
    )
}

impl Images {
    /// What all layers take on disk. Blocks.
    ///
    /// # Errors
    /// The first folder that can't be read.
    pub fn usage(&self) -> io::Result<Usage> {
        let mut cache = self.inner.usages.0.lock().unwrap_or_else(PoisonError::into_inner);
        let folders = self.inner.store.folders();
        cache.retain(|folder, _| folders.contains(folder));
        let mut all = Usage::default();
        for folder in folders {
            let usage = match cache.get(&folder) {
                Some(usage) => *usage,
                None => of_folder(&self.layers_dir().join(&folder))?,
            };
            // A layer that went in the meantime counts nothing, and is not remembered.
            if usage.inodes > 0 {
                cache.insert(folder, usage);
            }
            all += usage;
        }
        Ok(all)
    }
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
