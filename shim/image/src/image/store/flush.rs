//! How what the journal holds becomes durable, and what is done when the disk lost some of it. Owns the one
//! open file that hears of all write-back errors, and the order sync, commit, forget; what a failure means
//! is `write_back`'s to say. Called by `sync`, and by pulls that may not run ahead of the disk.
//!
//! ```text
//!   journal: asked ──► syncfs ─┬─ fine ──► asked no more ──► redb commit ──► entries removed
//!                              └─ lost ──► all layers that wait are in doubt, then asked no more
//! ```
//! A process that dies while it is asked takes the answer along: the kernel may have told it, and tells
//! nobody else. So the next one takes all that waits for lost.

use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use gantry_failpoint::failpoint;
use rustix::io::Errno;

use super::record::StoreChange;
use super::write_back::{self, WriteBackFailure};
use super::{ImageStore, StoreError};

/// Who knows what became of what was written.
pub(super) trait WriteBack: fmt::Debug + Send + Sync {
    /// Returns when all that was written so far is on disk. Blocks.
    ///
    /// # Errors
    /// Also of what was to be written since the last call.
    fn sync(&self) -> Result<(), Errno>;
}

/// The kernel, by a file that is open from the store's opening to its end: one that is opened for each sync
/// would be told nothing of what another has heard.
#[derive(Debug)]
pub(super) struct Syncfs(File);

impl Syncfs {
    /// # Errors
    /// The folder can't be opened.
    pub(super) fn new(folder: &Path) -> Result<Self, StoreError> {
        let opened = File::open(folder).map(Self);
        opened.map_err(|source| StoreError::Io {
            operation: "open",
            path: folder.to_owned(),
            source: Arc::new(source),
        })
    }
}

impl WriteBack for Syncfs {
    fn sync(&self) -> Result<(), Errno> {
        rustix::fs::syncfs(&self.0)
    }
}

impl ImageStore {
    /// Makes durable what is journaled so far. Blocks for as long as the disk needs.
    ///
    /// # Errors
    /// syncfs's, redb's; the journal then keeps everything for the next time. [`StoreError::Lost`]: it keeps
    /// all but the layers that waited, and the images that need them.
    pub(crate) fn flush(&self) -> Result<(), StoreError> {
        let _flushing = self.flushing();
        let Some(last) = self.journal().begin_sync()? else { return Ok(()) };
        // Nobody waits for this but who wants it: what is removed meanwhile waits no longer afterwards.
        if let Err(errno) = self.write_back.sync() {
            return Err(self.write_back_error(errno));
        }
        self.journal().finish_sync()?;
        failpoint!("flush.synced");
        let _writing = self.writing();
        let pending = self.journal().pending_until(last);
        if pending.is_empty() {
            return Ok(());
        }
        self.disk.apply(pending.iter().map(|(_, change)| change))?;
        failpoint!("flush.applied");
        self.journal().forget(last)
    }

    fn write_back_error(&self, errno: Errno) -> StoreError {
        let path = self.layers_dir.clone();
        let source = Arc::new(io::Error::from(errno));
        let answered = match write_back::judge(errno) {
            WriteBackFailure::NotDone => self.journal().finish_sync().map(|()| 0),
            WriteBackFailure::Lost => self.drop_doubtful(&source),
        };
        match (write_back::judge(errno), answered) {
            (_, Err(error)) => error,
            (WriteBackFailure::NotDone, Ok(_)) => StoreError::Io { operation: "syncfs", path, source },
            (WriteBackFailure::Lost, Ok(layers)) => StoreError::Lost { path, layers, source },
        }
    }

    /// No layer that waits is offered any longer, nor an image that needs one; says how many layers those are.
    /// What holds one keeps its folder.
    fn drop_doubtful(&self, error: &io::Error) -> Result<usize, StoreError> {
        let mut journal = self.journal();
        let doubted = journal.mark_doubtful();
        let keys: HashSet<&str> = doubted.iter().map(|(key, _)| key.as_str()).collect();
        let victims = self.read(|state| {
            write_back::victims(state.images.iter().map(|(id, held)| (id, held.record.as_ref())), &keys)
        });
        let mut dropped = Vec::new();
        for (id, layer) in victims {
            tracing::error!(
                image = %id, %layer, %error,
                "the disk failed to write, and some of the image may be lost: it must be pulled again"
            );
            dropped.push(StoreChange::DropImage { names: self.names_of(&id), id });
        }
        for (key, folder) in &doubted {
            tracing::warn!(layer = %key, folder, %error, "the disk failed to write the layer");
            dropped.push(StoreChange::DropLayer { key: key.clone() });
        }
        self.write(|state| {
            dropped.iter().for_each(|change| state.note(change.clone()));
            state.doubtful.extend(doubted.iter().map(|(key, folder)| (folder.clone(), key.clone())));
        });
        // First of all: from here on the doubt outlives this process. Each step is worth doing without the others.
        let mut noted = journal.finish_sync().and(journal.forget_dropped(&dropped));
        for change in dropped {
            // Of an image or a layer that the disk has from an earlier time, names above all.
            noted = noted.and(journal.write(change));
        }
        let (_, folders) = self.sweep(&mut journal, &[]);
        drop(journal);
        super::needed::delete(folders);
        noted.map(|()| doubted.len())
    }
}

#[cfg(test)]
mod tests;
