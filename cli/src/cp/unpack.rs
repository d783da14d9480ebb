//! An archive that a container made, to files of this machine. The container is not trusted: owns that nothing is
//! written outside of the destination, that no link is made or followed there, and that no more is written than has
//! room. Called by [`super`].

use std::fs::{self, File};
use std::io::{self, BufRead, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use gantry_unpack::{EntryKind, TarError, Tarball, shown};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::path;

/// No archive that somebody wants has more.
const MOST_ENTRIES: u64 = 2_000_000;
/// Of what is free, for whoever else writes there.
const SHARE: (u64, u64) = (9, 10);

/// Why it was not written, or not all of it.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("read what tar of the container writes")]
    Archive(#[from] TarError),
    #[error("the container's tar has sent nothing")]
    Empty,
    #[error("tar contents corrupted: {0} is not below what was asked for")]
    Elsewhere(String),
    #[error("the container sends more than {0} files")]
    TooMany(u64),
    #[error(
        "the container sends more than the {0} bytes that may be written at the destination: make room there"
    )]
    TooLarge(u64),
    #[error("write {path}")]
    Write {
        path: String,
        #[source]
        source: io::Error,
    },
}

/// What comes, and where it goes.
#[derive(Debug)]
pub(super) struct Plan {
    /// How the archive names what was asked for.
    prefix: String,
    /// For a file.
    file: PathBuf,
    /// For a folder.
    folder: PathBuf,
}

impl Plan {
    /// A file goes into a folder that is there; a folder's content does so, too.
    pub(super) fn new(from: &str, to: &Path) -> Self {
        let prefix = path::within(from);
        let name = prefix.rsplit('/').next().filter(|name| !name.is_empty());
        let file = match name {
            Some(name) if super::is_local_folder(to) => to.join(name),
            _ => to.to_owned(),
        };
        Self { prefix, file, folder: to.to_owned() }
    }

    /// The way below the destination; none for what leads out of it.
    fn way<'a>(&self, name: &'a str) -> Result<Option<Vec<&'a str>>, Error> {
        let name = name.trim_start_matches(['/']);
        let parts: Vec<&str> = name.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
        let mut rest = parts.as_slice();
        for wanted in self.prefix.split('/').filter(|part| !part.is_empty()) {
            match rest.split_first() {
                Some((first, after)) if *first == wanted => rest = after,
                _ => return Err(Error::Elsewhere(shown(name.as_bytes()))),
            }
        }
        Ok((!rest.contains(&"..")).then(|| rest.to_vec()))
    }
}

/// Writes what the archive holds; `warn` hears of what is left out.
pub(super) fn unpack(archive: impl BufRead, plan: &Plan, warn: &mut dyn FnMut(&str)) -> Result<(), Error> {
    let mut archive = Tarball::new(archive);
    let room = room(&plan.folder);
    let mut sink = Sink { plan, root: None, left: room, room };
    let mut count = 0;
    while let Some(entry) = archive.next_entry()? {
        count += 1;
        if count > MOST_ENTRIES {
            return Err(Error::TooMany(MOST_ENTRIES));
        }
        let name = String::from_utf8_lossy(&entry.path).into_owned();
        let Some(way) = plan.way(&name)? else {
            warn(&format!("warning: file {} is outside target destination, skipping", shown(&entry.path)));
            continue;
        };
        match entry.kind {
            EntryKind::Directory => drop(sink.folder(&way)?),
            EntryKind::File => {
                let mut file = sink.create(&way)?;
                sink.claim(entry.size)?;
                let mut take = |chunk: &[u8]| file.write_all(chunk).map(|()| chunk.len());
                while archive.read_data(&mut take)?.map_err(|source| unpack_error(&name, source))? > 0 {}
            }
            EntryKind::Hardlink(to) => {
                let to = String::from_utf8_lossy(&to).into_owned();
                match plan.way(&to)? {
                    Some(from) => sink.copy(&from, &way)?,
                    None => warn(&format!("warning: skipping hard link: {}", shown(&entry.path))),
                }
            }
            EntryKind::Symlink(to) => {
                warn(&format!("warning: skipping symlink: {} -> {}", shown(&entry.path), shown(&to)));
            }
            _ => warn(&format!("warning: skipping device or pipe: {}", shown(&entry.path))),
        }
    }
    if count == 0 { Err(Error::Empty) } else { Ok(()) }
}

/// Bytes that may be written there.
fn room(folder: &Path) -> u64 {
    let there = folder.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("."));
    match rustix::fs::statvfs(there) {
        Ok(space) => (space.f_bavail.saturating_mul(space.f_frsize) / SHARE.1).saturating_mul(SHARE.0),
        // A relative path without a folder: the write itself tells what is wrong.
        Err(_) => u64::MAX,
    }
}

fn unpack_error(path: &str, source: impl Into<io::Error>) -> Error {
    Error::Write { path: shown(path.as_bytes()), source: source.into() }
}

/// The destination.
struct Sink<'a> {
    plan: &'a Plan,
    root: Option<OwnedFd>,
    left: u64,
    room: u64,
}

impl Sink<'_> {
    fn claim(&mut self, bytes: u64) -> Result<(), Error> {
        self.left = self.left.checked_sub(bytes).ok_or(Error::TooLarge(self.room))?;
        Ok(())
    }

    /// The folder at the end of the way; made where it is missing.
    fn folder(&mut self, way: &[&str]) -> Result<OwnedFd, Error> {
        let path = || self.plan.folder.join(way.join("/")).display().to_string();
        let root = match &self.root {
            Some(root) => root,
            None => {
                let folder = &self.plan.folder;
                let name = || folder.display().to_string();
                fs::create_dir_all(folder).map_err(|source| unpack_error(&name(), source))?;
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let opened = rustix::fs::open(folder, flags, Mode::empty());
                &*self.root.insert(opened.map_err(|source| unpack_error(&name(), source))?)
            }
        };
        let mut at = root.try_clone().map_err(|source| unpack_error(&path(), source))?;
        for part in way {
            at = below(&at, part).map_err(|source| unpack_error(&path(), source))?;
        }
        Ok(at)
    }

    /// An empty file at the end of the way; no link is followed.
    fn create(&mut self, way: &[&str]) -> Result<File, Error> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o666);
        let Some((name, folders)) = way.split_last() else {
            // The one file that was asked for, where the user says.
            let path = &self.plan.file;
            let wrong = |source: io::Error| unpack_error(&path.display().to_string(), source);
            if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
                fs::create_dir_all(folder).map_err(wrong)?;
            }
            return rustix::fs::open(path, flags, mode).map(File::from).map_err(|errno| wrong(errno.into()));
        };
        let folder = self.folder(folders)?;
        let opened = rustix::fs::openat(folder, *name, flags | OFlags::NOFOLLOW, mode);
        opened.map(File::from).map_err(|source| unpack_error(&way.join("/"), source))
    }

    /// A second name of a file that has come already.
    fn copy(&mut self, from: &[&str], to: &[&str]) -> Result<(), Error> {
        let wrong = |source: io::Error| unpack_error(&to.join("/"), source);
        let Some((name, folders)) = from.split_last().filter(|_| from != to) else { return Ok(()) };
        let folder = self.folder(folders)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(folder, *name, flags, Mode::empty());
        let mut from = opened.map(File::from).map_err(|errno| wrong(errno.into()))?;
        let meta = from.metadata().map_err(wrong)?;
        if !meta.is_file() {
            return Err(wrong(io::ErrorKind::InvalidInput.into()));
        }
        self.claim(meta.len())?;
        let mut file = self.create(to)?;
        io::copy(&mut from, &mut file).map_err(wrong)?;
        Ok(())
    }
}

/// The folder of that name, which is no link.
fn below(at: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
    match rustix::fs::mkdirat(at.as_fd(), name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(at.as_fd(), name, flags, Mode::empty())
}

#[cfg(test)]
mod tests;
