//! Port forwarding: a stream pair of the client for each connection to a port inside the pod. Owns the
//! pairing, and the copying between client and pod. Called by `streaming::http` after the upgrade.

#![expect(clippy::disallowed_methods, reason = "a forwarded connection ends with either end")]

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use gantry_base::error::chain;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::{Semaphore, mpsc};

use super::hangup::HangUp;
use super::spdy;
use super::spdy::connection::{Role, StreamWriter};
use super::ws::channels::{self, Codec, Incoming};
use crate::error::Error;
use crate::node::Node;
use crate::store::SandboxState;

/// The port forward protocol over SPDY.
pub(crate) const SPDY_PROTOCOLS: [&str; 1] = ["portforward.k8s.io"];
/// SPDY within WebSocket messages.
pub(crate) const TUNNEL_PROTOCOL: &str = "SPDY/3.1+portforward.k8s.io";
/// Ports as channels.
pub(crate) const WS_PROTOCOLS: [&str; 3] = ["v4.channel.k8s.io", "v4.base64.channel.k8s.io", ""];

/// How long a lone stream waits for its other half, as upstream's default.
const STREAM_CREATION: Duration = Duration::from_secs(30);
/// How long the client may go on sending when the pod has closed its end.
const GRACE: Duration = Duration::from_secs(1);
const CONNECT: Duration = Duration::from_secs(30);
const MAX_PAIRS: usize = 1000;
/// Connections being made: for one client, and for all of the node. The rest waits for its turn: a pod
/// that drops SYNs would have each held for as long as `CONNECT`.
const DIALS_OF_CLIENT: usize = 32;
static DIALS: Semaphore = Semaphore::const_new(256);

/// A pod whose ports are reached.
#[derive(Debug, Clone)]
pub(crate) struct ForwardTarget {
    sandbox: String,
    /// None with the host's network.
    netns: Option<PathBuf>,
    dials: Arc<Semaphore>,
}

impl ForwardTarget {
    /// The network of a sandbox that is ready.
    ///
    /// # Errors
    /// When it is not there or not ready.
    pub(crate) fn of(node: &Node, sandbox: &str) -> Result<Self, Error> {
        let sandbox = node.store.sandbox(sandbox)?;
        if sandbox.state() != SandboxState::Ready {
            return Err(Error::SandboxNotReady(sandbox.id.clone()));
        }
        let netns = sandbox.record().network.as_ref().map(|network| network.netns.clone());
        Ok(Self { sandbox: sandbox.id.clone(), netns, dials: Arc::new(Semaphore::new(DIALS_OF_CLIENT)) })
    }

    /// Connects to the port of the pod's loopback, IPv4 first. The sockets are made on a thread of their
    /// own: one belongs to the network namespace of the thread that makes it, wherever it is used then.
    /// Cancel-safe.
    async fn connect(&self, port: u16) -> Result<TcpStream, String> {
        let _turns = (self.dials.acquire().await, DIALS.acquire().await);
        let netns = self.netns.clone();
        let shown = netns.as_deref().unwrap_or(Path::new("host")).display().to_string();
        let inside =
            |why: String| format!("failed to connect to localhost:{port} inside namespace {shown:?}, {why}");
        let job = move || match netns {
            Some(netns) => gantry_cni::netns::run(&netns, sockets).map_err(|error| chain(&error)),
            None => Ok(sockets()),
        };
        let made = tokio::task::spawn_blocking(job).await.map_err(|error| error.to_string())?;
        let [v4, v6] = made.map_err(inside)?;
        let first = match dial(v4, Ipv4Addr::LOCALHOST.into(), port).await {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        let second = dial(v6, Ipv6Addr::LOCALHOST.into(), port).await;
        second.map_err(|second| inside(format!("IPv4: {first} IPv6: {second}")))
    }
}

fn sockets() -> [io::Result<TcpSocket>; 2] {
    [TcpSocket::new_v4(), TcpSocket::new_v6()]
}

async fn dial(socket: io::Result<TcpSocket>, address: IpAddr, port: u16) -> io::Result<TcpStream> {
    match tokio::time::timeout(CONNECT, socket?.connect(SocketAddr::new(address, port))).await {
        Ok(connected) => connected,
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "connection timed out")),
    }
}

/// Each takes two channels, whose numbers are bytes.
const MAX_PORTS: usize = 100;

/// Ports of a legacy WebSocket client: those that PortForward named, else its `?port=` parameters, each
/// of which may hold several.
///
/// # Errors
/// What is wrong, in words for the client.
pub(crate) fn ports_of(named: &[i32], query: &str) -> Result<Vec<u16>, String> {
    match all_ports_of(named, query)? {
        ports if ports.len() > MAX_PORTS => {
            Err(format!("{} ports: at most {MAX_PORTS} at once", ports.len()))
        }
        ports => Ok(ports),
    }
}

fn all_ports_of(named: &[i32], query: &str) -> Result<Vec<u16>, String> {
    if !named.is_empty() {
        let checked = named.iter().map(|port| match u16::try_from(*port) {
            Ok(number) if number > 0 => Ok(number),
            _ => Err(format!("port {port} must be from 1 to 65535")),
        });
        return checked.collect();
    }
    let values = query.split('&').filter_map(|pair| pair.strip_prefix("port="));
    let ports: Vec<u16> = values
        .flat_map(|value| value.replace("%2C", ",").split(',').map(str::to_owned).collect::<Vec<_>>())
        .map(|port| match port.parse() {
            Ok(0) => Err(format!("port {port:?} must be > 0")),
            Ok(number) => Ok(number),
            Err(_) => Err(format!("unable to parse {port:?} as a port")),
        })
        .collect::<Result<_, _>>()?;
    if ports.is_empty() { Err("query parameter \"port\" is required".into()) } else { Ok(ports) }
}

/// The client's half that has come first.
struct PendingPair {
    data: Option<spdy::SpdyStream>,
    error: Option<spdy::SpdyStream>,
    since: tokio::time::Instant,
}

/// Serves a SPDY client until it hangs up.
///
/// # Errors
/// When the connection can't be set up.
pub(crate) async fn over_spdy(
    socket: impl AsyncRead + AsyncWrite + Send + 'static,
    target: ForwardTarget,
    hang_up: HangUp,
) -> io::Result<()> {
    let mut connection = spdy::Connection::with_activity(socket, Role::Server, hang_up.wait())?;
    let mut halves: BTreeMap<String, PendingPair> = BTreeMap::new();
    while let Some(stream) = connection.next().await {
        expire(&mut halves).await;
        let Some((port, request, is_data)) = purpose(&stream) else {
            stream.refuse().await;
            continue;
        };
        if halves.len() >= MAX_PAIRS {
            stream.refuse().await;
            continue;
        }
        stream.accept().await?;
        let fresh = || PendingPair { data: None, error: None, since: tokio::time::Instant::now() };
        let half = halves.entry(request.clone()).or_insert_with(fresh);
        let slot = if is_data { &mut half.data } else { &mut half.error };
        if slot.is_some() {
            stream.writer.reset().await;
            continue;
        }
        *slot = Some(stream);
        if let PendingPair { data: Some(_), error: Some(_), .. } = half
            && let Some(PendingPair { data: Some(data), error: Some(error), .. }) = halves.remove(&request)
        {
            tokio::spawn(forward_pair(target.clone(), port, data, error));
        }
    }
    Ok(())
}

/// Halves whose other half never came.
async fn expire(halves: &mut BTreeMap<String, PendingPair>) {
    let late: Vec<String> = halves
        .iter()
        .filter(|(_, half)| half.since.elapsed() > STREAM_CREATION)
        .map(|(request, _)| request.clone())
        .collect();
    for request in late {
        let Some(half) = halves.remove(&request) else { continue };
        for stream in [half.data, half.error].into_iter().flatten() {
            stream.writer.reset().await;
        }
    }
}

/// Port, request and kind of a stream. Without a request id, an old client's error stream comes first
/// and its data stream has the next number, as upstream guesses.
fn purpose(stream: &spdy::SpdyStream) -> Option<(u16, String, bool)> {
    let port = stream.headers.get("port")?.parse().ok().filter(|port| *port > 0)?;
    let is_data = match stream.headers.get("streamtype")? {
        "data" => true,
        "error" => false,
        _ => return None,
    };
    let request = match stream.headers.get("requestid") {
        Some(request) if !request.is_empty() => request.to_owned(),
        _ => if is_data { stream.id.wrapping_sub(2) } else { stream.id }.to_string(),
    };
    Some((port, request, is_data))
}

async fn forward_pair(target: ForwardTarget, port: u16, data: spdy::SpdyStream, error: spdy::SpdyStream) {
    let spdy::SpdyStream { incoming, writer, .. } = data;
    let connected = tokio::select! {
        connected = target.connect(port) => connected,
        // Not used after this: the client has given up.
        () = writer.wait_closed() => return,
    };
    let done = match connected {
        Ok(stream) => pump(stream, incoming, &ClientWriter::Spdy(writer.clone())).await,
        Err(why) => Err(why),
    };
    match done {
        Ok(()) => {
            // Both ways: a client that is gone does not mind.
            let _ = writer.finish().await;
            let _ = error.writer.finish().await;
        }
        Err(why) => {
            let message = error_message(&target, port, &why);
            let _ = error.writer.write(message.into()).await;
            let _ = error.writer.finish().await;
            // As upstream: the client may try again with new streams.
            writer.reset().await;
        }
    }
}

fn error_message(target: &ForwardTarget, port: u16, why: &str) -> String {
    let place = target.netns.as_deref().unwrap_or(Path::new("host")).display().to_string();
    let message = format!(
        "error forwarding port {port} to pod {}, uid : failed to execute portforward in network namespace {place:?}: {why}",
        target.sandbox
    );
    tracing::debug!("{message}");
    message
}

/// The way back to the client.
enum ClientWriter {
    Spdy(StreamWriter),
    Channel(u8, mpsc::Sender<(u8, Bytes)>),
}

impl ClientWriter {
    async fn write(&self, bytes: Bytes) -> io::Result<()> {
        match self {
            Self::Spdy(writer) => writer.write(bytes).await,
            Self::Channel(channel, sender) => {
                sender.send((*channel, bytes)).await.map_err(|_| io::ErrorKind::ConnectionReset.into())
            }
        }
    }

    async fn finish(&self) {
        if let Self::Spdy(writer) = self {
            // A client that is gone does not mind.
            let _ = writer.finish().await;
        }
    }

    async fn wait_over(&self) {
        match self {
            Self::Spdy(writer) => writer.wait_closed().await,
            Self::Channel(_, sender) => sender.closed().await,
        }
    }
}

/// Copies both ways until both have ended. A client that has ended its way still gets its answer; a pod
/// that has ended its way hears the client for a moment only, as upstream.
async fn pump(
    stream: TcpStream,
    mut incoming: mpsc::Receiver<Bytes>,
    back: &ClientWriter,
) -> Result<(), String> {
    let (mut from_pod, mut to_pod) = stream.into_split();
    let upwards = async {
        while let Some(bytes) = incoming.recv().await {
            to_pod.write_all(&bytes).await?;
        }
        to_pod.shutdown().await
    };
    let downwards = async {
        let mut buffer = BytesMut::with_capacity(32 << 10);
        while from_pod.read_buf(&mut buffer).await? > 0 {
            back.write(buffer.split().freeze()).await?;
            buffer.reserve(32 << 10);
        }
        back.finish().await;
        Ok::<_, io::Error>(())
    };
    tokio::pin!(upwards, downwards);
    let both = async {
        tokio::select! {
            // Both are only polled.
            done = &mut downwards => {
                done?;
                // Too late is as good.
                let _ = tokio::time::timeout(GRACE, &mut upwards).await;
                Ok(())
            }
            // A pod that reads no more may still answer.
            _ = &mut upwards => downwards.await,
        }
    };
    tokio::select! {
        // Not used after this, either of them.
        done = both => done.map_err(|error: io::Error| error.to_string()),
        () = back.wait_over() => Ok(()),
    }
}

/// Serves a legacy WebSocket client: data on channel 2n, errors on 2n+1, each beginning with the port
/// as two bytes, little end first.
pub(crate) async fn over_websocket(
    socket: impl AsyncRead + AsyncWrite + Send + 'static,
    protocol: &str,
    ports: Vec<u16>,
    target: ForwardTarget,
    hang_up: HangUp,
) {
    let codec = Codec { base64: protocol.contains("base64"), half_close: false };
    let (mut incoming, outgoing) = channels::start(socket, codec, hang_up);
    let mut senders = BTreeMap::new();
    let mut tasks = tokio::task::JoinSet::new();
    for (number, port) in (0u8..).step_by(2).zip(ports) {
        for channel in [number, number + 1] {
            // A client that is gone is seen below.
            let _ = outgoing.send((channel, Bytes::copy_from_slice(&port.to_le_bytes()))).await;
        }
        let (sender, receiver) = mpsc::channel(16);
        senders.insert(number, sender);
        tasks.spawn(forward_channel(target.clone(), port, number, receiver, outgoing.clone()));
    }
    drop(outgoing);
    let routing = async {
        while let Some(message) = incoming.recv().await {
            if let Incoming::Data(channel, bytes) = message
                && let Some(sender) = senders.get(&channel)
            {
                // A port that is done takes no more.
                let _ = sender.send(bytes).await;
            }
        }
    };
    let forwarding = async { while tasks.join_next().await.is_some() {} };
    tokio::select! {
        // Not used after this, either of them.
        () = routing => {}
        () = forwarding => {}
    }
}

async fn forward_channel(
    target: ForwardTarget,
    port: u16,
    channel: u8,
    incoming: mpsc::Receiver<Bytes>,
    outgoing: mpsc::Sender<(u8, Bytes)>,
) {
    let done = match target.connect(port).await {
        Ok(stream) => pump(stream, incoming, &ClientWriter::Channel(channel, outgoing.clone())).await,
        Err(why) => Err(why),
    };
    if let Err(why) = done {
        // A client that is gone does not mind.
        let _ = outgoing.send((channel + 1, error_message(&target, port, &why).into())).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_read_from_the_query_as_upstream_does() {
        assert_eq!(ports_of(&[], "port=80&port=443,8080"), Ok(vec![80, 443, 8080]));
        assert_eq!(ports_of(&[], "x=1").unwrap_err(), "query parameter \"port\" is required");
        assert_eq!(ports_of(&[], "port=0").unwrap_err(), "port \"0\" must be > 0");
        assert_eq!(ports_of(&[], "port=http").unwrap_err(), "unable to parse \"http\" as a port");
        assert_eq!(ports_of(&[8080], ""), Ok(vec![8080]));
        let all: Vec<i32> = (1..=101).collect();
        let query = all.iter().map(|port| format!("port={port}")).collect::<Vec<_>>().join("&");
        for (named, query) in [(&all[..], ""), (&[], query.as_str())] {
            assert_eq!(ports_of(named, query).unwrap_err(), "101 ports: at most 100 at once");
        }
        assert_eq!(ports_of(&all[1..], "").unwrap().len(), 100);
        assert_eq!(ports_of(&[0], "port=80").unwrap_err(), "port 0 must be from 1 to 65535");
    }
}
