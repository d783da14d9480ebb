//! Giving a volume the label of the container that mounts it (`selinux_relabel`). Owns the walk: by descriptors
//! and without following any link, since others may write to the tree meanwhile, and never deeper than what
//! descriptors last for; and the folders of the node that no volume may be. Called by `container::create`.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, XattrFlags};
use rustix::io::Errno;

const ATTRIBUTE: &str = "security.selinux";

/// Each level holds a descriptor.
const MAX_DEPTH: usize = 256;

/// The node's own: with another label its services would lose their files. The list is that of
/// opencontainers/selinux.
const NODES_OWN: [&str; 24] = [
    "/",
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/etc/passwd",
    "/etc/pki",
    "/etc/shadow",
    "/home",
    "/lib",
    "/lib64",
    "/media",
    "/opt",
    "/proc",
    "/root",
    "/run",
    "/sbin",
    "/srv",
    "/sys",
    "/tmp",
    "/usr",
    "/var",
    "/var/lib",
    "/var/log",
];

/// A volume that could not be labelled.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// One of the node's own folders.
    #[error("relabel {path:?} with {label:?} failed: SELinux relabeling of {path} is not allowed")]
    NodesOwn {
        /// The volume.
        path: String,
        /// The label.
        label: String,
    },
    /// Too many folders in each other.
    #[error("relabel {path:?} failed: folders in it are nested deeper than {MAX_DEPTH}")]
    Deep {
        /// The volume.
        path: String,
    },
    /// The kernel says no.
    #[error("relabel {path:?} with {label:?} failed: {at}")]
    Set {
        /// The volume.
        path: String,
        /// The label.
        label: String,
        /// What in it.
        at: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// Labels `path` and all below it, the path itself last. A file system without labels is left as it is.
///
/// # Errors
/// The first that can't be labelled.
pub(crate) fn tree(path: &str, label: &str) -> Result<(), Error> {
    walk(path, ATTRIBUTE, label)
}

fn walk(path: &str, attribute: &str, label: &str) -> Result<(), Error> {
    let own = path.trim_end_matches('/');
    if NODES_OWN.contains(&if own.is_empty() { "/" } else { own }) {
        return Err(Error::NodesOwn { path: path.to_owned(), label: label.to_owned() });
    }
    let walk = RelabelWalk { path, attribute, label };
    let mut open_folders: Vec<Dir> = walk.folder(CWD, Path::new(path))?.into_iter().collect();
    while let Some(folder) = open_folders.last_mut() {
        let Some(entry) = folder.read() else {
            open_folders.pop();
            continue;
        };
        let entry = entry.map_err(|errno| walk.error(Path::new(path), errno))?;
        let name = Path::new(OsStr::from_bytes(entry.file_name().to_bytes()));
        if matches!(entry.file_name().to_bytes(), b"." | b"..") {
            continue;
        }
        let here = folder.fd().map_err(|errno| walk.error(Path::new(path), errno))?;
        // The folder by its descriptor, its entry without following it: nothing leads out.
        if !walk.set(&PathBuf::from(format!("/proc/self/fd/{}", here.as_raw_fd())).join(name))? {
            return Ok(());
        }
        let maybe = matches!(entry.file_type(), FileType::Directory | FileType::Unknown);
        let inner = if maybe { walk.folder(here, name)? } else { None };
        if inner.is_some() && open_folders.len() >= MAX_DEPTH {
            return Err(Error::Deep { path: path.to_owned() });
        }
        open_folders.extend(inner);
    }
    walk.set(Path::new(path)).map(drop)
}

struct RelabelWalk<'a> {
    path: &'a str,
    attribute: &'a str,
    label: &'a str,
}

impl RelabelWalk<'_> {
    fn error(&self, at: &Path, errno: Errno) -> Error {
        Error::Set {
            path: self.path.to_owned(),
            label: self.label.to_owned(),
            at: at.to_owned(),
            source: errno.into(),
        }
    }

    /// False where the file system has no labels.
    fn set(&self, at: &Path) -> Result<bool, Error> {
        match rustix::fs::lsetxattr(at, self.attribute, self.label.as_bytes(), XattrFlags::empty()) {
            // Removed meanwhile.
            Ok(()) | Err(Errno::NOENT) => Ok(true),
            Err(Errno::OPNOTSUPP) => Ok(false),
            Err(errno) => Err(self.error(at, errno)),
        }
    }

    /// None for what is no folder, or not there any more.
    fn folder(&self, at: impl AsFd, name: &Path) -> Result<Option<Dir>, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::openat(at, name, flags, Mode::empty()).and_then(Dir::new) {
            Ok(folder) => Ok(Some(folder)),
            Err(Errno::NOTDIR | Errno::LOOP | Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.error(name, errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where there is no SELinux the kernel keeps this one the same way; links can't have it.
    const FAKE: &str = "user.gantry";

    fn read(path: &Path) -> Option<String> {
        let mut bytes = [0u8; 64];
        let count = rustix::fs::lgetxattr(path, FAKE, &mut bytes[..]).ok()?;
        Some(String::from_utf8_lossy(&bytes[..count]).into_owned())
    }

    /// On a disk: not every kernel's tmpfs has such attributes.
    fn folder() -> tempfile::TempDir {
        tempfile::tempdir_in("/var/tmp").unwrap()
    }

    #[test]
    fn all_of_a_volume_is_labelled() {
        let folder = folder();
        let deep = folder.path().join("a/b/c");
        std::fs::create_dir_all(&deep).unwrap();
        std::fs::write(deep.join("file"), "").unwrap();
        walk(&folder.path().display().to_string(), FAKE, "u:o:f:s0:c1,c2").unwrap();
        for path in [folder.path(), &folder.path().join("a"), &deep, &deep.join("file")] {
            assert_eq!(read(path).as_deref(), Some("u:o:f:s0:c1,c2"), "{}", path.display());
        }
        walk(&deep.join("file").display().to_string(), FAKE, "one").unwrap();
        assert_eq!(read(&deep.join("file")).as_deref(), Some("one"));
        walk(&folder.path().join("none").display().to_string(), FAKE, "x").unwrap();
    }

    #[test]
    fn a_link_leads_nowhere_and_the_nodes_folders_are_left_alone() {
        let (folder, other) = (folder(), folder_with_file());
        std::os::unix::fs::symlink(other.path(), folder.path().join("link")).unwrap();
        // Whether a link itself can have the attribute is the kernel's to say; what it leads to has none.
        let _ = walk(&folder.path().display().to_string(), FAKE, "x");
        assert_eq!(read(other.path()), None);
        assert_eq!(read(&other.path().join("file")), None);
        for path in ["/", "/etc", "/var/lib/", "/proc"] {
            let error = walk(path, FAKE, "x").unwrap_err().to_string();
            assert!(error.ends_with("is not allowed"), "{error}");
        }
    }

    fn folder_with_file() -> tempfile::TempDir {
        let folder = folder();
        std::fs::write(folder.path().join("file"), "").unwrap();
        folder
    }

    #[test]
    fn folders_nested_too_deep_are_refused() {
        let folder = folder();
        let mut path = folder.path().to_owned();
        for _ in 0..=MAX_DEPTH {
            path.push("d");
        }
        std::fs::create_dir_all(&path).unwrap();
        let error = walk(&folder.path().display().to_string(), FAKE, "x").unwrap_err();
        assert!(matches!(error, Error::Deep { .. }), "{error}");
    }
}
