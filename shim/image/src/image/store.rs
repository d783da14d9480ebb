//! What images and layers this node has. Owns the index in memory, the redb file on disk and the
//! journal in /run of what is not yet synced; never downloads and never unpacks.
//!
//! ```text
//!   add_* ──► journal (tmpfs) ──► memory: usable at once
//!                  │
//!                  └── flush: syncfs, redb commit (durable), journal entry removed
//!
//!   open: redb + journal of this boot ──► memory; layers that no image has are dropped,
//!         folders that nobody knows are deleted
//! ```
//! A power cut loses the journal with /run, and then exactly those layers whose files may be
//! half-written. So does a disk that fails to write (`flush`). Called by `pull` (blocking threads), by `Images` for
//! look-ups, by `sync`.

pub(crate) mod chain;
pub(crate) mod check;
mod disk;
mod find;
mod flush;
mod journal;
mod needed;
pub(crate) mod record;
mod remove;
mod write_back;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use super::digest::Digest;
use super::ingest::IngestError;
use super::manifest::{self, ManifestError, Platform};
use super::{Image, ImagesConfig};
use crate::trash;
use disk::IndexDatabase;
use flush::{Syncfs, WriteBack};
use journal::Journal;
use record::{ImageRecord, LayerRecord, StoreChange};

/// Why the store failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// A file system call.
    #[error("{operation} {path}")]
    Io {
        operation: &'static str,
        path: PathBuf,
        #[source]
        source: Arc<io::Error>,
    },
    /// redb.
    #[error("{operation} the image database {path}")]
    Database {
        operation: &'static str,
        path: PathBuf,
        #[source]
        source: Arc<redb::Error>,
    },
    /// redb met what it never wrote.
    #[error("the image database {path} is damaged: {said}")]
    Damaged { path: PathBuf, said: String },
    /// Written by another version of Gantry.
    #[error(
        "{path} has format {found}, this program knows {known}: \
         use the version of Gantry that wrote it, or move the file away and pull again (running containers keep their layers)"
    )]
    Version { path: PathBuf, found: u64, known: u64 },
    /// A record that is not of its form.
    #[error("record {key} of {path} can't be read")]
    Record {
        path: PathBuf,
        key: String,
        #[source]
        source: Arc<serde_json::Error>,
    },
    /// A stored image config that is not of its form.
    #[error("stored config of image {id} can't be read")]
    Config {
        id: String,
        #[source]
        source: ManifestError,
    },
    /// A layer's folder can't be made part of the store.
    #[error("keeping layer {key}")]
    Folder {
        key: String,
        #[source]
        source: Box<IngestError>,
    },
    /// An image whose layers are not there.
    #[error("image {id} lacks layer {layer}")]
    Incomplete { id: String, layer: String },
    /// The kernel could not write back what was unpacked.
    #[error(
        "the disk of {path} failed to write, and what it lost may be of any of {layers} layers that waited for it: \
         they and their images must be pulled again; look at the kernel's log and the disk's free space"
    )]
    Lost {
        path: PathBuf,
        layers: usize,
        #[source]
        source: Arc<io::Error>,
    },
    /// It could not while this layer was on its way.
    #[error("the disk failed to write while layer {key} was unpacked, some of it may be lost: pull again")]
    LostMeanwhile { key: String },
}

/// Weight of what layers imply in the journal. Usual images have a few KB.
const MOST_PENDING: u64 = 16 << 20;

/// The index on disk, under the root.
const INDEX: &str = "images.redb";

/// Whether this root ever had a store; one that may not be looked at counts as there. Makes nothing.
pub(crate) fn is_there(root: &Path) -> bool {
    let found = std::fs::symlink_metadata(root.join(INDEX));
    !found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// The index. One per node: redb's lock keeps a second process out.
#[derive(Debug)]
pub(crate) struct ImageStore {
    layers_dir: PathBuf,
    ingest_dir: PathBuf,
    disk: IndexDatabase,
    write_back: Box<dyn WriteBack>,
    /// Held for a whole flush, which takes as long as the disk needs. Taken before `writing`.
    flushing: Mutex<()>,
    /// Held by whoever writes to redb what the journal holds, or against it: a removal may not overtake an
    /// addition. Never while the disk syncs. Taken before `journal`.
    writing: Mutex<()>,
    /// Taken before `state`, never the other way round.
    journal: Mutex<Journal>,
    state: RwLock<StoreState>,
}

#[derive(Debug, Default)]
struct StoreState {
    layers: HashMap<String, Arc<LayerRecord>>,
    images: HashMap<String, StoredImage>,
    /// `repository:tag` and `repository@digest` → image id.
    names: BTreeMap<String, String>,
    /// Layer → how many pulls under way and containers need it; never zero.
    holds: HashMap<String, usize>,
    /// Folder → layer, of those in doubt that somebody holds: they stay, and no image may have them.
    doubtful: HashMap<String, String>,
}

#[derive(Debug)]
struct StoredImage {
    record: Arc<ImageRecord>,
    shown: Arc<Image>,
}

/// The first name that a layer's folder gets.
fn folder_of(key: &str) -> Option<String> {
    let hex = key.strip_prefix("fixup:").or_else(|| key.strip_prefix("sha256:"))?;
    Some(format!("sha256:{hex}").parse::<Digest>().ok()?.short())
}

impl ImageStore {
    /// Opens the store, brings memory up to date and deletes what nobody knows. Blocks. `pinned` are
    /// layers that containers need: they are held from the first.
    ///
    /// # Errors
    /// [`StoreError`], `Version` among them.
    pub(crate) fn open<'a>(
        config: &ImagesConfig,
        pinned: impl Iterator<Item = &'a String>,
    ) -> Result<Self, StoreError> {
        let layers_dir = config.root.join("layers");
        make_folder(&config.root, 0o711)?;
        // Set-id programs of images must not be reachable for the node's users.
        make_folder(&layers_dir, 0o700)?;
        // Before anything is written: it hears of what fails from now on.
        let write_back = Syncfs::new(&layers_dir)?;
        Self::open_with(config, pinned, Box::new(write_back))
    }

    fn open_with<'a>(
        config: &ImagesConfig,
        pinned: impl Iterator<Item = &'a String>,
        write_back: Box<dyn WriteBack>,
    ) -> Result<Self, StoreError> {
        let (layers_dir, ingest_dir) = (config.root.join("layers"), config.root.join("ingest"));
        let journal_dir = config.state.join("images");
        for folder in [&layers_dir, &ingest_dir, &journal_dir] {
            make_folder(folder, 0o700)?;
        }
        let (disk, mut changes) = IndexDatabase::open(&config.root.join(INDEX))?;
        let (journal, pending) = Journal::open(&journal_dir)?;
        changes.extend(pending);
        let mut state = StoreState::default();
        for change in changes {
            state.note(change);
        }
        let doubtful = journal.doubtful().map(|(folder, key)| (folder.clone(), key.clone()));
        state.doubtful = doubtful.collect();
        let store = Self {
            layers_dir,
            ingest_dir,
            disk,
            write_back,
            flushing: Mutex::new(()),
            writing: Mutex::new(()),
            journal: Mutex::new(journal),
            state: RwLock::new(state),
        };
        let mut named = HashMap::new();
        for key in pinned {
            store.hold(std::slice::from_ref(key));
            named.extend(folder_of(key).map(|folder| (folder, key.as_str())));
        }
        store.keep_folders_of(&named)?;
        store.drop_unusable()?;
        store.delete_unknown()?;
        store.write(StoreState::show_all)?;
        Ok(store)
    }

    pub(crate) fn layers_dir(&self) -> &Path {
        &self.layers_dir
    }

    pub(crate) fn ingest_dir(&self) -> &Path {
        &self.ingest_dir
    }

    /// The record of a layer, if it is here.
    pub(crate) fn layer(&self, key: &str) -> Option<Arc<LayerRecord>> {
        self.read(|state| state.layers.get(key).cloned())
    }

    /// Directories that a layer only implies, escaped. Blocks.
    ///
    /// # Errors
    /// The disk's; `Record` too.
    pub(crate) fn implied_directories(&self, key: &str) -> Result<Vec<String>, StoreError> {
        // A change leaves the journal once it is on disk, never before.
        if let Some(record) = self.journal().layer(key) {
            return Ok(record.implied.clone());
        }
        Ok(self.disk.layer(key)?.map(|record| record.implied).unwrap_or_default())
    }

    /// Sees to it that the journal, which fills memory and /run, does not grow with each layer of a large
    /// pull. Blocks for as long as the disk needs, then.
    ///
    /// # Errors
    /// As `flush`.
    pub(crate) fn flush_if_heavy(&self) -> Result<(), StoreError> {
        // Not in one expression: `flush` takes the journal itself.
        let is_heavy = self.journal().weight() > MOST_PENDING;
        if is_heavy { self.flush() } else { Ok(()) }
    }

    /// Makes an image known, or gives a known one more names. A name leaves the image that had it.
    /// The caller holds its layers until this has returned.
    ///
    /// # Errors
    /// The journal's; `Incomplete` when a layer is missing.
    pub(crate) fn add_image(
        &self,
        id: &str,
        record: ImageRecord,
        names: Vec<String>,
    ) -> Result<Arc<Image>, StoreError> {
        // Journal and memory see changes in one order, and no layer goes meanwhile.
        let mut journal = self.journal();
        self.read(|state| state.chain_of(id, &record).map(drop))?;
        let change = StoreChange::Image { id: id.to_owned(), record, names };
        journal.write(change.clone())?;
        self.write(|state| {
            state.note(change);
            state.show_all()
        })?;
        drop(journal);
        self.find(id).ok_or_else(|| StoreError::Incomplete { id: id.to_owned(), layer: "unknown".to_owned() })
    }

    /// The image's record, for those who would pull it again.
    pub(crate) fn image_record(&self, id: &str) -> Option<Arc<ImageRecord>> {
        self.read(|state| state.images.get(id).map(|held| Arc::clone(&held.record)))
    }

    /// By id, unique beginning of an id, or name.
    pub(crate) fn find(&self, name_or_id: &str) -> Option<Arc<Image>> {
        self.read(|state| {
            let id = find::find(name_or_id, &state.names, state.images.keys().map(String::as_str))?;
            state.images.get(&id).map(|held| Arc::clone(&held.shown))
        })
    }

    /// All images, by id.
    pub(crate) fn list(&self) -> Vec<Arc<Image>> {
        let mut images: Vec<_> =
            self.read(|state| state.images.values().map(|held| Arc::clone(&held.shown)).collect());
        images.sort_by(|a, b| a.id.cmp(&b.id));
        images
    }

    /// Names of all layers' folders, those in doubt included.
    pub(crate) fn folders(&self) -> HashSet<String> {
        self.read(|state| {
            let layers = state.layers.values().map(|layer| &layer.folder);
            layers.chain(state.doubtful.keys()).cloned().collect()
        })
    }

    fn names_of(&self, id: &str) -> Vec<String> {
        let is_own = |(_, own): &(&String, &String)| own.as_str() == id;
        self.read(|state| state.names.iter().filter(is_own).map(|(name, _)| name.clone()).collect())
    }

    /// Layers without a folder, images without all layers, layers without an image: what a pull
    /// had brought when the last process died.
    fn drop_unusable(&self) -> Result<(), StoreError> {
        let gone = self.write(|state| {
            let mut gone: Vec<StoreChange> = Vec::new();
            for (key, layer) in &state.layers {
                // In doubt, and on disk from before: a crash came between its commit and the journal's end.
                let is_doubtful = state.doubtful.contains_key(&layer.folder);
                if is_doubtful || !self.layers_dir.join(&layer.folder).is_dir() {
                    gone.push(StoreChange::DropLayer { key: key.clone() });
                }
            }
            gone.iter().for_each(|change| state.note(change.clone()));
            let broken: Vec<String> = state
                .images
                .iter()
                .filter(|(id, held)| state.chain_of(id, &held.record).is_err())
                .map(|(id, _)| id.clone())
                .collect();
            for id in broken {
                tracing::warn!(image = %id, "a layer of the image is gone: it must be pulled again");
                let change = StoreChange::DropImage { id, names: Vec::new() };
                state.note(change.clone());
                gone.push(change);
            }
            let unneeded = state.collect_unneeded().into_iter();
            gone.extend(unneeded.map(|(key, _)| StoreChange::DropLayer { key }));
            gone
        });
        for folder in self.write(StoreState::collect_doubtful) {
            self.journal().forget_doubtful(&folder)?;
        }
        if gone.is_empty() {
            return Ok(());
        }
        // At once, not by the journal: a half-written folder must never come to stand where a
        // record on disk expects a whole one.
        self.disk.apply(gone.iter())?;
        self.journal().forget_dropped(&gone)
    }

    /// Folders of layers that a container stands on, and that the index does not know: it was lost, or is older or
    /// another node's. They count as in doubt and stay until nobody holds the layer. An older index may know
    /// the layer by the folder it had before, so what it says of the layer is no reason to let others go.
    /// `named` is the first folder of each such layer, and its key.
    fn keep_folders_of(&self, named: &HashMap<String, &str>) -> Result<(), StoreError> {
        let known = self.folders();
        for path in Self::paths(&self.layers_dir)? {
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            // As `free_folder` names those that came later.
            let key = name.split('.').next().and_then(|first| named.get(first));
            let Some(key) = key.filter(|_| !known.contains(name)) else { continue };
            tracing::warn!(
                layer = key,
                folder = name,
                "kept a layer that the index does not have: a container uses it"
            );
            self.write(|state| state.doubtful.insert(name.to_owned(), (*key).to_owned()));
        }
        Ok(())
    }

    /// Temporary folders of pulls that died, layers that were dropped or that a power cut made unknown: out of
    /// the way now, deleted in the background.
    fn delete_unknown(&self) -> Result<(), StoreError> {
        let known = self.folders();
        for path in Self::paths(&self.layers_dir)? {
            let name = path.file_name().and_then(|name| name.to_str());
            if name.is_some_and(|name| known.contains(name)) {
                continue;
            }
            tracing::info!(path = %path.display(), "deleting a layer folder that nobody knows");
            if let Err(error) = trash::take(&path, &self.ingest_dir) {
                // Lost space is no reason to refuse the node's pods.
                tracing::error!(path = %path.display(), %error, "cannot move the layer folder away: it stays");
            }
        }
        // Before any pull: what is there now is nobody's.
        trash::delete(Self::paths(&self.ingest_dir)?, || {}).map_err(|source| StoreError::Io {
            operation: "start a thread to empty",
            path: self.ingest_dir.clone(),
            source: Arc::new(source),
        })
    }

    fn paths(folder: &Path) -> Result<Vec<PathBuf>, StoreError> {
        let fail = |source: io::Error| StoreError::Io {
            operation: "list",
            path: folder.to_owned(),
            source: Arc::new(source),
        };
        let entries = fs::read_dir(folder).map_err(fail)?;
        entries.map(|entry| entry.map(|entry| entry.path()).map_err(fail)).collect()
    }

    fn flushing(&self) -> std::sync::MutexGuard<'_, ()> {
        self.flushing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn writing(&self) -> std::sync::MutexGuard<'_, ()> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn journal(&self) -> std::sync::MutexGuard<'_, Journal> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read<T>(&self, look: impl FnOnce(&StoreState) -> T) -> T {
        look(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write<T>(&self, change: impl FnOnce(&mut StoreState) -> T) -> T {
        change(&mut self.state.write().unwrap_or_else(PoisonError::into_inner))
    }
}

impl StoreState {
    /// Notes a change; what is shown of images follows by `show_all`.
    fn note(&mut self, change: StoreChange) {
        match change {
            StoreChange::Layer { key, record } => {
                // Its list is an image's to make large; it is needed once for each image that has the layer.
                let record = LayerRecord { implied: Vec::new(), ..record };
                drop(self.layers.insert(key, Arc::new(record)));
            }
            StoreChange::Image { id, record, names } => {
                self.names.extend(names.into_iter().map(|name| (name, id.clone())));
                let shown = Arc::new(Image::with_id(id.clone()));
                self.images.insert(id, StoredImage { record: Arc::new(record), shown });
            }
            StoreChange::Name { name, id } => drop(self.names.insert(name, id)),
            StoreChange::DropLayer { key } => drop(self.layers.remove(&key)),
            StoreChange::DropImage { id, names } => {
                self.images.remove(&id);
                self.names.retain(|name, own| *own != id && !names.contains(name));
            }
        }
    }

    fn chain_of(&self, id: &str, record: &ImageRecord) -> Result<Vec<String>, StoreError> {
        let missing = |layer: &str| StoreError::Incomplete { id: id.to_owned(), layer: layer.to_owned() };
        let mut folders = Vec::new();
        if let Some(fixup) = &record.fixup {
            let layer = self.layers.get(fixup).ok_or_else(|| missing(fixup))?;
            folders.push(layer.folder.clone());
        }
        let chain = chain::chain(&record.diff_ids, |key| self.layers.get(key).map(Arc::as_ref));
        let chain = chain.map_err(|key| missing(&key))?;
        folders.extend(chain.into_iter().map(|(_, layer)| layer.folder.clone()));
        Ok(folders)
    }

    /// Makes the public form of all images anew: a name that moved changes two of them.
    fn show_all(&mut self) -> Result<(), StoreError> {
        let mut names: HashMap<&str, (Vec<String>, Vec<String>)> = HashMap::new();
        for (name, id) in &self.names {
            let (tags, digests) = names.entry(id).or_default();
            if name.contains('@') { digests.push(name.clone()) } else { tags.push(name.clone()) }
        }
        let mut shown = Vec::new();
        for (id, held) in &self.images {
            let (repo_tags, repo_digests) = names.remove(id.as_str()).unwrap_or_default();
            let is_same = held.shown.repo_tags == repo_tags
                && held.shown.repo_digests == repo_digests
                && held.shown.manifest_digest == held.record.manifest_digest;
            if !is_same {
                shown.push((id.clone(), self.show(id, &held.record, repo_tags, repo_digests)?));
            }
        }
        for (id, image) in shown {
            if let Some(held) = self.images.get_mut(&id) {
                held.shown = Arc::new(image);
            }
        }
        Ok(())
    }

    fn show(
        &self,
        id: &str,
        record: &ImageRecord,
        repo_tags: Vec<String>,
        repo_digests: Vec<String>,
    ) -> Result<Image, StoreError> {
        let digest = Digest::of(record.config.as_bytes());
        let parsed =
            manifest::config(record.config.as_bytes(), digest, record.diff_ids.len(), &Platform::host());
        let (config, _) = parsed.map_err(|source| StoreError::Config { id: id.to_owned(), source })?;
        Ok(Image {
            id: id.to_owned(),
            repo_tags,
            repo_digests,
            size: record.size,
            config,
            diff_ids: record.diff_ids.clone(),
            manifest_digest: record.manifest_digest.clone(),
            annotations: manifest::annotations(record.manifest.as_bytes()),
            keys: record.keys().cloned().collect(),
            folders: self.chain_of(id, record)?,
        })
    }
}

fn make_folder(path: &Path, mode: u32) -> Result<(), StoreError> {
    DirBuilder::new().recursive(true).mode(mode).create(path).map_err(|source| StoreError::Io {
        operation: "make",
        path: path.to_owned(),
        source: Arc::new(source),
    })
}
