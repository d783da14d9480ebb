//! Packed bytes as they come and the bits in them, the lowest first (RFC 1951 section 3.1.1). Owns the buffer; never
//! takes a bit that did not arrive. Called by all that reads.

use std::io::{self, Read};

/// What is read at once, at most: a system call costs little against so many bytes.
/// A fuzzer's streams are short, and what is moved when it is full should be moved in them too.
pub(crate) const ROOM: usize = if cfg!(fuzzing) { 1 << 9 } else { 1 << 17 };
/// Eight bytes from any place in [`ROOM`] are inside: a place under a mask needs no other check.
pub(crate) type Bytes = [u8; ROOM + 8];

/// Bits that were taken out of the buffer and wait to be used.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Bits {
    /// The next one is the lowest; zero above `count`.
    pub(crate) buffer: u64,
    pub(crate) count: u32,
    /// Where the byte after them is.
    pub(crate) at: usize,
}

impl Bits {
    /// Whole bytes go back to where they came from.
    pub(crate) fn give_back(&mut self) {
        self.at -= (self.count >> 3) as usize;
        self.count &= 7;
        self.buffer &= (1 << self.count) - 1;
    }
}

/// A stream of packed bytes.
pub(crate) struct Input<'a> {
    from: &'a mut dyn Read,
    pub(crate) bytes: Box<Bytes>,
    pub(crate) bits: Bits,
    /// Where the bytes end that arrived.
    pub(crate) end: usize,
    ended: bool,
}

/// Why it is no gzip. The words are for tests: the process tells no more than that.
pub(crate) fn corrupt(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

impl<'a> Input<'a> {
    pub(crate) fn new(from: &'a mut dyn Read) -> Self {
        Self { from, bytes: Box::new([0; _]), bits: Bits::default(), end: 0, ended: false }
    }

    /// Bytes that are here, those in the bit buffer not counted.
    pub(crate) fn available(&self) -> usize {
        self.end - self.bits.at
    }

    /// Reads until `wanted` bytes are here, half of the room at most, or all there are.
    pub(crate) fn fill(&mut self, wanted: usize) -> io::Result<()> {
        while self.available() < wanted && !self.ended {
            if self.end > ROOM / 2 {
                // `wanted` is little, so that this moves little. What waits in the bit buffer may be given back.
                let from = self.bits.at - (self.bits.count >> 3) as usize;
                self.bytes.copy_within(from..self.end, 0);
                self.end -= from;
                self.bits.at -= from;
            }
            match self.from.read(&mut self.bytes[self.end..ROOM]) {
                Ok(0) => self.ended = true,
                Ok(count) => self.end += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Fills the bit buffer, with more than any symbol needs or all there are.
    pub(crate) fn refill(&mut self) -> io::Result<()> {
        while self.bits.count < 56 {
            if self.available() == 0 {
                self.fill(1)?;
            }
            if self.available() == 0 {
                break;
            }
            self.bits.buffer |= u64::from(self.bytes[self.bits.at]) << self.bits.count;
            self.bits.at += 1;
            self.bits.count += 8;
        }
        Ok(())
    }

    /// The next bits as a number, 16 at most.
    pub(crate) fn take(&mut self, count: u32) -> io::Result<u16> {
        if self.bits.count < count {
            self.refill()?;
        }
        let value = self.bits.buffer & ((1 << count) - 1);
        self.skip(count)?;
        u16::try_from(value).map_err(|_| corrupt("a field of more than 16 bits"))
    }

    /// Passes by bits that were looked at: where the stream is cut off there may be fewer.
    pub(crate) fn skip(&mut self, count: u32) -> io::Result<()> {
        if self.bits.count < count {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.bits.count -= count;
        self.bits.buffer >>= count;
        Ok(())
    }

    /// Passes by what is left of a byte; from here on [`Input::byte`] may be called.
    pub(crate) fn align(&mut self) {
        self.bits.give_back();
        self.bits.count = 0;
        self.bits.buffer = 0;
    }

    /// The next byte, of no bit taken yet.
    pub(crate) fn byte(&mut self) -> io::Result<u8> {
        if self.available() == 0 {
            self.fill(1)?;
        }
        if self.available() == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.bits.at += 1;
        Ok(self.bytes[self.bits.at - 1])
    }
}
