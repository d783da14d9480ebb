//! The exit record: how a container or pause ended, beside its record on disk. Owns the format.
//! Written by the monitor before it tells anybody, or by the runtime for a dead monitor's
//! containers; read by the runtime when it starts.

#![expect(clippy::disallowed_methods, reason = "written beside, then renamed over the old one")]

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use gantry_failpoint::failpoint;
use serde::{Deserialize, Serialize};

/// File name inside the record's folder.
pub const FILE: &str = "exit.json";
const VERSION: u32 = 1;

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitRecord {
    /// Format version.
    pub version: u32,
    /// Exit code, or 128 + signal.
    pub exit_code: i32,
    /// Unix nanoseconds.
    pub finished_at: i64,
    /// Rise of the cgroup's oom_kill counter over the life of the process.
    pub oom_kills: u64,
    /// When its program ran, unix nanoseconds; 0 when that is not known.
    #[serde(default)]
    pub started_at: i64,
    /// False when nobody saw the end and the code is a stand-in (255).
    pub known: bool,
}

/// The record could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Reading failed.
    #[error("read exit record {path}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Not JSON of this format.
    #[error("exit record {path} does not parse", path = path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// Made by a version this program does not know.
    #[error("exit record {path} has version {version}, this program knows {VERSION}", path = path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// What it says.
        version: u32,
    },
    /// Writing or renaming failed.
    #[error("write exit record {path}", path = path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl ExitRecord {
    /// A process whose end was seen.
    #[must_use]
    pub fn with_exit_code(exit_code: i32, finished_at: i64, oom_kills: u64) -> Self {
        Self { version: VERSION, exit_code, finished_at, oom_kills, started_at: 0, known: true }
    }

    /// With the time of the start.
    #[must_use]
    pub fn with_started_at(self, started_at: i64) -> Self {
        Self { started_at, ..self }
    }

    /// A process that is gone, and nobody knows how: 255, as containerd says.
    #[must_use]
    pub fn unknown(finished_at: i64) -> Self {
        Self { version: VERSION, exit_code: 255, finished_at, oom_kills: 0, started_at: 0, known: false }
    }

    /// Writes the record whole or not at all. No fsync: after a power cut the boot id tells.
    ///
    /// # Errors
    /// When the folder can't be written.
    pub fn write(&self, folder: &Path) -> Result<(), Error> {
        let (path, temporary) = (folder.join(FILE), folder.join("exit.json.new"));
        let wrap = |source| Error::Write { path: path.clone(), source };
        let bytes = serde_json::to_vec(self).map_err(|source| wrap(source.into()))?;
        fs::write(&temporary, bytes).map_err(wrap)?;
        failpoint!("exit.written");
        fs::rename(&temporary, &path).map_err(wrap)
    }

    /// Reads the record of `folder`; None when there is none.
    ///
    /// # Errors
    /// When it can't be read, or is of another version.
    pub fn read(folder: &Path) -> Result<Option<Self>, Error> {
        let path = folder.join(FILE);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(Error::Read { path, source }),
        };
        let record: Self =
            serde_json::from_slice(&bytes).map_err(|source| Error::Parse { path: path.clone(), source })?;
        if record.version == VERSION {
            Ok(Some(record))
        } else {
            Err(Error::Version { path, version: record.version })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_comes_back_as_written_and_an_unknown_version_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(ExitRecord::read(folder.path()).unwrap(), None);
        let mut record = ExitRecord::with_exit_code(137, 42, 1).with_started_at(40);
        record.write(folder.path()).unwrap();
        assert_eq!(ExitRecord::read(folder.path()).unwrap().as_ref(), Some(&record));
        let older = r#"{"version":1,"exit_code":3,"finished_at":42,"oom_kills":0,"known":true}"#;
        fs::write(folder.path().join(FILE), older).unwrap();
        assert_eq!(ExitRecord::read(folder.path()).unwrap(), Some(ExitRecord::with_exit_code(3, 42, 0)));
        record.version = 9;
        record.write(folder.path()).unwrap();
        assert!(matches!(ExitRecord::read(folder.path()), Err(Error::Version { version: 9, .. })));
    }
}
