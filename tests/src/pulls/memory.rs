//! The memory of a node that has run for a while: full of what was read once. A virtual machine's host may take
//! back memory that is free for some seconds, and give it again page by page as it is touched, which costs
//! several times what a pull does with a page; so none is left free. Owns the file that it is filled from;
//! measures nothing. Called by `pulls`.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;

use anyhow::{Context, Result};

/// Left to the kernel, which keeps some free at all times.
const LEFT: u64 = 256 << 20;
/// Looks at what is free: a kernel may give up what was not used for a while as fast as this reads.
const LOOKS: usize = 8;
/// Read at once.
const CHUNK: usize = 4 << 20;
/// All of it holes: they take no disk, and memory once they are read.
const SIZE: u64 = 1 << 40;

/// Fills what is free, again and again.
#[derive(Debug)]
pub(super) struct MemoryFiller {
    file: File,
    /// What was not read lately.
    next: Mutex<u64>,
}

impl MemoryFiller {
    /// `cache` must be on a disk: what is read from tmpfs stays.
    pub(super) fn new(cache: &Path) -> Result<Self> {
        let file = tempfile::tempfile_in(cache).context("make a file to read")?;
        file.set_len(SIZE).context("a file of 1 TiB, all holes: not on this file system")?;
        Ok(Self { file, next: Mutex::new(0) })
    }

    /// Takes what is free into the page cache, which gives it to whoever asks.
    ///
    /// # Errors
    /// The file's.
    pub(super) fn fill(&self) -> Result<()> {
        let mut next = self.next.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut chunk = vec![0; CHUNK];
        for _ in 0..LOOKS {
            for _ in 0..free()?.saturating_sub(LEFT) / CHUNK as u64 {
                self.file.read_exact_at(&mut chunk, *next).context("read what is all holes")?;
                *next = (*next + CHUNK as u64) % SIZE;
            }
        }
        Ok(())
    }
}

/// Bytes that nobody uses.
fn free() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemFree:"));
    let number =
        line.and_then(|line| line.trim().strip_suffix(" kB")).context("no MemFree in /proc/meminfo")?;
    Ok(number.trim().parse::<u64>().context("MemFree is no number")? << 10)
}
