//! Compressed bytes to the archive in them. Owns which packings there are and their limits; knows no
//! archive and no file, and leaves gzip to `gantry_inflate` and zstd to libzstd. Run by `gantry-unpack inflate`, which
//! can do nothing but read, inflate and write.

use std::io::{self, BufReader, Read, Write};

use serde::{Deserialize, Serialize};

use gantry_sys::cpu;

#[cfg(test)]
mod against;

/// Large enough that a system call costs little against its bytes.
const BUFFER: usize = 128 << 10;
/// 32 MiB of window: the most that builders of images write. buildkit and podman do at their levels from 10 on
/// (`SpeedBestCompression` of klauspost/compress; 8 MiB up to level 5, which is also what RFC 8878 section
/// 3.1.1.1.2 asks each decoder for). containerd takes as much.
const MAX_WINDOW_LOG: u32 = 25;
/// `ZSTD_error_frameParameter_windowTooLarge`; these numbers don't change (zstd_errors.h).
const WINDOW_TOO_LARGE: usize = 0_usize.wrapping_sub(16);

/// How a layer's bytes are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Packing {
    /// A bare archive.
    Plain,
    /// One or more gzip members.
    Gzip,
    /// One or more zstd frames.
    Zstd,
}

impl Packing {
    /// As on the program's command line and in messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        }
    }

    /// The packing of a [`Packing::name`].
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Plain, Self::Gzip, Self::Zstd].into_iter().find(|packing| packing.name() == name)
    }
}

/// Inflates all of `input`.
///
/// # Errors
/// `UnexpectedEof` when the stream is cut off, `BrokenPipe` when nobody wants more, `Unsupported` when a zstd
/// frame asks for too large a window, others when it is no such stream.
pub fn inflate(packing: Packing, mut input: impl Read, mut output: impl Write) -> io::Result<()> {
    match packing {
        Packing::Plain => copy(input, &mut output),
        // It has buffers of its own.
        Packing::Gzip => gantry_inflate::gzip(&mut input, &mut output, cpu::inflate_loop()),
        Packing::Zstd => {
            let input = BufReader::with_capacity(BUFFER, input);
            let mut decoder = zstd::stream::read::Decoder::with_buffer(input)?;
            decoder.window_log_max(MAX_WINDOW_LOG)?;
            copy(decoder, &mut output).map_err(map_window_error)
        }
    }
}

/// libzstd's error by its kind: the crate passes on the text alone.
fn map_window_error(error: io::Error) -> io::Error {
    let is_window = || error.to_string() == zstd::zstd_safe::get_error_name(WINDOW_TOO_LARGE);
    if error.kind() == io::ErrorKind::Other && is_window() {
        return io::Error::new(io::ErrorKind::Unsupported, error);
    }
    error
}

fn copy(mut from: impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => to.write_all(&buffer[..count])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inflate_to_vec(packing: Packing, bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        inflate(packing, bytes, &mut out).map(|()| out)
    }

    #[test]
    fn every_packing_gives_its_bytes_also_in_several_pieces() {
        let zip = |bytes: &[u8]| {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        };
        let zstd = |bytes: &[u8]| zstd::encode_all(bytes, 3).unwrap();
        assert_eq!(inflate_to_vec(Packing::Plain, b"ab").unwrap(), b"ab");
        assert_eq!(inflate_to_vec(Packing::Gzip, &[zip(b"a"), zip(b"b")].concat()).unwrap(), b"ab");
        assert_eq!(inflate_to_vec(Packing::Zstd, &[zstd(b"a"), zstd(b"b")].concat()).unwrap(), b"ab");
        for packing in [Packing::Gzip, Packing::Zstd] {
            let bytes = if packing == Packing::Gzip { zip(&[7; 9999]) } else { zstd(&[7; 9999]) };
            let cut = inflate_to_vec(packing, &bytes[..bytes.len() - 1]).unwrap_err();
            assert_eq!(cut.kind(), io::ErrorKind::UnexpectedEof, "{cut}");
            assert!(inflate_to_vec(packing, b"no such thing").is_err());
            assert_eq!(Packing::from_name(packing.name()), Some(packing));
        }
    }

    #[test]
    fn a_zstd_frame_may_not_ask_for_all_memory() {
        // Magic, a frame header without content size, a window of 2^40 bytes: RFC 8878 section 3.1.1.
        let frame =
            |window| inflate_to_vec(Packing::Zstd, &[0x28, 0xb5, 0x2f, 0xfd, 0x00, window, 0x01, 0x00, 0x00]);
        assert_eq!(frame(0xf0).unwrap_err().kind(), io::ErrorKind::Unsupported);
        // 8 and 32 MiB, which builders write; an eighth more; 128 MiB, which `zstd --long` writes.
        assert_eq!((frame(0x68).unwrap(), frame(0x78).unwrap()), (Vec::new(), Vec::new()));
        assert_eq!(frame(0x79).unwrap_err().kind(), io::ErrorKind::Unsupported);
        assert_eq!(frame(0x88).unwrap_err().kind(), io::ErrorKind::Unsupported);
    }
}
