//! The agent's root folder: made, named without links, and held by one agent at a time. Owns the
//! lock; never what is in the folder. Opened by the command line and by the kubelet's assembly.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use gantry_base::flock::{self, LockHolder};

/// What is ours in it; everything else is laid out as a kubelet's.
const OWN: &str = "gantry";

/// An open root folder; dropping it lets the next agent in.
#[derive(Debug)]
pub struct Root {
    path: PathBuf,
    /// flock(2): gone with the process, however it ends.
    _lock: File,
}

/// What failed, on which path.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("make the root folder {}", path.display())]
    Make {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("lock {}", path.display())]
    Lock {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "another agent works in {}: {holder}; end it, or give this one a --root-dir of its own", path.display()
    )]
    Taken { path: PathBuf, holder: LockHolder },
}

impl Root {
    /// Makes the folder if need be. The mount table only knows names without links, so the path is
    /// resolved here, once, for all who look it up there.
    ///
    /// # Errors
    /// When it cannot be made, or another agent holds it.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let wrap = |source| Error::Make { path: path.to_owned(), source };
        DirBuilder::new().recursive(true).mode(0o750).create(path.join(OWN)).map_err(wrap)?;
        let path = fs::canonicalize(path).map_err(wrap)?;
        let lock = path.join(OWN).join("lock");
        let wrap = |source| Error::Lock { path: lock.clone(), source };
        let file = File::options().create(true).truncate(false).write(true).open(&lock).map_err(wrap)?;
        match file.try_lock() {
            Ok(()) => Ok(Self { path, _lock: file }),
            Err(TryLockError::WouldBlock) => Err(Error::Taken { path, holder: flock::holder(&file) }),
            Err(TryLockError::Error(source)) => Err(wrap(source)),
        }
    }

    /// Absolute and without links.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the agent notes which pods are its own.
    #[must_use]
    pub fn claims(&self) -> PathBuf {
        claims_of(&self.path)
    }
}

/// The claims of the agent whose root folder this is.
#[must_use]
pub fn claims_of(root: &Path) -> PathBuf {
    root.join(OWN).join("pods")
}

/// Whether an agent works there now. Changes nothing; what cannot be looked at counts as free.
#[must_use]
pub fn is_taken(root: &Path) -> bool {
    holder(root).is_some()
}

/// Who works there now: nobody, or as far as it can be told. Changes nothing.
#[must_use]
pub fn holder(root: &Path) -> Option<LockHolder> {
    let lock = File::open(root.join(OWN).join("lock")).ok()?;
    matches!(lock.try_lock(), Err(TryLockError::WouldBlock)).then(|| flock::holder(&lock))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_agent_holds_a_root_by_its_true_name() {
        let folder = tempfile::tempdir().unwrap();
        let (real, link) = (folder.path().join("real"), folder.path().join("link"));
        fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let first = Root::open(&link.join("new")).unwrap();
        assert_eq!(first.path(), fs::canonicalize(&real).unwrap().join("new"));
        assert!(matches!(Root::open(&real.join("new")), Err(Error::Taken { .. })));
        drop(first);
        Root::open(&real.join("new")).unwrap();
    }
}
