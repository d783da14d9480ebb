//! What must hold for any bytes of a streaming client: the bodies of the fuzz targets `spdy` and
//! `websocket`. Owns the checks; never a socket. Called by the targets in `fuzz/`, and by the tests of
//! `crate::fuzzing` with the corpus that is kept.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};

use super::command::Sizes;
use super::hangup::HangUp;
use super::spdy::dictionary::DICTIONARY;
use super::spdy::frame::{Decoder, Encoder, Frame};
use super::ws::channels::{Codec, Incoming, start};
use super::ws::{MessageReader, Opcode, encode};

const SYN_STREAM: u8 = 1;
const SYN_REPLY: u8 = 2;
const HEADERS: u8 = 8;

/// The first byte says how: bit 0, that the rest is a list of frames to be made (kind, stream, length,
/// body), with header blocks to be packed as a client would; the other bits, how the bytes are cut.
pub fn spdy(data: &[u8]) {
    let Some((how, rest)) = data.split_first() else { return };
    let bytes = if how & 1 == 0 { rest.to_vec() } else { made(rest) };
    let whole = decode_all(&bytes, bytes.len().max(1));
    let cut = decode_all(&bytes, usize::from(how >> 1) + 1);
    assert_eq!(join_data(&whole.0), join_data(&cut.0));
    assert_eq!(whole.1, cut.1);
    let Ok(mut encoder) = Encoder::new() else { unreachable!("no encoder") };
    let mut decoder = Decoder::new();
    for frame in &whole.0 {
        fits(frame);
        let mut again = match encoder.encode(frame) {
            Ok(bytes) => BytesMut::from(&bytes[..]),
            Err(error) => unreachable!("{frame:?} can't be sent: {error}"),
        };
        // Packed by another hand a block may be longer than what is taken.
        if again.len() < 60 << 10 {
            assert_eq!(decoder.take(&mut again).as_ref(), Ok(&Some(frame.clone())));
            assert!(again.is_empty());
        }
    }
}

fn fits(frame: &Frame) {
    match frame {
        Frame::SynStream { stream, .. }
        | Frame::SynReply { stream, .. }
        | Frame::Reset { stream, .. }
        | Frame::Data { stream, .. } => assert!((1..1 << 31).contains(stream)),
        Frame::GoAway { last, .. } => assert!(*last < 1 << 31),
        Frame::Ping(_) => {}
    }
}

/// Frames until the bytes or their sense end.
fn decode_all(bytes: &[u8], step: usize) -> (Vec<Frame>, Option<String>) {
    let (mut decoder, mut buffer, mut frames) = (Decoder::new(), BytesMut::new(), Vec::new());
    for piece in bytes.chunks(step) {
        buffer.extend_from_slice(piece);
        loop {
            match decoder.take(&mut buffer) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return (frames, Some(error.to_string())),
            }
        }
    }
    (frames, None)
}

/// Parts of one data frame put together.
fn join_data(frames: &[Frame]) -> Vec<Frame> {
    let mut all: Vec<Frame> = Vec::new();
    for frame in frames {
        match (all.last_mut(), frame) {
            (
                Some(Frame::Data { stream, fin, bytes }),
                Frame::Data { stream: next, fin: last, bytes: more },
            ) if stream == next && !*fin => {
                *bytes = Bytes::from([&bytes[..], more].concat());
                *fin = *last;
            }
            _ => all.push(frame.clone()),
        }
    }
    all
}

/// Frames of an input: by chance no header block would ever inflate.
fn made(mut rest: &[u8]) -> Vec<u8> {
    let (mut bytes, mut packer) = (Vec::new(), Packer::new());
    while let Some(([kind, stream, low, high], after)) = rest.split_first_chunk::<4>() {
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(after.len());
        let (body, after) = after.split_at(length);
        rest = after;
        if *kind == 0 {
            let [_, high, middle, low] = u32::try_from(length).unwrap_or(0).to_be_bytes();
            bytes.extend([0, 0, 0, *stream, *stream >> 7, high, middle, low]);
            bytes.extend(body);
            continue;
        }
        let head: &[u8] = match *kind {
            SYN_STREAM => &[0, 0, 0, *stream, 0, 0, 0, 0, 0, 0],
            SYN_REPLY | HEADERS => &[0, 0, 0, *stream],
            _ => &[],
        };
        let body = if head.is_empty() { body.to_vec() } else { packer.block(body) };
        let [_, high, middle, low] = u32::try_from(head.len() + body.len()).unwrap_or(0).to_be_bytes();
        bytes.extend([0x80, 3, 0, *kind, *stream & 1, high, middle, low]);
        bytes.extend(head);
        bytes.extend(body);
    }
    bytes
}

/// Header blocks of any bytes, in one stream of compression.
struct Packer(flate2::Compress);

impl Packer {
    fn new() -> Self {
        let mut stream = flate2::Compress::new(flate2::Compression::fast(), true);
        let set = stream.set_dictionary(DICTIONARY);
        assert!(set.is_ok(), "{set:?}");
        Self(stream)
    }

    fn block(&mut self, plain: &[u8]) -> Vec<u8> {
        // Stored blocks, at worst, and what a flush adds.
        let mut packed = Vec::with_capacity(plain.len() + 1024);
        let done = self.0.compress_vec(plain, &mut packed, flate2::FlushCompress::Sync);
        assert!(done.is_ok(), "{done:?}");
        packed
    }
}

/// The first byte says how: bit 0, whether the sender masks; bits 1 and 2, base64 and half-close; the
/// others, how the bytes are cut.
pub fn websocket(data: &[u8]) {
    let Some((how, rest)) = data.split_first() else { return };
    let masked = how & 1 == 0;
    let whole = messages(rest, rest.len().max(1), masked);
    assert_eq!(whole, messages(rest, usize::from(how >> 3) + 1, masked));
    let codec = Codec { base64: how & 2 != 0, half_close: how & 4 != 0 };
    if masked {
        session(rest, codec, &whole.0);
    }
    for (opcode, payload) in whole.0 {
        let mask = masked.then_some([1, 2, 3, *how]);
        let again = messages(&encode(opcode, &payload, mask), 1 << 20, masked);
        assert_eq!(again, (vec![(opcode, payload.clone())], None));
        resizes(&payload);
        channel(codec, payload);
    }
}

/// A client that sends all of it at once and hangs up: what arrives is what its messages say, and what it
/// is told is WebSocket.
fn session(bytes: &[u8], codec: Codec, sent: &[(Opcode, BytesMut)]) {
    let until_close = sent.iter().take_while(|(opcode, _)| *opcode != Opcode::Close);
    let data = until_close.filter(|(opcode, _)| matches!(opcode, Opcode::Text | Opcode::Binary));
    let meant: Vec<Incoming> = data.filter_map(|(_, payload)| codec.decode(payload.clone())).collect();
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_time().build() else {
        unreachable!("no runtime")
    };
    runtime.block_on(async {
        let (mut client, server) = tokio::io::duplex(1 << 20);
        let (mut incoming, outgoing) = start(server, codec, HangUp::never());
        let told = outgoing.send((1, Bytes::from_static(b"output"))).await;
        let written = client.write_all(bytes).await;
        assert!(told.is_ok() && written.is_ok() && client.shutdown().await.is_ok());
        let mut came = Vec::new();
        while let Some(message) = incoming.recv().await {
            came.push(message);
        }
        assert_eq!(came, meant);
        drop(outgoing);
        let mut answer = Vec::new();
        let read = client.read_to_end(&mut answer).await;
        assert!(read.is_ok());
        let (_, error) = messages(&answer, answer.len().max(1), false);
        assert_eq!(error, None);
    });
}

/// What a channel carries comes back from the other end as it was.
fn channel(codec: Codec, payload: BytesMut) {
    let length = payload.len();
    match codec.decode(payload) {
        // A digit names the channel in base64, and nobody has more than ten.
        Some(Incoming::Data(channel, bytes)) if channel < 10 => {
            assert!(bytes.len() < length);
            let sent = messages(&codec.encode(channel, &bytes), 1 << 20, false);
            let Some((_, payload)) = sent.0.into_iter().next() else { unreachable!("no message") };
            assert_eq!(codec.decode(payload), Some(Incoming::Data(channel, bytes)));
        }
        Some(Incoming::HalfClose(_)) => assert!(codec.half_close && length == 2),
        Some(Incoming::Data(..)) | None => {}
    }
}

/// Sizes of a terminal are the same however their text is cut, up to the length that is kept.
fn resizes(text: &[u8]) {
    let whole = Sizes::default().feed(text);
    let mut cut = Sizes::default();
    let pieces: Vec<_> = text.chunks(3).flat_map(|piece| cut.feed(piece)).collect();
    assert!(text.len() > 4096 || whole == pieces, "{whole:?} is not {pieces:?}");
}

type Messages = (Vec<(Opcode, BytesMut)>, Option<String>);

/// Messages until the bytes or their sense end.
fn messages(bytes: &[u8], step: usize, masked: bool) -> Messages {
    let mut reader = MessageReader::new(ByteChunks { bytes, step }, masked);
    let mut all = Vec::new();
    loop {
        // Bytes are always there, so that nothing is ever waited for.
        match reader.next().now_or_never() {
            Some(Ok(Some(message))) => all.push(message),
            Some(Ok(None)) => return (all, None),
            Some(Err(error)) => return (all, Some(error.to_string())),
            None => unreachable!("a reader that waits for nothing"),
        }
    }
}

/// A socket on which bytes come in pieces.
struct ByteChunks<'a> {
    bytes: &'a [u8],
    step: usize,
}

impl AsyncRead for ByteChunks<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (now, later) = self.bytes.split_at(self.step.min(self.bytes.len()).min(to.remaining()));
        to.put_slice(now);
        self.bytes = later;
        Poll::Ready(Ok(()))
    }
}
