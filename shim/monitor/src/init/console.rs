//! A terminal for a container's process: made in the container's own devpts, so that its name means
//! something in there, its master sent out over a socket. Called in the cloned child by
//! `init::program`, after the root has become the container's.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::pty::OpenptFlags;

use super::program::Streams;
use super::{StepContext, StepError, mounts, refuse};
use crate::descriptors;

/// What the child needs for its terminal.
#[derive(Debug)]
pub struct Terminal<'a> {
    /// Where the master goes.
    pub socket: &'a OwnedFd,
    /// The pair, once made: a container's start mounts it on /dev/console first.
    pair: std::cell::OnceCell<(OwnedFd, OwnedFd)>,
}

impl<'a> Terminal<'a> {
    /// A terminal whose master is to be sent to `socket`.
    #[must_use]
    pub fn new(socket: &'a OwnedFd) -> Self {
        Self { socket, pair: std::cell::OnceCell::new() }
    }

    fn pair(&self) -> Result<&(OwnedFd, OwnedFd), StepError> {
        if self.pair.get().is_none() {
            let made = make()?;
            // Cannot be set already: this is the only place, in a process of one thread.
            let _ = self.pair.set(made);
        }
        match self.pair.get() {
            Some(pair) => Ok(pair),
            None => refuse(libc::EIO, "the terminal is gone"),
        }
    }
}

/// Master and slave. By `TIOCGPTPEER`, not by name: what stands at /dev/pts/N may be anything.
fn make() -> Result<(OwnedFd, OwnedFd), StepError> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let plain = ResolveFlags::NO_SYMLINKS;
    let master = rustix::fs::openat2(CWD, "/dev/pts/ptmx", flags, Mode::empty(), plain)
        .or_else(|_| rustix::fs::openat2(CWD, "/dev/ptmx", flags, Mode::empty(), plain))
        .step(|| "open /dev/pts/ptmx of the container".into())?;
    rustix::pty::unlockpt(&master).step(|| "unlock the terminal".into())?;
    let slave = slave_of(&master).step(|| "open the terminal".into())?;
    Ok((master, slave))
}

/// The terminal of a master, opened once more. Whoever holds it keeps the master from telling of an end
/// (EIO) while the container's processes have closed it for a moment only, as systemd does with /dev/console.
pub fn slave_of(master: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    rustix::pty::ioctl_tiocgptpeer(master, flags)
}

/// What the monitor holds of a terminal. A container that has ended already has taken its mounts along, and
/// with them the devpts of its terminal (ENODEV, ioctl_tty(2) TIOCGPTPEER): there is nothing left to hold, and
/// its output is in the master still.
///
/// # Errors
/// Any other of TIOCGPTPEER.
pub(crate) fn ignore_hung_up(opened: rustix::io::Result<OwnedFd>) -> rustix::io::Result<Option<OwnedFd>> {
    match opened {
        Err(rustix::io::Errno::NODEV) => Ok(None),
        opened => opened.map(Some),
    }
}

/// Sends the master out and returns the slave.
pub(super) fn open(terminal: &Terminal<'_>) -> Result<OwnedFd, StepError> {
    let (master, slave) = terminal.pair()?;
    descriptors::send(terminal.socket.as_fd(), master.as_fd())
        .step(|| "send the terminal's master".into())?;
    slave.try_clone().step(|| "copy the terminal".into())
}

/// The OCI specification's /dev/console of a container with a terminal (config.md, "terminal"). The slave
/// is bound by its descriptor: a mount of the request may have put anything at its name (CVE-2025-52565).
pub(super) fn mount_as_console(streams: &Streams<'_>) -> Result<(), StepError> {
    let Streams::Terminal(terminal) = streams else { return Ok(()) };
    let (_, slave) = terminal.pair()?;
    let root = rustix::fs::open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .step(|| "open the root".into())?;
    let copy = mounts::copy_of(slave.as_fd(), false, "the terminal")?;
    let place = mounts::target(root.as_fd(), "/dev/console", false, ResolveFlags::NO_SYMLINKS)?;
    mounts::attach(copy.as_fd(), place.as_fd(), "/dev/console")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_that_went_with_its_container_is_not_held() {
        use rustix::io::Errno;
        assert!(ignore_hung_up(Err(Errno::NODEV)).unwrap().is_none());
        assert_eq!(ignore_hung_up(Err(Errno::IO)).unwrap_err(), Errno::IO);
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(ignore_hung_up(Ok(null.into())).unwrap().is_some());
    }
}
