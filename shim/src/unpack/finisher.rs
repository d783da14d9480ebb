//! A second thread of the process that unpacks: it fills and finishes small files, while the first one reads on and
//! makes the next. Opening a file is half of making it, so each has a half. Owns the files that wait for it and
//! what went wrong with them; names, order and space stay with the first thread. Started by `program` before the
//! walls are up, used by `unpack`.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};

use super::UnpackError;
use super::tarball::Meta;
use super::tree::Writing;

/// Larger files are written by whoever reads them.
pub(super) const SMALL: u64 = 64 << 10;
/// What may wait, in bytes and in open files.
const MOST_BYTES: usize = 1 << 20;
const MOST_FILES: usize = 256;
/// It is woken for as many, not for each: nobody waits for a file.
const WORTH: usize = 16;

/// A file with all that will be in it.
pub(super) struct Filled {
    pub(super) file: Writing,
    pub(super) bytes: Vec<u8>,
    pub(super) meta: Meta,
}

/// The thread, which ends with this.
#[derive(Debug)]
pub struct Finisher {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    desk: Mutex<Desk>,
    changed: Condvar,
}

#[derive(Default)]
struct Desk {
    waiting: Vec<Filled>,
    /// Of those that wait and of those in hand.
    bytes: usize,
    in_hand: bool,
    /// Whatever waits is to be done now.
    hurry: bool,
    closed: bool,
    /// The first that failed; what comes after it is dropped.
    failed: Option<UnpackError>,
}

impl std::fmt::Debug for Desk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { waiting, bytes, in_hand, .. } = self;
        write!(f, "{} files wait, {bytes} bytes, in hand: {in_hand}", waiting.len())
    }
}

impl Finisher {
    /// Starts the thread, and waits until it has made all calls that only a start makes.
    ///
    /// # Errors
    /// clone(2)'s.
    pub fn start() -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let (there, is_there) = mpsc::channel();
        let thread = thread::Builder::new().name("finisher".into()).spawn({
            let shared = Arc::clone(&shared);
            move || {
                let _ = there.send(());
                shared.work();
            }
        })?;
        is_there.recv().map_err(io::Error::other)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Has a file filled and finished by and by; waits while there is too much to do.
    ///
    /// # Errors
    /// Of this file or an earlier one.
    pub(super) fn finish(&self, filled: Filled) -> Result<(), UnpackError> {
        let mut desk = self.shared.desk();
        while desk.bytes > MOST_BYTES || desk.waiting.len() >= MOST_FILES {
            desk.hurry = true;
            self.shared.changed.notify_all();
            desk = self.shared.wait(desk);
        }
        if let Some(error) = &desk.failed {
            return Err(error.clone());
        }
        desk.bytes += filled.bytes.len();
        desk.waiting.push(filled);
        if desk.waiting.len() == WORTH {
            self.shared.changed.notify_all();
        }
        Ok(())
    }

    /// Waits until nothing is left to do.
    ///
    /// # Errors
    /// Of any file so far.
    pub(super) fn settle(&self) -> Result<(), UnpackError> {
        let mut desk = self.shared.desk();
        while desk.in_hand || !desk.waiting.is_empty() {
            desk.hurry = true;
            self.shared.changed.notify_all();
            desk = self.shared.wait(desk);
        }
        desk.failed.clone().map_or(Ok(()), Err)
    }
}

impl Drop for Finisher {
    fn drop(&mut self) {
        self.shared.desk().closed = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // It does not panic; if it did, `settle` has had no answer that would count.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'d>(&self, desk: MutexGuard<'d, Desk>) -> MutexGuard<'d, Desk> {
        self.changed.wait(desk).unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut desk = self.desk();
        loop {
            while !desk.closed && desk.waiting.len() < WORTH && !(desk.hurry && !desk.waiting.is_empty()) {
                desk = self.wait(desk);
            }
            if desk.waiting.is_empty() {
                return;
            }
            let mine = std::mem::take(&mut desk.waiting);
            let failed = desk.failed.is_some();
            (desk.in_hand, desk.hurry) = (true, false);
            drop(desk);
            let (mut bytes, mut result) = (0, Ok(()));
            for Filled { mut file, bytes: content, meta } in mine {
                bytes += content.len();
                if !failed && result.is_ok() {
                    result = file.write(&content).and_then(|_| file.finish(&meta));
                }
            }
            desk = self.desk();
            desk.bytes -= bytes;
            desk.in_hand = false;
            if let Err(error) = result {
                desk.failed.get_or_insert(error);
            }
            self.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;
    use crate::unpack::Tree;

    fn filled(tree: &mut Tree, name: &str, bytes: &[u8]) -> Filled {
        let meta = Meta { mode: 0o640, mtime: (7, 0), ..Meta::default() };
        Filled { file: tree.file(name.as_bytes(), meta.mode).unwrap(), bytes: bytes.to_vec(), meta }
    }

    #[test]
    fn files_are_whole_once_it_has_settled() {
        let folder = tempfile::tempdir().unwrap();
        let mut tree = Tree::open(folder.path()).unwrap();
        let finisher = Finisher::start().unwrap();
        let content = |number: usize| vec![number.to_le_bytes()[0]; number * 37];
        // More than may wait, and a last batch that is too small to wake anybody.
        for number in 0..MOST_FILES * 2 + 3 {
            finisher.finish(filled(&mut tree, &number.to_string(), &content(number))).unwrap();
        }
        finisher.settle().unwrap();
        for number in 0..MOST_FILES * 2 + 3 {
            let path = folder.path().join(number.to_string());
            assert!(std::fs::read(&path).unwrap() == content(number), "{number}");
            let found = std::fs::metadata(&path).unwrap();
            assert_eq!((found.permissions().mode() & 0o7777, found.mtime()), (0o640, 7), "{number}");
        }
        finisher.settle().unwrap();
    }

    #[test]
    fn the_first_that_fails_is_told_and_the_rest_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let mut tree = Tree::open(folder.path()).unwrap();
        let finisher = Finisher::start().unwrap();
        let mut bad = filled(&mut tree, "bad", b"x");
        bad.meta.xattrs = vec![("user.x".to_owned(), vec![0; 1 << 17])];
        finisher.finish(bad).unwrap();
        let error = finisher.settle().unwrap_err();
        assert!(error.to_string().contains("setxattr \"bad\""), "{error}");
        let after = filled(&mut tree, "after", b"y");
        assert_eq!(finisher.finish(after).unwrap_err().to_string(), error.to_string());
    }

    #[test]
    fn what_waits_when_it_is_dropped_is_done() {
        let folder = tempfile::tempdir().unwrap();
        let mut tree = Tree::open(folder.path()).unwrap();
        let finisher = Finisher::start().unwrap();
        finisher.finish(filled(&mut tree, "one", b"1")).unwrap();
        drop(finisher);
        assert_eq!(std::fs::read(folder.path().join("one")).unwrap(), b"1");
    }
}
