//! Leases on disk, in the format of the upstream plugin, which may share the folder.
//!
//! A network's folder holds a file per leased address (`<container id>\r\n<interface>`), `last_reserved_ip.<set>` and
//! `lock`. Owns these files; a [`LeaseStore`] is the proof that the lock is held (`flock(2)`, so other threads and
//! other processes, upstream's plugin among them, wait). Never chooses an address. Called by `host_local`, and by
//! the chain when it looks whether a network is idle.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::request::ValidAttachment;

const LINE_BREAK: &str = "\r\n";
const LAST_PREFIX: &str = "last_reserved_ip.";
const LOCK: &str = "lock";
/// Whoever holds the lock reads and writes small files. One that has it for longer is stopped or hangs, and
/// may never let go.
const LOCK_AT_MOST: Duration = Duration::from_secs(30);
/// Between looks at a lock that somebody holds; doubled each time. flock(2) itself knows no deadline.
const LOOK: Duration = Duration::from_millis(1);
const LOOK_AT_MOST: Duration = Duration::from_millis(20);
/// A lease is written here and then renamed: a crash leaves no lease without an owner. A power cut may, and so may the
/// upstream plugin, which writes in place.
const DRAFT: &str = ".lease.draft";

/// Why the folder could not be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot make the folder")]
    Folder(#[source] io::Error),
    #[error("cannot lock {path}")]
    Lock {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "somebody has held the lock {path} for {seconds} s: find the process that is stopped or hangs, and end it"
    )]
    Held { path: PathBuf, seconds: u64 },
    #[error("cannot list the folder")]
    List(#[source] io::Error),
    #[error("cannot read {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot write {path}")]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot remove {path}")]
    Remove {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// A leased address and the text of its file.
#[derive(Debug)]
pub(crate) struct LeaseFile {
    pub(crate) address: IpAddr,
    owner: String,
}

impl LeaseFile {
    /// Whether it belongs to this container's interface.
    pub(crate) fn is_of(&self, container_id: &str, ifname: &str) -> bool {
        self.owner.trim() == format!("{container_id}{LINE_BREAK}{ifname}")
    }

    /// The owner in words.
    pub(crate) fn owner(&self) -> String {
        self.owner.split_whitespace().collect::<Vec<_>>().join(" interface ")
    }

    /// Whether it belongs to this container, written by a plugin of old that knew no interfaces.
    pub(crate) fn is_of_old(&self, container_id: &str) -> bool {
        self.owner.trim() == container_id
    }
}

/// A network's folder, locked as long as this lives.
#[derive(Debug)]
pub(crate) struct LeaseStore {
    dir: PathBuf,
    _lock: File,
}

impl LeaseStore {
    /// Makes the folder if need be and waits for its lock.
    pub(crate) fn lock(dir: &Path) -> Result<LeaseStore, Error> {
        Self::lock_within(dir, LOCK_AT_MOST)
    }

    fn lock_within(dir: &Path, at_most: Duration) -> Result<LeaseStore, Error> {
        DirBuilder::new().recursive(true).mode(0o755).create(dir).map_err(Error::Folder)?;
        let path = dir.join(LOCK);
        let failed = |source| Error::Lock { path: path.clone(), source };
        // Opened anew each time: flock(2) belongs to the open file, so threads exclude one another too.
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        let deadline = Instant::now() + at_most;
        let mut pause = LOOK;
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(LeaseStore { dir: dir.into(), _lock: file }),
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) if Instant::now() < deadline => {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(LOOK_AT_MOST);
                }
                Err(Errno::WOULDBLOCK) => return Err(Error::Held { path, seconds: at_most.as_secs() }),
                Err(errno) => return Err(failed(errno.into())),
            }
        }
    }

    /// All leases of the network. A file without an owner is none: leases are written under the lock, so whoever was
    /// writing this one died of it, and the address is free.
    pub(crate) fn leases(&self) -> Result<Vec<LeaseFile>, Error> {
        let mut leases = Vec::new();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(&self.dir, flags, Mode::empty());
        let folder = folder.map_err(|errno| Error::List(errno.into()))?;
        for entry in self.dir.read_dir().map_err(Error::List)? {
            let name = entry.map_err(Error::List)?.file_name();
            let Some(address) = name.to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let owner = read_owner(folder.as_fd(), &name);
            let owner = owner.map_err(|source| Error::Read { path: self.dir.join(&name), source })?;
            if owner.contains(|letter: char| letter.is_ascii_alphanumeric()) {
                leases.push(LeaseFile { address, owner });
            }
        }
        Ok(leases)
    }

    /// The address that was given last from a range set, if one was.
    pub(crate) fn last(&self, set: usize) -> Result<Option<IpAddr>, Error> {
        let path = self.last_path(set);
        match std::fs::read_to_string(&path) {
            // A torn file only loses the place in the round.
            Ok(text) => Ok(text.trim().parse().ok()),
            Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(Error::Read { path, source }),
        }
    }

    /// Leases an address that is free, as seen under this lock.
    pub(crate) fn take(
        &self,
        address: IpAddr,
        container_id: &str,
        ifname: &str,
        set: usize,
    ) -> Result<(), Error> {
        let draft = self.dir.join(DRAFT);
        let path = self.dir.join(address.to_string());
        write(&draft, &format!("{container_id}{LINE_BREAK}{ifname}"))
            .and_then(|()| std::fs::rename(&draft, &path))
            .map_err(|source| Error::Write { path, source })?;
        let path = self.last_path(set);
        write(&path, &address.to_string()).map_err(|source| Error::Write { path, source })
    }

    /// Releases every address of a container's interface and says how many there were.
    pub(crate) fn release(&self, container_id: &str, ifname: &str) -> Result<usize, Error> {
        let leases = self.leases()?;
        let mut own: Vec<_> = leases.iter().filter(|lease| lease.is_of(container_id, ifname)).collect();
        if own.is_empty() {
            own = leases.iter().filter(|lease| lease.is_of_old(container_id)).collect();
        }
        own.iter().try_for_each(|lease| self.forget(lease))?;
        Ok(own.len())
    }

    /// Releases every address whose owner is none of these, and says which.
    pub(crate) fn release_all_but(&self, valid: &[ValidAttachment]) -> Result<Vec<IpAddr>, Error> {
        let is_valid = |lease: &LeaseFile| {
            valid.iter().any(|valid| {
                lease.is_of(&valid.container_id, &valid.ifname) || lease.is_of_old(&valid.container_id)
            })
        };
        let leases = self.leases()?;
        let garbage: Vec<_> = leases.iter().filter(|lease| !is_valid(lease)).collect();
        garbage.iter().try_for_each(|lease| self.forget(lease))?;
        Ok(garbage.iter().map(|lease| lease.address).collect())
    }

    fn forget(&self, lease: &LeaseFile) -> Result<(), Error> {
        let path = self.dir.join(lease.address.to_string());
        std::fs::remove_file(&path).map_err(|source| Error::Remove { path, source })
    }

    fn last_path(&self, set: usize) -> PathBuf {
        self.dir.join(format!("{LAST_PREFIX}{set}"))
    }
}

/// Each address of the network is read for each pod that comes or goes: by three system calls.
fn read_owner(folder: BorrowedFd<'_>, name: &OsStr) -> io::Result<String> {
    let file = rustix::fs::openat(folder, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut bytes = [0; 1024];
    let count = rustix::io::read(&file, &mut bytes)?;
    let mut owner = bytes.get(..count).unwrap_or_default().to_vec();
    if count == bytes.len() {
        File::from(file).read_to_end(&mut owner)?;
    }
    Ok(String::from_utf8_lossy(&owner).into_owned())
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_nobody_lets_go_of_is_given_up_and_named() {
        let folder = tempfile::tempdir().unwrap();
        let held = LeaseStore::lock(folder.path()).unwrap();
        let error = LeaseStore::lock_within(folder.path(), Duration::from_millis(50)).unwrap_err();
        let path = folder.path().join(LOCK);
        assert!(matches!(&error, Error::Held { path: held, .. } if *held == path), "{error:?}");
        assert!(error.to_string().contains(&path.display().to_string()), "{error}");
        drop(held);
        LeaseStore::lock_within(folder.path(), Duration::ZERO).unwrap();
    }

    #[test]
    fn a_lock_that_is_let_go_of_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let held = LeaseStore::lock(folder.path()).unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| LeaseStore::lock(folder.path()).map(drop));
            std::thread::sleep(Duration::from_millis(30));
            assert!(!waits.is_finished());
            drop(held);
            waits.join().unwrap().unwrap();
        });
    }
}
