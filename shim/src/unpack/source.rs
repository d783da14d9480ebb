//! Where an archive comes from: a pipe, whose bytes can go to a file without passing through this process, or memory.
//! Owns that short cut; knows no archive. Called by `tarball`.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};

use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::pipe::SpliceFlags;

/// Less is in the buffer with the next header as soon as it is asked for.
const WORTH: u64 = 64 << 10;
/// A look at the disk comes after so many bytes at the latest.
const MOST: u64 = 1 << 20;

/// What a [`super::Tarball`] may be read from.
pub trait Source: BufRead {
    /// Moves some of the next `most` bytes on to `to`, unseen. 0: there are no more. None: nothing was moved, they are
    /// to be read.
    ///
    /// # Errors
    /// splice(2)'s, which are the file's.
    fn pour(&mut self, _to: &File, _most: u64) -> io::Result<Option<usize>> {
        Ok(None)
    }
}

impl Source for &[u8] {}

/// A pipe all of whose bytes are read: without the short cut.
#[derive(Debug)]
pub struct Seen(pub File);

impl Read for Seen {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Source for BufReader<Seen> {}

impl Source for BufReader<File> {
    fn pour(&mut self, to: &File, most: u64) -> io::Result<Option<usize>> {
        if most < WORTH || !self.buffer().is_empty() {
            return Ok(None);
        }
        let most = usize::try_from(most.min(MOST)).unwrap_or(usize::MAX);
        loop {
            match rustix::pipe::splice(self.get_ref().as_fd(), None, to, None, most, SpliceFlags::empty()) {
                Ok(count) => return Ok(Some(count)),
                Err(Errno::INTR) => {}
                // No pipe, or a file system that does not take part.
                Err(Errno::INVAL) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, Write};

    use super::*;

    #[test]
    fn what_is_long_is_poured_and_the_rest_read() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let bytes: Vec<u8> =
            (0..37_500_u32).flat_map(|at| at.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
        let writing = std::thread::spawn({
            let bytes = bytes.clone();
            move || File::from(writer).write_all(&bytes).unwrap()
        });
        let mut source = BufReader::with_capacity(4096, File::from(reader));
        let mut to = tempfile::tempfile().unwrap();
        assert_eq!(source.pour(&to, WORTH - 1).unwrap(), None, "too little");
        let mut first = [0; 10];
        source.read_exact(&mut first).unwrap();
        assert_eq!(source.pour(&to, WORTH).unwrap(), None, "some of it is in the buffer");
        let buffered = source.buffer().len();
        source.consume(buffered);
        let mut at = 10 + buffered;
        while let Some(count @ 1..) = source.pour(&to, (140_000 - at) as u64).unwrap() {
            at += count;
        }
        assert!(at > 70_000 && at <= 140_000, "{at}");
        let mut rest = Vec::new();
        source.read_to_end(&mut rest).unwrap();
        writing.join().unwrap();
        assert_eq!(rest, bytes[at..]);
        let mut poured = Vec::new();
        to.rewind().unwrap();
        to.read_to_end(&mut poured).unwrap();
        assert_eq!(poured, bytes[10 + buffered..at]);
        assert_eq!(source.pour(&to, WORTH).unwrap(), Some(0), "the end");
    }

    #[test]
    fn what_is_to_be_seen_is_read() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        drop(writer);
        let mut source = BufReader::new(Seen(File::from(reader)));
        assert_eq!(source.pour(&tempfile::tempfile().unwrap(), WORTH).unwrap(), None);
    }

    #[test]
    fn what_is_no_pipe_is_read() {
        let from = tempfile::tempfile().unwrap();
        from.set_len(WORTH).unwrap();
        assert_eq!(BufReader::new(from).pour(&tempfile::tempfile().unwrap(), WORTH).unwrap(), None);
    }
}
