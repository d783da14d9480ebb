//! Block devices that are only remembered. Owns which there are and what was done; passes for
//! [`BlockKernel`] in tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::BlockKernel;

/// Clones are the same devices.
#[derive(Debug, Clone, Default)]
pub(crate) struct FakeBlocks(Arc<Mutex<BlockState>>);

#[derive(Debug, Default)]
struct BlockState {
    numbers: BTreeMap<PathBuf, u64>,
    locked: BTreeSet<PathBuf>,
    done: Vec<String>,
    failure: Option<String>,
}

impl FakeBlocks {
    fn state(&self) -> MutexGuard<'_, BlockState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A device is there.
    pub(crate) fn device(&self, path: &Path, number: u64) -> PathBuf {
        fs::write(path, "").unwrap();
        let path = path.canonicalize().unwrap();
        self.state().numbers.insert(path.clone(), number);
        path
    }

    /// It is not any more.
    pub(crate) fn vanish(&self, path: &Path) {
        self.state().numbers.remove(path);
        fs::remove_file(path).unwrap();
    }

    /// Locking fails so until told otherwise.
    pub(crate) fn fail(&self, why: Option<&str>) {
        self.state().failure = why.map(str::to_owned);
    }

    /// What was done, in order.
    pub(crate) fn done(&self) -> Vec<String> {
        self.state().done.clone()
    }

    /// What is kept open.
    pub(crate) fn locked(&self) -> Vec<PathBuf> {
        self.state().locked.iter().cloned().collect()
    }
}

impl BlockKernel for FakeBlocks {
    fn number(&self, path: &Path) -> io::Result<Option<u64>> {
        Ok(self.state().numbers.get(path).copied())
    }

    fn bind(&self, device: &Path, point: &Path) -> io::Result<()> {
        let mut state = self.state();
        let number = state.numbers.get(device).copied().ok_or(ErrorKind::NotFound)?;
        // A mount needs a file to be on.
        fs::metadata(point)?;
        state.numbers.insert(point.to_owned(), number);
        state.done.push("bind".to_owned());
        Ok(())
    }

    fn unbind(&self, point: &Path) -> io::Result<()> {
        let mut state = self.state();
        if state.locked.contains(point) {
            return Err(ErrorKind::ResourceBusy.into());
        }
        state.numbers.remove(point).ok_or(ErrorKind::InvalidInput)?;
        state.done.push("unbind".to_owned());
        Ok(())
    }

    fn lock(&self, point: &Path) -> Result<(), String> {
        let mut state = self.state();
        if let Some(why) = &state.failure {
            return Err(why.clone());
        }
        state.locked.insert(point.to_owned());
        state.done.push("lock".to_owned());
        Ok(())
    }

    fn is_locked(&self, point: &Path) -> Result<bool, String> {
        Ok(self.state().locked.contains(point))
    }

    fn unlock(&self, point: &Path) -> Result<(), String> {
        let mut state = self.state();
        if state.locked.remove(point) {
            state.done.push("unlock".to_owned());
        }
        Ok(())
    }
}
