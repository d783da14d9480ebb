//! Whose turn it is with a folder: one piece of work after the other. Owns the turns; one that nobody has or waits for is
//! forgotten. Called by [`super::host`] and [`super::own_thread`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::Mutex as AsyncMutex;

/// Clones are the same.
#[derive(Debug, Clone, Default)]
pub(super) struct Turns(Arc<Mutex<BTreeMap<PathBuf, Weak<AsyncMutex<()>>>>>);

impl Turns {
    /// The folder's; to be locked.
    pub(super) fn of(&self, folder: &Path) -> Arc<AsyncMutex<()>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, turn| turn.strong_count() > 0);
        if let Some(turn) = all.get(folder).and_then(Weak::upgrade) {
            return turn;
        }
        let turn = Arc::default();
        all.insert(folder.to_owned(), Arc::downgrade(&turn));
        turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_folder_has_one_turn_and_is_forgotten_after_it() {
        let (turns, disk) = (Turns::default(), Path::new("/disk"));
        let (one, other) = (turns.of(disk), turns.of(Path::new("/other")));
        let held = one.lock_owned().await;
        assert!(turns.of(disk).try_lock().is_err() && other.try_lock().is_ok());
        drop((held, other));
        assert!(turns.of(disk).try_lock().is_ok());
        assert_eq!(turns.0.lock().unwrap().len(), 1);
    }
}
