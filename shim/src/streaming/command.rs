//! Remote commands on their two transports: SPDY streams named by a header, WebSocket channels by
//! number. Owns the mapping to a `Session`. Called by `streaming::http` after the upgrade.

#![expect(clippy::disallowed_methods, reason = "the directions of a stream end with it")]

use std::io::{self, ErrorKind};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

use super::hangup::HangUp;
use super::session::{Out, Session, StdStream, Streams};
use super::spdy;
use super::spdy::connection::Role;
use super::status::Style;
use super::ws::channels::{self, Codec, Incoming};
use crate::exec::terminal::Size;

/// How long a SPDY client may take to open its streams, as upstream's default.
const STREAM_CREATION: Duration = Duration::from_secs(30);

/// Window sizes that wait to be applied.
const SIZES: usize = 8;
/// Output that waits for the transport.
const OUT: usize = 4;

/// Bytes of a size in JSON, and then some.
const MAX_SIZE_TEXT: usize = 4096;

/// The remote command protocol over SPDY, newest first.
pub(crate) const SPDY_PROTOCOLS: [&str; 4] =
    ["v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"];

/// The remote command protocols over WebSocket.
pub(crate) const WS_PROTOCOLS: [&str; 6] = [
    "v5.channel.k8s.io",
    "v4.channel.k8s.io",
    "v4.base64.channel.k8s.io",
    "channel.k8s.io",
    "base64.channel.k8s.io",
    "",
];

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;

/// Sizes out of a stream of JSON, which may be cut anywhere.
#[derive(Debug, Default)]
pub(super) struct Sizes(BytesMut);

impl Sizes {
    /// The sizes that are whole now.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Vec<Size> {
        if self.0.len() + bytes.len() > MAX_SIZE_TEXT {
            self.0.clear();
            return Vec::new();
        }
        self.0.extend_from_slice(bytes);
        let mut parser = serde_json::Deserializer::from_slice(&self.0).into_iter::<Size>();
        let sizes: Vec<Size> = parser.by_ref().map_while(Result::ok).collect();
        let read = parser.byte_offset();
        drop(self.0.split_to(read.min(self.0.len())));
        sizes
    }
}

/// A session over WebSocket.
pub(crate) async fn over_websocket(
    socket: impl AsyncRead + AsyncWrite + Send + 'static,
    protocol: &str,
    streams: Streams,
    hang_up: HangUp,
) -> Session {
    let codec = Codec { base64: protocol.contains("base64"), half_close: protocol.starts_with("v5.") };
    let style = if protocol.starts_with('v') { Style::Json } else { Style::Text };
    let (incoming, outgoing) = channels::start(socket, codec, hang_up);
    // As upstream: an empty message on the lowest channel that is written says that all is set up.
    let lowest = if streams.stdout {
        STDOUT
    } else if streams.stderr {
        STDERR
    } else {
        ERROR
    };
    // A client that is gone is seen at the next send.
    let _ = outgoing.send((lowest, Bytes::new())).await;
    let (to_stdin, stdin) = mpsc::channel(1);
    let (to_resize, resize) = mpsc::channel(SIZES);
    let (out, from_command) = mpsc::channel(OUT);
    tokio::spawn(route(incoming, streams.stdin.then_some(to_stdin), to_resize));
    tokio::spawn(to_websocket(from_command, outgoing));
    Session { stdin, resize, out, style }
}

async fn route(
    mut incoming: mpsc::Receiver<Incoming>,
    mut stdin: Option<mpsc::Sender<Bytes>>,
    resize: mpsc::Sender<Size>,
) {
    let mut sizes = Sizes::default();
    while let Some(message) = incoming.recv().await {
        match message {
            Incoming::Data(STDIN, bytes) => {
                if let Some(sender) = stdin.as_ref().filter(|_| !bytes.is_empty()) {
                    // Nobody reads it any more: pass over it, the client may still resize or hang up.
                    let _ = sender.send(bytes).await;
                }
            }
            Incoming::HalfClose(STDIN) => stdin = None,
            Incoming::Data(RESIZE, bytes) => {
                for size in sizes.feed(&bytes) {
                    let _ = resize.send(size).await;
                }
            }
            Incoming::Data(..) | Incoming::HalfClose(_) => {}
        }
    }
}

async fn to_websocket(mut from_command: mpsc::Receiver<Out>, outgoing: mpsc::Sender<(u8, Bytes)>) {
    loop {
        let out = tokio::select! {
            // Cancel-safe per the documentation of recv.
            out = from_command.recv() => out,
            // Cancel-safe: only a wait. The client is gone.
            () = outgoing.closed() => return,
        };
        let (channel, bytes) = match out {
            Some(Out::Data(StdStream::Stdout, bytes)) => (STDOUT, bytes),
            Some(Out::Data(StdStream::Stderr, bytes)) => (STDERR, bytes),
            Some(Out::Data(StdStream::Error, bytes)) => (ERROR, bytes),
            // A server closes no single channel.
            Some(Out::End(_)) => continue,
            None => return,
        };
        if outgoing.send((channel, bytes)).await.is_err() {
            return;
        }
    }
}

/// The streams a SPDY client has opened.
#[derive(Default)]
struct SpdyStreams {
    stdin: Option<spdy::SpdyStream>,
    stdout: Option<spdy::SpdyStream>,
    stderr: Option<spdy::SpdyStream>,
    error: Option<spdy::SpdyStream>,
    resize: Option<spdy::SpdyStream>,
}

impl SpdyStreams {
    fn count(&self) -> usize {
        [&self.stdin, &self.stdout, &self.stderr, &self.error, &self.resize].into_iter().flatten().count()
    }

    /// Whether the stream is one that is wanted and not there yet.
    fn add(&mut self, stream: spdy::SpdyStream) -> Result<(), spdy::SpdyStream> {
        let slot = match stream.headers.get("streamtype") {
            Some("stdin") => &mut self.stdin,
            Some("stdout") => &mut self.stdout,
            Some("stderr") => &mut self.stderr,
            Some("error") => &mut self.error,
            Some("resize") => &mut self.resize,
            _ => return Err(stream),
        };
        if slot.is_some() {
            return Err(stream);
        }
        *slot = Some(stream);
        Ok(())
    }
}

/// A session over SPDY.
///
/// # Errors
/// When the client does not open its streams in time.
pub(crate) async fn over_spdy(
    socket: impl AsyncRead + AsyncWrite + Send + 'static,
    protocol: &str,
    streams: Streams,
    hang_up: HangUp,
) -> io::Result<Session> {
    let mut connection = spdy::Connection::with_activity(socket, Role::Server, hang_up.wait())?;
    let resizes = protocol.starts_with("v4.") || protocol.starts_with("v3.");
    let expected = 1 + [streams.stdin, streams.stdout, streams.stderr, streams.tty && resizes]
        .into_iter()
        .filter(|wanted| *wanted)
        .count();
    let collecting = collect(&mut connection, expected);
    let late = || io::Error::new(ErrorKind::TimedOut, "timed out waiting for client to create streams");
    let mut opened = tokio::time::timeout(STREAM_CREATION, collecting).await.map_err(|_| late())??;
    let style = if protocol.starts_with("v4.") { Style::Json } else { Style::Text };
    let (to_resize, resize) = mpsc::channel(SIZES);
    if let Some(stream) = opened.resize.take() {
        tokio::spawn(resize_from(stream, to_resize));
    }
    let stdin = match &mut opened.stdin {
        Some(stream) => std::mem::replace(&mut stream.incoming, mpsc::channel(1).1),
        None => mpsc::channel(1).1,
    };
    let (out, from_command) = mpsc::channel(OUT);
    tokio::spawn(to_spdy(from_command, connection, opened));
    Ok(Session { stdin, resize, out, style })
}

async fn collect(connection: &mut spdy::Connection, expected: usize) -> io::Result<SpdyStreams> {
    let mut opened = SpdyStreams::default();
    while opened.count() < expected {
        let Some(stream) = connection.next().await else { return Err(ErrorKind::UnexpectedEof.into()) };
        stream.accept().await?;
        if let Err(stream) = opened.add(stream) {
            tracing::debug!("unexpected stream type {:?}", stream.headers.get("streamtype"));
        }
    }
    Ok(opened)
}

async fn resize_from(mut stream: spdy::SpdyStream, resize: mpsc::Sender<Size>) {
    let mut sizes = Sizes::default();
    while let Some(bytes) = stream.incoming.recv().await {
        for size in sizes.feed(&bytes) {
            if resize.send(size).await.is_err() {
                return;
            }
        }
    }
}

async fn to_spdy(mut from_command: mpsc::Receiver<Out>, connection: spdy::Connection, opened: SpdyStreams) {
    let handle = connection.handle();
    // Whatever else the client opens is turned down.
    drop(connection);
    loop {
        let out = tokio::select! {
            // Cancel-safe per the documentation of recv.
            out = from_command.recv() => out,
            // Cancel-safe: only a wait. The client is gone.
            () = handle.closed() => return,
        };
        let (stream, bytes) = match out {
            Some(Out::Data(stream, bytes)) => (stream, Some(bytes)),
            Some(Out::End(stream)) => (stream, None),
            None => break,
        };
        let stream = match stream {
            StdStream::Stdout => &opened.stdout,
            StdStream::Stderr => &opened.stderr,
            StdStream::Error => &opened.error,
        };
        let Some(stream) = stream else { continue };
        let sent = match bytes {
            Some(bytes) => stream.writer.write(bytes).await,
            None => stream.writer.finish().await,
        };
        // One stream that was reset is not the end of the others.
        if let Err(error) = sent {
            tracing::trace!("a stream takes no more: {error}");
        }
    }
    handle.close().await;
    handle.closed().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_however_the_text_is_cut() {
        let text = b"{\"Width\":80,\"Height\":24}\n{\"Width\":100,\"Height\":40}\n";
        let mut sizes = Sizes::default();
        let got: Vec<Size> = text.iter().flat_map(|byte| sizes.feed(&[*byte])).collect();
        assert_eq!(got, [Size { width: 80, height: 24 }, Size { width: 100, height: 40 }]);
        assert_eq!(Sizes::default().feed(text), got);
    }

    #[test]
    fn text_that_is_no_size_takes_no_memory() {
        let mut sizes = Sizes::default();
        for _ in 0..1000 {
            assert!(sizes.feed(&[b' '; 100]).is_empty());
            assert!(sizes.feed(b"{\"Width\":").is_empty());
        }
        assert!(sizes.0.len() <= MAX_SIZE_TEXT);
    }

    #[tokio::test(start_paused = true)]
    async fn a_spdy_client_that_opens_no_streams_is_given_up_after_half_a_minute() {
        let (ours, _theirs) = tokio::io::duplex(4096);
        let streams = Streams { stdin: false, stdout: true, stderr: true, tty: false };
        let begun = tokio::time::Instant::now();
        let session = over_spdy(ours, "v4.channel.k8s.io", streams, HangUp::never()).await;
        assert_eq!(session.unwrap_err().kind(), ErrorKind::TimedOut);
        assert_eq!(begun.elapsed().as_secs(), 30);
    }
}
