//! Connections: TLS or not, HTTP/1.1 or 2, and no more of anything than the node can bear. Owns
//! sockets and their limits; never looks at what a request says. Called by the wiring.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::server::ResolvesServerCert;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::answer::KeptBody;
use super::ciphers;
use super::client_ca::{TakeAny, provider};
use super::context::ServerContext;
use super::pending_connections::{Admission, PendingConnections};
use super::serve::{Door, serve};
use super::server::Server;

/// Open connections on each port on which nobody has been let in yet; who comes then takes the place
/// of the oldest. A test cannot open as many.
const CONNECTIONS: usize = if cfg!(test) { 64 } else { 1024 };
/// From the first byte to the end of the handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// For the headers of a request, and between two on one connection, as upstream's idle timeout.
const IDLE: Duration = Duration::from_secs(90);
/// To hear that the connection ends.
const GOODBYE: Duration = Duration::from_secs(5);
/// All headers of a request together. A quarter of upstream's: there may be as many of them in
/// memory as there are connections, before anybody has said who they are.
const HEADER_BYTES: usize = 256 << 10;
/// The same over HTTP/2, where one connection has many requests.
const HEADER_LIST: u32 = 64 << 10;
/// On one connection, as Go's server.
const STREAMS: u32 = 250;
/// A peer that does not answer a ping for so long is gone.
const PING: Duration = Duration::from_secs(30);
/// Before the first keep-alive of TCP, and between two.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// After an accept that failed for lack of something.
const BREATH: Duration = Duration::from_millis(100);
/// What is being answered when the server ends gets so long.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

/// What a connection must use at least.
#[derive(Debug, Clone, Default)]
pub struct TlsSettings {
    /// tlsMinVersion is VersionTLS13.
    pub only_13: bool,
    /// tlsCipherSuites, by their IANA names; those of TLS 1.3 can't be chosen. Empty: all.
    pub cipher_suites: Vec<String>,
}

/// Why TLS cannot be had as configured.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// In upstream's words.
    #[error("{0}")]
    Unknown(String),
    /// With the remedy.
    #[error("none of tlsCipherSuites {0:?} is supported: leave it empty, or name one of {1:?}")]
    NoSuite(Vec<String>, Vec<String>),
    /// rustls's word.
    #[error("set up TLS")]
    Setup(#[source] rustls::Error),
}

/// The configuration of a port; the certificate is asked for at each handshake.
///
/// # Errors
/// When nobody knows a cipher suite, or none is left.
pub fn tls_config(
    certificate: Arc<dyn ResolvesServerCert>,
    settings: &TlsSettings,
) -> Result<Arc<ServerConfig>, TlsError> {
    let mut with: CryptoProvider = (*provider()).clone();
    let old = |suite: &rustls::SupportedCipherSuite| suite.tls13().is_none();
    let name = |suite: &rustls::SupportedCipherSuite| format!("{:?}", suite.suite());
    let mut only_13 = settings.only_13;
    if !settings.cipher_suites.is_empty() {
        ciphers::check(&settings.cipher_suites).map_err(TlsError::Unknown)?;
        let known: Vec<String> = with.cipher_suites.iter().filter(|suite| old(suite)).map(name).collect();
        let (new, wanted): (Vec<String>, Vec<String>) = settings
            .cipher_suites
            .iter()
            .map(|name| ciphers::iana(name))
            .partition(|name| ciphers::is_13(name));
        for unknown in wanted.iter().filter(|wanted| !known.contains(wanted)) {
            tracing::warn!(suite = unknown, "not supported by this node's TLS: left out");
        }
        with.cipher_suites.retain(|suite| !old(suite) || wanted.contains(&name(suite)));
        let any = with.cipher_suites.iter().any(old);
        if !only_13 && !any && new.is_empty() {
            return Err(TlsError::NoSuite(settings.cipher_suites.clone(), known));
        }
        only_13 |= !any;
    }
    let versions = if only_13 {
        &[&rustls::version::TLS13][..]
    } else {
        &[&rustls::version::TLS13, &rustls::version::TLS12]
    };
    let with = Arc::new(with);
    let builder = ServerConfig::builder_with_provider(with.clone());
    let builder = builder.with_protocol_versions(versions).map_err(TlsError::Setup)?;
    let mut config =
        builder.with_client_cert_verifier(Arc::new(TakeAny(with))).with_cert_resolver(certificate);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

impl Server {
    /// Serves the whole API until [`Self::end`].
    pub async fn serve_tls(&self, listener: TcpListener, config: Arc<ServerConfig>) {
        let acceptor = TlsAcceptor::from(config);
        self.accept(listener, move |inner, admission, stream| {
            let acceptor = acceptor.clone();
            async move {
                let shaken = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await;
                // A client that gives up or speaks something else is not worth a line.
                let Ok(Ok(stream)) = shaken else { return };
                let session = stream.get_ref().1;
                let chain = session.peer_certificates().unwrap_or_default();
                let door = Door::ReadWrite(chain.iter().cloned().map(|c| c.into_owned()).collect());
                if session.alpn_protocol() == Some(b"h2") {
                    two(inner, door, admission, stream).await;
                } else {
                    one(inner, door, admission, stream).await;
                }
            }
        })
        .await;
    }

    /// Serves what needs no credential, in the clear, until [`Self::end`].
    pub async fn serve_read_only(&self, listener: TcpListener) {
        self.accept(listener, |inner, admission, stream| one(inner, Door::ReadOnly, admission, stream)).await;
    }

    async fn accept<F>(
        &self,
        listener: TcpListener,
        connection: impl Fn(Arc<ServerContext>, Admission, TcpStream) -> F,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut pending = PendingConnections::new(CONNECTIONS);
        let mut drain = self.inner.drain.watcher();
        let mut connections = JoinSet::new();
        loop {
            // All arms are cancel-safe: a connection not accepted waits.
            let stream = tokio::select! {
                () = drain.wait_started() => break,
                stream = next(&listener) => stream,
            };
            while connections.try_join_next().is_some() {}
            match stream {
                Ok((stream, peer)) => {
                    let admission = Admission::from(peer);
                    let served = connection(self.inner.clone(), admission.clone(), stream);
                    pending.add(admission, connections.spawn(served));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(BREATH).await;
                }
            }
        }
        let rest = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(LAST_ANSWERS, rest).await.is_err() {
            connections.shutdown().await;
        }
    }
}

async fn next(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    let (stream, peer) = listener.accept().await?;
    stream.set_nodelay(true)?;
    use rustix::net::sockopt;
    sockopt::set_socket_keepalive(&stream, true)?;
    sockopt::set_tcp_keepidle(&stream, KEEP_ALIVE)?;
    sockopt::set_tcp_keepintvl(&stream, KEEP_ALIVE)?;
    Ok((stream, peer))
}

/// HTTP/1.1, with upgrades; a stream that was upgraded lives on in a task of its own.
async fn one<S>(inner: Arc<ServerContext>, door: Door, admission: Admission, stream: S)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut drain = inner.drain.watcher();
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = serve(inner.clone(), door.clone(), of(request, &admission));
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(IDLE).max_buf_size(HEADER_BYTES);
    let connection = builder.serve_connection(TokioIo::new(stream), service).with_upgrades();
    let mut connection = std::pin::pin!(connection);
    // Both arms are cancel-safe: the connection is polled on below.
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = drain.wait_started() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended");
    }
}

pub(super) async fn two<S>(inner: Arc<ServerContext>, door: Door, admission: Admission, stream: S)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut drain = inner.drain.watcher();
    let (open, streams) = watch::channel(0);
    let open = Arc::new(open);
    let service = service_fn(move |request: Request<Incoming>| {
        let stream = Stream::new(open.clone());
        let answer = serve(inner.clone(), door.clone(), of(request, &admission));
        async move { Ok::<_, Infallible>(answer.await.map(|body| KeptBody::new(body, stream))) }
    });
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(HEADER_LIST)
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let over = async {
        tokio::select! {
            () = drain.wait_started() => {}
            () = idle(streams.clone(), IDLE) => {}
        }
    };
    // All arms are cancel-safe: the connection is polled on below.
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = over => {
            connection.as_mut().graceful_shutdown();
            // Who does not hear the goodbye is not waited for, only what is being answered.
            tokio::select! {
                result = connection.as_mut() => result,
                () = idle(streams.clone(), GOODBYE) => Ok(()),
            }
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended");
    }
}

/// Until no stream was open for so long.
async fn idle(mut streams: watch::Receiver<usize>, long: Duration) {
    // The sender lives as long as the connection, and so does who waits here.
    while streams.wait_for(|open| *open == 0).await.is_ok() {
        // Both arms are cancel-safe: the number is looked at again.
        tokio::select! {
            _ = streams.changed() => {}
            () = tokio::time::sleep(long) => return,
        }
    }
    std::future::pending::<()>().await;
}

/// A stream of HTTP/2, open until its answer's end.
struct Stream(Arc<watch::Sender<usize>>);

impl Stream {
    fn new(open: Arc<watch::Sender<usize>>) -> Self {
        open.send_modify(|open| *open += 1);
        Self(open)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.send_modify(|open| *open -= 1);
    }
}

/// A request, and through whom its connection is let in.
fn of(request: Request<Incoming>, admission: &Admission) -> Request<Body> {
    let mut request = request.map(Body::new);
    request.extensions_mut().insert(admission.clone());
    request
}
