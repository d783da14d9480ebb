//! How much of an image its volumes may be copied to: what the image has unpacked, and a little that is nobody's
//! concern. Links to one folder, and many names of one file, would else fill the disk from a small image. Owns the
//! count, and the look at what the disk has left; copies nothing. Called by `image_volumes`.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::Stat;

use gantry_image::usage::{self, Usage};
use gantry_unpack::{Space, SpaceCheck};

/// What is copied without a look at how large the image is.
const FREE: Usage = Usage { bytes: 64 << 20, inodes: 4096 };

/// More than the image has.
#[derive(Debug, thiserror::Error)]
enum BudgetExceeded {
    #[error("the image's volumes would take more than {most} bytes, and the image itself takes fewer")]
    Bytes { most: u64 },
    #[error("the image's volumes would be more than {most} files, and the image itself has fewer")]
    Files { most: u64 },
}

/// Of one container.
#[derive(Debug)]
pub(super) struct Budget<'a> {
    layers_dir: &'a Path,
    layers: &'a [String],
    copied: Usage,
    most: Usage,
    is_measured: bool,
    looks: SpaceCheck,
}

impl<'a> Budget<'a> {
    pub(super) fn new(layers_dir: &'a Path, layers: &'a [String]) -> Self {
        let (copied, looks) = (Usage::default(), SpaceCheck::default());
        Self { layers_dir, layers, copied, most: FREE, is_measured: false, looks }
    }

    /// Before one more file or folder is copied.
    pub(super) fn take(&mut self, found: &Stat, into: impl AsFd) -> io::Result<()> {
        // Blocks, as the image is counted: where the disk compresses, what is in the file may be more.
        self.copied += Usage::from(found);
        if !self.is_measured && self.excess().is_some() {
            self.is_measured = true;
            for layer in self.layers {
                self.most += usage::of_folder(&self.layers_dir.join(layer))?.usage;
            }
        }
        if let Some(excess) = self.excess() {
            return Err(io::Error::other(excess));
        }
        self.look(1, 0, into)
    }

    /// After so many bytes were written.
    pub(super) fn count_written(&mut self, bytes: u64, into: impl AsFd) -> io::Result<()> {
        self.look(0, bytes, into)
    }

    fn excess(&self) -> Option<BudgetExceeded> {
        if self.copied.bytes > self.most.bytes {
            return Some(BudgetExceeded::Bytes { most: self.most.bytes });
        }
        (self.copied.inodes > self.most.inodes).then_some(BudgetExceeded::Files { most: self.most.inodes })
    }

    /// The node's own logs and records need room, too: the same floor as for unpacking.
    fn look(&mut self, entries: u64, bytes: u64, into: impl AsFd) -> io::Result<()> {
        if !self.looks.is_due(entries, bytes) {
            return Ok(());
        }
        match Space::from(rustix::fs::fstatvfs(into)?).short() {
            Some(short) => Err(io::Error::other(short)),
            None => Ok(()),
        }
    }
}
