//! A blocking netlink socket: datagrams out and in, whole or not at all.
//!
//! Owns the descriptor, the sequence numbers and the buffer; a socket stays bound to the network namespace of the thread
//! that opened it. Never knows what a message says: `netlink` and `nft` do. See `netlink(7)`.

use std::io;

use netlink_sys::SocketAddr;

/// `recv(2)`: return the datagram's true length, so that a cut one is noticed.
const MSG_TRUNC: i32 = 0x20;
/// The kernel builds dumps in buffers of at most 32 KiB (`netlink_dump` in `af_netlink.c`).
const BUFFER: usize = 64 * 1024;

/// Why nothing was sent or received.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot open a netlink socket")]
    Open(#[source] io::Error),
    #[error("cannot send a netlink request")]
    Send(#[source] io::Error),
    #[error("cannot receive a netlink answer")]
    Receive(#[source] io::Error),
    #[error("a netlink answer of {length} bytes was cut")]
    Cut { length: usize },
}

/// A socket of one protocol, connected to the kernel.
pub(crate) struct Socket {
    inner: netlink_sys::Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Socket {
    /// Opens a socket in the calling thread's network namespace. Its errors carry the kernel's words, and no copy of the
    /// request.
    pub(crate) fn open(protocol: isize) -> Result<Socket, Error> {
        let open = || {
            let mut inner = netlink_sys::Socket::new(protocol)?;
            inner.bind_auto()?;
            inner.connect(&SocketAddr::new(0, 0))?;
            inner.set_cap_ack(true)?;
            inner.set_ext_ack(true)?;
            Ok(inner)
        };
        Ok(Socket { inner: open().map_err(Error::Open)?, sequence: 0, buffer: Vec::with_capacity(BUFFER) })
    }

    /// The number of a new message.
    pub(crate) fn next(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence
    }

    pub(crate) fn send(&self, bytes: &[u8]) -> Result<(), Error> {
        self.inner.send(bytes, 0).map(drop).map_err(Error::Send)
    }

    /// The next datagram.
    pub(crate) fn receive(&mut self) -> Result<&[u8], Error> {
        loop {
            self.buffer.clear();
            match self.inner.recv(&mut self.buffer, MSG_TRUNC) {
                Ok(length) if length > self.buffer.len() => return Err(Error::Cut { length }),
                Ok(_) => return Ok(&self.buffer),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::Receive(error)),
            }
        }
    }
}
