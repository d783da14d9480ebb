//! The folder of a layer being unpacked. Owns every file system call of unpacking, all beneath one
//! open directory with openat2(2); follows symbolic links only as parents, and then as if the
//! layer were the root. Needs no /proc: where it runs there is none. Decides nothing about archives.
//! Called by `unpack` and by the runtime's `fixup`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;

use crate::error::UnpackError;
use crate::plan::{PlannedNode, join, split};
use crate::space::Space;
use crate::tarball::{Meta, shown};

const OPAQUE_XATTR: &str = "trusted.overlay.opaque";
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const NEW_FILE: OFlags =
    OFlags::WRONLY.union(OFlags::CREATE).union(OFlags::EXCL).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Of a mode: what is no set-id bit and not sticky.
const PERMISSIONS: u32 = 0o777;
/// Removing a tree holds one descriptor for each level, and a tree that can't be removed is a trap.
const DEEPEST: usize = 256;
/// 100,000 directories of 80 bytes each are 8 MB.
const MOST_KEPT: usize = 64 << 20;

/// As many links as the kernel follows in one path.
const MOST_LINKS: usize = 40;

/// A folder that is filled by nobody else.
#[derive(Debug)]
pub struct Tree {
    root: Rc<OwnedFd>,
    /// Every directory so far; None for those that only paths of others imply. Their metadata is
    /// set last: writing into a directory changes its times.
    directories: BTreeMap<Vec<u8>, Option<Meta>>,
    /// Those that hide what lower layers have in them.
    opaque: BTreeSet<Vec<u8>>,
    /// Archives list a directory's files one after the other.
    last: Option<(Vec<u8>, Rc<OwnedFd>, Vec<u8>)>,
    owner: (u32, u32),
    /// Files have the modes they are made with: no umask and no default ACL takes from them.
    exact: bool,
    /// Bytes of all directories' paths and attributes, those that are gone again included.
    kept: usize,
    /// Something that the archive had made was replaced by a later entry.
    replaced: bool,
}

/// A regular file being written.
pub(super) struct FileWriter {
    file: File,
    path: Vec<u8>,
    owner: (u32, u32),
    /// It was made with its mode.
    has_mode: bool,
}

/// An open directory and its canonical path.
type ParentEntry = (Rc<OwnedFd>, Vec<u8>);
/// The open parent, the canonical path, and the name in the parent.
type ResolvedEntry<'p> = (Rc<OwnedFd>, Vec<u8>, &'p [u8]);
/// Within the layer, of directories.
pub type Paths = Vec<Vec<u8>>;
/// Names and values.
type Xattrs = Vec<(String, Vec<u8>)>;

impl Tree {
    /// Takes over the empty folder at `path`.
    ///
    /// # Errors
    /// [`UnpackError::Io`].
    pub fn open(path: &Path) -> Result<Self, UnpackError> {
        let named = path.as_os_str().as_bytes();
        // Not open(2), which the confined program may not call.
        let root = rustix::fs::openat(CWD, path, DIRECTORY, Mode::empty()).map_err(io("open", named))?;
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let directories = BTreeMap::from([(Vec::new(), None)]);
        let opaque = BTreeSet::new();
        let exact = makes_exact_modes(&root).map_err(io("try", named))?;
        Ok(Self {
            root: Rc::new(root),
            directories,
            opaque,
            last: None,
            owner,
            exact,
            kept: 0,
            replaced: false,
        })
    }

    /// # Errors
    /// [`UnpackError::DiskFull`] when the file system is nearly full.
    pub fn check_space(&self) -> Result<(), UnpackError> {
        let stat = rustix::fs::fstatvfs(&*self.root).map_err(io("statvfs", b""))?;
        Space::from(stat).short().map_or(Ok(()), |short| Err(UnpackError::DiskFull { short }))
    }

    /// Makes a directory, or gives one that is there other metadata.
    ///
    /// # Errors
    /// [`UnpackError`].
    pub fn directory(&mut self, path: &[u8], mut meta: Meta) -> Result<(), UnpackError> {
        // They are kept until the end of the layer.
        meta.xattrs.retain(|(name, _)| is_allowed(name));
        self.keep(meta.xattrs.iter().map(|(name, value)| name.len() + value.len()).sum())?;
        if path.is_empty() {
            self.directories.insert(Vec::new(), Some(meta));
            return Ok(());
        }
        let (parent, canonical, name) = self.place(path)?;
        self.make_directory(&parent, &canonical, name)?;
        self.directories.insert(canonical, Some(meta));
        Ok(())
    }

    pub(super) fn file(&mut self, path: &[u8], mode: u32) -> Result<FileWriter, UnpackError> {
        let (parent, canonical, name) = self.place(path)?;
        // Set-id bits come after the owner, who takes them away.
        let has_mode = self.exact && mode & !PERMISSIONS == 0;
        let mode = if has_mode { Mode::from_raw_mode(mode) } else { Mode::RUSR | Mode::WUSR };
        let open = || rustix::fs::openat(&*parent, os(name), NEW_FILE, mode);
        let fd = self.replacing(&parent, &canonical, name, open).map_err(io("create", path))?;
        Ok(FileWriter { file: File::from(fd), path: path.to_vec(), owner: self.owner, has_mode })
    }

    pub(super) fn symlink(&mut self, path: &[u8], target: &[u8], meta: &Meta) -> Result<(), UnpackError> {
        let (parent, canonical, name) = self.place(path)?;
        let link = || rustix::fs::symlinkat(os(target), &*parent, os(name));
        self.replacing(&parent, &canonical, name, link).map_err(io("symlink", path))?;
        self.own_by_name(&parent, name, path, meta)
    }

    pub(super) fn node(&mut self, path: &[u8], node: PlannedNode, meta: &Meta) -> Result<(), UnpackError> {
        let (parent, canonical, name) = self.place(path)?;
        let (kind, device) = match node {
            PlannedNode::Fifo => (FileType::Fifo, 0),
            PlannedNode::Char(major, minor) => (FileType::CharacterDevice, rustix::fs::makedev(major, minor)),
            PlannedNode::Block(major, minor) => (FileType::BlockDevice, rustix::fs::makedev(major, minor)),
        };
        let make = || rustix::fs::mknodat(&*parent, os(name), kind, Mode::RUSR | Mode::WUSR, device);
        self.replacing(&parent, &canonical, name, make).map_err(io("mknod", path))?;
        // chmodat(2) follows links, but the name was made just now and is none.
        self.own_by_name(&parent, name, path, meta)?;
        rustix::fs::chmodat(&*parent, os(name), Mode::from_raw_mode(meta.mode), AtFlags::empty())
            .map_err(io("chmod", path))?;
        set_times_by_name(&parent, name, path, meta)
    }

    pub(super) fn hardlink(&mut self, path: &[u8], target: &[u8]) -> Result<(), UnpackError> {
        let missing = || UnpackError::LinkTarget { path: shown(path), target: shown(target) };
        let (target_directory, target_name) = split(target);
        let (from, from_canonical) = match self.walk(target_directory) {
            Ok(place) => place,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Err(missing()),
            Err(errno) => return Err(io("open", target)(errno)),
        };
        match stat(&from, target_name).map_err(io("stat", target))? {
            Some(found) if !is_whiteout(&found) && file_type(&found) != FileType::Directory => {}
            _ => return Err(missing()),
        }
        let (parent, canonical, name) = self.place(path)?;
        if canonical == join(&from_canonical, target_name) {
            return Ok(()); // A link to itself: replacing it would remove the file.
        }
        let link = || rustix::fs::linkat(&*from, os(target_name), &*parent, os(name), AtFlags::empty());
        match self.replacing(&parent, &canonical, name, link) {
            // The target stood in a tree that this very link replaces.
            Err(Errno::NOENT) => Err(missing()),
            other => other.map_err(io("link", path)),
        }
    }

    /// Hides `path` in lower layers. What this layer itself holds there stays: a directory becomes
    /// opaque, and anything else hides the lower one as it is.
    pub(super) fn whiteout(&mut self, path: &[u8]) -> Result<(), UnpackError> {
        let (parent, canonical, name) = self.place(path)?;
        match stat(&parent, name).map_err(io("stat", path))? {
            None => rustix::fs::mknodat(&*parent, os(name), FileType::CharacterDevice, Mode::empty(), 0)
                .map_err(io("mknod whiteout", path)),
            Some(found) if file_type(&found) == FileType::Directory => {
                self.opaque.insert(canonical);
                Ok(())
            }
            Some(_) => Ok(()),
        }
    }

    /// Hides what lower layers hold in `directory`.
    pub(super) fn opaque(&mut self, directory: &[u8]) -> Result<(), UnpackError> {
        let (_, canonical) = self.parent(directory, directory)?;
        self.opaque.insert(canonical);
        Ok(())
    }

    /// Whether a later entry of the archive has taken the place of an earlier one.
    pub(super) fn has_replaced(&self) -> bool {
        self.replaced
    }

    /// Sets the directories' metadata and names those that nobody described, and those that are
    /// opaque (see [`mark_opaque`]).
    ///
    /// # Errors
    /// [`UnpackError`].
    pub fn finish(self) -> Result<(Paths, Paths), UnpackError> {
        let mut implied = Vec::new();
        // From the leaves up: a parent may forbid what its children still need.
        for (path, meta) in self.directories.iter().rev() {
            let fd = open_beneath(&self.root, path).map_err(io("open", path))?;
            match meta {
                Some(meta) => {
                    set_meta(&fd, path, meta, self.owner)?;
                    set_times(&fd, path, meta)?;
                }
                None => {
                    set_meta(&fd, path, &Meta { mode: 0o755, ..Meta::default() }, self.owner)?;
                    implied.push(path.clone());
                }
            }
        }
        implied.reverse();
        Ok((implied, self.opaque.into_iter().collect()))
    }

    /// The open parent of `path`, the canonical path, and the name in the parent.
    fn place<'p>(&mut self, path: &'p [u8]) -> Result<ResolvedEntry<'p>, UnpackError> {
        let (directory, name) = split(path);
        let (fd, canonical) = self.parent(directory, path)?;
        Ok((fd, join(&canonical, name), name))
    }

    /// Opens a directory, making what is missing; `path` is for errors.
    fn parent(&mut self, directory: &[u8], path: &[u8]) -> Result<ParentEntry, UnpackError> {
        if let Some((named, fd, canonical)) = &self.last
            && named == directory
        {
            return Ok((Rc::clone(fd), canonical.clone()));
        }
        let place = match open_beneath(&self.root, directory) {
            Ok(fd) => (Rc::new(fd), directory.to_vec()),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => self.make_parents(directory, path)?,
            Err(errno) => return Err(io("open", directory)(errno)),
        };
        self.last = Some((directory.to_vec(), Rc::clone(&place.0), place.1.clone()));
        Ok(place)
    }

    fn make_parents(&mut self, directory: &[u8], path: &[u8]) -> Result<ParentEntry, UnpackError> {
        let mut place: ParentEntry = (Rc::clone(&self.root), Vec::new());
        for name in directory.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            let canonical = join(&place.1, name);
            let refuse = |found| UnpackError::Parent { path: shown(path), parent: shown(&canonical), found };
            let found = stat(&place.0, name).map_err(io("stat", &canonical))?;
            place = match found.map(|found| (file_type(&found), is_whiteout(&found))) {
                None | Some((_, true)) => {
                    self.make_directory(&place.0, &canonical, name)?;
                    self.directories.insert(canonical.clone(), None);
                    (Rc::new(open_beneath(&place.0, name).map_err(io("open", &canonical))?), canonical)
                }
                Some((FileType::Directory, _)) => {
                    (Rc::new(open_beneath(&place.0, name).map_err(io("open", &canonical))?), canonical)
                }
                Some((FileType::Symlink, _)) => match self.walk(&canonical) {
                    Ok(place) => place,
                    Err(Errno::NOENT) => return Err(refuse("a symbolic link to nothing in this layer")),
                    Err(Errno::NOTDIR | Errno::LOOP) => {
                        return Err(refuse("a symbolic link to no directory"));
                    }
                    Err(errno) => return Err(io("open", &canonical)(errno)),
                },
                Some(_) => return Err(refuse("a file")),
            };
        }
        Ok(place)
    }

    /// Opens an existing directory, symbolic links followed as if the layer were `/`. By hand: the
    /// kernel would open it as well, but not say where it was led.
    fn walk(&self, directory: &[u8]) -> Result<ParentEntry, Errno> {
        let parts = |path: &[u8]| path.split(|byte| *byte == b'/').map(<[u8]>::to_vec).collect::<Vec<_>>();
        let mut ahead: VecDeque<Vec<u8>> = parts(directory).into();
        let mut at: Vec<u8> = Vec::new();
        let mut links = 0;
        while let Some(name) = ahead.pop_front() {
            match name.as_slice() {
                b"" | b"." => continue,
                b".." => {
                    at = split(&at).0.to_vec();
                    continue;
                }
                _ => {}
            }
            let parent = open_beneath(&self.root, &at)?;
            let found = stat(&parent, &name)?.ok_or(Errno::NOENT)?;
            match file_type(&found) {
                FileType::Directory => at = join(&at, &name),
                FileType::Symlink if links < MOST_LINKS => {
                    links += 1;
                    let target = rustix::fs::readlinkat(&parent, os(&name), Vec::new())?.into_bytes();
                    if target.starts_with(b"/") {
                        at.clear();
                    }
                    parts(&target).into_iter().rev().for_each(|part| ahead.push_front(part));
                }
                FileType::Symlink => return Err(Errno::LOOP),
                _ => return Err(Errno::NOTDIR),
            }
        }
        Ok((Rc::new(open_beneath(&self.root, &at)?), at))
    }

    fn keep(&mut self, bytes: usize) -> Result<(), UnpackError> {
        self.kept += bytes;
        if self.kept > MOST_KEPT { Err(UnpackError::Names { limit: MOST_KEPT }) } else { Ok(()) }
    }

    /// A directory that stays if it is there, and is opaque if it takes the place of something
    /// else, a whiteout above all: what lies below was hidden once and may not show again.
    fn make_directory(&mut self, parent: &OwnedFd, path: &[u8], name: &[u8]) -> Result<(), UnpackError> {
        if path.iter().filter(|byte| **byte == b'/').count() >= DEEPEST {
            return Err(UnpackError::Name { path: shown(path), detail: "more than 256 directories deep" });
        }
        self.keep(path.len())?;
        let make = || rustix::fs::mkdirat(parent, os(name), Mode::RWXU);
        match make() {
            Err(Errno::EXIST) => {}
            other => return other.map_err(io("mkdir", path)),
        }
        let found = stat(parent, name).map_err(io("stat", path))?;
        if found.is_some_and(|found| file_type(&found) == FileType::Directory) {
            return Ok(());
        }
        self.replacing(parent, path, name, make).map_err(io("mkdir", path))?;
        self.opaque.insert(path.to_vec());
        Ok(())
    }

    /// Makes something where something may be already: the last entry wins.
    fn replacing<T>(
        &mut self,
        parent: &OwnedFd,
        path: &[u8],
        name: &[u8],
        make: impl Fn() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        match make() {
            Err(Errno::EXIST) => {}
            other => return other,
        }
        // It may have been the link, or lead to the directory, that was opened last.
        self.last = None;
        self.replaced = true;
        match rustix::fs::unlinkat(parent, os(name), AtFlags::empty()) {
            Err(Errno::ISDIR) => {
                remove_tree(parent, name)?;
                let inside = [path, b"/"].concat();
                let is_gone = |own: &Vec<u8>| own == path || own.starts_with(&inside);
                let below = self.directories.range(path.to_vec()..).map(|(own, _)| own);
                // Names that sort between `path` and `path/` (say `path-x`) are passed over.
                let gone: Vec<Vec<u8>> = below
                    .take_while(|own| own.starts_with(path))
                    .filter(|own| is_gone(own))
                    .cloned()
                    .collect();
                for own in gone {
                    self.directories.remove(&own);
                }
                self.opaque.retain(|own| !is_gone(own));
            }
            other => other?,
        }
        make()
    }

    fn own_by_name(
        &self,
        parent: &OwnedFd,
        name: &[u8],
        path: &[u8],
        meta: &Meta,
    ) -> Result<(), UnpackError> {
        if (meta.uid, meta.gid) != self.owner {
            let (uid, gid) = (Uid::from_raw(meta.uid), Gid::from_raw(meta.gid));
            rustix::fs::chownat(parent, os(name), Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
                .map_err(io("chown", path))?;
        }
        set_times_by_name(parent, name, path, meta)
    }
}

impl FileWriter {
    pub(super) fn write(&mut self, chunk: &[u8]) -> Result<usize, UnpackError> {
        self.file.write_all(chunk).map_err(|source| self.file_error(source))?;
        Ok(chunk.len())
    }

    fn file_error(&self, source: io::Error) -> UnpackError {
        match source.kind() {
            io::ErrorKind::FileTooLarge => UnpackError::Large { path: shown(&self.path) },
            _ => UnpackError::Io { operation: "write", path: shown(&self.path), source: Arc::new(source) },
        }
    }

    pub(super) fn finish(self, meta: &Meta) -> Result<(), UnpackError> {
        let fd = OwnedFd::from(self.file);
        set_owner(&fd, &self.path, meta, self.owner)?;
        if !self.has_mode {
            set_mode(&fd, &self.path, meta)?;
        }
        set_xattrs(&fd, &self.path, meta)?;
        set_times(&fd, &self.path, meta)
    }
}

/// Owner first: chown(2) clears set-id bits and file capabilities.
fn set_meta(fd: &OwnedFd, path: &[u8], meta: &Meta, owner: (u32, u32)) -> Result<(), UnpackError> {
    set_owner(fd, path, meta, owner)?;
    set_mode(fd, path, meta)?;
    set_xattrs(fd, path, meta)
}

fn set_owner(fd: &OwnedFd, path: &[u8], meta: &Meta, owner: (u32, u32)) -> Result<(), UnpackError> {
    if (meta.uid, meta.gid) == owner {
        return Ok(());
    }
    let (uid, gid) = (Uid::from_raw(meta.uid), Gid::from_raw(meta.gid));
    rustix::fs::fchown(fd, Some(uid), Some(gid)).map_err(io("chown", path))
}

fn set_mode(fd: &OwnedFd, path: &[u8], meta: &Meta) -> Result<(), UnpackError> {
    rustix::fs::fchmod(fd, Mode::from_raw_mode(meta.mode)).map_err(io("chmod", path))
}

fn set_xattrs(fd: &OwnedFd, path: &[u8], meta: &Meta) -> Result<(), UnpackError> {
    for (name, value) in meta.xattrs.iter().filter(|(name, _)| is_allowed(name)) {
        rustix::fs::fsetxattr(fd, name.as_str(), value, XattrFlags::empty()).map_err(io("setxattr", path))?;
    }
    Ok(())
}

fn set_times(fd: &OwnedFd, path: &[u8], meta: &Meta) -> Result<(), UnpackError> {
    rustix::fs::futimens(fd, &times(meta)).map_err(io("set the times of", path))
}

fn set_times_by_name(parent: &OwnedFd, name: &[u8], path: &[u8], meta: &Meta) -> Result<(), UnpackError> {
    rustix::fs::utimensat(parent, os(name), &times(meta), AtFlags::SYMLINK_NOFOLLOW)
        .map_err(io("set the times of", path))
}

fn times(meta: &Meta) -> Timestamps {
    let time = Timespec { tv_sec: meta.mtime.0, tv_nsec: i64::from(meta.mtime.1) };
    Timestamps { last_access: time, last_modification: time }
}

/// Marks directories below `folder` that hide what lower layers have in them. The runtime does it for
/// the confined unpacker, whose word the paths are: no link is followed and nothing above is reached.
///
/// # Errors
/// [`UnpackError::Io`].
pub fn mark_opaque(folder: &Path, paths: &[Vec<u8>]) -> Result<(), UnpackError> {
    let named = folder.as_os_str().as_bytes();
    let root = rustix::fs::open(folder, DIRECTORY, Mode::empty()).map_err(io("open", named))?;
    for path in paths {
        let fd = open_beneath(&root, path).map_err(io("open", path))?;
        rustix::fs::fsetxattr(&fd, OPAQUE_XATTR, b"y", XattrFlags::empty())
            .map_err(io("set opaque", path))?;
    }
    Ok(())
}

/// Removes a directory and all below it. Nobody else is in it, so what is listed is what is there.
fn remove_tree(parent: &OwnedFd, name: &[u8]) -> Result<(), Errno> {
    let fd = open_beneath(parent, name)?;
    for entry in Dir::read_from(&fd)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        match rustix::fs::unlinkat(&fd, name, AtFlags::empty()) {
            Err(Errno::ISDIR) => remove_tree(&fd, name.to_bytes())?,
            other => other?,
        }
    }
    rustix::fs::unlinkat(parent, os(name), AtFlags::REMOVEDIR)
}

/// The others either mean something to overlayfs (`trusted.*`, `user.overlay.*`) or to this node's
/// security modules, which is not for images to say.
fn is_allowed(name: &str) -> bool {
    name == "security.capability" || (name.starts_with("user.") && !name.starts_with("user.overlay."))
}

/// The extended attributes of a directory as far as an image may set them, and whether it is opaque.
///
/// # Errors
/// The system call's.
pub fn own_xattrs(fd: &OwnedFd) -> Result<(Xattrs, bool), Errno> {
    let mut names = vec![0; 64 << 10];
    let length = rustix::fs::flistxattr(fd, &mut *names)?;
    let (mut xattrs, mut opaque) = (Vec::new(), false);
    for name in names[..length].split(|byte| *byte == 0) {
        let Ok(name) = std::str::from_utf8(name) else { continue };
        let mut value = vec![0; 64 << 10];
        if name == OPAQUE_XATTR {
            let length = rustix::fs::fgetxattr(fd, name, &mut *value)?;
            opaque = &value[..length] == b"y";
        } else if is_allowed(name) {
            let length = rustix::fs::fgetxattr(fd, name, &mut *value)?;
            value.truncate(length);
            xattrs.push((name.to_owned(), value));
        }
    }
    xattrs.sort();
    Ok((xattrs, opaque))
}

/// Whether a file that is made in `directory`, which is empty, has the mode that is asked for: a call less for each.
fn makes_exact_modes(directory: &OwnedFd) -> Result<bool, Errno> {
    const NAME: &str = ".mode";
    let all = Mode::from_raw_mode(PERMISSIONS);
    let tried = rustix::fs::openat(directory, NAME, NEW_FILE, all)?;
    let found = rustix::fs::fstat(&tried)?.st_mode;
    rustix::fs::unlinkat(directory, NAME, AtFlags::empty())?;
    Ok(Mode::from_raw_mode(found) == all)
}

/// A directory below, no symbolic link on the way.
fn open_beneath(directory: &OwnedFd, path: &[u8]) -> Result<OwnedFd, Errno> {
    let path: &[u8] = if path.is_empty() { b"." } else { path };
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    rustix::fs::openat2(directory, os(path), DIRECTORY, Mode::empty(), resolve)
}

fn stat(directory: &OwnedFd, name: &[u8]) -> Result<Option<Stat>, Errno> {
    match rustix::fs::statat(directory, os(name), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

fn file_type(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

fn is_whiteout(stat: &Stat) -> bool {
    file_type(stat) == FileType::CharacterDevice && stat.st_rdev == 0
}

fn os(path: &[u8]) -> &OsStr {
    OsStr::from_bytes(path)
}

/// The path is made fit for an error when there is one: there are several of these for each file.
fn io(operation: &'static str, path: &[u8]) -> impl FnOnce(Errno) -> UnpackError {
    move |errno| UnpackError::Io { operation, path: shown(path), source: Arc::new(io::Error::from(errno)) }
}
