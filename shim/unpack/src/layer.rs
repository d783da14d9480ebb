//! One layer's archive into one folder. Owns the order of work and the limits; `plan` decides what an entry means,
//! `tree` does it. Never looks at other layers. Called by `program`.

use std::io::BufRead;

use crate::error::{UnpackError, UnpackErrorKind};
use crate::plan::{self, Action};
use crate::report::UnpackReport;
use crate::space::SpaceCheck;
use crate::tarball::Tarball;
use crate::tree::Tree;

/// Unpacks `tar` into `tree`, which must be empty.
///
/// # Errors
/// [`UnpackError`]; the folder is then good for nothing.
pub fn unpack<R: BufRead>(
    tar: &mut Tarball<R>,
    mut tree: Tree,
    max_entries: u64,
) -> Result<UnpackReport, UnpackError> {
    tree.check_space()?;
    let filled = fill(tar, &mut tree, max_entries);
    // What ran out between two looks is told as by a look.
    let told = |error: UnpackError| match error.kind() {
        UnpackErrorKind::Full => tree.check_space().err().unwrap_or(error),
        _ => error,
    };
    let mut report = filled.map_err(told)?;
    report.replaced = tree.has_replaced();
    (report.implied, report.opaque) = tree.finish()?;
    Ok(report)
}

fn fill<R: BufRead>(
    tar: &mut Tarball<R>,
    tree: &mut Tree,
    max_entries: u64,
) -> Result<UnpackReport, UnpackError> {
    let mut report = UnpackReport::default();
    let mut looks = SpaceCheck::default();
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
