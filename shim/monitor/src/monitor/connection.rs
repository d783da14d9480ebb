//! One connection of a runtime: requests and their descriptors in, frames out, never blocking. Owns
//! both buffers. Called by `monitor::event_loop`.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use gantry_proto::monitor::{Frame, Request, request};

use crate::init::{StepError, refuse};
use crate::{descriptors, wire};

/// Descriptors that wait for their request; no runtime of ours sends more than four with one.
const MAX_DESCRIPTORS: usize = 64;

/// A runtime that does not read its events is dropped at this many bytes; it asks again when it
/// reconnects, and the exit records are on disk.
const MAX_OUTGOING: usize = 4 << 20;

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: UnixStream,
    incoming: Vec<u8>,
    descriptors: VecDeque<OwnedFd>,
    outgoing: Vec<u8>,
}

impl Connection {
    pub(super) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, incoming: Vec::new(), descriptors: VecDeque::new(), outgoing: Vec::new() })
    }

    /// All requests that have arrived whole.
    ///
    /// # Errors
    /// The connection is over: closed by the other side, broken, or not speaking our protocol.
    pub(super) fn receive(&mut self) -> io::Result<Vec<Request>> {
        let mut chunk = [0u8; 16 * 1024];
        let mut closed = false;
        loop {
            match descriptors::receive(self.stream.as_fd(), &mut chunk, &mut self.descriptors) {
                Ok(0) => {
                    closed = true;
                    break;
                }
                Ok(_) if self.descriptors.len() > MAX_DESCRIPTORS => {
                    return Err(io::Error::new(ErrorKind::InvalidData, "too many descriptors"));
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

    /// The descriptors that came with `request`; to be called for each in turn, whatever becomes of it.
    ///
    /// # Errors
    /// When some are missing.
    pub(super) fn take_descriptors(&mut self, request: &Request) -> Result<Vec<OwnedFd>, StepError> {
        let count = match &request.op {
            Some(request::Op::Exec(exec)) if exec.tty => 1,
            Some(request::Op::Exec(exec)) => {
                [exec.stdin, exec.stdout, exec.stderr].map(usize::from).iter().sum()
            }
            Some(request::Op::Attach(attach)) => {
                [attach.stdout, attach.stderr, attach.input].map(usize::from).iter().sum()
            }
            _ => 0,
        };
        let taken: Vec<OwnedFd> = self.descriptors.drain(..count.min(self.descriptors.len())).collect();
        if taken.len() < count {
            return refuse(libc::EBADF, "the request came without its descriptors");
        }
        Ok(taken)
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
