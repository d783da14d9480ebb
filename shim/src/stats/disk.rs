//! Bytes and inodes of a container's writable layer. Owns how often the tree is walked. What stands in
//! it is the container's doing: no link is followed, and what vanishes meanwhile is left out. Called by
//! `stats` and by ImageFsInfo.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use gantry_proto::cri;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::error::Error;
use crate::store::lock;
use crate::timeline::unix_nanos;

/// containerd's `stats_collect_period`.
const MAX_AGE: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy)]
struct Walked {
    at: Instant,
    unix: i64,
    /// After the container's end: it changes no more.
    last: bool,
    bytes: u64,
    inodes: u64,
}

/// What the last walk of one container's layer found.
#[derive(Debug, Default)]
pub(crate) struct Writable {
    walked: Mutex<Option<Walked>>,
}

impl Writable {
    /// Use of `upper`, at most ten seconds old. `stopped` when nothing can change it any more.
    ///
    /// # Errors
    /// When the folder can't be read.
    pub(crate) fn usage(
        &self,
        upper: &Path,
        stopped: bool,
        mountpoint: &Path,
    ) -> Result<cri::FilesystemUsage, Error> {
        // Held over the walk: a second asker waits for the first one's answer.
        let mut walked = lock(&self.walked);
        let fresh = walked.filter(|walked| walked.last || (!stopped && walked.at.elapsed() < MAX_AGE));
        let found = match fresh {
            Some(found) => found,
            None => {
                let (at, unix) = (Instant::now(), unix_nanos());
                let (bytes, inodes) = walk(upper).map_err(|source| Error::Files {
                    what: "measure",
                    path: upper.to_owned(),
                    source,
                })?;
                Walked { at, unix, last: stopped, bytes, inodes }
            }
        };
        *walked = Some(found);
        Ok(cri::FilesystemUsage {
            timestamp: found.unix,
            fs_id: Some(cri::FilesystemIdentifier { mountpoint: mountpoint.display().to_string() }),
            used_bytes: Some(cri::UInt64Value { value: found.bytes }),
            inodes_used: Some(cri::UInt64Value { value: found.inodes }),
        })
    }
}

/// Blocks and inodes below `root`, itself too, each inode once.
fn walk(root: &Path) -> io::Result<(u64, u64)> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let top = match rustix::fs::open(root, flags, Mode::empty()) {
        // Deleted after a reboot.
        Err(Errno::NOENT) => return Ok((0, 0)),
        top => top?,
    };
    let own = rustix::fs::fstat(&top)?;
    let (mut bytes, mut seen) = (blocks(&own), HashSet::from([(own.st_dev, own.st_ino)]));
    let mut open = vec![PathBuf::from(".")];
    while let Some(folder) = open.pop() {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let opened = match rustix::fs::openat2(&top, &folder, flags, Mode::empty(), resolve) {
            Ok(opened) => opened,
            // Gone, or no folder any more, or nested deeper than a path can name.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NAMETOOLONG | Errno::STALE) => continue,
            Err(error) => return Err(error.into()),
        };
        for entry in Dir::read_from(&opened)? {
            let Ok(entry) = entry else { break };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let Ok(found) = rustix::fs::statat(&opened, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            if !seen.insert((found.st_dev, found.st_ino)) {
                continue;
            }
            bytes += blocks(&found);
            if FileType::from_raw_mode(found.st_mode).is_dir() {
                open.push(folder.join(OsStr::from_bytes(name.to_bytes())));
            }
        }
    }
    Ok((bytes, u64::try_from(seen.len()).unwrap_or(u64::MAX)))
}

fn blocks(of: &rustix::fs::Stat) -> u64 {
    u64::try_from(of.st_blocks).unwrap_or(0).saturating_mul(512)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn hard_links_count_once_and_links_lead_nowhere() {
        let folder = tempfile::tempdir().unwrap();
        let upper = folder.path().join("upper");
        fs::create_dir_all(upper.join("a/b")).unwrap();
        fs::write(upper.join("a/file"), vec![1; 8192]).unwrap();
        fs::hard_link(upper.join("a/file"), upper.join("a/b/again")).unwrap();
        std::os::unix::fs::symlink("/", upper.join("root")).unwrap();
        let (bytes, inodes) = walk(&upper).unwrap();
        // upper, a, b, file, root
        assert_eq!(inodes, 5);
        assert!((8192..8192 * 10).contains(&bytes), "{bytes}");
    }

    #[test]
    fn an_ended_container_is_walked_once_more_and_never_again() {
        let folder = tempfile::tempdir().unwrap();
        let writable = Writable::default();
        let inodes = |stopped| {
            let usage = writable.usage(folder.path(), stopped, Path::new("/x")).unwrap();
            usage.inodes_used.unwrap().value
        };
        assert_eq!(inodes(false), 1);
        fs::write(folder.path().join("one"), "").unwrap();
        assert_eq!(inodes(false), 1, "the last walk is fresh enough");
        assert_eq!(inodes(true), 2);
        fs::write(folder.path().join("two"), "").unwrap();
        assert_eq!(inodes(true), 2);
    }
}
