//! The machine's own file systems: how full each is and what its disk has done. Owns which are looked at:
//! those on disks, each once; never one that a server or a pod could keep waiting. Called by
//! [`crate::server::scrape`]. Blocks.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use super::summary::FsStats;
use super::{disk, now};

/// As many as are told of.
const MOST: usize = 64;

/// One of them.
#[derive(Debug, Clone, PartialEq)]
pub struct FileSystem {
    /// As the mount table names it.
    pub device: String,
    /// How full.
    pub space: FsStats,
    /// What the kernel counts of it.
    pub done: Done,
}

/// A line of `/proc/diskstats`; times in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is one number of the kernel's")]
pub struct Done {
    pub reads: u64,
    pub reads_merged: u64,
    pub sectors_read: u64,
    pub reading: u64,
    pub writes: u64,
    pub writes_merged: u64,
    pub sectors_written: u64,
    pub writing: u64,
    pub current: u64,
    pub busy: u64,
    pub weighted: u64,
}

/// All, now.
pub(in crate::server) fn all() -> Vec<FileSystem> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let disks = disks(&read("/proc/diskstats"));
    let found = mounted(&read("/proc/self/mountinfo")).into_iter().filter_map(|mount| {
        let space = disk::space(&mount.point, now()).ok()?;
        let done = disks.get(&mount.number).copied().unwrap_or_default();
        Some(FileSystem { device: mount.source, space, done })
    });
    found.take(MOST).collect()
}

#[derive(Debug, PartialEq, Eq)]
struct Mount {
    number: String,
    point: PathBuf,
    source: String,
}

fn mounted(mountinfo: &str) -> Vec<Mount> {
    let mut seen = BTreeSet::new();
    let line = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(2);
        let (number, point) = (left.next()?, left.nth(1)?);
        let mut right = right.split(' ');
        let (kind, source) = (right.next()?, right.next()?);
        let on_disk = matches!(kind, "xfs" | "btrfs" | "f2fs") || kind.starts_with("ext");
        (on_disk && source.starts_with("/dev/") && seen.insert(source.to_owned())).then(|| Mount {
            number: number.to_owned(),
            point: unescaped(point),
            source: source.to_owned(),
        })
    };
    mountinfo.lines().filter_map(line).collect()
}

/// `\040` is a space.
fn unescaped(path: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((first, more)) = rest.split_first() {
        let code = (*first == b'\\').then(|| more.get(..3)).flatten();
        let code = code.and_then(|code| u8::from_str_radix(std::str::from_utf8(code).ok()?, 8).ok());
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { &more[3..] } else { more };
    }
    Path::new(&OsString::from_vec(bytes)).to_owned()
}

/// By `major:minor`.
fn disks(diskstats: &str) -> HashMap<String, Done> {
    let line = |line: &str| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let number = |at: usize| words.get(at + 3)?.parse().ok();
        let done = Done {
            reads: number(0)?,
            reads_merged: number(1)?,
            sectors_read: number(2)?,
            reading: number(3)?,
            writes: number(4)?,
            writes_merged: number(5)?,
            sectors_written: number(6)?,
            writing: number(7)?,
            current: number(8)?,
            busy: number(9)?,
            weighted: number(10)?,
        };
        Some((format!("{}:{}", words.first()?, words.get(1)?), done))
    };
    diskstats.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_are_taken_once_and_nothing_else() {
        let table = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
                     23 22 254:0 /var /mnt/a\\040b rw - ext4 /dev/vda rw\n\
                     24 22 254:16 / /mnt/a\\040b rw - xfs /dev/vdb rw\n\
                     25 22 0:30 / /net rw - nfs4 server:/x rw\n\
                     26 22 0:31 / /tmp rw - tmpfs tmpfs rw\n";
        let found = mounted(table);
        let told: Vec<_> =
            found.iter().map(|m| (m.source.as_str(), m.number.as_str(), m.point.to_str())).collect();
        assert_eq!(told, [("/dev/vda", "254:0", Some("/")), ("/dev/vdb", "254:16", Some("/mnt/a b"))]);
    }

    #[test]
    fn numbers_of_a_disk() {
        let found = disks(" 254       0 vda 10 1 80 5 20 2 160 9 3 14 15 0 0 0 0 0 0\n 254 1 short 1 2\n");
        let done = Done {
            reads: 10,
            reads_merged: 1,
            sectors_read: 80,
            reading: 5,
            writes: 20,
            writes_merged: 2,
            sectors_written: 160,
            writing: 9,
            current: 3,
            busy: 14,
            weighted: 15,
        };
        assert_eq!(found, HashMap::from([("254:0".to_owned(), done)]));
    }
}
