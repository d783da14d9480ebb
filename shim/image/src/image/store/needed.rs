//! Which layers stay, and the going of the others. A layer stays while an image has it, or a pull or
//! a container holds it. Owns the count of holds and the folders' way in and out of `layers/`; never
//! drops an image. Called by `hold`, `pins` and `pull` on blocking threads, by `ImageStore` at its opening.
//!
//! ```text
//!            hold                       add_layer                add_image
//!   unknown ──────► held, on its way ─────────────► held, here ─────────────► of an image
//!      ▲                  │                              │                      │ (and held
//!      │                  │ release                      │ release              │  until the
//!      └──────────────────┴──────────────────────────────┘                      ▼  release)
//! ```
//! All of it happens under the journal's lock, so a pull finds a layer whole or not at all.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use super::journal::Journal;
use super::record::{LayerRecord, StoreChange};
use super::{ImageStore, StoreError, StoreState};
use crate::image::ingest::Ingest;

/// How long whoever drops layers waits for their files: a layer may have a million, and some disks take milliseconds
/// for each. Who frees a disk looks at it right after.
const PATIENCE: Duration = Duration::from_secs(10);

/// When the writing of a layer began.
#[derive(Debug)]
pub(crate) struct LossMark {
    losses: u64,
}

impl ImageStore {
    /// One more needs each of these layers, here or yet to come.
    pub(crate) fn hold(&self, keys: &[String]) {
        self.write(|state| {
            for key in keys {
                *state.holds.entry(key.clone()).or_default() += 1;
            }
        });
    }

    /// To be called before the first byte of a layer is written.
    pub(crate) fn loss_mark(&self) -> LossMark {
        LossMark { losses: self.journal().losses() }
    }

    /// Makes a layer known and its folder the layer's. If another has brought it in the meantime
    /// (its pull was cancelled at the last moment, this one began anew), `ingest` is given up.
    ///
    /// # Errors
    /// [`StoreError::Folder`], [`StoreError::LostMeanwhile`], the journal's.
    pub(crate) fn add_layer(
        &self,
        key: &str,
        mut record: LayerRecord,
        ingest: Ingest,
        begun: &LossMark,
    ) -> Result<(), StoreError> {
        let mut journal = self.journal();
        if self.layer(key).is_some() {
            return Ok(());
        }
        if journal.losses() != begun.losses {
            return Err(StoreError::LostMeanwhile { key: key.to_owned() });
        }
        record.folder = self.read(|state| state.free_folder(&record.folder));
        // Folder first: a folder without a record is deleted at the next start, a record without a
        // folder would be a lie.
        let folder = record.folder.clone();
        let place = self.layers_dir.join(&folder);
        let keep = ingest.keep(&place);
        keep.map_err(|source| StoreError::Folder { key: key.to_owned(), source: Box::new(source) })?;
        let change = StoreChange::Layer { key: key.to_owned(), record };
        if let Err(error) = journal.write(change.clone()) {
            drop(self.remove_folder(&folder));
            return Err(error);
        }
        self.write(|state| state.note(change));
        Ok(())
    }

    /// Lets go of `released` and drops all layers that nobody needs; says how many those were. Their files are
    /// gone soon, mostly when this returns; what can't be deleted now is deleted at the next start.
    pub(crate) fn release(&self, released: &[String]) -> usize {
        let mut journal = self.journal();
        let (dropped, folders) = self.sweep(&mut journal, released);
        drop(journal);
        delete(folders);
        dropped
    }

    /// Lets go of `released`, and of what nobody needs any longer: how many layers, and their folders, which are
    /// out of the way already.
    pub(super) fn sweep(&self, journal: &mut Journal, released: &[String]) -> (usize, Vec<Ingest>) {
        let (dropped, doubtful) = self.write(|state| {
            state.release_keys(released);
            (state.collect_unneeded(), state.collect_doubtful())
        });
        let mut folders = Vec::new();
        for (key, record) in &dropped {
            tracing::info!(layer = %key, "dropping a layer that no image has");
            if let Err(error) = journal.drop_layer(key) {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(layer = %key, error, "that is not noted: the next start drops it again");
            }
            folders.extend(self.remove_folder(&record.folder));
        }
        for folder in doubtful {
            folders.extend(self.remove_folder(&folder));
            if let Err(error) = journal.forget_doubtful(&folder) {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(
                    folder,
                    error,
                    "that a lost layer is gone is not noted: the next start sees it"
                );
            }
        }
        (dropped.len(), folders)
    }

    /// How many layers are held; none are on their way in or out while it counts.
    #[cfg(test)]
    pub(crate) fn held_layers(&self) -> usize {
        let _journal = self.journal();
        self.read(|state| state.holds.len())
    }

    /// A layer's folder among the temporary ones, deleted with the value.
    fn remove_folder(&self, folder: &str) -> Option<Ingest> {
        let taken = Ingest::take(&self.layers_dir.join(folder), &self.ingest_dir);
        let log = |error| {
            let error: &dyn std::error::Error = &error;
            tracing::warn!(folder, error, "a dropped layer's folder stays until the next start");
        };
        taken.map_err(log).ok()
    }
}

/// Deletes folders that are out of the way already.
pub(super) fn delete(folders: Vec<Ingest>) {
    let count = folders.len();
    if !beside(PATIENCE, move || drop(folders)) {
        tracing::info!(layers = count, "their files are still being deleted");
    }
}

/// Does `work` on a thread of its own, waits for its end for so long, and tells whether it came.
fn beside(patience: Duration, work: impl FnOnce() + Send + 'static) -> bool {
    let (done, ended) = sync_channel(1);
    let work = move || {
        work();
        // Nobody may wait any more.
        let _ = done.send(());
    };
    if let Err(error) = thread::Builder::new().name("layer-trash".to_owned()).spawn(work) {
        // What it owned was dropped with it: folders are deleted by that, here.
        tracing::warn!(%error, "no thread to delete layers");
    }
    ended.recv_timeout(patience) != Err(RecvTimeoutError::Timeout)
}

impl StoreState {
    fn release_keys(&mut self, keys: &[String]) {
        for key in keys {
            if let Some(count) = self.holds.get_mut(key) {
                *count -= 1;
                if *count == 0 {
                    self.holds.remove(key);
                }
            }
        }
    }

    /// Forgets the layers that no image has and no pull holds.
    pub(super) fn collect_unneeded(&mut self) -> Vec<(String, Arc<LayerRecord>)> {
        let records = self.images.values().map(|held| &held.record);
        let needed: HashSet<&String> = records.flat_map(|record| record.keys()).collect();
        let is_unneeded = |key: &String| !needed.contains(key) && !self.holds.contains_key(key);
        self.layers.extract_if(|key, _| is_unneeded(key)).collect()
    }

    /// Forgets the layers in doubt that nobody holds; their folders. One that came after it has another folder,
    /// and counts as a holder too: who of them holds which, nobody knows.
    pub(super) fn collect_doubtful(&mut self) -> Vec<String> {
        let holds = &self.holds;
        let gone = self.doubtful.extract_if(|_, key| !holds.contains_key(key));
        gone.map(|(folder, _)| folder).collect()
    }

    /// `folder`, or a name like it when a layer in doubt still has that.
    fn free_folder(&self, folder: &str) -> String {
        let mut free = folder.to_owned();
        let mut number = 1;
        while self.doubtful.contains_key(&free) {
            free = format!("{folder}.{number}");
            number += 1;
        }
        free
    }
}

#[cfg(test)]
mod tests;
