//! Where ranges wait for their turn: files without a name on the disk of the images, which are gone with the last who
//! has them open, however that ends. Owns how many may wait, and that the disk has room for them; never knows what
//! is in them. Called by `ranges`.
//!
//! Such a file is memory that the node can do without: pages of it that are read and dropped before the kernel would
//! write them never reach the disk, and under pressure they are written and given back.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rustix::buffer::spare_capacity;
use rustix::fs::{Mode, OFlags};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::RegistryError;
use super::ranges::RANGE_BYTES;
use gantry_unpack::Space;

/// Ranges of one download that come or wait, as many as a 64th of the machine's memory holds: what is written and read
/// at once should not be more than the kernel lets lie around unwritten. 128 MiB carry a line of 1 Gbit/s over a second
/// in which a layer is more work than that.
const LEAST: usize = 8;
const MOST: usize = 32;
const PART: u64 = 64 * RANGE_BYTES;
/// What the disk keeps free of them. Far over the floor of unpacking: a layer that fits is not in want of room because
/// of what waits.
const FLOOR: u64 = 1 << 30;
/// Longer than any disk that still works is busy.
const STUCK: Duration = Duration::from_secs(600);

/// Where the files are made; a cheap handle.
#[derive(Debug, Clone)]
pub(crate) struct RangeSpool {
    folder: Arc<Path>,
    capacity: usize,
    floor: u64,
}

/// One such file; a cheap handle.
#[derive(Debug, Clone)]
pub(super) struct SpoolFile {
    file: Arc<File>,
    folder: Arc<Path>,
}

impl RangeSpool {
    /// `folder`: on the disk of the images.
    pub(crate) fn of_machine(folder: &Path) -> Self {
        let info = rustix::system::sysinfo();
        Self::new(folder, capacity_for_memory(info.totalram.saturating_mul(u64::from(info.mem_unit))))
    }

    pub(crate) fn new(folder: &Path, places: usize) -> Self {
        Self { folder: folder.into(), capacity: places, floor: FLOOR }
    }

    /// Another one than that of every disk.
    #[cfg(test)]
    pub(crate) fn with_floor(self, floor: u64) -> Self {
        Self { floor, ..self }
    }

    /// Ranges of one download that come or wait.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// A new file, if the disk has room for what is to come.
    ///
    /// # Errors
    /// [`RegistryError::Spool`].
    pub(super) async fn create_file(&self) -> Result<SpoolFile, RegistryError> {
        let (folder, floor) = (Arc::clone(&self.folder), self.floor);
        let open = move || -> io::Result<File> {
            let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
            let file = File::from(rustix::fs::open(&*folder, flags, Mode::RUSR | Mode::WUSR)?);
            match Space::from(rustix::fs::fstatvfs(&file)?).free_bytes() {
                free if free < floor => Err(io::Error::other(format!(
                    "only {free} bytes are free: pieces are kept above {floor}"
                ))),
                _ => Ok(file),
            }
        };
        let file = run_blocking(&self.folder, open).await?;
        Ok(SpoolFile { file: Arc::new(file), folder: Arc::clone(&self.folder) })
    }
}

impl SpoolFile {
    /// Writes all of `bytes`, and gives them back for their memory.
    ///
    /// # Errors
    /// [`RegistryError::Spool`].
    pub(super) async fn write(&self, at: u64, bytes: Vec<u8>) -> Result<Vec<u8>, RegistryError> {
        let file = Arc::clone(&self.file);
        run_blocking(&self.folder, move || file.write_all_at(&bytes, at).map(|()| bytes)).await
    }

    /// So many bytes, which have been put there.
    ///
    /// # Errors
    /// [`RegistryError::Spool`].
    pub(super) async fn read(&self, at: u64, length: usize) -> Result<Bytes, RegistryError> {
        let file = Arc::clone(&self.file);
        let read = move || {
            let mut bytes = Vec::with_capacity(length);
            while bytes.len() < length {
                // Zeroes first would be a copy more.
                let from = at + bytes.len() as u64;
                let read = || rustix::io::pread(&file, spare_capacity(&mut bytes), from);
                if rustix::io::retry_on_intr(read)? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            bytes.truncate(length);
            Ok(Bytes::from(bytes))
        };
        run_blocking(&self.folder, read).await
    }
}

/// On a machine with so many bytes of memory.
fn capacity_for_memory(memory: u64) -> usize {
    usize::try_from(memory / PART).map_or(MOST, |places| places.clamp(LEAST, MOST))
}

/// The disk may let those who use it wait, who must not be those that serve everybody.
async fn run_blocking<T: Send + 'static>(
    folder: &Path,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, RegistryError> {
    let done = match timeout(STUCK, spawn_blocking(work)).await {
        Ok(Ok(done)) => done,
        Ok(Err(died)) => Err(io::Error::other(died)),
        Err(elapsed) => Err(io::Error::new(io::ErrorKind::TimedOut, elapsed)),
    };
    done.map_err(|source| RegistryError::Spool { folder: folder.to_owned(), source: Arc::new(source) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_with_more_memory_has_more_places() {
        assert_eq!([1, 2, 4, 7, 8, 1024].map(|gib| capacity_for_memory(gib << 30)), [8, 8, 16, 28, 32, 32]);
    }

    #[tokio::test]
    async fn what_waits_has_no_name_and_is_gone_with_its_last_holder() {
        let folder = tempfile::tempdir().unwrap();
        let open = || {
            let links = std::fs::read_dir("/proc/self/fd")
                .unwrap()
                .filter_map(|fd| fd.unwrap().path().read_link().ok());
            links.filter(|link| link.starts_with(folder.path())).count()
        };
        let file = RangeSpool::new(folder.path(), 1).create_file().await.unwrap();
        let bytes = file.write(0, b"piece".to_vec()).await.unwrap();
        assert_eq!(file.write(5, bytes).await.unwrap(), b"piece");
        assert_eq!(file.clone().read(3, 4).await.unwrap(), &b"cepi"[..]);
        assert_eq!((open(), std::fs::read_dir(folder.path()).unwrap().count()), (1, 0));
        let error = file.read(8, 4).await.unwrap_err();
        assert!(error.to_string().contains(folder.path().to_str().unwrap()), "{error}");
        drop(file);
        assert_eq!(open(), 0);
    }
}
