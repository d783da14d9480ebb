//! Waiting for a confined process, and the disk's floor: whatever the process does, it may not fill
//! the disk. Owns the waiting for pipes. Called by `flow`.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::LayerError;
use gantry_unpack::Space;

const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };
/// Longer than any disk that still works is busy.
const STUCK: Duration = Duration::from_secs(600);
/// Waits between two looks when the pipe is never full.
const LOOK: u32 = 64;

/// The disk that a layer goes to.
pub(super) struct DiskGuard {
    path: PathBuf,
    folder: OwnedFd,
}

impl DiskGuard {
    pub(super) fn new(folder: &Path) -> Result<Self, LayerError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let path = folder.to_owned();
        let folder = rustix::fs::open(folder, flags, Mode::empty()).map_err(worker("open the folder of"))?;
        Ok(Self { path, folder })
    }

    /// A waiter for one end of a pipe.
    pub(super) fn waiter(&self) -> PipeWaiter<'_> {
        PipeWaiter { guard: self, waits: 0 }
    }

    /// The process is ended when this fails; it should have stopped by itself at its own, higher floor.
    fn check(&self) -> Result<(), LayerError> {
        let Some(short) = self.space()?.very_short() else { return Ok(()) };
        Err(LayerError::Full { folder: self.path.clone(), detail: short.to_string() })
    }

    fn space(&self) -> Result<Space, LayerError> {
        let stat = rustix::fs::fstatvfs(&self.folder).map_err(worker("look at the disk of"))?;
        Ok(stat.into())
    }
}

pub(super) struct PipeWaiter<'a> {
    guard: &'a DiskGuard,
    waits: u32,
}

impl PipeWaiter<'_> {
    /// Whether the unpacker has reason to stop at its own floor.
    pub(super) fn is_full(&self) -> bool {
        self.guard.space().is_ok_and(|space| space.short().is_some())
    }

    /// How often it was asked to wait.
    #[cfg(test)]
    pub(super) fn waits(&self) -> u32 {
        self.waits
    }

    /// Waits until `fd` is ready for `what`, or its other end is gone.
    ///
    /// # Errors
    /// `Full`, `Stuck`.
    pub(super) fn wait(&mut self, fd: impl AsFd, what: PollFlags) -> Result<(), LayerError> {
        self.count_wait()?;
        let since = Instant::now();
        loop {
            let mut fds = [PollFd::new(&fd, what)];
            match poll(&mut fds, Some(&TICK)) {
                Ok(0) => self.guard.check()?,
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(worker("wait for")(errno)),
            }
            if since.elapsed() > STUCK {
                return Err(LayerError::Stuck { seconds: STUCK.as_secs() });
            }
        }
    }

    /// Waits, however long, until `from` has bytes or its end; false: nobody is left to take what goes to `to`.
    ///
    /// # Errors
    /// `Full`.
    pub(super) fn wait_for_more(&mut self, from: impl AsFd, to: impl AsFd) -> Result<bool, LayerError> {
        self.count_wait()?;
        loop {
            // That alone is told of `to`: no flags but errors.
            let mut fds = [PollFd::new(&from, PollFlags::IN), PollFd::new(&to, PollFlags::empty())];
            match poll(&mut fds, Some(&TICK)) {
                Ok(0) => self.guard.check()?,
                Ok(_) => return Ok(fds[1].revents().is_empty()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(worker("wait for")(errno)),
            }
        }
    }

    fn count_wait(&mut self) -> Result<(), LayerError> {
        self.waits = self.waits.wrapping_add(1);
        if self.waits.is_multiple_of(LOOK) { self.guard.check() } else { Ok(()) }
    }
}

pub(super) fn worker(operation: &'static str) -> impl FnOnce(Errno) -> LayerError {
    move |errno| LayerError::Worker { operation, source: Arc::new(io::Error::from(errno)) }
}
