//! Temporary folders beside the layers. Owns their making, their turning into layers and their
//! removal; nothing in them counts before `keep`. Called by `layer`, `pull` and `store` on blocking
//! threads.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gantry_failpoint::failpoint;
use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;
use rustix::rand::GetRandomFlags;

/// Why a temporary folder failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum IngestError {
    /// The folder can't be made.
    #[error("making a temporary folder in {path}")]
    Make {
        path: PathBuf,
        #[source]
        source: Arc<io::Error>,
    },
    /// A layer's folder can't be moved out of the way.
    #[error("moving the dropped layer {path}")]
    Take {
        path: PathBuf,
        #[source]
        source: Arc<io::Error>,
    },
    /// The finished folder can't be moved into place.
    #[error("moving the unpacked layer to {path}")]
    Keep {
        path: PathBuf,
        #[source]
        source: Arc<io::Error>,
    },
    /// What stands in its place can't be removed.
    #[error("removing the unknown folder {path}")]
    Clear {
        path: PathBuf,
        #[source]
        source: Arc<io::Error>,
    },
}

/// Removed when dropped, unless it was kept.
#[derive(Debug)]
pub(crate) struct Ingest {
    path: PathBuf,
    kept: bool,
}

impl Ingest {
    /// # Errors
    /// [`IngestError::Make`].
    pub(crate) fn new(parent: &Path) -> Result<Self, IngestError> {
        let fail =
            |source: io::Error| IngestError::Make { path: parent.to_owned(), source: Arc::new(source) };
        let path = free(parent).map_err(|errno| fail(errno.into()))?;
        DirBuilder::new().mode(0o700).create(&path).map_err(fail)?;
        Ok(Self { path, kept: false })
    }

    /// Makes a layer's folder one of those in `parent` again, in one step: a crash finds it whole
    /// in one place or the other.
    ///
    /// # Errors
    /// [`IngestError::Take`].
    pub(crate) fn take(place: &Path, parent: &Path) -> Result<Self, IngestError> {
        let fail =
            |errno: Errno| IngestError::Take { path: place.to_owned(), source: Arc::new(errno.into()) };
        let path = free(parent).map_err(fail)?;
        rustix::fs::renameat_with(CWD, place, CWD, &path, RenameFlags::NOREPLACE).map_err(fail)?;
        Ok(Self { path, kept: false })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Moves the folder to `place`. Nobody knows of a folder that may stand there: the store has
    /// looked, and lets nobody else in meanwhile.
    ///
    /// # Errors
    /// [`IngestError::Keep`], [`IngestError::Clear`].
    pub(crate) fn keep(mut self, place: &Path) -> Result<(), IngestError> {
        let rename = || rustix::fs::renameat_with(CWD, &self.path, CWD, place, RenameFlags::NOREPLACE);
        let mut renamed = rename();
        if renamed == Err(Errno::EXIST) {
            crate::remove::tree(place)
                .map_err(|source| IngestError::Clear { path: place.to_owned(), source: Arc::new(source) })?;
            renamed = rename();
        }
        renamed
            .map_err(|errno| IngestError::Keep { path: place.to_owned(), source: Arc::new(errno.into()) })?;
        self.kept = true;
        failpoint!("layer.moved");
        Ok(())
    }
}

/// A name in `parent` that nobody has.
fn free(parent: &Path) -> Result<PathBuf, Errno> {
    let mut random = [0_u8; 8];
    rustix::rand::getrandom(&mut random, GetRandomFlags::empty())?;
    Ok(parent.join(format!("{:016x}", u64::from_ne_bytes(random))))
}

impl Drop for Ingest {
    fn drop(&mut self) {
        if !self.kept
            && let Err(error) = crate::remove::tree(&self.path)
        {
            // The next start empties the folder of temporary folders.
            tracing::warn!(path = %self.path.display(), %error, "a temporary layer folder stays behind");
        }
    }
}
