//! One SPDY connection: a task that reads, a task that writes, and streams in between. Owns the socket
//! and every stream's queue. Used at either end.

#![expect(clippy::disallowed_methods, reason = "reader and writer end with the connection")]

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, watch};

use super::frame::{CANCEL, Decoder, Encoder, Frame, REFUSED_STREAM};
use super::headers::Headers;
use super::receive_budget::{self, ReceiveBudget};

/// Pieces of data that wait for a stream's reader.
const QUEUE: usize = 16;
/// Frames that wait for the socket.
const OUTGOING: usize = 16;
/// Streams that wait to be looked at.
const NEW_STREAMS: usize = 64;
/// Streams of one connection that are open at once.
const MAX_STREAMS: usize = 2000;
/// Bytes of one data frame.
const MAX_DATA: usize = 32 << 10;
/// How long a connection that was closed here is still read: bytes that arrive at a closed socket would
/// take back what was sent last.
const LINGER: Duration = Duration::from_secs(5);

/// Which end this is: streams have odd numbers when the client opens them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Opens streams.
    Client,
    /// Takes streams.
    Server,
}

/// Says when a connection or a stream is over.
type Over = watch::Receiver<bool>;

async fn wait_over(mut watch: Over) {
    // The sender's end says the same.
    let _ = watch.wait_for(|over| *over).await;
}

/// A connection; streams that the other side opens come out of it.
#[derive(Debug)]
pub struct Connection {
    streams: mpsc::Receiver<SpdyStream>,
    handle: Handle,
}

/// The way to a connection's socket; clones share it.
#[derive(Debug, Clone)]
pub struct Handle {
    outgoing: mpsc::Sender<Frame>,
    opening: mpsc::Sender<Opening>,
    over: Over,
}

/// One stream. Dropping it ends nothing: say how it ends.
#[derive(Debug)]
pub struct SpdyStream {
    /// Its number.
    pub id: u32,
    /// What it was opened with.
    pub headers: Headers,
    /// What the other side sends; ends at its half-close.
    pub incoming: mpsc::Receiver<Bytes>,
    /// The way back.
    pub writer: StreamWriter,
}

/// The sending half of a stream.
#[derive(Debug, Clone)]
pub struct StreamWriter {
    id: u32,
    outgoing: mpsc::Sender<Frame>,
    over: Over,
}

/// A stream that this side opens.
#[derive(Debug)]
struct Opening {
    headers: Headers,
    answer: tokio::sync::oneshot::Sender<SpdyStream>,
}

/// The reader's end of a stream.
struct OpenStream {
    data: mpsc::Sender<Bytes>,
    over: watch::Sender<bool>,
}

fn connection_closed() -> io::Error {
    ErrorKind::ConnectionReset.into()
}

impl Connection {
    /// Takes over a socket after its upgrade.
    ///
    /// # Errors
    /// When the compression can't be set up.
    pub fn new(socket: impl AsyncRead + AsyncWrite + Send + 'static, role: Role) -> io::Result<Self> {
        Self::with_activity(socket, role, std::future::pending())
    }

    /// As `new`; `hung_up` says that the other side has left when nothing is read from the socket, because
    /// nobody takes what it sent.
    ///
    /// # Errors
    /// As `new`.
    pub fn with_activity(
        socket: impl AsyncRead + AsyncWrite + Send + 'static,
        role: Role,
        hung_up: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<Self> {
        let encoder = Encoder::new().map_err(io::Error::other)?;
        let (reader, writer) = tokio::io::split(socket);
        let (outgoing, frames) = mpsc::channel(OUTGOING);
        let (opening, openings) = mpsc::channel(1);
        let (new_streams, streams) = mpsc::channel(NEW_STREAMS);
        let (end, over) = watch::channel(false);
        let handle = Handle { outgoing: outgoing.clone(), opening, over };
        let reading = StreamReader {
            role,
            outgoing,
            new_streams,
            open: BTreeMap::new(),
            receive_budget: ReceiveBudget::new(receive_budget::MOST),
            next: if role == Role::Client { 1 } else { 2 },
            last: 0,
        };
        tokio::spawn(async move {
            tokio::select! {
                // Not used after this, either of them.
                () = reading.run(reader, openings) => {}
                () = hung_up => {}
            }
            // Whoever still writes or waits hears it.
            let _ = end.send(true);
        });
        tokio::spawn(write(writer, frames, encoder));
        Ok(Self { streams, handle })
    }

    /// The next stream that the other side opens; None when the connection is over. Cancel-safe.
    pub async fn next(&mut self) -> Option<SpdyStream> {
        self.streams.recv().await
    }

    /// The way to the socket.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }
}

impl Handle {
    /// Opens a stream.
    ///
    /// # Errors
    /// When the connection is over.
    pub async fn open(&self, headers: Headers) -> io::Result<SpdyStream> {
        let (answer, answered) = tokio::sync::oneshot::channel();
        self.opening.send(Opening { headers, answer }).await.map_err(|_| connection_closed())?;
        answered.await.map_err(|_| connection_closed())
    }

    /// Says goodbye after everything sent so far, and hangs up.
    pub async fn close(&self) {
        // One that is over needs no goodbye.
        let _ = self.outgoing.send(Frame::GoAway { last: 0, status: 0 }).await;
    }

    /// Waits for the end of the connection.
    pub async fn closed(&self) {
        wait_over(self.over.clone()).await;
    }
}

impl SpdyStream {
    /// Tells the other side that its stream is taken.
    ///
    /// # Errors
    /// When the connection is over.
    pub async fn accept(&self) -> io::Result<()> {
        let reply = Frame::SynReply { stream: self.id, fin: false, headers: Headers::default() };
        self.writer.send(reply).await
    }

    /// Turns the stream down.
    pub async fn refuse(&self) {
        let refusal = Frame::Reset { stream: self.id, status: REFUSED_STREAM };
        // One that is over is as good.
        let _ = self.writer.send(refusal).await;
    }
}

impl StreamWriter {
    async fn send(&self, frame: Frame) -> io::Result<()> {
        self.outgoing.send(frame).await.map_err(|_| connection_closed())
    }

    /// Sends bytes; waits while the socket is full.
    ///
    /// # Errors
    /// When the stream or the connection is over.
    pub async fn write(&self, mut bytes: Bytes) -> io::Result<()> {
        while !bytes.is_empty() {
            if *self.over.borrow() {
                return Err(connection_closed());
            }
            let piece = bytes.split_to(bytes.len().min(MAX_DATA));
            self.send(Frame::Data { stream: self.id, fin: false, bytes: piece }).await?;
        }
        Ok(())
    }

    /// Ends this side of the stream.
    ///
    /// # Errors
    /// When the connection is over.
    pub async fn finish(&self) -> io::Result<()> {
        self.send(Frame::Data { stream: self.id, fin: true, bytes: Bytes::new() }).await
    }

    /// Ends both sides of the stream at once.
    pub async fn reset(&self) {
        // One that is over is as good.
        let _ = self.send(Frame::Reset { stream: self.id, status: CANCEL }).await;
    }

    /// Waits until the other side has reset the stream, or the connection is over.
    pub async fn wait_closed(&self) {
        wait_over(self.over.clone()).await;
    }
}

/// What the reading task holds.
struct StreamReader {
    role: Role,
    outgoing: mpsc::Sender<Frame>,
    new_streams: mpsc::Sender<SpdyStream>,
    open: BTreeMap<u32, OpenStream>,
    receive_budget: ReceiveBudget,
    next: u32,
    last: u32,
}

impl StreamReader {
    async fn run(mut self, mut reader: impl AsyncRead + Unpin, mut openings: mpsc::Receiver<Opening>) {
        let (mut decoder, mut buffer) = (Decoder::new(), BytesMut::with_capacity(64 << 10));
        let outgoing = self.outgoing.clone();
        let mut lingering = None;
        loop {
            tokio::select! {
                // Cancel-safe: read_buf appends what it has read, or nothing.
                read = reader.read_buf(&mut buffer) => {
                    if !matches!(read, Ok(count) if count > 0) {
                        return;
                    }
                    if lingering.is_some() {
                        buffer.clear();
                        continue;
                    }
                    loop {
                        match decoder.take(&mut buffer) {
                            Ok(Some(frame)) => self.handle(frame).await,
                            Ok(None) => break,
                            Err(error) => {
                                tracing::debug!("a SPDY peer is hung up on: {error}");
                                return;
                            }
                        }
                    }
                }
                // Cancel-safe per the documentation of recv.
                Some(opening) = openings.recv(), if lingering.is_none() => self.open_stream(opening).await,
                // Cancel-safe: only a wait. The writer has said goodbye.
                () = outgoing.closed(), if lingering.is_none() => {
                    self.open.clear();
                    lingering = Some(tokio::time::Instant::now() + LINGER);
                }
                // Cancel-safe: only a wait.
                () = until(lingering), if lingering.is_some() => return,
            }
        }
    }

    async fn handle(&mut self, frame: Frame) {
        match frame {
            Frame::SynStream { stream, fin, headers } => self.new_stream(stream, fin, headers).await,
            Frame::Data { stream, fin, bytes } => {
                let Some(open) = self.open.get(&stream) else { return };
                // A reader that has gone loses what is sent to it; the stream may still be written to.
                if !bytes.is_empty() && !open.data.is_closed() {
                    let _ = open.data.send(self.receive_budget.acquire(bytes).await).await;
                }
                if fin {
                    self.half_close(stream);
                }
            }
            Frame::SynReply { stream, fin: true, .. } => self.half_close(stream),
            Frame::Reset { stream, .. } => {
                if let Some(open) = self.open.remove(&stream) {
                    let _ = open.over.send(true);
                }
            }
            // Even numbers answer pings of ours, which there are none of.
            Frame::Ping(id) if (id % 2 == 1) == (self.role == Role::Server) => {
                let _ = self.outgoing.send(Frame::Ping(id)).await;
            }
            Frame::SynReply { .. } | Frame::Ping(_) | Frame::GoAway { .. } => {}
        }
    }

    /// No more data will come; the stream itself stays, to be written to or reset.
    fn half_close(&mut self, stream: u32) {
        if let Some(open) = self.open.get_mut(&stream) {
            (open.data, _) = mpsc::channel(1);
        }
    }

    fn register(&mut self, id: u32, headers: Headers) -> SpdyStream {
        let (data, incoming) = mpsc::channel(QUEUE);
        let (end, over) = watch::channel(false);
        self.open.insert(id, OpenStream { data, over: end });
        let writer = StreamWriter { id, outgoing: self.outgoing.clone(), over };
        SpdyStream { id, headers, incoming, writer }
    }

    async fn new_stream(&mut self, id: u32, fin: bool, headers: Headers) {
        // Streams nobody reads and writes any more.
        self.open.retain(|_, open| !open.over.is_closed());
        let theirs = (id % 2 == 1) == (self.role == Role::Server);
        if !theirs || id <= self.last || self.open.len() >= MAX_STREAMS {
            let _ = self.outgoing.send(Frame::Reset { stream: id, status: REFUSED_STREAM }).await;
            return;
        }
        self.last = id;
        let stream = self.register(id, headers);
        if fin {
            self.half_close(id);
        }
        if self.new_streams.send(stream).await.is_err() {
            let _ = self.outgoing.send(Frame::Reset { stream: id, status: REFUSED_STREAM }).await;
        }
    }

    async fn open_stream(&mut self, opening: Opening) {
        let id = self.next;
        self.next += 2;
        let stream = self.register(id, opening.headers.clone());
        // In this order: data of the stream can't overtake its opening.
        let _ =
            self.outgoing.send(Frame::SynStream { stream: id, fin: false, headers: opening.headers }).await;
        let _ = opening.answer.send(stream);
    }
}

async fn until(when: Option<tokio::time::Instant>) {
    match when {
        Some(when) => tokio::time::sleep_until(when).await,
        None => std::future::pending().await,
    }
}

async fn write(mut writer: impl AsyncWrite + Unpin, mut frames: mpsc::Receiver<Frame>, mut encoder: Encoder) {
    while let Some(frame) = frames.recv().await {
        let last = matches!(frame, Frame::GoAway { .. });
        let Ok(bytes) = encoder.encode(&frame) else { break };
        if writer.write_all(&bytes).await.is_err() || writer.flush().await.is_err() || last {
            break;
        }
    }
    // The other side may be gone already.
    let _ = writer.shutdown().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Connection, Connection) {
        let (client, server) = tokio::io::duplex(1024);
        (Connection::new(client, Role::Client).unwrap(), Connection::new(server, Role::Server).unwrap())
    }

    fn headers_with_kind(kind: &str) -> Headers {
        [("streamtype".to_owned(), kind.to_owned())].into_iter().collect()
    }

    async fn all(stream: &mut SpdyStream) -> Vec<u8> {
        let mut bytes = Vec::new();
        while let Some(piece) = stream.incoming.recv().await {
            bytes.extend_from_slice(&piece);
        }
        bytes
    }

    #[tokio::test]
    async fn streams_carry_bytes_both_ways_and_end_one_way_at_a_time() {
        let (client, mut server) = pair();
        let mut ours = client.handle().open(headers_with_kind("data")).await.unwrap();
        let mut theirs = server.next().await.unwrap();
        assert_eq!((theirs.id, theirs.headers.get("streamtype")), (1, Some("data")));
        theirs.accept().await.unwrap();
        let sent = vec![7u8; 200_000];
        let (copy, writer) = (sent.clone(), ours.writer.clone());
        tokio::spawn(async move {
            writer.write(copy.into()).await.unwrap();
            writer.finish().await.unwrap();
        });
        assert_eq!(all(&mut theirs).await, sent);
        // The other way is still open.
        theirs.writer.write(Bytes::from_static(b"answer")).await.unwrap();
        theirs.writer.finish().await.unwrap();
        assert_eq!(all(&mut ours).await, b"answer");
    }

    #[tokio::test]
    async fn a_close_comes_after_everything_that_was_sent() {
        let (mut client, server) = pair();
        let writer = {
            let stream = server.handle().open(headers_with_kind("stdout")).await.unwrap();
            stream.writer.clone()
        };
        let handle = server.handle();
        tokio::spawn(async move {
            writer.write(vec![1u8; 100_000].into()).await.unwrap();
            writer.finish().await.unwrap();
            handle.close().await;
        });
        let mut stream = client.next().await.unwrap();
        assert_eq!(all(&mut stream).await.len(), 100_000);
        client.handle().closed().await;
        server.handle().closed().await;
    }

    #[tokio::test]
    async fn a_reset_ends_a_stream_and_not_its_neighbour() {
        let (client, mut server) = pair();
        let first = client.handle().open(headers_with_kind("a")).await.unwrap();
        let second = client.handle().open(headers_with_kind("b")).await.unwrap();
        let (mut one, mut two) = (server.next().await.unwrap(), server.next().await.unwrap());
        first.writer.reset().await;
        assert_eq!(one.incoming.recv().await, None);
        one.writer.wait_closed().await;
        assert!(one.writer.write(Bytes::from_static(b"x")).await.is_err());
        second.writer.write(Bytes::from_static(b"y")).await.unwrap();
        assert_eq!(two.incoming.recv().await.unwrap(), "y");
    }

    #[tokio::test]
    async fn the_loss_of_the_connection_is_the_end_of_its_streams() {
        let (client, server) = pair();
        let mut ours = client.handle().open(headers_with_kind("data")).await.unwrap();
        server.handle().close().await;
        drop(server);
        assert_eq!(ours.incoming.recv().await, None);
        ours.writer.wait_closed().await;
    }
}
