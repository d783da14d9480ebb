//! A byte stream inside WebSocket messages (`SPDY/3.1+portforward.k8s.io`, KEP-4006): each message is
//! a piece of it. Owns the copying. Used by `streaming::forward`.

#![expect(clippy::disallowed_methods, reason = "the tunnel ends with the socket")]

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};

use super::{MessageReader, Opcode, encode};

const BUFFER: usize = 64 << 10;

/// The stream inside `socket`, at the server's end.
pub fn start(socket: impl AsyncRead + AsyncWrite + Send + 'static) -> DuplexStream {
    let (inside, ours) = tokio::io::duplex(BUFFER);
    tokio::spawn(async move {
        let (reader, writer) = tokio::io::split(socket);
        let (from_inside, to_inside) = tokio::io::split(ours);
        let (closes, closed) = tokio::sync::mpsc::channel(4);
        tokio::join!(
            read(MessageReader::new(reader, true), to_inside, closes),
            write(writer, from_inside, closed)
        );
    });
    inside
}

async fn read(
    mut reader: MessageReader<impl AsyncRead + Unpin>,
    mut to_inside: impl AsyncWrite + Unpin,
    controls: tokio::sync::mpsc::Sender<Vec<u8>>,
) {
    while let Ok(Some((opcode, payload))) = reader.next().await {
        match opcode {
            Opcode::Binary => {
                if to_inside.write_all(&payload).await.is_err() {
                    break;
                }
            }
            // A client that pings without reading loses pongs, not the server's memory.
            Opcode::Ping => drop(controls.try_send(encode(Opcode::Pong, &payload, None))),
            Opcode::Close => break,
            Opcode::Text | Opcode::Pong | Opcode::Continuation => {}
        }
    }
    // The other half may be gone already.
    let _ = to_inside.shutdown().await;
}

async fn write(
    mut writer: impl AsyncWrite + Unpin,
    mut from_inside: impl AsyncRead + Unpin,
    mut controls: tokio::sync::mpsc::Receiver<Vec<u8>>,
) {
    let mut buffer = BytesMut::with_capacity(BUFFER);
    loop {
        let bytes = tokio::select! {
            // Cancel-safe: read_buf appends what it has read, or nothing.
            read = from_inside.read_buf(&mut buffer) => match read {
                Ok(1..) => encode(Opcode::Binary, &buffer.split(), None),
                _ => break,
            },
            // Cancel-safe per the documentation of recv.
            Some(control) = controls.recv() => control,
        };
        if writer.write_all(&bytes).await.is_err() || writer.flush().await.is_err() {
            return;
        }
    }
    // The client may be gone already.
    let _ = writer.write_all(&encode(Opcode::Close, &1000u16.to_be_bytes(), None)).await;
    let _ = writer.shutdown().await;
}
