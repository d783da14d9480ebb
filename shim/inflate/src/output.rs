//! Bytes that came out: the window that matches look back into, the sums of a member, and what is to be written. Owns
//! the buffer; never moves a byte more than once. Called by `member`, `block` and `symbols`.

use std::io::{self, Write};

use crc32fast::Hasher;

/// How far a match may look back (RFC 1951 section 2).
pub(crate) const WINDOW: usize = 1 << 15;
/// The window, and what is written at once: it stays in a processor's second cache, and the window's move to the front
/// is a seventh of it.
pub(crate) const ROOM: usize = 1 << 18;
/// From here on the longest match, what a loop may put behind it and two literals before it would not fit.
pub(crate) const FULL: usize = ROOM - 320;
/// 32 bytes from any place in [`ROOM`] are inside: a place under a mask needs no other check.
pub(crate) type Bytes = [u8; ROOM + 32];

/// A stream of bytes that came out.
pub(crate) struct InflateOutput<'a> {
    to: &'a mut dyn Write,
    pub(crate) bytes: Box<Bytes>,
    /// Where the next byte goes.
    pub(crate) at: usize,
    /// The member's first byte that is still here: no match looks behind it.
    pub(crate) oldest: usize,
    written: usize,
    crc: Hasher,
    size: u32,
}

impl<'a> InflateOutput<'a> {
    pub(crate) fn new(to: &'a mut dyn Write) -> Self {
        let bytes = Box::new([0; _]);
        Self { to, bytes, at: 0, oldest: 0, written: 0, crc: Hasher::new(), size: 0 }
    }

    /// A member begins.
    pub(crate) fn begin(&mut self) {
        self.oldest = self.at;
        self.crc.reset();
        self.size = 0;
    }

    /// A member ends: CRC32 and ISIZE of it (RFC 1952 section 2.3.1).
    pub(crate) fn end(&mut self) -> io::Result<(u32, u32)> {
        self.write()?;
        Ok((self.crc.clone().finalize(), self.size))
    }

    /// Writes what is not written yet.
    pub(crate) fn write(&mut self) -> io::Result<()> {
        let fresh = &self.bytes[self.written..self.at];
        self.crc.update(fresh);
        // Modulo 2^32, as it is in the file; the buffer is far smaller.
        self.size = self.size.wrapping_add(u32::try_from(fresh.len()).unwrap_or(u32::MAX));
        // Before the outcome is known: who writes after a fault writes nothing twice.
        self.written = self.at;
        self.to.write_all(fresh)
    }

    /// Makes `at` less than [`FULL`].
    pub(crate) fn make_room(&mut self) -> io::Result<()> {
        if self.at < FULL {
            return Ok(());
        }
        self.write()?;
        let gone = self.at - WINDOW;
        self.bytes.copy_within(gone..self.at, 0);
        self.oldest = self.oldest.saturating_sub(gone);
        self.at = WINDOW;
        self.written = WINDOW;
        Ok(())
    }
}
