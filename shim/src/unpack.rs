//! One layer's archive into one folder, in overlayfs's own form: whiteouts become 0:0 devices. Owns
//! limits and the order of work; `unpack/plan.rs` decides what an entry means, `unpack/tree.rs` does it.
//! Never looks at other layers. Run by the program `gantry-unpack` in confinement (ADR 0013), which
//! shares these files with the runtime; the runtime builds fix-up layers with `Tree`.

mod confine;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod inflate;
mod plan;
mod program;
mod report;
mod space;
mod tarball;
mod tree;

#[cfg(test)]
mod tests;

use std::io::{self, BufRead};
use std::sync::Arc;

pub use confine::ConfineError;
pub use inflate::{Packing, inflate};
use plan::Action;
pub use program::{Command, ProgramError, run};
pub use report::{Kind, Refusal, Report, Verdict, escape, unescape};
pub(crate) use space::Looks;
pub use space::{Short, Space};
pub use tarball::Kind as EntryKind;
pub use tarball::Tarball;
pub use tarball::{Meta, TarError, clip, shown};
pub use tree::{Paths, Tree, mark_opaque, own_xattrs};

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
    DiskFull { short: Short },
}

impl UnpackError {
    /// Who is to blame.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Tar { .. } => Kind::Corrupt,
            Self::DiskFull { .. } => Kind::Full,
            // Met between two looks.
            Self::Io { source, .. } if is_full(source) => Kind::Full,
            Self::Io { .. } => Kind::Node,
            Self::Climbs { .. }
            | Self::Name { .. }
            | Self::WhiteoutDevice { .. }
            | Self::LinkTarget { .. }
            | Self::Parent { .. }
            | Self::Large { .. }
            | Self::Entries { .. }
            | Self::Names { .. }
            | Self::Looks { .. } => Kind::Invalid,
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Unpacks `tar` into `tree`, which must be empty.
///
/// # Errors
/// [`UnpackError`]; the folder is then good for nothing.
pub fn unpack<R: BufRead>(
    tar: &mut Tarball<R>,
    mut tree: Tree,
    max_entries: u64,
) -> Result<Report, UnpackError> {
    tree.check_space()?;
    let filled = fill(tar, &mut tree, max_entries);
    // What ran out between two looks is told as by a look.
    let told = |error: UnpackError| match error.kind() {
        Kind::Full => tree.check_space().err().unwrap_or(error),
        _ => error,
    };
    let mut report = filled.map_err(told)?;
    (report.implied, report.opaque) = tree.finish()?;
    Ok(report)
}

fn fill<R: BufRead>(tar: &mut Tarball<R>, tree: &mut Tree, max_entries: u64) -> Result<Report, UnpackError> {
    let mut report = Report::default();
    let mut looks = Looks::default();
    while let Some(entry) = tar.next_entry().map_err(|source| UnpackError::Tar { source })? {
        report.entries += 1;
        if report.entries > max_entries {
            return Err(UnpackError::Entries { limit: max_entries });
        }
        if looks.is_due(1, 0) {
            tree.check_space()?;
        }
        match plan::plan(&entry)? {
            Action::Skip => {}
            Action::Whiteout { path } => tree.whiteout(&path)?,
            Action::Opaque { directory } => {
                report.opaque_root |= directory.is_empty();
                tree.opaque(&directory)?;
            }
            Action::Directory { path } => tree.directory(&path, entry.meta)?,
            Action::File { path } => {
                let mut file = tree.file(&path, entry.meta.mode)?;
                loop {
                    let count = tar
                        .read_data(|chunk| file.write(chunk))
                        .map_err(|source| UnpackError::Tar { source })??;
                    if count == 0 {
                        break;
                    }
                    report.bytes += count as u64;
                    if looks.is_due(0, count as u64) {
                        tree.check_space()?;
                    }
                }
                file.finish(&entry.meta)?;
            }
            Action::Symlink { path, target } => tree.symlink(&path, &target, &entry.meta)?,
            Action::Hardlink { path, target } => tree.hardlink(&path, &target)?,
            Action::Node { path, node } => tree.node(&path, node, &entry.meta)?,
        }
    }
    Ok(report)
}
