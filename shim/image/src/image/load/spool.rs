//! An archive on its way into a file without a name, and where in it each of its files stands. Owns the
//! bounds of what may come: entries, names, and the disk's floor. Never makes a path of the archive on
//! disk, and reads no document. Called by `load` on a blocking thread.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use rustix::fs::{Mode, OFlags};
use tokio::sync::mpsc;

use super::ArchiveError;
use crate::image::digest::{Digest, Hasher};
use gantry_unpack::{EntryKind, Space, TarError, Tarball, clip};

/// Files and links: an archive of a hundred images has two thousand.
const MOST_FILES: usize = 20_000;
/// Longer names are none of an image archive's.
const MOST_NAME: usize = 512;
/// Links that lead to links.
const MOST_LINKS: usize = 8;
/// Bytes between two looks at the disk.
const LOOK: u64 = 8 << 20;

/// What a client sends.
#[derive(Debug)]
pub enum Upload {
    /// The next bytes.
    Chunk(Bytes),
    /// That was all. A sender dropped without this has given up.
    End,
}

/// A file of the archive: its bytes are `size` from `at` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SpooledFile {
    pub(super) at: u64,
    pub(super) size: u64,
    pub(super) digest: Digest,
}

#[derive(Debug, PartialEq, Eq)]
enum ArchiveEntry {
    File(SpooledFile),
    /// The name that it stands for.
    Link(String),
}

/// A whole archive.
#[derive(Debug)]
pub(super) struct Spool {
    file: Arc<File>,
    slots: HashMap<String, ArchiveEntry>,
}

impl Spool {
    /// Takes an archive as it comes. `folder` is on the disk of the images. Blocks.
    ///
    /// # Errors
    /// [`ArchiveError`]: the client gave up, the bytes are no archive, the disk is full.
    pub(super) fn receive(chunks: mpsc::Receiver<Upload>, folder: &Path) -> Result<Self, ArchiveError> {
        let wrap = |errno: rustix::io::Errno| ArchiveError::Io {
            folder: folder.to_owned(),
            source: Arc::new(errno.into()),
        };
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file: File = rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR).map_err(wrap)?.into();
        let file = Arc::new(file);
        let arriving = UploadReader {
            chunks,
            file: Arc::clone(&file),
            chunk: Bytes::new(),
            written: 0,
            look_at: LOOK,
            ended: false,
        };
        let mut tarball = Tarball::new(arriving);
        let mut slots = HashMap::new();
        while let Some(entry) = tarball.next_entry().map_err(|error| ArchiveError::of_tar(error, folder))? {
            let slot = match entry.kind {
                EntryKind::File => {
                    let at = tarball.offset();
                    let digest = hash(&mut tarball).map_err(|error| ArchiveError::of_tar(error, folder))?;
                    Some(ArchiveEntry::File(SpooledFile { at, size: entry.size, digest }))
                }
                EntryKind::Symlink(target) => link_target(&entry.path, &target).map(ArchiveEntry::Link),
                EntryKind::Hardlink(target) => name(&target).map(ArchiveEntry::Link),
                _ => None,
            };
            if let Some((name, slot)) = name(&entry.path).zip(slot) {
                insert_name(&mut slots, name, slot)?;
            }
        }
        // What stands behind the end mark is padding, and the client wants to be rid of it.
        let mut rest = tarball.into_inner();
        rest.drain().map_err(|source| ArchiveError::of_io(source, folder))?;
        Ok(Self { file, slots })
    }

    /// The file of this name, through links.
    pub(super) fn find(&self, name: &str) -> Option<SpooledFile> {
        let mut name = self::name(name.as_bytes())?;
        for _ in 0..MOST_LINKS {
            match self.slots.get(&name)? {
                ArchiveEntry::File(stored) => return Some(*stored),
                ArchiveEntry::Link(target) => name.clone_from(target),
            }
        }
        None
    }

    /// A small file's bytes. Blocks.
    ///
    /// # Errors
    /// [`ArchiveError::Missing`], [`ArchiveError::Large`], [`ArchiveError::Read`].
    pub(super) fn document(&self, name: &str, limit: u64) -> Result<(Vec<u8>, Digest), ArchiveError> {
        let missing = || ArchiveError::Missing { path: clip(name) };
        let stored = self.find(name).ok_or_else(missing)?;
        if stored.size > limit {
            return Err(ArchiveError::Large { path: clip(name), limit });
        }
        let mut bytes = vec![0; usize::try_from(stored.size).map_err(|_| missing())?];
        self.read_at(&mut bytes, stored.at)?;
        Ok((bytes, stored.digest))
    }

    /// Bytes of the file itself. Blocks.
    ///
    /// # Errors
    /// [`ArchiveError::Read`].
    pub(super) fn read_at(&self, bytes: &mut [u8], at: u64) -> Result<(), ArchiveError> {
        self.file.read_exact_at(bytes, at).map_err(|source| ArchiveError::Read { source: Arc::new(source) })
    }

    pub(super) fn file(&self) -> &Arc<File> {
        &self.file
    }
}

/// Adds a name; one that means two things would mean one to us and another to other tools.
fn insert_name(
    slots: &mut HashMap<String, ArchiveEntry>,
    name: String,
    slot: ArchiveEntry,
) -> Result<(), ArchiveError> {
    if slots.len() >= MOST_FILES {
        return Err(ArchiveError::Many { limit: MOST_FILES });
    }
    let same = |there: &ArchiveEntry| match (there, &slot) {
        (ArchiveEntry::File(there), ArchiveEntry::File(new)) => there.digest == new.digest,
        (there, new) => there == new,
    };
    match slots.get(&name) {
        Some(there) if !same(there) => Err(ArchiveError::Twice { path: clip(&name) }),
        _ => {
            slots.insert(name, slot);
            Ok(())
        }
    }
}

/// A path of the archive without `.` and leading slashes; None for one that cannot be an image archive's.
fn name(path: &[u8]) -> Option<String> {
    join(Vec::new(), std::str::from_utf8(path).ok()?)
}

/// What a link at `path` points at.
fn link_target(path: &[u8], target: &[u8]) -> Option<String> {
    let path = name(path)?;
    let mut folders: Vec<&str> = path.split('/').collect();
    folders.pop();
    join(folders, std::str::from_utf8(target).ok()?)
}

fn join<'a>(mut parts: Vec<&'a str>, path: &'a str) -> Option<String> {
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/")).filter(|name| !name.is_empty() && name.len() <= MOST_NAME)
}

fn hash<R: BufRead>(tarball: &mut Tarball<R>) -> Result<Digest, TarError> {
    let mut hasher = Hasher::new();
    loop {
        let taken = tarball.read_data(|chunk| {
            hasher.update(chunk);
            Ok::<_, std::convert::Infallible>(chunk.len())
        })?;
        match taken {
            Ok(0) => return Ok(hasher.finish()),
            Ok(_) => {}
            Err(never) => match never {},
        }
    }
}

/// The stream as it comes, written to the file before anybody reads it.
struct UploadReader {
    chunks: mpsc::Receiver<Upload>,
    file: Arc<File>,
    chunk: Bytes,
    written: u64,
    /// When so much is written the disk is looked at.
    look_at: u64,
    ended: bool,
}

impl UploadReader {
    fn keep(&mut self) -> io::Result<()> {
        self.file.write_all_at(&self.chunk, self.written)?;
        self.written += self.chunk.len() as u64;
        if self.written >= self.look_at {
            self.look_at = self.written + LOOK;
            let space: Space = rustix::fs::fstatvfs(&self.file)?.into();
            if let Some(short) = space.short() {
                return Err(io::Error::new(io::ErrorKind::StorageFull, short.to_string()));
            }
        }
        Ok(())
    }

    fn drain(&mut self) -> io::Result<()> {
        self.chunk.clear();
        while !self.ended {
            match self.chunks.blocking_recv() {
                Some(Upload::Chunk(_)) => {}
                Some(Upload::End) => self.ended = true,
                None => return Err(upload_aborted()),
            }
        }
        Ok(())
    }
}

fn upload_aborted() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the client gave up")
}

impl BufRead for UploadReader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.chunk.is_empty() && !self.ended {
            match self.chunks.blocking_recv() {
                Some(Upload::Chunk(chunk)) => {
                    self.chunk = chunk;
                    self.keep()?;
                }
                Some(Upload::End) => self.ended = true,
                None => return Err(upload_aborted()),
            }
        }
        Ok(&self.chunk)
    }

    fn consume(&mut self, count: usize) {
        self.chunk.advance(count);
    }
}

impl Read for UploadReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let from = self.fill_buf()?;
        let count = from.len().min(buffer.len());
        buffer[..count].copy_from_slice(&from[..count]);
        self.consume(count);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_shim_testing::archive::Archive;

    /// In chunks of seven bytes, so that every boundary is met.
    fn receive(tar: &[u8], end: bool) -> Result<Spool, ArchiveError> {
        let folder = tempfile::tempdir().unwrap();
        let (send, chunks) = mpsc::channel(4);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for chunk in tar.chunks(7) {
                    if send.blocking_send(Upload::Chunk(Bytes::copy_from_slice(chunk))).is_err() {
                        return;
                    }
                }
                if end {
                    let _ = send.blocking_send(Upload::End);
                }
            });
            Spool::receive(chunks, folder.path())
        })
    }

    #[test]
    fn files_are_found_by_name_and_through_links() {
        let archive = Archive::new()
            .directory("./a/", 0o755)
            .file("./a/one", b"first")
            .symlink("b/layer.tar", "../a/one")
            .hardlink("c", "a/one")
            .symlink("round", "round")
            .symlink("out", "../../etc/passwd");
        let spool = receive(&archive.tar(), true).unwrap();
        for name in ["a/one", "/a/one", "./b/layer.tar", "c"] {
            assert_eq!(
                spool.document(name, 10).unwrap(),
                (b"first".to_vec(), Digest::of(b"first")),
                "{name}"
            );
        }
        for name in ["a", "round", "out", "../a/one", ""] {
            assert!(spool.find(name).is_none(), "{name}");
        }
        assert!(matches!(spool.document("a/one", 4), Err(ArchiveError::Large { .. })));
        assert!(matches!(spool.document("a/two", 4), Err(ArchiveError::Missing { .. })));
    }

    #[test]
    fn what_is_cut_off_or_ambiguous_is_refused() {
        let archive = Archive::new().file("a", b"1").file("b", b"2");
        let given_up = receive(&archive.tar()[..1100], false).unwrap_err();
        assert!(matches!(given_up, ArchiveError::GivenUp), "{given_up:?}");
        let cut = receive(&archive.tar()[..1100], true).unwrap_err();
        assert!(matches!(cut, ArchiveError::Tar { .. }), "{cut:?}");
        let twice = Archive::new().file("a", b"1").file("./a", b"2");
        assert!(matches!(receive(&twice.tar(), true).unwrap_err(), ArchiveError::Twice { .. }));
        let same = Archive::new().file("a", b"1").file("a", b"1");
        assert!(receive(&same.tar(), true).is_ok());
        assert!(matches!(receive(b"no archive at all, but text", true), Err(ArchiveError::Tar { .. })));
    }
}
