//! One connection of a runtime: requests in, frames out, never blocking. Owns both buffers. Called
//! by `monitor::event_loop`.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

use gantry_proto::monitor::{Frame, Request};

use crate::wire;

/// A runtime that does not read its events is dropped at this many bytes; it asks again when it
/// reconnects, and the exit records are on disk.
const MAX_OUTGOING: usize = 4 << 20;

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: UnixStream,
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
}

impl Connection {
    pub(super) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, incoming: Vec::new(), outgoing: Vec::new() })
    }

    /// All requests that have arrived whole.
    ///
    /// # Errors
    /// The connection is over: closed by the other side, broken, or not speaking our protocol.
    pub(super) fn receive(&mut self) -> io::Result<Vec<Request>> {
        let mut chunk = [0u8; 16 * 1024];
        let mut closed = false;
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => {
                    closed = true;
                    break;
                }
                Ok(count) => self.incoming.extend_from_slice(chunk.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let mut requests = Vec::new();
        while let Some(request) =
            wire::take(&mut self.incoming).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?
        {
            requests.push(request);
        }
        if closed && requests.is_empty() {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Ok(requests)
    }

    /// Queues a frame and sends as much as goes.
    ///
    /// # Errors
    /// The connection is over.
    pub(super) fn send(&mut self, frame: &Frame) -> io::Result<()> {
        self.outgoing.extend(wire::encode(frame));
        if self.outgoing.len() > MAX_OUTGOING {
            return Err(ErrorKind::TimedOut.into());
        }
        self.flush()
    }

    /// Sends what is queued, as far as it goes.
    ///
    /// # Errors
    /// The connection is over.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        while !self.outgoing.is_empty() {
            match self.stream.write(&self.outgoing) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => drop(self.outgoing.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Whether the loop must wait for the socket to take more.
    pub(super) fn wants_to_write(&self) -> bool {
        !self.outgoing.is_empty()
    }
}
