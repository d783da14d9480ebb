//! Changes that are not on disk yet, a file each in /run. Owns those files; never syncs. Called by
//! `store`.
//!
//! `NUMBER.json` waits for the disk. `NUMBER.doubt` is a layer of which the disk may have lost something: it
//! never gets there, and is known for as long as somebody holds its folder. `asked` is there while the
//! disk is asked what it has.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gantry_failpoint::failpoint;

use super::StoreError;
use super::record::{LayerRecord, PendingChange, StoreChange, VERSION};

/// In the order in which they happened.
#[derive(Debug)]
pub(super) struct Journal {
    folder: PathBuf,
    boot_id: String,
    next: u64,
    pending: Vec<(u64, StoreChange)>,
    /// Up to here redb may have them.
    offered: u64,
    doubtful: Vec<DoubtfulLayer>,
    /// How often the disk has lost something.
    losses: u64,
}

/// A layer of which something may be lost.
#[derive(Debug)]
struct DoubtfulLayer {
    number: u64,
    key: String,
    folder: String,
    /// Whether the next process would see that it is in doubt.
    written: bool,
}

/// While this is there, an answer may be lost with this process.
const ASKED: &str = "asked";

/// What a folder of the journal holds.
#[derive(Default)]
struct FolderEntries {
    /// Number, path and whether it is doubtful, in the order of numbers.
    files: Vec<(u64, PathBuf, bool)>,
    /// The last process asked the disk, and did not live to hear the answer.
    unanswered: bool,
}

impl FolderEntries {
    /// Deletes what a crash left half-written.
    fn read(folder: &Path) -> Result<Self, StoreError> {
        let mut found = Self::default();
        for entry in fs::read_dir(folder).map_err(io("list", folder))? {
            let path = entry.map_err(io("list", folder))?.path();
            let is_doubtful = path.extension().is_some_and(|own| own == "doubt");
            let number = (is_doubtful || path.extension().is_some_and(|own| own == "json")).then(|| {
                path.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.parse::<u64>().ok())
            });
            match number.flatten() {
                Some(number) => found.files.push((number, path, is_doubtful)),
                None if path.ends_with(ASKED) => found.unanswered = true,
                None if path.is_file() => fs::remove_file(&path).map_err(io("delete", &path))?,
                None => {}
            }
        }
        found.files.sort();
        Ok(found)
    }
}

impl Journal {
    /// Reads what this boot left behind; what an earlier one did is deleted.
    ///
    /// # Errors
    /// [`StoreError::Version`] and the file system's.
    pub(super) fn open(folder: &Path) -> Result<(Self, Vec<StoreChange>), StoreError> {
        let boot = Path::new("/proc/sys/kernel/random/boot_id");
        let boot_id = fs::read_to_string(boot).map_err(io("read", boot))?.trim().to_owned();
        let mut journal = Self {
            folder: folder.to_owned(),
            boot_id,
            next: 1,
            pending: Vec::new(),
            offered: 0,
            doubtful: Vec::new(),
            losses: 0,
        };
        let FolderEntries { files, unanswered } = FolderEntries::read(folder)?;
        for (number, path, is_doubtful) in files {
            journal.next = number + 1;
            match (journal.read(&path)?, is_doubtful) {
                (Some(StoreChange::Layer { key, record }), true) => {
                    journal.doubtful.push(DoubtfulLayer {
                        number,
                        key,
                        folder: record.folder,
                        written: true,
                    });
                }
                (Some(change), false) => journal.pending.push((number, change)),
                _ => fs::remove_file(&path).map_err(io("delete", &path))?,
            }
        }
        if unanswered {
            for (layer, folder) in journal.mark_doubtful() {
                tracing::warn!(
                    %layer, folder,
                    "the last process ended while it asked the disk for the layer: it must be pulled again"
                );
            }
            journal.finish_sync()?;
        }
        // The last process may have died between the disk's commit and the deletion here.
        journal.offered = journal.next - 1;
        let changes = journal.pending.iter().map(|(_, change)| change.clone()).collect();
        Ok((journal, changes))
    }

    /// Writes a change down: from now on it outlives this process.
    ///
    /// # Errors
    /// The file system's.
    pub(super) fn write(&mut self, change: StoreChange) -> Result<(), StoreError> {
        let path = self.path(self.next);
        let temporary = path.with_extension("new");
        let pending = PendingChange { version: VERSION, boot_id: self.boot_id.clone(), change };
        let text = serde_json::to_vec(&pending).map_err(|source| StoreError::Record {
            path: path.clone(),
            key: self.next.to_string(),
            source: Arc::new(source),
        })?;
        let mut file = File::create(&temporary).map_err(io("create", &temporary))?;
        file.write_all(&text).map_err(io("write", &temporary))?;
        failpoint!("journal.written");
        fs::rename(&temporary, &path).map_err(io("rename to", &path))?;
        failpoint!("journal.renamed");
        self.pending.push((self.next, pending.change));
        self.next += 1;
        Ok(())
    }

    /// To be called before the disk is asked what it has: up to which number it will. None when there is
    /// nothing to ask it for.
    ///
    /// # Errors
    /// The file system's.
    pub(super) fn begin_sync(&mut self) -> Result<Option<u64>, StoreError> {
        let Some((last, _)) = self.pending.last() else { return Ok(None) };
        let path = self.folder.join(ASKED);
        File::create(&path).map_err(io("create", &path))?;
        Ok(Some(*last))
    }

    /// The disk has answered, and what is in doubt since is written down before that is.
    ///
    /// # Errors
    /// The file system's. The next process then doubts all that waits.
    pub(super) fn finish_sync(&mut self) -> Result<(), StoreError> {
        for at in 0..self.doubtful.len() {
            let DoubtfulLayer { number, written: false, .. } = self.doubtful[at] else { continue };
            let (from, to) = (self.path(number), self.path(number).with_extension("doubt"));
            match fs::rename(&from, &to) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(io("rename to", &to)(error));
                }
                _ => self.doubtful[at].written = true,
            }
        }
        let path = self.folder.join(ASKED);
        fs::remove_file(&path).map_err(io("delete", &path))
    }

    /// The disk has lost something, and may have lost it of any layer that waits: none of these waits any
    /// longer. Returns their keys and folders. To be written down by `finish_sync`.
    pub(super) fn mark_doubtful(&mut self) -> Vec<(String, String)> {
        self.losses += 1;
        let mut doubted = Vec::new();
        for (number, change) in std::mem::take(&mut self.pending) {
            match change {
                StoreChange::Layer { key, record: LayerRecord { folder, .. } } => {
                    doubted.push((key.clone(), folder.clone()));
                    self.doubtful.push(DoubtfulLayer { number, key, folder, written: false });
                }
                change => self.pending.push((number, change)),
            }
        }
        doubted
    }

    /// How often the disk has lost something in this process's time.
    pub(super) fn losses(&self) -> u64 {
        self.losses
    }

    /// Folders of the layers in doubt, and their keys.
    pub(super) fn doubtful(&self) -> impl Iterator<Item = (&String, &String)> {
        self.doubtful.iter().map(|doubt| (&doubt.folder, &doubt.key))
    }

    /// The folder of a layer in doubt is gone.
    ///
    /// # Errors
    /// The file system's.
    pub(super) fn forget_doubtful(&mut self, folder: &str) -> Result<(), StoreError> {
        while let Some(at) = self.doubtful.iter().position(|doubt| doubt.folder == folder) {
            let DoubtfulLayer { number, written, .. } = self.doubtful[at];
            let path = self.path(number).with_extension(if written { "doubt" } else { "json" });
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(io("delete", &path)(error));
                }
                _ => drop(self.doubtful.remove(at)),
            }
        }
        Ok(())
    }

    /// All that still waits of what the disk has been synced with, for redb: what was dropped during the sync
    /// is not among it, and never gets there.
    pub(super) fn pending_until(&mut self, last: u64) -> Vec<(u64, StoreChange)> {
        self.offered = self.offered.max(last);
        self.pending.iter().filter(|(number, _)| *number <= last).cloned().collect()
    }

    /// A layer is gone. If the disk has not been offered it, nobody need know that it was there.
    ///
    /// # Errors
    /// The file system's.
    pub(super) fn drop_layer(&mut self, key: &str) -> Result<(), StoreError> {
        let is_it =
            |change: &StoreChange| matches!(change, StoreChange::Layer { key: own, .. } if own == key);
        match self.pending.iter().position(|(number, change)| *number > self.offered && is_it(change)) {
            Some(at) => self.remove(at),
            None => self.write(StoreChange::DropLayer { key: key.to_owned() }),
        }
    }

    /// What waits.
    #[cfg(test)]
    pub(super) fn pending(&self) -> Vec<StoreChange> {
        self.pending.iter().map(|(_, change)| change.clone()).collect()
    }

    /// Deletes what is about things that the disk has been told to forget.
    ///
    /// # Errors
    /// The file system's.
    pub(super) fn forget_dropped(&mut self, gone: &[StoreChange]) -> Result<(), StoreError> {
        let is_gone = |change: &StoreChange| {
            gone.iter().any(|gone| match (change, gone) {
                (StoreChange::Layer { key, .. }, StoreChange::DropLayer { key: gone })
                | (
                    StoreChange::Image { id: key, .. } | StoreChange::Name { id: key, .. },
                    StoreChange::DropImage { id: gone, .. },
                ) => key == gone,
                _ => false,
            })
        };
        while let Some(at) = self.pending.iter().position(|(_, change)| is_gone(change)) {
            self.remove(at)?;
        }
        Ok(())
    }

    /// The record of a layer that waits.
    pub(super) fn layer(&self, wanted: &str) -> Option<&LayerRecord> {
        self.pending.iter().rev().find_map(|(_, change)| match change {
            StoreChange::Layer { key, record } if key == wanted => Some(record),
            _ => None,
        })
    }

    /// What the layers that wait imply.
    pub(super) fn weight(&self) -> u64 {
        let weight = |change: &StoreChange| match change {
            StoreChange::Layer { record, .. } => record.implied_weight,
            _ => 0,
        };
        self.pending.iter().map(|(_, change)| weight(change)).sum()
    }

    /// Whether a change that waits gives one of these names to an image.
    pub(super) fn names_any(&self, names: &[String]) -> bool {
        self.pending.iter().any(|(_, change)| match change {
            StoreChange::Image { names: own, .. } => own.iter().any(|own| names.contains(own)),
            StoreChange::Name { name, .. } => names.contains(name),
            StoreChange::Layer { .. } | StoreChange::DropLayer { .. } | StoreChange::DropImage { .. } => {
                false
            }
        })
    }

    /// Deletes all up to `last`: they are on disk.
    ///
    /// # Errors
    /// The file system's.
    pub(super) fn forget(&mut self, last: u64) -> Result<(), StoreError> {
        while let Some((number, _)) = self.pending.first()
            && *number <= last
        {
            self.remove(0)?;
        }
        Ok(())
    }

    fn remove(&mut self, at: usize) -> Result<(), StoreError> {
        let path = self.path(self.pending[at].0);
        fs::remove_file(&path).map_err(io("delete", &path))?;
        self.pending.remove(at);
        Ok(())
    }

    fn path(&self, number: u64) -> PathBuf {
        self.folder.join(format!("{number:016}.json"))
    }

    /// None: of another boot.
    fn read(&self, path: &Path) -> Result<Option<StoreChange>, StoreError> {
        #[derive(serde::Deserialize)]
        struct JournalHead {
            version: u64,
            boot_id: String,
        }
        let text = fs::read(path).map_err(io("read", path))?;
        let bad = |source| StoreError::Record {
            path: path.to_owned(),
            key: "pending".to_owned(),
            source: Arc::new(source),
        };
        let head: JournalHead = match serde_json::from_slice(&text) {
            Ok(head) => head,
            Err(error) => {
                // Written whole and then renamed, so only a disk that lost its power leaves such a file: in a
                // state folder that is no tmpfs, and of a boot that is over.
                tracing::warn!(path = %path.display(), %error, "deleting an entry that says of no boot");
                return Ok(None);
            }
        };
        if head.boot_id != self.boot_id {
            return Ok(None);
        }
        if head.version != VERSION {
            return Err(StoreError::Version { path: path.to_owned(), found: head.version, known: VERSION });
        }
        let pending: PendingChange = serde_json::from_slice(&text).map_err(bad)?;
        Ok(Some(pending.change))
    }
}

fn io(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Io { operation, path, source: Arc::new(source) }
}
