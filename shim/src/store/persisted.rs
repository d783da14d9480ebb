//! A record in memory and on disk. Owns that the two agree and that nobody who reads the one waits for the
//! other: a disk that hangs may keep whoever changes a record, and nobody else. Used by `container` and
//! `sandbox`.

use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use serde::Serialize;

use super::record::{self, Error};
use gantry_base::mutex::lock;

/// The way to the disk: ends when the change is there.
pub(crate) type Saving = Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

/// How a record gets to its disk.
type Write<R> = fn(&Path, &R) -> Result<(), Error>;

/// The record of one object.
#[derive(Debug)]
pub(super) struct Persisted<R> {
    /// With how often it was changed.
    record: Mutex<(u64, Arc<R>)>,
    /// Of these changes the last one on disk. Held while writing: changes come to the disk one after the
    /// other, and never an older one over a newer one.
    written: Arc<Mutex<u64>>,
    write: Write<R>,
}

impl<R: Clone + Serialize + Send + Sync + 'static> Persisted<R> {
    /// What is on disk already, or will be written by others for the first time.
    pub(super) fn new(record: R) -> Self {
        Self::with_writer(record, record::write)
    }

    fn with_writer(record: R, write: Write<R>) -> Self {
        Self { record: Mutex::new((0, Arc::new(record))), written: Arc::default(), write }
    }

    /// As it is now. A change makes a new one where somebody still reads this one.
    pub(super) fn get(&self) -> Arc<R> {
        Arc::clone(&lock(&self.record).1)
    }

    /// Changes the record: in memory at once, on disk when the future has ended.
    pub(super) fn update(&self, folder: &Path, change: impl FnOnce(&mut R)) -> Saving {
        let (number, changed) = {
            let mut record = lock(&self.record);
            change(Arc::make_mut(&mut record.1));
            record.0 += 1;
            record.clone()
        };
        let (folder, written, write) = (folder.to_owned(), Arc::clone(&self.written), self.write);
        Box::pin(async move {
            let path = folder.join(record::FILE);
            let job = move || write_if_newer(&written, number, &folder, &*changed, write);
            match tokio::task::spawn_blocking(job).await {
                Ok(result) => result,
                Err(source) => Err(Error::Write { path, source: io::Error::other(source) }),
            }
        })
    }
}

/// Writes, unless a newer one, which has this change too, is there already.
fn write_if_newer<R>(
    written: &Mutex<u64>,
    number: u64,
    folder: &Path,
    record: &R,
    write: Write<R>,
) -> Result<(), Error> {
    let mut written = lock(written);
    if *written < number {
        write(folder, record)?;
        *written = number;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    /// A disk that takes a record once somebody lets it.
    #[derive(Debug, Clone, Serialize)]
    struct Slow {
        value: u32,
        #[serde(skip)]
        gate: Arc<Mutex<mpsc::Receiver<()>>>,
    }

    /// The write happened under the lock that every list takes, on the threads that serve every call.
    #[tokio::test]
    async fn a_disk_that_hangs_keeps_nobody_who_reads_a_record() {
        let (open, gate) = mpsc::channel();
        let slow = Slow { value: 1, gate: Arc::new(Mutex::new(gate)) };
        let persisted = Persisted::with_writer(slow, |_, slow| {
            // Closed at the end of the test.
            let _ = lock(&slow.gate).recv();
            Ok(())
        });
        let saving = tokio::spawn(persisted.update(Path::new("/none"), |slow| slow.value = 2));
        // This test has one thread: were the disk waited for on it, nothing here would be reached.
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(persisted.get().value, 2);
        assert!(!saving.is_finished());
        open.send(()).unwrap();
        saving.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn the_disk_ends_with_the_last_change_whichever_gets_there_first() {
        let folder = tempfile::tempdir().unwrap();
        let persisted = Persisted::new(0);
        let first = persisted.update(folder.path(), |value| *value += 1);
        let second = persisted.update(folder.path(), |value| *value += 10);
        second.await.unwrap();
        first.await.unwrap();
        let text = std::fs::read_to_string(folder.path().join(record::FILE)).unwrap();
        assert_eq!((text.as_str(), *persisted.get()), ("11", 11));
    }

    #[tokio::test]
    async fn a_record_that_cannot_be_written_is_an_error_and_memory_has_the_change() {
        let persisted = Persisted::new(0);
        assert!(persisted.update(Path::new("/none/such"), |value| *value = 1).await.is_err());
        assert_eq!(*persisted.get(), 1);
    }
}
