//! The redb file. Owns tables and the format's version; never syncs layers (its caller does so
//! first). Called by `store`, on blocking threads only: each commit is an fsync.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::StoreError;
use super::record::{Change, LayerRecord, VERSION};

const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
const LAYERS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("layers");
const IMAGES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("images");
const NAMES: TableDefinition<'_, &str, &str> = TableDefinition::new("names");

/// The index is small and read once; redb's default cache is a gigabyte.
const CACHE: usize = 4 << 20;

#[derive(Debug)]
pub(super) struct Disk {
    database: Database,
    path: PathBuf,
}

impl Disk {
    /// Opens or makes the file and reads all of it.
    ///
    /// # Errors
    /// [`StoreError::Version`], [`StoreError::Database`], [`StoreError::Record`].
    pub(super) fn open(path: &Path) -> Result<(Self, Vec<Change>), StoreError> {
        let opened = Database::builder().set_cache_size(CACHE).create(path);
        let database = opened.map_err(|error| StoreError::Database {
            operation: "opening",
            path: path.to_owned(),
            source: Arc::new(error.into()),
        })?;
        let disk = Self { database, path: path.to_owned() };
        if let Some(found) = disk.prepare().map_err(|error| disk.fail("preparing", error))? {
            return Err(StoreError::Version { path: path.to_owned(), found, known: VERSION });
        }
        let rows = disk.rows().map_err(|error| disk.fail("reading", error))?;
        let mut changes = Vec::new();
        for (key, value) in rows.layers {
            let record = LayerRecord { implied: Vec::new(), ..disk.parse(&key, &value)? };
            changes.push(Change::Layer { record, key });
        }
        for (id, value) in rows.images {
            changes.push(Change::Image { record: disk.parse(&id, &value)?, id, names: Vec::new() });
        }
        changes.extend(rows.names.into_iter().map(|(name, id)| Change::Name { name, id }));
        Ok((disk, changes))
    }

    /// The whole record of a layer.
    ///
    /// # Errors
    /// [`StoreError::Database`], [`StoreError::Record`].
    pub(super) fn layer(&self, key: &str) -> Result<Option<LayerRecord>, StoreError> {
        let read = || -> Result<Option<Vec<u8>>, redb::Error> {
            let table = self.database.begin_read()?.open_table(LAYERS)?;
            Ok(table.get(key)?.map(|value| value.value().to_vec()))
        };
        let value = read().map_err(|error| self.fail("reading", error))?;
        value.map(|value| self.parse(key, &value)).transpose()
    }

    /// The ids of all images.
    #[cfg(test)]
    pub(super) fn images(&self) -> Result<Vec<String>, StoreError> {
        let rows = self.rows().map_err(|error| self.fail("reading", error))?;
        Ok(rows.images.into_iter().map(|(id, _)| id).collect())
    }

    /// Commits changes, durably, all or none.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub(super) fn apply<'a>(&self, changes: impl Iterator<Item = &'a Change>) -> Result<(), StoreError> {
        let steps: Vec<Step<'_>> = changes.map(|change| self.step(change)).collect::<Result<_, _>>()?;
        self.commit(&steps).map_err(|error| self.fail("writing", error))
    }

    /// Makes the tables; the version found if it is not ours.
    fn prepare(&self) -> Result<Option<u64>, redb::Error> {
        let transaction = self.database.begin_write()?;
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

    fn rows(&self) -> Result<Rows, redb::Error> {
        let transaction = self.database.begin_read()?;
        let bytes = |table| -> Result<Vec<(String, Vec<u8>)>, redb::Error> {
            let table = transaction.open_table::<&str, &[u8]>(table)?;
            let rows = table
                .iter()?
                .map(|row| row.map(|(key, value)| (key.value().to_owned(), value.value().to_vec())));
            Ok(rows.collect::<Result<_, _>>()?)
        };
        let names = transaction.open_table(NAMES)?;
        let names = names
            .iter()?
            .map(|row| row.map(|(name, id)| (name.value().to_owned(), id.value().to_owned())))
            .collect::<Result<_, _>>()?;
        Ok(Rows { layers: bytes(LAYERS)?, images: bytes(IMAGES)?, names })
    }

    fn step<'a>(&self, change: &'a Change) -> Result<Step<'a>, StoreError> {
        Ok(match change {
            Change::Layer { key, record } => Step::Layer(key, self.print(key, record)?),
            Change::Image { id, record, names } => Step::Image(id, self.print(id, record)?, names),
            Change::Name { name, id } => Step::Name(name, id),
            Change::DropLayer { key } => Step::DropLayer(key),
            Change::DropImage { id, names } => Step::DropImage(id, names),
        })
    }

    fn commit(&self, steps: &[Step<'_>]) -> Result<(), redb::Error> {
        let transaction = self.database.begin_write()?;
        {
            let mut layers = transaction.open_table(LAYERS)?;
            let mut images = transaction.open_table(IMAGES)?;
            let mut names = transaction.open_table(NAMES)?;
            for step in steps {
                match step {
                    Step::Layer(key, record) => drop(layers.insert(*key, record.as_slice())?),
                    Step::Image(id, record, own) => {
                        images.insert(*id, record.as_slice())?;
                        for name in *own {
                            names.insert(name.as_str(), *id)?;
                        }
                    }
                    Step::Name(name, id) => drop(names.insert(*name, *id)?),
                    Step::DropLayer(key) => drop(layers.remove(*key)?),
                    Step::DropImage(id, own) => {
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

struct Rows {
    layers: Vec<(String, Vec<u8>)>,
    images: Vec<(String, Vec<u8>)>,
    names: Vec<(String, String)>,
}

enum Step<'a> {
    Layer(&'a str, Vec<u8>),
    Image(&'a str, Vec<u8>, &'a [String]),
    Name(&'a str, &'a str),
    DropLayer(&'a str),
    DropImage(&'a str, &'a [String]),
}
