//! Kubernetes' channels in WebSocket messages: the first byte names the channel, base64 protocols say
//! it as a digit in text. Owns the socket and its two directions. Used by `streaming::command` for
//! remote commands and by `streaming::forward` for ports.

#![expect(clippy::disallowed_methods, reason = "the driver ends with the socket")]

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

use super::{MessageReader, Opcode, encode};
use crate::streaming::hangup::HangUp;

/// The first byte of a v5 message that half-closes the channel in the second.
pub const CLOSE: u8 = 255;

/// Messages that wait, in each direction.
const QUEUE: usize = 16;

/// How long a client that was said goodbye to is still read: bytes that arrive at a closed socket would
/// take back what was sent last.
const LINGER: Duration = Duration::from_secs(5);

/// What was agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Codec {
    pub base64: bool,
    /// Version 5: a client can half-close a channel.
    pub half_close: bool,
}

/// From the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Incoming {
    Data(u8, Bytes),
    HalfClose(u8),
}

impl Codec {
    /// None for what upstream passes over, too: empty messages and bad base64.
    pub(in crate::streaming) fn decode(self, mut message: BytesMut) -> Option<Incoming> {
        let first = *message.first()?;
        if self.half_close && first == CLOSE {
            return match message[..] {
                [_, channel] => Some(Incoming::HalfClose(channel)),
                _ => None,
            };
        }
        message.advance(1);
        if self.base64 {
            let bytes = STANDARD.decode(&message).ok()?;
            return Some(Incoming::Data(first.wrapping_sub(b'0'), bytes.into()));
        }
        Some(Incoming::Data(first, message.freeze()))
    }

    pub(in crate::streaming) fn encode(self, channel: u8, bytes: &[u8]) -> Vec<u8> {
        if self.base64 {
            let text = format!("{}{}", char::from(b'0'.wrapping_add(channel)), STANDARD.encode(bytes));
            return encode(Opcode::Text, text.as_bytes(), None);
        }
        encode(Opcode::Binary, &[&[channel], bytes].concat(), None)
    }
}

/// The server's ends of all channels. The receiver ends with the client; when the sender is dropped the
/// client is said goodbye to, after everything that was sent.
pub(crate) fn start(
    socket: impl AsyncRead + AsyncWrite + Send + 'static,
    codec: Codec,
    hang_up: HangUp,
) -> (mpsc::Receiver<Incoming>, mpsc::Sender<(u8, Bytes)>) {
    let (to_us, incoming) = mpsc::channel(QUEUE);
    let (outgoing, from_us) = mpsc::channel(QUEUE);
    tokio::spawn(drive(socket, codec, (to_us, from_us), hang_up));
    (incoming, outgoing)
}

async fn drive(
    socket: impl AsyncRead + AsyncWrite,
    codec: Codec,
    (to_us, from_us): (mpsc::Sender<Incoming>, mpsc::Receiver<(u8, Bytes)>),
    hang_up: HangUp,
) {
    let (reader, writer) = tokio::io::split(socket);
    let (pongs, controls) = mpsc::channel(4);
    let reading = read(MessageReader::new(reader, true), codec, to_us, pongs);
    let writing = write(writer, codec, from_us, controls);
    tokio::pin!(reading, writing);
    tokio::select! {
        // Not used after this: without its client the rest is dropped.
        () = &mut reading => {}
        // The same, seen while nobody takes what the client sent.
        () = hang_up.wait() => {}
        // Cancel-safe: `reading` is only polled.
        () = &mut writing => {
            // The client hangs up, or is hung up on.
            let _ = tokio::time::timeout(LINGER, reading).await;
        }
    }
}

async fn read(
    mut reader: MessageReader<impl AsyncRead + Unpin>,
    codec: Codec,
    to_us: mpsc::Sender<Incoming>,
    pongs: mpsc::Sender<Vec<u8>>,
) {
    loop {
        let message = match reader.next().await {
            Ok(Some(message)) => message,
            Ok(None) => return,
            Err(error) => {
                tracing::debug!("a WebSocket client is hung up on: {error}");
                return;
            }
        };
        match message {
            (Opcode::Text | Opcode::Binary, message) => {
                if let Some(incoming) = codec.decode(message) {
                    // Nobody wants it any more: read on until the client has hung up.
                    let _ = to_us.send(incoming).await;
                }
            }
            // A client that pings without reading loses pongs, not the server's memory.
            (Opcode::Ping, payload) => drop(pongs.try_send(encode(Opcode::Pong, &payload, None))),
            (Opcode::Close, _) => return,
            (Opcode::Pong | Opcode::Continuation, _) => {}
        }
    }
}

async fn write(
    mut writer: impl AsyncWrite + Unpin,
    codec: Codec,
    mut from_us: mpsc::Receiver<(u8, Bytes)>,
    mut controls: mpsc::Receiver<Vec<u8>>,
) {
    loop {
        let bytes = tokio::select! {
            // Cancel-safe per the documentation of recv, both.
            message = from_us.recv() => match message {
                Some((channel, bytes)) => codec.encode(channel, &bytes),
                None => break,
            },
            Some(control) = controls.recv() => control,
        };
        if writer.write_all(&bytes).await.is_err() || writer.flush().await.is_err() {
            return;
        }
    }
    // Status 1000: all went well (RFC 6455 §7.4.1). The client may be gone already.
    let _ = writer.write_all(&encode(Opcode::Close, &1000u16.to_be_bytes(), None)).await;
    let _ = writer.flush().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    const BINARY: Codec = Codec { base64: false, half_close: false };
    const TEXT: Codec = Codec { base64: true, half_close: false };
    const V5: Codec = Codec { base64: false, half_close: true };

    #[test]
    fn messages_are_those_of_upstreams_documentation() {
        // k8s.io/streaming wsstream: "foo\n" on channel 0, "\n" on channel 1.
        let data = Some(Incoming::Data(0, Bytes::from_static(b"foo\n")));
        assert_eq!(BINARY.decode(BytesMut::from(&[0, 102, 111, 111, 10][..])), data);
        assert_eq!(TEXT.decode(BytesMut::from("0Zm9vCg==")), data);
        assert_eq!(TEXT.encode(1, b"\n"), encode(Opcode::Text, b"1Cg==", None));
        assert_eq!(BINARY.encode(1, b"\n"), encode(Opcode::Binary, &[1, 10], None));
    }

    #[test]
    fn only_version_5_half_closes() {
        let message = || BytesMut::from(&[CLOSE, 0][..]);
        assert_eq!(V5.decode(message()), Some(Incoming::HalfClose(0)));
        assert_eq!(BINARY.decode(message()), Some(Incoming::Data(CLOSE, Bytes::from_static(&[0]))));
        assert_eq!(V5.decode(BytesMut::from(&[CLOSE][..])), None);
        assert_eq!(BINARY.decode(BytesMut::new()), None);
        assert_eq!(TEXT.decode(BytesMut::from("0***")), None);
    }

    #[tokio::test]
    async fn a_client_gets_everything_and_then_a_goodbye() {
        let (client, server) = tokio::io::duplex(64);
        let (mut incoming, outgoing) = start(server, V5, HangUp::never());
        let (reader, mut writer) = tokio::io::split(client);
        writer.write_all(&encode(Opcode::Binary, &[0, b'h', b'i'], Some([1, 2, 3, 4]))).await.unwrap();
        writer.write_all(&encode(Opcode::Ping, b"?", Some([1, 2, 3, 4]))).await.unwrap();
        assert_eq!(incoming.recv().await, Some(Incoming::Data(0, Bytes::from_static(b"hi"))));
        tokio::spawn(async move {
            for _ in 0..100 {
                outgoing.send((1, Bytes::from_static(b"0123456789"))).await.unwrap();
            }
        });
        let (mut reader, mut bytes, mut pongs) = (MessageReader::new(reader, false), 0, 0);
        loop {
            match reader.next().await.unwrap().unwrap() {
                (Opcode::Binary, message) => bytes += message.len() - 1,
                (Opcode::Pong, _) => pongs += 1,
                (opcode, _) => {
                    assert_eq!(opcode, Opcode::Close);
                    break;
                }
            }
        }
        assert_eq!((bytes, pongs), (1000, 1));
    }
}
