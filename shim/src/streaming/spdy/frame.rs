//! SPDY/3.1 frames (draft-mbelshe-httpbis-spdy-00 §2): bytes to frames and back. Owns both directions'
//! header compression; never a socket. Used by `spdy::connection`, at either end.

use bytes::{Buf, Bytes, BytesMut};

use super::headers::{Deflater, Headers, Inflater};

/// Longest control frame that is taken: names and values of a few short headers, compressed.
const MAX_CONTROL: usize = 64 << 10;

const VERSION: u16 = 3;
const CONTROL: u8 = 0x80;
const FLAG_FIN: u8 = 1;

const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const SETTINGS: u16 = 4;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const HEADERS: u16 = 8;
const WINDOW_UPDATE: u16 = 9;

/// Status of a RST_STREAM that ends a stream nobody wants any more.
pub const CANCEL: u32 = 5;
/// Status of a RST_STREAM that turns a new stream down.
pub const REFUSED_STREAM: u32 = 3;

/// One frame, as far as anybody here cares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// A new stream.
    SynStream {
        /// Odd from a client, even from a server.
        stream: u32,
        /// The sender will send nothing on it.
        fin: bool,
        /// What it is for.
        headers: Headers,
    },
    /// The other side has taken a stream.
    SynReply {
        /// The stream.
        stream: u32,
        /// The sender will send nothing on it.
        fin: bool,
        /// Usually none.
        headers: Headers,
    },
    /// The stream is over, both ways.
    Reset {
        /// The stream.
        stream: u32,
        /// Why.
        status: u32,
    },
    /// To be sent back.
    Ping(u32),
    /// The other side takes no new streams.
    GoAway {
        /// Last stream it took.
        last: u32,
        /// 0 when all is well.
        status: u32,
    },
    /// Bytes of a stream; a frame that arrives in parts is handed on in parts.
    Data {
        /// The stream.
        stream: u32,
        /// The sender has ended it.
        fin: bool,
        /// The bytes.
        bytes: Bytes,
    },
}

/// The other side does not speak SPDY/3.1, or not within our limits.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    #[error("SPDY version {0}, not 3")]
    Version(u16),
    #[error("control frame of {0} bytes")]
    TooLong(usize),
    #[error("control frame of type {0} is cut short")]
    Short(u16),
    #[error("control frame of unknown type {0}")]
    Unknown(u16),
    #[error("stream 0")]
    StreamZero,
    #[error("header block: {0}")]
    Headers(&'static str),
}

/// Bytes in, frames out.
#[derive(Debug)]
pub struct Decoder {
    inflater: Inflater,
    /// The data frame that is arriving: stream, whether it is the last, bytes to come.
    data: Option<(u32, bool, usize)>,
}

impl Decoder {
    /// For a new connection.
    #[must_use]
    pub fn new() -> Self {
        Self { inflater: Inflater::new(), data: None }
    }

    /// The next frame in `buffer`, which loses its bytes; None when more are needed.
    ///
    /// # Errors
    /// The connection is of no use any more: the compression's state is lost.
    pub fn take(&mut self, buffer: &mut BytesMut) -> Result<Option<Frame>, Error> {
        loop {
            if let Some((stream, fin, left)) = self.data {
                if buffer.is_empty() && left > 0 {
                    return Ok(None);
                }
                let bytes = buffer.split_to(left.min(buffer.len())).freeze();
                let left = left - bytes.len();
                self.data = (left > 0).then_some((stream, fin, left));
                return Ok(Some(Frame::Data { stream, fin: fin && left == 0, bytes }));
            }
            let Some(head) = buffer.first_chunk::<8>().copied() else { return Ok(None) };
            let [first, second, kind_high, kind_low, flags, high, middle, low] = head;
            let length = u32::from_be_bytes([0, high, middle, low]) as usize;
            if first & CONTROL == 0 {
                buffer.advance(8);
                let stream = u32::from_be_bytes([first, second, kind_high, kind_low]);
                if stream == 0 {
                    return Err(Error::StreamZero);
                }
                self.data = Some((stream, flags & FLAG_FIN != 0, length));
                continue;
            }
            let version = u16::from_be_bytes([first & !CONTROL, second]);
            if version != VERSION {
                return Err(Error::Version(version));
            }
            if length > MAX_CONTROL {
                return Err(Error::TooLong(length));
            }
            if buffer.len() < 8 + length {
                return Ok(None);
            }
            buffer.advance(8);
            let body = buffer.split_to(length);
            let kind = u16::from_be_bytes([kind_high, kind_low]);
            if let Some(frame) = self.control(kind, flags & FLAG_FIN != 0, &body)? {
                return Ok(Some(frame));
            }
        }
    }

    fn control(&mut self, kind: u16, fin: bool, body: &[u8]) -> Result<Option<Frame>, Error> {
        let word = |at: usize| {
            body.get(at..at + 4)
                .and_then(|bytes| bytes.try_into().ok())
                .map(u32::from_be_bytes)
                .ok_or(Error::Short(kind))
        };
        let stream = || match word(0)? & 0x7fff_ffff {
            0 => Err(Error::StreamZero),
            stream => Ok(stream),
        };
        Ok(Some(match kind {
            SYN_STREAM => {
                let block = body.get(10..).ok_or(Error::Short(kind))?;
                Frame::SynStream { stream: stream()?, fin, headers: self.inflater.block(block)? }
            }
            SYN_REPLY => {
                let block = body.get(4..).ok_or(Error::Short(kind))?;
                Frame::SynReply { stream: stream()?, fin, headers: self.inflater.block(block)? }
            }
            HEADERS => {
                // Nobody sends any that mean something, but the compression's state must follow.
                self.inflater.block(body.get(4..).ok_or(Error::Short(kind))?)?;
                return Ok(None);
            }
            RST_STREAM => Frame::Reset { stream: stream()?, status: word(4)? },
            PING => Frame::Ping(word(0)?),
            GOAWAY => Frame::GoAway { last: word(0)? & 0x7fff_ffff, status: word(4)? },
            // The peer (moby/spdystream) has no flow control, so neither have we.
            SETTINGS | WINDOW_UPDATE => return Ok(None),
            _ => return Err(Error::Unknown(kind)),
        }))
    }
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

/// Frames in, bytes out.
#[derive(Debug)]
pub struct Encoder {
    deflater: Deflater,
}

impl Encoder {
    /// For a new connection.
    ///
    /// # Errors
    /// When the compression can't be set up.
    pub fn new() -> Result<Self, Error> {
        Ok(Self { deflater: Deflater::new()? })
    }

    /// The frame's bytes. Data longer than a frame may be (16 MiB) is the caller's to split.
    ///
    /// # Errors
    /// When the headers don't compress.
    pub fn encode(&mut self, frame: &Frame) -> Result<Vec<u8>, Error> {
        let word = |value: u32| value.to_be_bytes();
        Ok(match frame {
            Frame::SynStream { stream, fin, headers } => {
                let block = self.deflater.block(headers)?;
                // Associated stream 0, priority 0, slot 0.
                control(SYN_STREAM, *fin, &[&word(*stream)[..], &[0; 6], &block].concat())
            }
            Frame::SynReply { stream, fin, headers } => {
                let block = self.deflater.block(headers)?;
                control(SYN_REPLY, *fin, &[&word(*stream)[..], &block].concat())
            }
            Frame::Reset { stream, status } => {
                control(RST_STREAM, false, &[word(*stream), word(*status)].concat())
            }
            Frame::Ping(id) => control(PING, false, &word(*id)),
            Frame::GoAway { last, status } => control(GOAWAY, false, &[word(*last), word(*status)].concat()),
            Frame::Data { stream, fin, bytes } => {
                let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX) & 0x00ff_ffff;
                let head = word(length | (u32::from(*fin) << 24));
                [&word(*stream & 0x7fff_ffff)[..], &head, bytes].concat()
            }
        })
    }
}

fn control(kind: u16, fin: bool, body: &[u8]) -> Vec<u8> {
    let [version_high, version_low] = VERSION.to_be_bytes();
    let [kind_high, kind_low] = kind.to_be_bytes();
    let [_, high, middle, low] = u32::try_from(body.len()).unwrap_or(u32::MAX).to_be_bytes();
    let head = [version_high | CONTROL, version_low, kind_high, kind_low, u8::from(fin), high, middle, low];
    [&head[..], body].concat()
}

#[cfg(test)]
mod tests;
