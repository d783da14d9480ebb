//! The inflater held against flate2's, by the same streams. Owns the comparison: both loops, input in pieces of every
//! kind, output that is taken in pieces, and the same verdict with the same bytes. Used by the files below.

mod codes;
mod differential;
mod headers;

use std::io::{self, BufReader, Read, Write};

use gantry_inflate::{Fast, gzip, plain};

use gantry_sys::cpu::inflate_loop as best;

/// What becomes of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Whole,
    Early,
    Corrupt,
}

fn verdict(result: &io::Result<()>) -> Verdict {
    match result {
        Ok(()) => Verdict::Whole,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Verdict::Early,
        Err(error) => {
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
            Verdict::Corrupt
        }
    }
}

/// At most so many bytes at once, with an interruption between.
struct Pieces<'a> {
    bytes: &'a [u8],
    most: usize,
    interrupted: bool,
}

impl<'a> Pieces<'a> {
    fn new(bytes: &'a [u8], most: usize) -> Self {
        Self { bytes, most, interrupted: false }
    }
}

impl Read for Pieces<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.interrupted = !self.interrupted;
        if self.interrupted {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let count = self.most.min(into.len());
        self.bytes.read(&mut into[..count])
    }
}

/// Takes at most so many bytes at once.
struct Short(Vec<u8>, usize);

impl Write for Short {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(self.1);
        self.0.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn ours(packed: &[u8], fast: Fast, read: usize, write: usize) -> (Verdict, Vec<u8>) {
    let mut to = Short(Vec::new(), write);
    let result = gzip(&mut Pieces::new(packed, read), &mut to, fast);
    (verdict(&result), to.0)
}

fn theirs(packed: &[u8]) -> (Verdict, Vec<u8>) {
    let mut bytes = Vec::new();
    let from = BufReader::with_capacity(128 << 10, packed);
    let result = flate2::bufread::MultiGzDecoder::new(from).read_to_end(&mut bytes);
    (verdict(&result.map(drop)), bytes)
}

/// Everybody's verdict and bytes.
#[track_caller]
fn assert_agreement(packed: &[u8]) -> (Verdict, Vec<u8>) {
    let (verdict, bytes) = theirs(packed);
    let all = usize::MAX;
    let ways: [(Fast, usize, usize); 5] =
        [(best(), all, all), (plain, all, all), (best(), 1, all), (plain, 61, 7777), (best(), 4099, 1)];
    let mut first = None;
    for (fast, read, write) in ways {
        let (found, out) = ours(packed, fast, read, write);
        assert_eq!(
            found,
            verdict,
            "read by {read}, written by {write}: {} and {} bytes",
            out.len(),
            bytes.len()
        );
        match verdict {
            Verdict::Whole | Verdict::Early => assert!(out == bytes, "read by {read}, written by {write}"),
            // zlib-rs keeps what came out of the same call as the fault.
            Verdict::Corrupt => assert!(out.starts_with(&bytes), "read by {read}, written by {write}"),
        }
        let first = first.get_or_insert_with(|| out.clone());
        assert!(*first == out, "read by {read}, written by {write}");
    }
    (verdict, first.unwrap())
}

#[track_caller]
fn whole(packed: &[u8]) -> Vec<u8> {
    let (verdict, bytes) = assert_agreement(packed);
    assert_eq!(verdict, Verdict::Whole);
    bytes
}

#[track_caller]
fn fault(packed: &[u8]) -> Verdict {
    assert_agreement(packed).0
}

/// A header that says nothing.
const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];

/// A member around blocks that hold these bytes.
fn member(blocks: &[u8], plain: &[u8]) -> Vec<u8> {
    let size = u32::try_from(plain.len()).unwrap();
    let sums = [crc32fast::hash(plain).to_le_bytes(), size.to_le_bytes()].concat();
    [&HEADER[..], blocks, &sums].concat()
}

fn pack(plain: &[u8], level: u32) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(level));
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

/// Numbers that are the same each time (xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 8
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next()).unwrap() % end
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }
}
