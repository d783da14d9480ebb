//! The machine's own file systems: how full each is and what its disk has done. Owns which are looked at:
//! those on disks, each once; never one that a server or a pod could keep waiting. Called by
//! [`crate::scrape`]. Blocks.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::Path;

use gantry_base::mountinfo::{self, MountInfo};

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
pub(crate) fn all() -> Vec<FileSystem> {
    let disks = disks(&fs::read_to_string("/proc/diskstats").unwrap_or_default());
    let mounts = mountinfo::own().unwrap_or_default();
    let found = on_disk(&mounts).into_iter().filter_map(|mount| {
        let space = disk::space(&mount.point, now()).ok()?;
        let done = disks.get(&mount.device).copied().unwrap_or_default();
        Some(FileSystem { device: mount.source.to_string_lossy().into_owned(), space, done })
    });
    found.take(MOST).collect()
}

/// Those on disks, each disk once: the first of its mounts.
fn on_disk(mounts: &[MountInfo]) -> Vec<&MountInfo> {
    let mut seen = BTreeSet::new();
    let mut found: Vec<_> = mounts.iter().filter(|mount| is_on_disk(mount)).collect();
    found.retain(|mount| seen.insert(&mount.source));
    found
}

fn is_on_disk(mount: &MountInfo) -> bool {
    let known = matches!(mount.kind.as_str(), "xfs" | "btrfs" | "f2fs") || mount.kind.starts_with("ext");
    known && Path::new(&mount.source).starts_with("/dev")
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
        let mounts = mountinfo::parse(table.as_bytes());
        let told: Vec<_> = on_disk(&mounts)
            .iter()
            .map(|m| (m.source.to_str(), m.device.as_str(), m.point.to_str()))
            .collect();
        let disk = |source, number, point| (Some(source), number, Some(point));
        assert_eq!(told, [disk("/dev/vda", "254:0", "/"), disk("/dev/vdb", "254:16", "/mnt/a b")]);
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
