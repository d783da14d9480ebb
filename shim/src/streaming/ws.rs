//! WebSocket framing (RFC 6455), either end: messages in, frames out, pings answered by whoever asks.
//! Owns no socket's life. Used by the streaming server and by `gantry exec`.

pub mod channels;
pub mod tunnel;

use std::io::{self, ErrorKind};

use base64::Engine;
use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Longest message that is taken; clients send 32 KiB at most.
const MAX_MESSAGE: usize = 4 << 20;

/// RFC 6455 §1.3.
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The answer to a Sec-WebSocket-Key.
#[must_use]
pub fn accept_key(key: &str) -> String {
    let digest = aws_lc_rs::digest::digest(
        &aws_lc_rs::digest::SHA1_FOR_LEGACY_USE_ONLY,
        format!("{key}{GUID}").as_bytes(),
    );
    base64::engine::general_purpose::STANDARD.encode(digest)
}

/// A client's Sec-WebSocket-Key.
///
/// # Errors
/// When the kernel gives no randomness.
pub fn new_key() -> io::Result<String> {
    let mut bytes = [0u8; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(base64::engine::general_purpose::STANDARD.encode(bytes))
}

/// Frame types (RFC 6455 §5.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opcode {
    Continuation,
    Text,
    Binary,
    Close,
    Ping,
    Pong,
}

impl Opcode {
    fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Continuation,
            1 => Self::Text,
            2 => Self::Binary,
            8 => Self::Close,
            9 => Self::Ping,
            10 => Self::Pong,
            _ => return None,
        })
    }

    fn number(self) -> u8 {
        match self {
            Self::Continuation => 0,
            Self::Text => 1,
            Self::Binary => 2,
            Self::Close => 8,
            Self::Ping => 9,
            Self::Pong => 10,
        }
    }

    fn is_control(self) -> bool {
        matches!(self, Self::Close | Self::Ping | Self::Pong)
    }
}

/// The other side does not speak WebSocket, or not within our limits.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    #[error("reserved bits are set: no extension was agreed on")]
    Reserved,
    #[error("frame of unknown type {0}")]
    Unknown(u8),
    #[error("control frame is long or in parts")]
    Control,
    #[error("message of {0} bytes is over the limit of {MAX_MESSAGE}")]
    TooLong(u64),
    #[error("a client masks what it sends, a server does not")]
    Mask,
    #[error("a continuation without a beginning, or the reverse")]
    Order,
}

/// One frame, unmasked.
#[derive(Debug, PartialEq, Eq)]
struct Frame {
    last: bool,
    opcode: Opcode,
    payload: BytesMut,
}

/// Takes the first whole frame out of `buffer`; None when more bytes are needed. `masked` says what the
/// sender has to do.
fn take(buffer: &mut BytesMut, masked: bool) -> Result<Option<Frame>, Error> {
    let [Some(first), Some(second)] = [buffer.first().copied(), buffer.get(1).copied()] else {
        return Ok(None);
    };
    if first & 0x70 != 0 {
        return Err(Error::Reserved);
    }
    let last = first & 0x80 != 0;
    let opcode = Opcode::from_number(first & 0x0f).ok_or(Error::Unknown(first & 0x0f))?;
    if (second & 0x80 != 0) != masked {
        return Err(Error::Mask);
    }
    let short = second & 0x7f;
    if opcode.is_control() && (short > 125 || !last) {
        return Err(Error::Control);
    }
    let bytes = |at: usize, count: usize| -> Option<u64> {
        let bytes = buffer.get(at..at + count)?;
        Some(bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    };
    let (length, mut head) = match short {
        126 => (bytes(2, 2), 4),
        127 => (bytes(2, 8), 10),
        length => (Some(u64::from(length)), 2),
    };
    let Some(length) = length else { return Ok(None) };
    let size =
        usize::try_from(length).ok().filter(|size| *size <= MAX_MESSAGE).ok_or(Error::TooLong(length))?;
    let mask = if masked {
        let Some(mask) = buffer.get(head..).and_then(|rest| rest.first_chunk::<4>()).copied() else {
            return Ok(None);
        };
        head += 4;
        mask
    } else {
        [0; 4]
    };
    if buffer.len() < head + size {
        return Ok(None);
    }
    buffer.advance(head);
    let mut payload = buffer.split_to(size);
    if masked {
        payload.iter_mut().zip(mask.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
    }
    Ok(Some(Frame { last, opcode, payload }))
}

/// The bytes of an unfragmented frame; a client passes a mask of its own for each.
#[must_use]
pub fn encode(opcode: Opcode, payload: &[u8], mask: Option<[u8; 4]>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(payload.len() + 14);
    bytes.push(0x80 | opcode.number());
    let masked = if mask.is_some() { 0x80 } else { 0 };
    match payload.len() {
        length @ 0..=125 => bytes.push(masked | u8::try_from(length).unwrap_or(0)),
        length @ 126..=0xffff => {
            bytes.push(masked | 126);
            bytes.extend(u16::try_from(length).unwrap_or(0).to_be_bytes());
        }
        length => {
            bytes.push(masked | 127);
            bytes.extend((length as u64).to_be_bytes());
        }
    }
    match mask {
        Some(mask) => {
            bytes.extend(mask);
            bytes.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        }
        None => bytes.extend_from_slice(payload),
    }
    bytes
}

/// The bytes of an unfragmented frame of a client.
///
/// # Errors
/// When the kernel gives no randomness for the mask.
pub fn encode_masked(opcode: Opcode, payload: &[u8]) -> io::Result<Vec<u8>> {
    let mut mask = [0u8; 4];
    rustix::rand::getrandom(&mut mask, rustix::rand::GetRandomFlags::empty())?;
    Ok(encode(opcode, payload, Some(mask)))
}

/// Reads whole messages.
#[derive(Debug)]
pub struct MessageReader<R> {
    io: R,
    buffer: BytesMut,
    masked: bool,
    parts: Option<(Opcode, BytesMut)>,
}

impl<R: AsyncRead + Unpin> MessageReader<R> {
    /// Of a socket after its upgrade; `masked` at the server's end.
    pub fn new(io: R, masked: bool) -> Self {
        Self { io, buffer: BytesMut::with_capacity(16 << 10), masked, parts: None }
    }

    /// The next message or control frame; None when the other side has hung up. Cancel-safe.
    ///
    /// # Errors
    /// When the socket breaks, or the other side does not speak WebSocket.
    pub async fn next(&mut self) -> io::Result<Option<(Opcode, BytesMut)>> {
        loop {
            while let Some(frame) = take(&mut self.buffer, self.masked)
                .map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?
            {
                if let Some(message) =
                    self.join(frame).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?
                {
                    return Ok(Some(message));
                }
            }
            if self.io.read_buf(&mut self.buffer).await? == 0 {
                return Ok(None);
            }
        }
    }

    fn join(&mut self, frame: Frame) -> Result<Option<(Opcode, BytesMut)>, Error> {
        if frame.opcode.is_control() {
            return Ok(Some((frame.opcode, frame.payload)));
        }
        let (opcode, payload) = match (self.parts.take(), frame.opcode) {
            (Some((opcode, mut parts)), Opcode::Continuation) => {
                let length = parts.len() + frame.payload.len();
                if length > MAX_MESSAGE {
                    return Err(Error::TooLong(length as u64));
                }
                parts.unsplit(frame.payload);
                (opcode, parts)
            }
            (None, opcode @ (Opcode::Text | Opcode::Binary)) => (opcode, frame.payload),
            _ => return Err(Error::Order),
        };
        if frame.last {
            return Ok(Some((opcode, payload)));
        }
        self.parts = Some((opcode, payload));
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_handshake_is_the_rfcs() {
        // RFC 6455 §1.3.
        assert_eq!(accept_key("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn frames_are_the_rfcs() {
        // RFC 6455 §5.7: a masked and an unmasked "Hello".
        let masked = [0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58];
        let frame = take(&mut BytesMut::from(&masked[..]), true).unwrap().unwrap();
        assert_eq!((frame.opcode, &frame.payload[..]), (Opcode::Text, &b"Hello"[..]));
        assert_eq!(encode(Opcode::Text, b"Hello", Some([0x37, 0xfa, 0x21, 0x3d])), masked);
        assert_eq!(encode(Opcode::Text, b"Hello", None), [&[0x81, 5][..], b"Hello"].concat());
    }

    #[tokio::test]
    async fn messages_arrive_whole_in_parts_and_of_every_length() {
        let mut sent = Vec::new();
        for length in [0usize, 125, 126, 65535, 65536, 100_000] {
            sent.extend(encode(Opcode::Binary, &vec![3; length], Some([1, 2, 3, 4])));
        }
        // A text in two parts with a ping between them.
        sent.extend([
            0x01, 0x82, 0, 0, 0, 0, b'a', b'b', 0x89, 0x80, 0, 0, 0, 0, 0x80, 0x81, 0, 0, 0, 0, b'c',
        ]);
        let mut reader = MessageReader::new(&sent[..], true);
        for length in [0usize, 125, 126, 65535, 65536, 100_000] {
            let (opcode, payload) = reader.next().await.unwrap().unwrap();
            assert_eq!((opcode, payload.len()), (Opcode::Binary, length));
        }
        assert_eq!(reader.next().await.unwrap().unwrap().0, Opcode::Ping);
        assert_eq!(reader.next().await.unwrap().unwrap(), (Opcode::Text, BytesMut::from("abc")));
        assert!(reader.next().await.unwrap().is_none());
    }

    #[test]
    fn what_is_not_websocket_is_refused_by_name() {
        for (bytes, error) in [
            (&[0xc1, 0x80][..], Error::Reserved),
            (&[0x83, 0x80], Error::Unknown(3)),
            (&[0x81, 0x05], Error::Mask),
            (&[0x09, 0x80], Error::Control),
            (&[0x89, 0xfe], Error::Control),
            (&[0x82, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0], Error::TooLong(0xff00_0000_0000_0000)),
        ] {
            assert_eq!(take(&mut BytesMut::from(bytes), true).unwrap_err(), error);
        }
    }

    #[tokio::test]
    async fn garbage_never_does_worse_than_an_error() {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut errors = 0;
        for _ in 0..20_000 {
            let bytes: Vec<u8> = (0..24)
                .map(|_| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    state.to_le_bytes()[0]
                })
                .collect();
            let mut reader = MessageReader::new(&bytes[..], true);
            let outcome = loop {
                match reader.next().await {
                    Ok(Some(_)) => {}
                    Ok(None) => break Ok(()),
                    Err(error) => break Err(error),
                }
            };
            errors += usize::from(outcome.is_err());
        }
        assert!(errors > 10_000, "only {errors} of 20000 were noticed");
    }
}
