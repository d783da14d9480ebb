//! What is on a disk: the room of a file system, the weight of a folder. Owns the walk, which leaves
//! neither the file system nor, by a link, the folder; never writes. Called by [`super`]. Blocks.

use std::collections::HashSet;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::summary::FsStats;

/// A pod may build folders within folders without end.
const DEEPEST: usize = 512;

/// How much a folder weighs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Weight {
    /// As the disk counts them.
    pub bytes: u64,
    /// Each once, however many names it has.
    pub inodes: u64,
}

/// The whole file system that a path is on.
///
/// # Errors
/// When it cannot be asked.
pub fn space(path: &Path, time: i64) -> io::Result<FsStats> {
    let found = rustix::fs::statvfs(path)?;
    let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
    Ok(FsStats {
        time,
        available_bytes: Some(bytes(found.f_bavail)),
        capacity_bytes: Some(bytes(found.f_blocks)),
        used_bytes: Some(bytes(found.f_blocks.saturating_sub(found.f_bfree))),
        inodes_free: Some(found.f_ffree),
        inodes: Some(found.f_files),
        inodes_used: Some(found.f_files.saturating_sub(found.f_ffree)),
    })
}

/// Weighs a folder; what goes away meanwhile is not counted.
///
/// # Errors
/// When the folder itself cannot be looked at.
pub fn weigh(path: &Path) -> io::Result<Weight> {
    let top = std::fs::symlink_metadata(path)?;
    let (mut weight, mut seen) = (Weight::default(), HashSet::new());
    let mut waiting = vec![(path.to_owned(), 0)];
    add(&top, &mut weight, &mut seen);
    while let Some((folder, depth)) = waiting.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            // Of the link, not of what it points to.
            let Ok(data) = entry.metadata() else { continue };
            if data.dev() != top.dev() {
                continue;
            }
            add(&data, &mut weight, &mut seen);
            if data.is_dir() && depth < DEEPEST {
                waiting.push((entry.path(), depth + 1));
            }
        }
    }
    Ok(weight)
}

fn add(data: &std::fs::Metadata, weight: &mut Weight, seen: &mut HashSet<u64>) {
    if data.nlink() > 1 && !data.is_dir() && !seen.insert(data.ino()) {
        return;
    }
    weight.bytes += data.blocks() * 512;
    weight.inodes += 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_weigh_once_and_lead_nowhere() {
        let folder = tempfile::tempdir().unwrap();
        let (inside, outside) = (folder.path().join("in"), folder.path().join("out"));
        std::fs::create_dir_all(inside.join("sub")).unwrap();
        std::fs::create_dir(&outside).unwrap();
        let empty = weigh(&inside).unwrap();
        std::fs::write(outside.join("big"), vec![1; 1 << 20]).unwrap();
        std::os::unix::fs::symlink(&outside, inside.join("link")).unwrap();
        std::fs::write(inside.join("sub/a"), vec![1; 1 << 16]).unwrap();
        std::fs::hard_link(inside.join("sub/a"), inside.join("b")).unwrap();
        let full = weigh(&inside).unwrap();
        assert_eq!(full.inodes, empty.inodes + 2);
        assert!((1 << 16..1 << 18).contains(&(full.bytes - empty.bytes)), "{full:?}");
        assert!(weigh(&inside.join("none")).is_err());
        let space = space(&inside, 7).unwrap();
        assert!(space.capacity_bytes > space.available_bytes && space.time == 7);
    }
}
