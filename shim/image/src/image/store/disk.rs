//! The redb file. Owns tables, the format's version, and the file's opening, once more after an error of the
//! disk; never syncs layers (its caller does so first). Called by `store`, on blocking threads only: each
//! commit is an fsync.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use gantry_failpoint::failpoint;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use rustix::fs::Advice;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::StoreError;
use super::record::{LayerRecord, StoreChange, VERSION};
use crate::contained::contained;

const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
const LAYERS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("layers");
const IMAGES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("images");
const NAMES: TableDefinition<'_, &str, &str> = TableDefinition::new("names");

/// The index is small and read once; redb's default cache is a gigabyte.
const CACHE: usize = 4 << 20;

#[derive(Debug)]
pub(super) struct IndexDatabase {
    /// None: it could not be opened again.
    database: RwLock<Option<Database>>,
    path: PathBuf,
}

impl IndexDatabase {
    /// Opens or makes the file and reads all of it.
    ///
    /// # Errors
    /// [`StoreError::Version`], [`StoreError::Database`], [`StoreError::Record`].
    pub(super) fn open(path: &Path) -> Result<(Self, Vec<StoreChange>), StoreError> {
        match Self::read_contained(path) {
            Err(error) if is_damage(&error) => {
                let aside = set_aside(path)?;
                tracing::error!(
                    aside = %aside.display(),
                    "the image database was damaged and is set aside; images are pulled again, and running \
                     containers keep their layers: {}",
                    gantry_base::error::chain(&error)
                );
                Self::read(path)
            }
            read => read,
        }
    }

    /// redb takes it for its own mistake when a page is not what it wrote, and panics.
    fn read_contained(path: &Path) -> Result<(Self, Vec<StoreChange>), StoreError> {
        contained(|| Self::read(path))
            .unwrap_or_else(|said| Err(StoreError::Damaged { path: path.to_owned(), said }))
    }

    fn read(path: &Path) -> Result<(Self, Vec<StoreChange>), StoreError> {
        let mut database = create(path)?;
        // Else a page that nothing reads now would end the process when something is written, at every start.
        let is_whole = database.check_integrity();
        let is_whole = is_whole.map_err(|error| StoreError::Database {
            operation: "checking",
            path: path.to_owned(),
            source: Arc::new(error.into()),
        })?;
        if !is_whole {
            tracing::warn!(path = %path.display(), "the image database was repaired");
        }
        let database = RwLock::new(Some(database));
        let disk = Self { database, path: path.to_owned() };
        if let Some(found) = disk.with("preparing", prepare)? {
            return Err(StoreError::Version { path: path.to_owned(), found, known: VERSION });
        }
        let rows = disk.with("reading", rows)?;
        let mut changes = Vec::new();
        for (key, value) in rows.layers {
            let record = LayerRecord { implied: Vec::new(), ..disk.parse(&key, &value)? };
            changes.push(StoreChange::Layer { record, key });
        }
        for (id, value) in rows.images {
            changes.push(StoreChange::Image { record: disk.parse(&id, &value)?, id, names: Vec::new() });
        }
        changes.extend(rows.names.into_iter().map(|(name, id)| StoreChange::Name { name, id }));
        Ok((disk, changes))
    }

    /// The whole record of a layer.
    ///
    /// # Errors
    /// [`StoreError::Database`], [`StoreError::Record`].
    pub(super) fn layer(&self, key: &str) -> Result<Option<LayerRecord>, StoreError> {
        let value = self.with("reading", |database| {
            let table = database.begin_read()?.open_table(LAYERS)?;
            Ok(table.get(key)?.map(|value| value.value().to_vec()))
        })?;
        value.map(|value| self.parse(key, &value)).transpose()
    }

    /// The ids of all images.
    #[cfg(test)]
    pub(super) fn images(&self) -> Result<Vec<String>, StoreError> {
        Ok(self.with("reading", rows)?.images.into_iter().map(|(id, _)| id).collect())
    }

    /// Commits changes, durably, all or none.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub(super) fn apply<'a>(&self, changes: impl Iterator<Item = &'a StoreChange>) -> Result<(), StoreError> {
        let steps: Vec<IndexWrite<'_>> = changes.map(|change| self.step(change)).collect::<Result<_, _>>()?;
        self.with("writing", |database| commit(database, &steps))
    }

    /// After an error of the disk redb does nothing more (`PreviousIo`) until it is opened anew. The error may
    /// have passed: a disk that was full has room again.
    fn with<T>(
        &self,
        operation: &'static str,
        work: impl Fn(&Database) -> Result<T, redb::Error>,
    ) -> Result<T, StoreError> {
        let once = || {
            let database = self.database.read().unwrap_or_else(PoisonError::into_inner);
            database.as_ref().map_or(Err(redb::Error::PreviousIo), &work)
        };
        let mut done = once();
        if matches!(done, Err(redb::Error::PreviousIo)) {
            self.reopen()?;
            done = once();
        }
        done.map_err(|error| self.fail(operation, error))
    }

    fn reopen(&self) -> Result<(), StoreError> {
        let mut database = self.database.write().unwrap_or_else(PoisonError::into_inner);
        // Its lock on the file goes with it.
        drop(database.take());
        // The kernel still shows the pages that the disk did not take: forgotten, they are read from it.
        let forget = || -> io::Result<()> {
            Ok(rustix::fs::fadvise(File::open(&self.path)?, 0, None, Advice::DontNeed)?)
        };
        forget().map_err(|source| StoreError::Io {
            operation: "read anew",
            path: self.path.clone(),
            source: Arc::new(source),
        })?;
        *database = Some(create(&self.path)?);
        tracing::info!(path = %self.path.display(), "opened the image database anew after an error of its disk");
        Ok(())
    }

    fn step<'a>(&self, change: &'a StoreChange) -> Result<IndexWrite<'a>, StoreError> {
        Ok(match change {
            StoreChange::Layer { key, record } => IndexWrite::Layer(key, self.print(key, record)?),
            StoreChange::Image { id, record, names } => IndexWrite::Image(id, self.print(id, record)?, names),
            StoreChange::Name { name, id } => IndexWrite::Name(name, id),
            StoreChange::DropLayer { key } => IndexWrite::DropLayer(key),
            StoreChange::DropImage { id, names } => IndexWrite::DropImage(id, names),
        })
    }

    fn parse<T: DeserializeOwned>(&self, key: &str, value: &[u8]) -> Result<T, StoreError> {
        serde_json::from_slice(value).map_err(|source| self.bad(key, source))
    }

    fn print<T: Serialize>(&self, key: &str, record: &T) -> Result<Vec<u8>, StoreError> {
        serde_json::to_vec(record).map_err(|source| self.bad(key, source))
    }

    fn bad(&self, key: &str, source: serde_json::Error) -> StoreError {
        StoreError::Record { path: self.path.clone(), key: key.to_owned(), source: Arc::new(source) }
    }

    fn fail(&self, operation: &'static str, error: redb::Error) -> StoreError {
        StoreError::Database { operation, path: self.path.clone(), source: Arc::new(error) }
    }
}

/// Whether the file's content is at fault, not the disk nor another process.
fn is_damage(error: &StoreError) -> bool {
    match error {
        StoreError::Record { .. } | StoreError::Damaged { .. } => true,
        StoreError::Database { source, .. } => match &**source {
            redb::Error::Corrupted(_) | redb::Error::RepairAborted => true,
            redb::Error::TableTypeMismatch { .. } | redb::Error::TypeDefinitionChanged { .. } => true,
            redb::Error::Io(source) => {
                matches!(source.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
            }
            _ => false,
        },
        _ => false,
    }
}

/// Renames the file to the first free of `images.redb.damaged-1`, `-2`, …
fn set_aside(path: &Path) -> Result<PathBuf, StoreError> {
    let name = |number: u64| PathBuf::from(format!("{}.damaged-{number}", path.display()));
    let free = (1..).map(name).find(|aside| !aside.exists()).unwrap_or_else(|| name(0));
    std::fs::rename(path, &free).map_err(|source| StoreError::Io {
        operation: "set aside",
        path: path.to_owned(),
        source: Arc::new(source),
    })?;
    Ok(free)
}

fn create(path: &Path) -> Result<Database, StoreError> {
    let opened = Database::builder().set_cache_size(CACHE).create(path);
    opened.map_err(|error| StoreError::Database {
        operation: "opening",
        path: path.to_owned(),
        source: Arc::new(error.into()),
    })
}

/// Makes the tables; the version found if it is not ours.
fn prepare(database: &Database) -> Result<Option<u64>, redb::Error> {
    let transaction = database.begin_write()?;
    {
        let mut meta = transaction.open_table(META)?;
        let found = meta.get("version")?.map(|version| version.value());
        match found {
            Some(VERSION) => {}
            Some(found) => return Ok(Some(found)),
            None => drop(meta.insert("version", VERSION)?),
        }
        transaction.open_table(LAYERS)?;
        transaction.open_table(IMAGES)?;
        transaction.open_table(NAMES)?;
    }
    transaction.commit()?;
    Ok(None)
}

fn rows(database: &Database) -> Result<Rows, redb::Error> {
    let transaction = database.begin_read()?;
    let bytes = |table| -> Result<Vec<(String, Vec<u8>)>, redb::Error> {
        let table = transaction.open_table::<&str, &[u8]>(table)?;
        let rows =
            table.iter()?.map(|row| row.map(|(key, value)| (key.value().to_owned(), value.value().to_vec())));
        Ok(rows.collect::<Result<_, _>>()?)
    };
    let names = transaction.open_table(NAMES)?;
    let names = names
        .iter()?
        .map(|row| row.map(|(name, id)| (name.value().to_owned(), id.value().to_owned())))
        .collect::<Result<_, _>>()?;
    Ok(Rows { layers: bytes(LAYERS)?, images: bytes(IMAGES)?, names })
}

fn commit(database: &Database, steps: &[IndexWrite<'_>]) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    {
        let mut layers = transaction.open_table(LAYERS)?;
        let mut images = transaction.open_table(IMAGES)?;
        let mut names = transaction.open_table(NAMES)?;
        for step in steps {
            match step {
                IndexWrite::Layer(key, record) => drop(layers.insert(*key, record.as_slice())?),
                IndexWrite::Image(id, record, own) => {
                    images.insert(*id, record.as_slice())?;
                    for name in *own {
                        names.insert(name.as_str(), *id)?;
                    }
                }
                IndexWrite::Name(name, id) => drop(names.insert(*name, *id)?),
                IndexWrite::DropLayer(key) => drop(layers.remove(*key)?),
                IndexWrite::DropImage(id, own) => {
                    images.remove(*id)?;
                    names.retain(|name, of| of != *id && !own.iter().any(|own| own == name))?;
                }
            }
        }
    }
    failpoint!("disk.written");
    transaction.commit()?;
    failpoint!("disk.committed");
    Ok(())
}

struct Rows {
    layers: Vec<(String, Vec<u8>)>,
    images: Vec<(String, Vec<u8>)>,
    names: Vec<(String, String)>,
}

enum IndexWrite<'a> {
    Layer(&'a str, Vec<u8>),
    Image(&'a str, Vec<u8>, &'a [String]),
    Name(&'a str, &'a str),
    DropLayer(&'a str),
    DropImage(&'a str, &'a [String]),
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// A file that takes nothing while `full`.
    #[derive(Debug)]
    struct Filling {
        file: File,
        full: Arc<AtomicBool>,
    }

    impl Filling {
        fn room(&self) -> io::Result<()> {
            match self.full.load(Ordering::SeqCst) {
                true => Err(io::Error::from_raw_os_error(libc::ENOSPC)),
                false => Ok(()),
            }
        }
    }

    impl redb::StorageBackend for Filling {
        fn len(&self) -> io::Result<u64> {
            Ok(self.file.metadata()?.len())
        }

        fn read(&self, offset: u64, to: &mut [u8]) -> io::Result<()> {
            self.file.read_exact_at(to, offset)
        }

        fn set_len(&self, length: u64) -> io::Result<()> {
            self.room().and_then(|()| self.file.set_len(length))
        }

        fn sync_data(&self) -> io::Result<()> {
            self.room().and_then(|()| self.file.sync_data())
        }

        fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            self.room().and_then(|()| self.file.write_all_at(data, offset))
        }
    }

    #[test]
    fn a_disk_that_was_full_is_written_to_again_when_it_has_room() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("images.redb");
        drop(IndexDatabase::open(&path).unwrap());
        let full = Arc::new(AtomicBool::new(false));
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let backend = Filling { file, full: Arc::clone(&full) };
        let database = Database::builder().create_with_backend(backend).unwrap();
        let disk = IndexDatabase { database: RwLock::new(Some(database)), path: path.clone() };
        let name = |name: &str| [StoreChange::Name { name: name.to_owned(), id: "i".to_owned() }];
        disk.apply(name("before").iter()).unwrap();
        full.store(true, Ordering::SeqCst);
        let failed = disk.apply(name("lost").iter()).unwrap_err();
        assert!(
            gantry_base::error::chain(&failed).contains("No space left"),
            "{}",
            gantry_base::error::chain(&failed)
        );
        full.store(false, Ordering::SeqCst);
        disk.apply(name("after").iter()).unwrap();
        assert!(disk.layer("none").unwrap().is_none());
        drop(disk);
        let (_, changes) = IndexDatabase::open(&path).unwrap();
        assert_eq!(changes, [name("after"), name("before")].concat());
    }
}
