//! Why a layer cannot be unpacked, and whose fault it is. Owns the words; called by every step.

use std::io;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::space::LowSpace;
use crate::tarball::TarError;

/// Who is to blame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum UnpackErrorKind {
    /// The bytes are no archive.
    Corrupt,
    /// They are, but not of a kind that may be unpacked.
    Invalid,
    /// This node: its disk, its kernel.
    Node,
    /// This node's disk has no more room.
    Full,
}

/// Why a layer can't be unpacked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum UnpackError {
    /// The archive is broken or of an unsupported form.
    #[error("bad archive")]
    Tar {
        #[source]
        source: TarError,
    },
    /// `..` in a name or in a hard link's target.
    #[error("hostile entry {path:?}: its path climbs with \"..\"")]
    Climbs { path: String },
    /// A name that no file can have.
    #[error("hostile entry {path:?}: {detail}")]
    Name { path: String, detail: &'static str },
    /// A device 0:0, which overlayfs takes for a whiteout.
    #[error("hostile entry {path:?}: a character device 0:0 would delete files of lower layers")]
    WhiteoutDevice { path: String },
    /// The target is not in this layer, so that no link can be made in a layer's own folder.
    #[error(
        "hard link {path:?}: its target {target:?} is no file of the same layer; \
         rebuild the image with a tool that copies such files"
    )]
    LinkTarget { path: String, target: String },
    /// Something else stands where a directory must be.
    #[error("entry {path:?}: {parent:?} is {found}, not a directory of this layer")]
    Parent { path: String, parent: String, found: &'static str },
    /// A system call failed.
    #[error("{operation} {path:?}")]
    Io {
        operation: &'static str,
        path: String,
        #[source]
        source: Arc<io::Error>,
    },
    /// More than a file of a layer of this size can be (RLIMIT_FSIZE).
    #[error("file {path:?} is larger than its whole layer may be")]
    Large { path: String },
    /// Too many entries.
    #[error("the layer has more than the {limit} entries allowed")]
    Entries { limit: u64 },
    /// Directories so many and so deep that their names alone fill the memory, or with attributes that do.
    #[error("the layer's directories have more than {limit} bytes of names and extended attributes")]
    Names { limit: usize },
    /// Layers so many and so deep that looking for their directories takes minutes.
    #[error("the image's layers need more than {limit} look-ups of directories that no layer describes")]
    Looks { limit: u64 },
    /// The disk is for others too.
    #[error("on the image disk {short}")]
    DiskFull { short: LowSpace },
}

impl UnpackError {
    /// Who is to blame.
    #[must_use]
    pub fn kind(&self) -> UnpackErrorKind {
        match self {
            Self::Tar { .. } => UnpackErrorKind::Corrupt,
            Self::DiskFull { .. } => UnpackErrorKind::Full,
            // Met between two looks.
            Self::Io { source, .. } if is_full(source) => UnpackErrorKind::Full,
            Self::Io { .. } => UnpackErrorKind::Node,
            Self::Climbs { .. }
            | Self::Name { .. }
            | Self::WhiteoutDevice { .. }
            | Self::LinkTarget { .. }
            | Self::Parent { .. }
            | Self::Large { .. }
            | Self::Entries { .. }
            | Self::Names { .. }
            | Self::Looks { .. } => UnpackErrorKind::Invalid,
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
