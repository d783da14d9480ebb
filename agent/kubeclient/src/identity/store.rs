//! Where a certificate with its key is kept: a folder with a file for each and a link to the one in
//! use, laid out as the upstream kubelet's. Owns the files; never decides when to replace them.
//! Called by bootstrap and rotation.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use gantry_base::files;
use jiff::Timestamp;

use super::pair::{self, Pair};

/// One certificate's place.
#[derive(Debug, Clone)]
pub struct Store {
    prefix: &'static str,
    folder: PathBuf,
    /// What is used while the folder has none: an administrator's.
    given: Option<(PathBuf, PathBuf)>,
}

/// What failed, on which path.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{what} {}", path.display())]
    Io {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("could not convert data from {} into cert/key pair", path.display())]
    Pair {
        path: PathBuf,
        #[source]
        source: pair::Error,
    },
    #[error("expected {} to be a symlink but it is a file", .0.display())]
    NoLink(PathBuf),
}

fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { what, path, source }
}

impl Store {
    /// Finishes a replacement that a crash cut short.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn open(
        prefix: &'static str,
        folder: &Path,
        given: Option<(PathBuf, PathBuf)>,
    ) -> Result<Self, Error> {
        let store = Self { prefix, folder: folder.to_owned(), given };
        let (current, updated) = (store.current_path(), store.path("updated"));
        if !is_there(&current)? && store.is_link(&updated)? {
            fs::rename(&updated, &current).map_err(io("rename", &updated))?;
        }
        Ok(store)
    }

    fn path(&self, qualifier: &str) -> PathBuf {
        self.folder.join(format!("{}-{qualifier}.pem", self.prefix))
    }

    /// The link to the one in use.
    #[must_use]
    pub fn current_path(&self) -> PathBuf {
        self.path("current")
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn is_link(&self, path: &Path) -> Result<bool, Error> {
        match fs::symlink_metadata(path) {
            Ok(found) if found.is_symlink() => Ok(true),
            Ok(_) => Err(Error::NoLink(path.to_owned())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(io("look at", path)(e)),
        }
    }

    /// The one in use: the store's own, else the one that was given, else one beside.
    ///
    /// # Errors
    /// When there is one and it is broken.
    pub fn current(&self) -> Result<Option<Pair>, Error> {
        let own = self.current_path();
        let beside = (
            self.folder.join(format!("{}.crt", self.prefix)),
            self.folder.join(format!("{}.key", self.prefix)),
        );
        for (certificate, key) in [(own.clone(), own)].into_iter().chain(self.given.clone()).chain([beside]) {
            if is_there(&certificate)? && is_there(&key)? {
                return load(&certificate, &key).map(Some);
            }
        }
        Ok(None)
    }

    /// Keeps a new one and puts it in use, at once.
    ///
    /// # Errors
    /// When it is no pair, or cannot be kept; then the old one stays in use.
    pub fn update(&self, certificates: &[u8], key: &[u8], now: Timestamp) -> Result<Pair, Error> {
        let path = self.path(&now.strftime("%Y-%m-%d-%H-%M-%S").to_string());
        let wrong = |source| Error::Pair { path: path.clone(), source };
        let pair = Pair::parse(certificates, key).map_err(wrong)?;
        fs::create_dir_all(&self.folder).map_err(io("make", &self.folder))?;
        // The second of a second must not empty the file that is in use.
        let end: &[u8] = if certificates.ends_with(b"\n") { b"" } else { b"\n" };
        let text = [certificates, end, key].concat();
        files::replace(&path, &text, 0o600).map_err(io("write", &path))?;
        let (current, updated) = (self.current_path(), self.path("updated"));
        self.is_link(&current)?;
        if self.is_link(&updated)? {
            fs::remove_file(&updated).map_err(io("remove", &updated))?;
        }
        let target = fs::canonicalize(&path).map_err(io("resolve", &path))?;
        symlink(&target, &updated).map_err(io("link", &updated))?;
        fs::rename(&updated, &current).map_err(io("rename", &updated))?;
        files::settle(&self.folder).map_err(io("write", &self.folder))?;
        Ok(pair)
    }
}

fn is_there(path: &Path) -> Result<bool, Error> {
    path.try_exists().map_err(io("look at", path))
}

/// Reads a certificate and its key.
///
/// # Errors
/// When one cannot be read, or they do not belong together.
pub fn load(certificate: &Path, key: &Path) -> Result<Pair, Error> {
    let read = |path: &Path| fs::read(path).map_err(io("read", path));
    Pair::parse(&read(certificate)?, &read(key)?)
        .map_err(|source| Error::Pair { path: certificate.to_owned(), source })
}

/// A file with a text, replaced whole.
///
/// # Errors
/// When it cannot be written.
pub(super) fn replace(path: &Path, text: &[u8], mode: u32) -> Result<(), Error> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(io("make", folder))?;
    }
    files::replace(path, text, mode).map_err(io("write", path))
}

#[cfg(test)]
mod tests;
