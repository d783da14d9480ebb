//! The fix-up layer of a chain. A layer unpacked alone must invent directories that only paths of
//! its files imply, and overlayfs would show the invented mode and owner over the real ones of a
//! lower layer. Where that happens a small layer of directories goes on top. Owns the decision
//! (`plan`, Pure but for its look function) and the building; never changes another layer's folder.
//! Called by `pull` once an image's layers are known.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use gantry_unpack::{Meta, Tree, UnpackError, own_xattrs, shown};

/// What stands at a path of one layer's folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PathState {
    Absent,
    /// A whiteout, a file, a link: it hides what lower layers have there.
    Blocked,
    Directory {
        meta: Meta,
        opaque: bool,
    },
}

/// One layer of the chain, as the plan sees it.
pub(crate) struct ChainLayer<'a> {
    pub(crate) folder: &'a Path,
    pub(crate) implied: BTreeSet<Vec<u8>>,
}

const INVENTED: u32 = 0o755;

/// Directories of the fix-up layer with their metadata, parents first; empty when none is needed.
/// `layers` is topmost first, `look(i, path)` says what layer `i` has.
///
/// # Errors
/// Those of `look`.
pub(crate) fn plan<E>(
    layers: &[ChainLayer<'_>],
    mut look: impl FnMut(usize, &[u8]) -> Result<PathState, E>,
) -> Result<BTreeMap<Vec<u8>, Meta>, E> {
    let candidates: BTreeSet<&Vec<u8>> = layers.iter().flat_map(|layer| &layer.implied).collect();
    let mut fixes = BTreeMap::new();
    for path in candidates {
        let Some((meta, true)) = effective_meta(layers, path, &mut look)? else { continue };
        let invented = (meta.mode, meta.uid, meta.gid) == (INVENTED, 0, 0) && meta.xattrs.is_empty();
        if !invented {
            fixes.insert(path.clone(), meta);
        }
    }
    // Above all others, this layer's parents cover those of the image: they must be right too.
    let parents: BTreeSet<Vec<u8>> =
        fixes.keys().flat_map(|path| prefixes(path).map(<[u8]>::to_vec)).collect();
    for parent in parents {
        if !fixes.contains_key(&parent)
            && let Some((meta, _)) = effective_meta(layers, &parent, &mut look)?
        {
            fixes.insert(parent, meta);
        }
    }
    Ok(fixes)
}

/// The metadata that a unpack onto the real parent would have shown, and whether it comes from
/// below an invented directory. None: the merged tree has no such directory.
fn effective_meta<E>(
    layers: &[ChainLayer<'_>],
    path: &[u8],
    look: &mut impl FnMut(usize, &[u8]) -> Result<PathState, E>,
) -> Result<Option<(Meta, bool)>, E> {
    let mut invented: Option<Meta> = None;
    for (index, layer) in layers.iter().enumerate() {
        let mut last = false;
        for prefix in prefixes(path).chain([path]) {
            match look(index, prefix)? {
                PathState::Absent => break,
                PathState::Blocked => return Ok(invented.map(|meta| (meta, false))),
                PathState::Directory { meta, opaque } => {
                    last |= opaque;
                    if prefix == path {
                        if !layer.implied.contains(path) {
                            return Ok(Some((meta, invented.is_some())));
                        }
                        invented.get_or_insert(meta);
                    }
                }
            }
        }
        if last {
            break;
        }
    }
    Ok(invented.map(|meta| (meta, false)))
}

/// The root and every directory above `path`, in that order; nothing for the root itself.
fn prefixes(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    let root = (!path.is_empty()).then_some(0);
    root.into_iter().chain(slashes).map(|end| &path[..end])
}

/// Looks into real folders.
///
/// # Errors
/// [`UnpackError::Io`].
pub(crate) fn look(layers: &[ChainLayer<'_>], index: usize, path: &[u8]) -> Result<PathState, UnpackError> {
    let fail = |operation, errno: Errno| UnpackError::Io {
        operation,
        path: shown(path),
        source: Arc::new(errno.into()),
    };
    let Some(layer) = layers.get(index) else { return Ok(PathState::Absent) };
    let directory = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(layer.folder, directory, Mode::empty())
        .map_err(|errno| fail("open the layer of", errno))?;
    let Some(fd) = open(&root, path).map_err(|errno| fail("open", errno))? else {
        return match existing_type(&root, path).map_err(|errno| fail("stat", errno))? {
            Some(_) => Ok(PathState::Blocked),
            None => Ok(PathState::Absent),
        };
    };
    let stat = rustix::fs::fstat(&fd).map_err(|errno| fail("stat", errno))?;
    let (xattrs, opaque) = own_xattrs(&fd).map_err(|errno| fail("list the xattrs of", errno))?;
    let nanos = u32::try_from(stat.st_mtime_nsec).unwrap_or(0);
    let meta = Meta {
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        mtime: (stat.st_mtime, nanos),
        xattrs,
    };
    Ok(PathState::Directory { meta, opaque })
}

/// None when there is no directory; no symbolic link is followed.
fn open(root: &OwnedFd, path: &[u8]) -> Result<Option<OwnedFd>, Errno> {
    use rustix::fs::ResolveFlags as R;
    let resolve = R::BENEATH | R::NO_SYMLINKS | R::NO_MAGICLINKS | R::NO_XDEV;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let path: &[u8] = if path.is_empty() { b"." } else { path };
    match rustix::fs::openat2(root, path, flags, Mode::empty(), resolve) {
        Ok(fd) => Ok(Some(fd)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// The type of what stands there, if anything does. The plan has seen to it that parents are
/// directories.
fn existing_type(root: &OwnedFd, path: &[u8]) -> Result<Option<FileType>, Errno> {
    match rustix::fs::statat(root, path, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Makes the planned directories in the empty folder `into`.
///
/// # Errors
/// [`UnpackError::Io`].
pub(crate) fn build(fixes: &BTreeMap<Vec<u8>, Meta>, into: &Path) -> Result<(), UnpackError> {
    let mut tree = Tree::open(into)?;
    for (path, meta) in fixes {
        tree.directory(path, meta.clone())?;
    }
    tree.finish().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(mode: u32) -> PathState {
        PathState::Directory { meta: Meta { mode, ..Meta::default() }, opaque: false }
    }

    /// What a layer implies, and what it has.
    type LayerContent<'a> = (&'a [&'a str], Vec<(&'a str, PathState)>);

    fn check(layers: &[LayerContent<'_>], want: &[(&str, u32)]) {
        let below: Vec<ChainLayer<'_>> = layers
            .iter()
            .map(|(implied, _)| ChainLayer {
                folder: Path::new("/"),
                implied: implied.iter().map(|path| path.as_bytes().to_vec()).collect(),
            })
            .collect();
        let look = |index: usize, path: &[u8]| {
            let found = layers[index].1.iter().find(|(own, _)| own.as_bytes() == path);
            Ok::<_, ()>(found.map_or(PathState::Absent, |(_, seen)| seen.clone()))
        };
        let fixes = plan(&below, look).unwrap();
        let got: Vec<(String, u32)> =
            fixes.into_iter().map(|(path, meta)| (String::from_utf8(path).unwrap(), meta.mode)).collect();
        let want: Vec<(String, u32)> = want.iter().map(|(path, mode)| ((*path).to_owned(), *mode)).collect();
        assert_eq!(got, want);
    }

    #[test]
    fn rt_1_1_invented_tmp_gets_the_mode_of_the_base() {
        check(
            &[
                (&["", "tmp"], vec![("", directory(0o755)), ("tmp", directory(0o755))]),
                (&[""], vec![("", directory(0o755)), ("tmp", directory(0o1777))]),
            ],
            &[("", 0o755), ("tmp", 0o1777)],
        );
    }

    #[test]
    fn no_fix_where_the_base_agrees_or_the_top_speaks_for_itself() {
        let top = vec![("", directory(0o755)), ("a", directory(0o755))];
        let base = vec![("", directory(0o755)), ("a", directory(0o755))];
        check(&[(&["", "a"], top.clone()), (&[""], base)], &[]);
        let private = vec![("", directory(0o755)), ("a", directory(0o700))];
        check(&[(&[""], top), (&[""], private)], &[]);
    }

    #[test]
    fn nothing_is_taken_from_behind_whiteouts_files_and_opaque_parents() {
        let top = vec![("", directory(0o755)), ("a", directory(0o755)), ("a/b", directory(0o755))];
        let base = vec![("", directory(0o755)), ("a", directory(0o700)), ("a/b", directory(0o711))];
        let implied: &[&str] = &["", "a", "a/b"];
        let cover = |at: &'static str, seen: PathState| {
            let parent = ("a", directory(0o755));
            let mut middle = vec![("", directory(0o755)), (at, seen)];
            if at != "a" {
                middle.push(parent);
            }
            (&["", "a"][..], middle)
        };
        let opaque = PathState::Directory { meta: Meta { mode: 0o755, ..Meta::default() }, opaque: true };
        for middle in [cover("a", PathState::Blocked), cover("a", opaque.clone())] {
            check(&[(implied, top.clone()), middle, (&[""], base.clone())], &[]);
        }
        let middle = cover("a/b", PathState::Blocked);
        check(&[(implied, top.clone()), middle, (&[""], base.clone())], &[("", 0o755), ("a", 0o700)]);
        check(&[(implied, top), (&[""], base)], &[("", 0o755), ("a", 0o700), ("a/b", 0o711)]);
    }
}
