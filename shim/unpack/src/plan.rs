//! What a tar entry asks for, checked. Pure: no file system. Called by `unpack`.

use crate::error::UnpackError;
use crate::tarball::{EntryKind, TarEntry, shown};

/// One step. Paths are relative to the layer's root, without `.`, `..` or empty parts; the root
/// itself is "".
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    /// AUFS bookkeeping that old docker images carry.
    Skip,
    Whiteout {
        path: Vec<u8>,
    },
    Opaque {
        directory: Vec<u8>,
    },
    Directory {
        path: Vec<u8>,
    },
    File {
        path: Vec<u8>,
    },
    Symlink {
        path: Vec<u8>,
        target: Vec<u8>,
    },
    Hardlink {
        path: Vec<u8>,
        target: Vec<u8>,
    },
    Node {
        path: Vec<u8>,
        node: PlannedNode,
    },
}

/// A special file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PlannedNode {
    Fifo,
    Char(u32, u32),
    Block(u32, u32),
}

const WHITEOUT: &[u8] = b".wh.";
const META: &[u8] = b".wh..wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";

pub(super) fn plan(entry: &TarEntry) -> Result<Action, UnpackError> {
    let path = clean(&entry.path, &entry.path)?;
    let (directory, name) = split(&path);
    if name == OPAQUE {
        return Ok(Action::Opaque { directory: directory.to_vec() });
    }
    if path.starts_with(META) || name.starts_with(META) {
        return Ok(Action::Skip);
    }
    if path.split(|byte| *byte == b'/').rev().skip(1).any(|part| part.starts_with(WHITEOUT)) {
        return Err(hostile(&entry.path, "a whiteout can't hold files"));
    }
    if let Some(hidden) = name.strip_prefix(WHITEOUT) {
        if matches!(hidden, b"" | b"." | b"..") {
            return Err(hostile(&entry.path, "a whiteout of no name"));
        }
        return Ok(Action::Whiteout { path: join(directory, hidden) });
    }
    if path.is_empty() && entry.kind != EntryKind::Directory {
        return Err(hostile(&entry.path, "the root of a layer is a directory"));
    }
    Ok(match &entry.kind {
        EntryKind::Directory => Action::Directory { path },
        EntryKind::File => Action::File { path },
        EntryKind::Symlink(target) if target.is_empty() || target.contains(&0) => {
            return Err(hostile(&entry.path, "a symbolic link to nothing"));
        }
        EntryKind::Symlink(target) => Action::Symlink { path, target: target.clone() },
        EntryKind::Hardlink(target) => {
            let target = clean(target, &entry.path)?;
            if target.is_empty() {
                return Err(hostile(&entry.path, "a hard link to a directory"));
            }
            Action::Hardlink { path, target }
        }
        EntryKind::Char(0, 0) => return Err(UnpackError::WhiteoutDevice { path: shown(&entry.path) }),
        EntryKind::Char(major, minor) => Action::Node { path, node: PlannedNode::Char(*major, *minor) },
        EntryKind::Block(major, minor) => Action::Node { path, node: PlannedNode::Block(*major, *minor) },
        EntryKind::Fifo => Action::Node { path, node: PlannedNode::Fifo },
    })
}

/// Drops empty parts and `.`; a leading slash too, since some build tools write absolute names and
/// mean the layer's root. `..` is refused even where it would stay inside: no builder writes it.
fn clean(path: &[u8], of: &[u8]) -> Result<Vec<u8>, UnpackError> {
    let mut clean = Vec::with_capacity(path.len());
    for part in path.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => continue,
            b".." => return Err(UnpackError::Climbs { path: shown(of) }),
            _ if part.contains(&0) => return Err(hostile(of, "its path holds a NUL")),
            _ if part.len() > 255 => return Err(hostile(of, "a part of its path is longer than 255 bytes")),
            _ => {}
        }
        if !clean.is_empty() {
            clean.push(b'/');
        }
        clean.extend_from_slice(part);
    }
    Ok(clean)
}

fn hostile(path: &[u8], detail: &'static str) -> UnpackError {
    UnpackError::Name { path: shown(path), detail }
}

/// Directory and last part.
pub(super) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

pub(super) fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() { name.to_vec() } else { [directory, b"/", name].concat() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tarball::Meta;

    fn check(path: &str, kind: EntryKind) -> Result<Action, UnpackError> {
        plan(&TarEntry { path: path.into(), kind, size: 0, meta: Meta::default() })
    }

    #[test]
    fn names_are_cleaned() {
        for name in ["a/b", "./a/b", "/a/b", "a//b", "a/./b/", "//./a/b"] {
            assert_eq!(
                check(name, EntryKind::File).unwrap(),
                Action::File { path: b"a/b".to_vec() },
                "{name}"
            );
        }
        for root in ["./", "/", ".", ""] {
            assert_eq!(check(root, EntryKind::Directory).unwrap(), Action::Directory { path: vec![] });
            assert!(check(root, EntryKind::File).is_err());
        }
    }

    #[test]
    fn climbing_is_refused_in_names_and_targets() {
        for name in ["../a", "a/../../b", "/..", "a/..", "./../a"] {
            assert!(matches!(check(name, EntryKind::File), Err(UnpackError::Climbs { .. })), "{name}");
            let link = EntryKind::Hardlink(name.into());
            assert!(matches!(check("x", link), Err(UnpackError::Climbs { .. })), "{name}");
        }
        // A symbolic link may say what it likes: only the container follows it.
        assert!(check("x", EntryKind::Symlink(b"../../etc/shadow".to_vec())).is_ok());
    }

    #[test]
    fn whiteouts_are_known_by_name() {
        assert_eq!(check("a/.wh.b", EntryKind::File).unwrap(), Action::Whiteout { path: b"a/b".to_vec() });
        assert_eq!(
            check("a/.wh..wh..opq", EntryKind::File).unwrap(),
            Action::Opaque { directory: b"a".to_vec() }
        );
        assert_eq!(check(".wh..wh..opq", EntryKind::File).unwrap(), Action::Opaque { directory: vec![] });
        assert_eq!(check(".wh..wh.plnk/1.2", EntryKind::File).unwrap(), Action::Skip);
        assert_eq!(check(".wh..wh.aufs", EntryKind::File).unwrap(), Action::Skip);
        for name in [".wh.", "a/.wh..", "a/.wh...", "a/.wh.b/c"] {
            assert!(matches!(check(name, EntryKind::File), Err(UnpackError::Name { .. })), "{name}");
        }
    }

    #[test]
    fn a_device_that_overlayfs_takes_for_a_whiteout_is_refused() {
        assert!(matches!(check("x", EntryKind::Char(0, 0)), Err(UnpackError::WhiteoutDevice { .. })));
        assert!(check("dev/null", EntryKind::Char(1, 3)).is_ok());
        assert!(check("x", EntryKind::Block(0, 0)).is_ok());
    }

    #[test]
    fn names_that_no_file_can_have_are_refused() {
        assert!(check("a\0b", EntryKind::File).is_err());
        assert!(check(&"n".repeat(256), EntryKind::File).is_err());
        assert!(check("x", EntryKind::Symlink(vec![])).is_err());
        assert!(check("x", EntryKind::Hardlink(b"/".to_vec())).is_err());
    }
}
