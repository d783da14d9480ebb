//! The folder of plugins' sockets: which are there, and when that changes. Owns the kernel's watch; never dials. Called by
//! [`super`].

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::inotify;
use tokio::net::unix::pipe;

/// Folders within folders that are looked into: a plugin has one of its own at most, some a second.
const DEPTH: usize = 8;

/// Which file it is: one that was made anew is another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    inode: u64,
    /// Seconds and nanoseconds since 1970: an inode's number is used again. Not of its mode, which plugins change at once.
    made: (i64, i64),
}

/// Makes the folder.
///
/// # Errors
/// When it cannot be made.
pub(super) fn make(folder: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o750).create(folder)
}

/// Its sockets and those of folders in it, but for what begins with a dot.
///
/// # Errors
/// When the folder itself cannot be read; others may come and go.
pub(super) fn sockets(folder: &Path) -> io::Result<BTreeMap<PathBuf, Identity>> {
    let mut found = BTreeMap::new();
    for (entry, kind) in entries(folder)? {
        visit(&entry, kind, DEPTH, &mut |socket, metadata| {
            let made = (metadata.mtime(), metadata.mtime_nsec());
            found.insert(socket.to_owned(), Identity { inode: metadata.ino(), made });
        });
    }
    Ok(found)
}

fn entries(folder: &Path) -> io::Result<Vec<(PathBuf, std::fs::FileType)>> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if !entry.file_name().as_encoded_bytes().starts_with(b".") {
            all.push((entry.path(), entry.file_type()?));
        }
    }
    Ok(all)
}

/// A folder that goes meanwhile has no sockets.
fn visit(
    path: &Path,
    kind: std::fs::FileType,
    depth: usize,
    found: &mut impl FnMut(&Path, &std::fs::Metadata),
) {
    if kind.is_socket() {
        if let Ok(metadata) = std::fs::symlink_metadata(path) {
            found(path, &metadata);
        }
    } else if kind.is_dir() && depth > 0 {
        for (entry, kind) in entries(path).unwrap_or_default() {
            visit(&entry, kind, depth - 1, found);
        }
    }
}

/// Hears when something comes or goes.
#[derive(Debug)]
pub(super) struct Ear {
    /// None where the host has no more of them: then the folder is looked at from time to time.
    watch: Option<(OwnedFd, pipe::Receiver)>,
}

impl Ear {
    pub(super) fn new() -> Self {
        let open = || -> io::Result<(OwnedFd, pipe::Receiver)> {
            let fd = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
            let of_events = fd.try_clone()?;
            // Not a pipe, but read like one: the kernel tells when there is something to read.
            Ok((fd, pipe::Receiver::from_owned_fd_unchecked(of_events)?))
        };
        let watch = open();
        if let Err(error) = &watch {
            tracing::warn!(%error, "the folder of plugins is looked at from time to time only");
        }
        Self { watch: watch.ok() }
    }

    /// Whether the kernel tells.
    pub(super) fn is_open(&self) -> bool {
        self.watch.is_some()
    }

    /// At the folder and those in it that are there by now; one that is listened at already stays so.
    pub(super) fn listen(&self, folder: &Path) {
        let Some((fd, _)) = &self.watch else { return };
        let what = inotify::WatchFlags::CREATE
            | inotify::WatchFlags::DELETE
            | inotify::WatchFlags::MOVED_TO
            | inotify::WatchFlags::MOVED_FROM;
        let mut folders = vec![(folder.to_owned(), DEPTH)];
        while let Some((folder, depth)) = folders.pop() {
            if let Err(error) = inotify::add_watch(fd.as_fd(), &folder, what) {
                tracing::debug!(folder = %folder.display(), %error, "a folder of plugins is not listened at");
            }
            let within = entries(&folder).unwrap_or_default().into_iter().filter(|(_, kind)| kind.is_dir());
            folders.extend(within.filter(|_| depth > 0).map(|(path, _)| (path, depth - 1)));
        }
    }

    /// Until something has come or gone. Cancel-safe.
    pub(super) async fn heard(&mut self) {
        let Some((_, events)) = &self.watch else { return std::future::pending().await };
        if events.readable().await.is_err() {
            return std::future::pending().await;
        }
        let mut buffer = [0; 4096];
        while events.try_read(&mut buffer).is_ok_and(|count| count > 0) {}
    }
}
