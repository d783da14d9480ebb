//! The master of a container's terminal, for tokio. Owns the descriptor; never interprets a byte. Used
//! by execs and attaches.

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;

use rustix::termios::Winsize;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::sys;
use gantry_monitor::init::console;

/// Rows and columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub struct Size {
    /// Columns.
    #[serde(rename = "Width")]
    pub width: u16,
    /// Rows.
    #[serde(rename = "Height")]
    pub height: u16,
}

#[derive(Debug)]
pub(crate) struct Terminal {
    master: AsyncFd<OwnedFd>,
}

impl Terminal {
    pub(crate) fn new(master: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&master, true)?;
        Ok(Self { master: sys::watch(master)? })
    }

    /// The container's side of it, for whoever knows when its processes have ended: until this is dropped, a
    /// process that closes the terminal and opens it again is not taken for gone.
    pub(crate) fn slave(&self) -> io::Result<OwnedFd> {
        Ok(console::slave_of(self.master.get_ref())?)
    }

    /// What the container wrote; 0 when nobody has the terminal open any more, which Linux reports as
    /// EIO.
    pub(crate) async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self
            .master
            .async_io(Interest::READABLE, |master| Ok(rustix::io::read(master, &mut *buffer)?))
            .await;
        match read {
            Err(error) if error.raw_os_error() == Some(libc::EIO) => Ok(0),
            result => result,
        }
    }

    /// Types bytes at the terminal.
    pub(crate) async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let count = self
                .master
                .async_io(Interest::WRITABLE, |master| Ok(rustix::io::write(master, bytes)?))
                .await?;
            if count == 0 {
                return Err(ErrorKind::WriteZero.into());
            }
            bytes = bytes.get(count..).unwrap_or_default();
        }
        Ok(())
    }

    /// Tells the container the size of the client's window (SIGWINCH).
    pub(crate) fn resize(&self, size: Size) -> io::Result<()> {
        let size = Winsize { ws_row: size.height, ws_col: size.width, ws_xpixel: 0, ws_ypixel: 0 };
        Ok(rustix::termios::tcsetwinsize(self.master.get_ref(), size)?)
    }
}
