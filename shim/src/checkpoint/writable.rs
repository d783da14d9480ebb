//! A container's writable layer as an archive of an image's layer: what it has deleted becomes a file `.wh.NAME`
//! (OCI image specification, layer.md). Owns the walk, which trusts no name in there: the container goes on running
//! beside it. Blocks.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};
use tar::{Builder, EntryType, Header};

use crate::error::checkpoint::{Error, file};

/// Deeper is no file system of a program, but a trap.
const DEEPEST: usize = 256;

const OPAQUE: &str = "trusted.overlay.opaque";

/// What overlayfs notes for itself.
const OVERLAYS: [&[u8]; 2] = [b"trusted.overlay.", b"user.overlay."];

/// Packs the folder `upper` into the file `to`.
///
/// # Errors
/// What can't be read or does not fit.
pub(super) fn pack(upper: &Path, to: &Path) -> Result<(), Error> {
    let out = File::create_new(to).map_err(file("make", to))?;
    let mut walk = ArchiveWalk { out: Builder::new(out), to: to.to_owned(), links: HashMap::new() };
    let top =
        open(CWD, upper.as_os_str(), OFlags::DIRECTORY).map_err(|errno| file("open", upper)(errno.into()))?;
    walk.folder(&top, Path::new(""), 0)?;
    let mut out = walk.out.into_inner().map_err(file("write", to))?;
    out.flush().map_err(file("write", to))
}

struct ArchiveWalk {
    out: Builder<File>,
    to: PathBuf,
    /// First names of files that have several.
    links: HashMap<u64, PathBuf>,
}

fn open(at: BorrowedFd<'_>, name: &OsStr, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    rustix::fs::openat(at, name, flags, Mode::empty())
}

impl ArchiveWalk {
    fn folder(&mut self, folder: &OwnedFd, path: &Path, depth: usize) -> Result<(), Error> {
        if depth > DEEPEST {
            let problem = format!("is nested more than {DEEPEST} deep");
            return Err(Error::Writable { path: path.to_owned(), problem });
        }
        let read = |errno: rustix::io::Errno| file("read", path)(errno.into());
        let mut names = Vec::new();
        for entry in Dir::read_from(folder).map_err(read)? {
            let name = entry.map_err(read)?.file_name().to_owned();
            if name.as_bytes() != b"." && name.as_bytes() != b".." {
                names.push(name);
            }
        }
        names.sort();
        for name in names {
            let name = OsStr::from_bytes(name.as_bytes());
            self.entry(folder, name, &path.join(name), depth)?;
        }
        Ok(())
    }

    fn entry(&mut self, folder: &OwnedFd, name: &OsStr, path: &Path, depth: usize) -> Result<(), Error> {
        let wrap = |what| move |errno: rustix::io::Errno| file(what, path)(errno.into());
        let found = match rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            // Deleted since its name was read.
            Err(rustix::io::Errno::NOENT) => return Ok(()),
            found => found.map_err(wrap("look at"))?,
        };
        let mut header = header(&found);
        match FileType::from_raw_mode(found.st_mode) {
            FileType::CharacterDevice if found.st_rdev == 0 => {
                self.mark(path, &[b".wh.", name.as_bytes()].concat())
            }
            FileType::Directory => {
                let inner = match open(folder.as_fd(), name, OFlags::DIRECTORY) {
                    Err(rustix::io::Errno::NOENT) => return Ok(()),
                    inner => inner.map_err(wrap("open"))?,
                };
                header.set_entry_type(EntryType::Directory);
                let is_opaque = self.attributes(&inner, path)?;
                self.append(&mut header, path, io::empty())?;
                if is_opaque {
                    self.mark(&path.join("x"), b".wh..wh..opq")?;
                }
                self.folder(&inner, path, depth + 1)
            }
            FileType::Symlink => {
                let to = rustix::fs::readlinkat(folder, name, Vec::new()).map_err(wrap("read"))?;
                header.set_entry_type(EntryType::Symlink);
                self.link(&mut header, path, Path::new(OsStr::from_bytes(to.as_bytes())))
            }
            FileType::RegularFile => {
                if let Some(first) = self.links.get(&found.st_ino).filter(|_| found.st_nlink > 1).cloned() {
                    header.set_entry_type(EntryType::Link);
                    return self.link(&mut header, path, &first);
                }
                let opened = open(folder.as_fd(), name, OFlags::empty()).map_err(wrap("open"))?;
                self.file(&opened, path)
            }
            kind @ (FileType::CharacterDevice | FileType::BlockDevice | FileType::Fifo) => {
                header.set_entry_type(match kind {
                    FileType::CharacterDevice => EntryType::Char,
                    FileType::BlockDevice => EntryType::Block,
                    _ => EntryType::Fifo,
                });
                self.node(&mut header, &found, path)
            }
            // A socket: no archive has them.
            _ => Ok(()),
        }
    }

    fn node(&mut self, header: &mut Header, found: &Stat, path: &Path) -> Result<(), Error> {
        let to = self.to.clone();
        header.set_device_major(rustix::fs::major(found.st_rdev)).map_err(file("write", &to))?;
        header.set_device_minor(rustix::fs::minor(found.st_rdev)).map_err(file("write", &to))?;
        self.append(header, path, io::empty())
    }

    /// As large as it was when it was opened, whatever becomes of it.
    fn file(&mut self, opened: &OwnedFd, path: &Path) -> Result<(), Error> {
        let found = rustix::fs::fstat(opened).map_err(|errno| file("look at", path)(errno.into()))?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            // Another since: its turn is the next checkpoint's.
            return Ok(());
        }
        let size = u64::try_from(found.st_size).unwrap_or(0);
        self.fits(size, path)?;
        self.attributes(opened, path)?;
        let mut header = header(&found);
        header.set_entry_type(EntryType::Regular);
        header.set_size(size);
        let copy = opened.try_clone().map_err(file("open", path))?;
        self.append(&mut header, path, File::from(copy).chain(io::repeat(0)).take(size))?;
        if found.st_nlink > 1 {
            self.links.insert(found.st_ino, path.to_owned());
        }
        Ok(())
    }

    /// A file with holes claims what no disk has.
    fn fits(&self, size: u64, path: &Path) -> Result<(), Error> {
        let free = rustix::fs::statvfs(&self.to).map_err(|errno| file("look at", &self.to)(errno.into()))?;
        let free = free.f_bavail.saturating_mul(free.f_frsize);
        if size < free {
            return Ok(());
        }
        let problem = format!("has {size} bytes, and {free} are free on the disk");
        Err(Error::Writable { path: path.to_owned(), problem })
    }

    /// Puts the extended attributes before the entry; tells whether it is a folder that hides what is below it.
    fn attributes(&mut self, of: &OwnedFd, path: &Path) -> Result<bool, Error> {
        let by_descriptor = format!("/proc/self/fd/{}", of.as_raw_fd());
        let wrap = |errno: rustix::io::Errno| file("read the attributes of", path)(errno.into());
        let mut names = vec![0; 64 << 10];
        let length = match rustix::fs::listxattr(by_descriptor.as_str(), &mut names[..]) {
            Err(rustix::io::Errno::OPNOTSUPP) => 0,
            length => length.map_err(wrap)?,
        };
        names.truncate(length);
        let (mut is_opaque, mut all) = (false, Vec::new());
        for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            let mut value = vec![0; 64 << 10];
            let length = rustix::fs::getxattr(by_descriptor.as_str(), name, &mut value[..]).map_err(wrap)?;
            value.truncate(length);
            is_opaque |= name == OPAQUE.as_bytes() && value == b"y";
            // Each container gets a label of SELinux of its own.
            if OVERLAYS.iter().any(|own| name.starts_with(own)) || name == b"security.selinux" {
                continue;
            }
            if let Ok(name) = std::str::from_utf8(name) {
                all.push((format!("SCHILY.xattr.{name}"), value));
            }
        }
        if !all.is_empty() {
            let pairs = all.iter().map(|(key, value)| (key.as_str(), value.as_slice()));
            let to = self.to.clone();
            self.out.append_pax_extensions(pairs).map_err(file("write", &to))?;
        }
        Ok(is_opaque)
    }

    /// An empty file beside `path`.
    fn mark(&mut self, path: &Path, name: &[u8]) -> Result<(), Error> {
        let mut header = Header::new_gnu();
        header.set_mode(0o600);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(0);
        header.set_entry_type(EntryType::Regular);
        self.append(&mut header, &path.with_file_name(OsStr::from_bytes(name)), io::empty())
    }

    fn append(&mut self, header: &mut Header, path: &Path, data: impl Read) -> Result<(), Error> {
        let to = self.to.clone();
        self.out.append_data(header, path, data).map_err(file("write", &to))
    }

    fn link(&mut self, header: &mut Header, path: &Path, target: &Path) -> Result<(), Error> {
        let to = self.to.clone();
        self.out.append_link(header, path, target).map_err(file("write", &to))
    }
}

fn header(of: &Stat) -> Header {
    let mut header = Header::new_gnu();
    header.set_mode(of.st_mode & 0o7777);
    header.set_uid(of.st_uid.into());
    header.set_gid(of.st_gid.into());
    header.set_mtime(u64::try_from(of.st_mtime).unwrap_or(0));
    header.set_size(0);
    header
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    struct Upper(tempfile::TempDir);

    impl Upper {
        fn new() -> Self {
            let root = tempfile::tempdir().unwrap();
            fs::create_dir(root.path().join("upper")).unwrap();
            Self(root)
        }

        fn path(&self, below: &str) -> PathBuf {
            self.0.path().join("upper").join(below)
        }

        /// Name, kind, target of a link, size.
        fn list_packed(&self) -> Result<Vec<(String, EntryType, String, u64)>, Error> {
            let to = self.0.path().join("layer.tar");
            // Of the packing before.
            let _ = fs::remove_file(&to);
            pack(&self.path(""), &to)?;
            let mut archive = tar::Archive::new(File::open(&to).unwrap());
            let entries = archive.entries().unwrap().map(|entry| {
                let entry = entry.unwrap();
                let text = |path: &Path| path.display().to_string();
                let link = entry.link_name().unwrap().map(|link| text(&link)).unwrap_or_default();
                (text(&entry.path().unwrap()), entry.header().entry_type(), link, entry.size())
            });
            Ok(entries.collect())
        }
    }

    #[test]
    fn a_layer_has_its_files_links_and_folders_in_order_and_no_sockets() {
        let upper = Upper::new();
        fs::create_dir(upper.path("d")).unwrap();
        fs::write(upper.path("d/file"), "12345").unwrap();
        fs::hard_link(upper.path("d/file"), upper.path("d/same")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", upper.path("link")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(upper.path("socket")).unwrap();
        let long = format!("d/{}", "n".repeat(200));
        fs::write(upper.path(&long), "").unwrap();
        let packed = upper.list_packed().unwrap();
        let entry = |name: &str, kind, link: &str, size| (name.to_owned(), kind, link.to_owned(), size);
        let expected = [
            entry("d", EntryType::Directory, "", 0),
            entry("d/file", EntryType::Regular, "", 5),
            entry(&long, EntryType::Regular, "", 0),
            entry("d/same", EntryType::Link, "d/file", 0),
            entry("link", EntryType::Symlink, "/etc/passwd", 0),
        ];
        assert_eq!(packed, expected);
    }

    #[test]
    fn what_no_archive_can_hold_is_refused_by_name() {
        let upper = Upper::new();
        let file = File::create(upper.path("holes")).unwrap();
        // Larger than any disk of a test, and still a size that file systems take.
        file.set_len(1 << 42).unwrap();
        let error = upper.list_packed().unwrap_err().to_string();
        assert!(error.contains("holes has 4398046511104 bytes, and "), "{error}");
        fs::remove_file(upper.path("holes")).unwrap();
        let deep = |count: usize| upper.path(&vec!["d"; count].join("/"));
        fs::create_dir_all(deep(DEEPEST)).unwrap();
        assert_eq!(upper.list_packed().unwrap().len(), DEEPEST);
        fs::create_dir(deep(DEEPEST + 1)).unwrap();
        let error = upper.list_packed().unwrap_err().to_string();
        assert!(error.contains("is nested more than 256 deep"), "{error}");
    }
}
