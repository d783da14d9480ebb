//! Temporary folders beside the layers. Owns their making, their turning into layers and their
//! removal; nothing in them counts before `keep`. Called by `layer` and `pull` on blocking threads.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
        let mut random = [0_u8; 8];
        rustix::rand::getrandom(&mut random, GetRandomFlags::empty()).map_err(|errno| fail(errno.into()))?;
        let path = parent.join(format!("{:016x}", u64::from_ne_bytes(random)));
        DirBuilder::new().mode(0o700).create(&path).map_err(fail)?;
        Ok(Self { path, kept: false })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Moves the folder to `place`. Nobody knows of a folder that may stand there: whoever does
    /// has looked into the store before, and there is one flight for each layer.
    ///
    /// # Errors
    /// [`IngestError::Keep`], [`IngestError::Clear`].
    pub(crate) fn keep(mut self, place: &Path) -> Result<(), IngestError> {
        let rename = || rustix::fs::renameat_with(CWD, &self.path, CWD, place, RenameFlags::NOREPLACE);
        let mut renamed = rename();
        if renamed == Err(Errno::EXIST) {
            std::fs::remove_dir_all(place)
                .map_err(|source| IngestError::Clear { path: place.to_owned(), source: Arc::new(source) })?;
            renamed = rename();
        }
        renamed
            .map_err(|errno| IngestError::Keep { path: place.to_owned(), source: Arc::new(errno.into()) })?;
        self.kept = true;
        Ok(())
    }
}

impl Drop for Ingest {
    fn drop(&mut self) {
        if !self.kept
            && let Err(error) = std::fs::remove_dir_all(&self.path)
        {
            // The next start empties the folder of temporary folders.
            tracing::warn!(path = %self.path.display(), %error, "a temporary layer folder stays behind");
        }
    }
}
