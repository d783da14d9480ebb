//! The two ends of a layer's pipeline as std readers: chunks from the network, counted and hashed;
//! inflated bytes, counted, hashed and buffered. Never judges what it counted. Called by `layer`.

use std::io::{self, BufRead, Read};
use std::sync::Arc;

use bytes::{Buf, Bytes};
use tokio::sync::mpsc;

use super::Piece;
use crate::image::digest::{Digest, Hasher};

/// Large enough that a write(2) costs little against its bytes.
const BUFFER: usize = 128 << 10;

/// Compressed bytes.
pub(super) struct Chunks {
    pieces: mpsc::Receiver<Piece>,
    current: Bytes,
    hasher: Hasher,
    count: u64,
    ended: bool,
}

/// Inflated bytes.
pub(super) struct Tee<R> {
    inner: R,
    hasher: Hasher,
    buffer: Box<[u8]>,
    at: usize,
    end: usize,
    left: u64,
}

/// Errors of these readers, to be found again behind the inflater and the tar reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Fault {
    #[error("the download ended early")]
    GivenUp,
    #[error("more bytes than allowed")]
    Bomb,
}

/// The fault in `error`, if it is one of ours.
pub(super) fn fault(error: &io::Error) -> Option<Fault> {
    error.get_ref().and_then(|inner| inner.downcast_ref::<Fault>()).copied()
}

impl Chunks {
    pub(super) fn new(pieces: mpsc::Receiver<Piece>) -> Self {
        Self { pieces, current: Bytes::new(), hasher: Hasher::new(), count: 0, ended: false }
    }

    /// How many bytes there were, and their digest.
    pub(super) fn into_count(self) -> (u64, Digest) {
        (self.count, self.hasher.finish())
    }
}

impl BufRead for Chunks {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.current.is_empty() && !self.ended {
            match self.pieces.blocking_recv() {
                Some(Piece::Chunk(chunk)) => {
                    self.hasher.update(&chunk);
                    self.count += chunk.len() as u64;
                    self.current = chunk;
                }
                Some(Piece::End) => self.ended = true,
                None => return Err(io::Error::other(Fault::GivenUp)),
            }
        }
        Ok(&self.current)
    }

    fn consume(&mut self, count: usize) {
        self.current.advance(count);
    }
}

impl Read for Chunks {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let chunk = self.fill_buf()?;
        let count = chunk.len().min(into.len());
        into[..count].copy_from_slice(&chunk[..count]);
        self.consume(count);
        Ok(count)
    }
}

impl<R: Read> Tee<R> {
    pub(super) fn new(inner: R, limit: u64) -> Self {
        let buffer = vec![0; BUFFER].into_boxed_slice();
        Self { inner, hasher: Hasher::new(), buffer, at: 0, end: 0, left: limit }
    }

    /// Reads to the end: the diff id covers what stands behind the archive's end mark too.
    pub(super) fn drain(&mut self) -> Result<(), Arc<io::Error>> {
        loop {
            let length = self.fill_buf().map_err(Arc::new)?.len();
            if length == 0 {
                return Ok(());
            }
            self.consume(length);
        }
    }

    pub(super) fn into_parts(self) -> (R, Digest) {
        (self.inner, self.hasher.finish())
    }
}

impl<R: Read> BufRead for Tee<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at == self.end {
            let count = loop {
                match self.inner.read(&mut self.buffer) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    other => break other?,
                }
            };
            self.left = self.left.checked_sub(count as u64).ok_or_else(|| io::Error::other(Fault::Bomb))?;
            self.hasher.update(&self.buffer[..count]);
            (self.at, self.end) = (0, count);
        }
        Ok(&self.buffer[self.at..self.end])
    }

    fn consume(&mut self, count: usize) {
        self.at = (self.at + count).min(self.end);
    }
}

impl<R: Read> Read for Tee<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let chunk = self.fill_buf()?;
        let count = chunk.len().min(into.len());
        into[..count].copy_from_slice(&chunk[..count]);
        self.consume(count);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_count_and_hash_and_know_an_early_end() {
        let (send, pieces) = mpsc::channel(4);
        for chunk in ["ab", "", "c"] {
            send.try_send(Piece::Chunk(Bytes::from(chunk))).unwrap();
        }
        send.try_send(Piece::End).unwrap();
        let mut chunks = Chunks::new(pieces);
        let mut text = String::new();
        chunks.read_to_string(&mut text).unwrap();
        assert_eq!(text, "abc");
        assert_eq!(chunks.into_count(), (3, Digest::of(b"abc")));

        let (send, pieces) = mpsc::channel(4);
        drop(send);
        let error = Chunks::new(pieces).read(&mut [0]).unwrap_err();
        assert_eq!(fault(&error), Some(Fault::GivenUp));
    }

    #[test]
    fn tee_hashes_all_and_stops_a_bomb() {
        let mut tee = Tee::new(&b"0123456789"[..], 10);
        let mut two = [0; 2];
        tee.read_exact(&mut two).unwrap();
        tee.drain().unwrap();
        assert_eq!(tee.into_parts().1, Digest::of(b"0123456789"));
        let mut tee = Tee::new(&b"0123456789"[..], 9);
        assert_eq!(fault(&tee.drain().unwrap_err()), Some(Fault::Bomb));
    }
}
