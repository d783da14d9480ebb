//! How much of the disk a folder takes: blocks and inodes, each file once however many names it has, as du(1)
//! counts. What stands in it may be a container's doing, and change meanwhile: no link is followed, no
//! other file system entered, and what is gone or out of reach is left out. Nor may it cost memory: depth
//! first, by names in open folders, never by a path or a list of them. Called by `walker`. Blocks
//! for as long as the folder is large.

pub mod walker;

use std::collections::HashSet;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};
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

/// How far a count goes. Whoever fills the folder chooses its shape.
#[derive(Debug, Clone, Copy)]
struct WalkLimits {
    /// Levels: one descriptor is open for each. The runtime may have 4,096 of them on a node that gives no
    /// more; four times PATH_MAX in names of 255 bytes is 64 levels.
    levels: usize,
    /// Entries: more than a file system of 150 GB has inodes by ext4's default, some minutes of looking.
    entries: u64,
    /// Inodes of several names that are remembered, 16 bytes each.
    linked: usize,
}

const LIMITS: WalkLimits = WalkLimits { levels: 512, entries: 10_000_000, linked: 250_000 };

/// What a count came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FolderCount {
    /// Of all that was seen.
    pub usage: Usage,
    /// False when there is more than is looked at.
    pub whole: bool,
}

/// Counts a folder.
///
/// # Errors
/// When a folder in it can't be read; one that is gone is empty.
pub fn of_folder(path: &Path) -> io::Result<FolderCount> {
    count(path, LIMITS)
}

fn count(path: &Path, limits: WalkLimits) -> io::Result<FolderCount> {
    let mut sum = UsageSum { usage: Usage::default(), linked: HashSet::new(), shares: 0 };
    let walked = walk(path, limits, |found| sum.add(found, limits.linked))?;
    Ok(FolderCount { usage: sum.into_usage(), whole: walked != WalkEnd::Cut })
}

/// What the files of a folder have in them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileBytes {
    /// The folder is not there.
    Gone,
    /// Bytes of all regular files, holes included, each file once.
    Counted(u64),
    /// There is more than is looked at.
    TooMany,
}

/// Counts what the files of a folder have in them.
///
/// # Errors
/// When a folder in it can't be read.
pub fn of_files(path: &Path) -> io::Result<FileBytes> {
    count_bytes(path, LIMITS)
}

fn count_bytes(path: &Path, limits: WalkLimits) -> io::Result<FileBytes> {
    let (mut bytes, mut linked) = (0_u64, HashSet::new());
    let walked = walk(path, limits, |found| {
        if !FileType::from_raw_mode(found.st_mode).is_file() || linked.len() > limits.linked {
            return;
        }
        if found.st_nlink == 1 || linked.insert(found.st_ino) {
            bytes = bytes.saturating_add(u64::try_from(found.st_size).unwrap_or(0));
        }
    })?;
    Ok(match walked {
        WalkEnd::Gone => FileBytes::Gone,
        WalkEnd::Whole if linked.len() <= limits.linked => FileBytes::Counted(bytes),
        WalkEnd::Whole | WalkEnd::Cut => FileBytes::TooMany,
    })
}

/// How far a walk came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WalkEnd {
    /// The folder is not there.
    Gone,
    Whole,
    /// There is more than the limits allow.
    Cut,
}

/// Shows a folder and all that is in it.
fn walk(path: &Path, limits: WalkLimits, mut see: impl FnMut(&Stat)) -> io::Result<WalkEnd> {
    let top = match open(CWD, path) {
        Err(Errno::NOENT) => return Ok(WalkEnd::Gone),
        top => top?,
    };
    let root = rustix::fs::fstat(&top)?;
    see(&root);
    let (mut seen, mut deep, mut levels) = (0, false, vec![Dir::new(top)?]);
    while let Some(folder) = levels.last_mut() {
        let Some(entry) = folder.read() else {
            levels.pop();
            continue;
        };
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        seen += 1;
        if seen > limits.entries {
            return Ok(WalkEnd::Cut);
        }
        let found = match rustix::fs::statat(folder.fd()?, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(errno) if is_out_of_reach(errno) => continue,
            found => found?,
        };
        if found.st_dev != root.st_dev {
            continue;
        }
        see(&found);
        if !FileType::from_raw_mode(found.st_mode).is_dir() {
            continue;
        }
        if levels.len() >= limits.levels {
            deep = true;
            continue;
        }
        let folder = &levels[levels.len() - 1];
        match open(folder.fd()?, name) {
            Err(errno) if is_out_of_reach(errno) => {}
            inner => levels.push(Dir::new(inner?)?),
        }
    }
    Ok(if deep { WalkEnd::Cut } else { WalkEnd::Whole })
}

fn open<P: rustix::path::Arg>(at: BorrowedFd<'_>, name: P) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::openat(at, name, flags, Mode::empty())
}

/// A count under way.
struct UsageSum {
    usage: Usage,
    /// Inodes of several names that have been counted.
    linked: HashSet<u64>,
    /// Of the others: what each name is of its inode, in parts of 2^32.
    shares: u64,
}

impl UsageSum {
    fn add(&mut self, found: &Stat, most_linked: usize) {
        let own = Usage::from(found);
        // The number's own type differs by machine.
        let names = usize::try_from(found.st_nlink).unwrap_or(usize::MAX).max(1) as u64;
        if FileType::from_raw_mode(found.st_mode).is_dir() || names == 1 {
            self.usage += own;
            return;
        }
        if self.linked.contains(&found.st_ino) {
            return;
        }
        if self.linked.len() < most_linked {
            self.linked.insert(found.st_ino);
            self.usage += own;
            return;
        }
        // Of more than can be remembered each name counts its share: the sum is right once all have been
        // seen.
        self.usage.bytes += own.bytes / names;
        self.shares += (1 << 32) / names;
    }

    fn into_usage(self) -> Usage {
        // Rounded: shares of a third don't add up.
        Usage { inodes: self.usage.inodes + ((self.shares + (1 << 31)) >> 32), ..self.usage }
    }
}

/// Gone or replaced meanwhile.
fn is_out_of_reach(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::NAMETOOLONG | Errno::NOTDIR | Errno::LOOP | Errno::STALE)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsFd;

    use super::*;

    fn usage_of(path: &Path) -> Usage {
        of_folder(path).unwrap().usage
    }

    #[test]
    fn links_count_once_holes_and_their_targets_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let empty = usage_of(folder.path());
        fs::create_dir(at("d")).unwrap();
        fs::write(at("d/file"), vec![1; 100_000]).unwrap();
        fs::hard_link(at("d/file"), at("same")).unwrap();
        std::os::unix::fs::symlink("/usr", at("link")).unwrap();
        fs::File::create(at("hole")).unwrap().set_len(1 << 30).unwrap();
        let usage = usage_of(folder.path());
        assert_eq!(usage.inodes - empty.inodes, 4, "d, file, link, hole");
        let bytes = usage.bytes - empty.bytes;
        assert!((98_304..200_000).contains(&bytes), "{bytes}");
        assert_eq!(usage_of(&at("none")), Usage::default());
    }

    /// A list of paths of what is still to be looked at was 4 KB for each folder: a million of them ended
    /// the runtime.
    #[test]
    fn what_is_nested_deeper_than_a_path_can_name_is_counted_and_down_to_the_limit_only() {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path().join("top");
        fs::create_dir(&top).unwrap();
        let mut at = open(CWD, &top).unwrap();
        let name = "n".repeat(250);
        for _ in 0..20 {
            rustix::fs::mkdirat(&at, &name, Mode::RWXU).unwrap();
            at = open(at.as_fd(), &name).unwrap();
        }
        assert_eq!(usage_of(&top).inodes, 21);
        assert_eq!(count(&top, WalkLimits { levels: 5, ..LIMITS }).unwrap().usage.inodes, 6);
        crate::remove::tree(&top).unwrap();
    }

    #[test]
    fn a_count_that_is_too_long_says_so() {
        let folder = tempfile::tempdir().unwrap();
        for name in 0..20 {
            fs::write(folder.path().join(name.to_string()), "").unwrap();
        }
        let counted = |entries| count(folder.path(), WalkLimits { entries, ..LIMITS }).unwrap();
        assert!(counted(20).whole);
        let cut = counted(10);
        assert!(!cut.whole && cut.usage.inodes == 11, "{cut:?}");
    }

    #[test]
    fn bytes_of_files_count_each_file_once_and_no_more_links_than_are_remembered() {
        let folder = tempfile::tempdir().unwrap();
        for file in 0..3 {
            let at = |name| folder.path().join(format!("{file}-{name}"));
            fs::write(at(0), "four").unwrap();
            fs::hard_link(at(0), at(1)).unwrap();
        }
        std::os::unix::fs::symlink("0-0", folder.path().join("link")).unwrap();
        let counted = |linked| count_bytes(folder.path(), WalkLimits { linked, ..LIMITS }).unwrap();
        assert_eq!(counted(3), FileBytes::Counted(12));
        assert_eq!(counted(2), FileBytes::TooMany);
        assert_eq!(of_files(&folder.path().join("none")).unwrap(), FileBytes::Gone);
    }

    #[test]
    fn links_beyond_those_that_are_remembered_count_by_their_share() {
        let folder = tempfile::tempdir().unwrap();
        for file in 0..10 {
            let at = |name| folder.path().join(format!("{file}-{name}"));
            fs::write(at(0), vec![1; 8192]).unwrap();
            for name in 1..3 {
                fs::hard_link(at(0), at(name)).unwrap();
            }
        }
        let all = usage_of(folder.path());
        assert_eq!(all.inodes, 11);
        let few = count(folder.path(), WalkLimits { linked: 2, ..LIMITS }).unwrap().usage;
        assert_eq!(few.inodes, 11);
        assert!(few.bytes.abs_diff(all.bytes) < 100, "{few:?} {all:?}");
    }
}
