//! How much of a disk unpacking leaves to the node, so that a pull stops neither its logs nor its records.
//! Decides on numbers, and when they are to be looked at; `tree` looks in the confined process, and the
//! runtime's `image::layer::disk_guard` behind its back.

use rustix::fs::StatVfs;

/// Of a large disk; a small one has a twentieth of its own.
const BYTES: u64 = 128 << 20;
/// Of many inodes; of fewer a hundredth.
const INODES: u64 = 10_000;
/// What may be made or written between two looks: far less than the floors of all but the smallest disks.
const ENTRIES: u64 = 256;
const WRITTEN: u64 = 4 << 20;

/// What a file system has left, as statvfs(3) tells it.
#[derive(Debug, Clone, Copy)]
pub struct Space {
    free_bytes: u64,
    all_bytes: u64,
    free_inodes: u64,
    /// 0: it tells none, and makes them as they are needed (btrfs).
    all_inodes: u64,
}

/// What there is too little of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LowSpace {
    #[error("only {free} bytes are free: unpacking and copying stop at {floor}")]
    Bytes { free: u64, floor: u64 },
    #[error(
        "only {free} inodes are free, which files need one of each: unpacking and copying stop at {floor}"
    )]
    Inodes { free: u64, floor: u64 },
}

impl From<StatVfs> for Space {
    fn from(stat: StatVfs) -> Self {
        Self {
            free_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
            all_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
            free_inodes: stat.f_favail,
            all_inodes: stat.f_files,
        }
    }
}

impl Space {
    /// For whoever is not root.
    #[must_use]
    pub fn free_bytes(self) -> u64 {
        self.free_bytes
    }

    /// What is below its floor.
    #[must_use]
    pub fn short(self) -> Option<LowSpace> {
        self.below(1)
    }

    /// What is below half its floor: whoever minds the floor has stopped before.
    #[must_use]
    pub fn very_short(self) -> Option<LowSpace> {
        self.below(2)
    }

    fn below(self, divisor: u64) -> Option<LowSpace> {
        let bytes = BYTES.min(self.all_bytes / 20) / divisor;
        let inodes = INODES.min(self.all_inodes / 100) / divisor;
        if self.free_bytes < bytes {
            return Some(LowSpace::Bytes { free: self.free_bytes, floor: bytes });
        }
        (self.free_inodes < inodes).then_some(LowSpace::Inodes { free: self.free_inodes, floor: inodes })
    }
}

/// When to look next.
#[derive(Debug, Default)]
pub struct SpaceCheck {
    entries: u64,
    bytes: u64,
}

impl SpaceCheck {
    /// Whether it is time, after so many entries and bytes since the last call.
    pub fn is_due(&mut self, entries: u64, bytes: u64) -> bool {
        self.entries += entries;
        self.bytes += bytes;
        let is_due = self.entries >= ENTRIES || self.bytes >= WRITTEN;
        if is_due {
            *self = Self::default();
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: Space =
        Space { free_bytes: 1 << 30, all_bytes: 1 << 40, free_inodes: 1 << 20, all_inodes: 1 << 26 };

    #[test]
    fn bytes_have_a_floor_of_their_own_on_large_and_small_disks() {
        assert_eq!(LARGE.short(), None);
        let floor = 128 << 20;
        assert_eq!(Space { free_bytes: floor, ..LARGE }.short(), None);
        let below = Space { free_bytes: floor - 1, ..LARGE };
        assert_eq!(below.short(), Some(LowSpace::Bytes { free: floor - 1, floor }));
        assert_eq!(below.very_short(), None, "the runtime's is half of it");
        assert!(Space { free_bytes: floor / 2 - 1, ..LARGE }.very_short().is_some());
        let small = Space { all_bytes: 2000, ..LARGE };
        assert_eq!(Space { free_bytes: 100, ..small }.short(), None);
        assert_eq!(Space { free_bytes: 99, ..small }.short(), Some(LowSpace::Bytes { free: 99, floor: 100 }));
    }

    #[test]
    fn so_have_inodes_where_there_are_any() {
        assert_eq!(Space { free_inodes: 10_000, ..LARGE }.short(), None);
        assert_eq!(
            Space { free_inodes: 9_999, ..LARGE }.short(),
            Some(LowSpace::Inodes { free: 9_999, floor: 10_000 })
        );
        let few = Space { all_inodes: 2048, ..LARGE };
        assert_eq!(Space { free_inodes: 20, ..few }.short(), None);
        assert!(Space { free_inodes: 19, ..few }.short().is_some());
        assert_eq!(Space { free_inodes: 0, all_inodes: 0, ..LARGE }.short(), None, "btrfs tells none");
    }

    #[test]
    fn many_small_files_are_looked_at_as_often_as_a_few_large_ones() {
        let mut looks = SpaceCheck::default();
        assert_eq!((1..=600).filter(|_| looks.is_due(1, 0)).collect::<Vec<_>>(), [256, 512]);
        let mut looks = SpaceCheck::default();
        let mib = 1 << 20;
        assert_eq!((1..=9).filter(|_| looks.is_due(0, mib)).collect::<Vec<_>>(), [4, 8]);
    }
}
