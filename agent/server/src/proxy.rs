//! Passes an upgraded connection on, byte for byte: SPDY and WebSocket alike. Owns the connection to
//! the runtime's streaming server and the end of idle streams; never looks at what goes through.
//! Called by [`super::streams`].
//!
//! `ExtendWebSocketsToKubelet` is declared by a node whose runtime speaks WebSocket v5 and serves tunnels itself, as ours
//! does. Otherwise the API server translates both to SPDY before they come here, so that any runtime can serve them.

#![expect(clippy::disallowed_methods, reason = "a connection and its two directions end with either end")]

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::header::{CONNECTION, HOST, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, Uri};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use super::answer::{self, Answer};

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// To reach the runtime's server, and for its first answer.
const ANSWER: Duration = Duration::from_secs(30);
/// For what a runtime has said before it went to reach the client.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// What failed on the way to the runtime's streaming server.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("the runtime's streaming address {url:?} is not of the form http://host:port/path")]
    Address { url: String },
    #[error("dial the runtime's streaming server at {host}")]
    Dial {
        host: String,
        #[source]
        source: std::io::Error,
    },
    #[error("speak to the runtime's streaming server at {host}")]
    Speak {
        host: String,
        #[source]
        source: hyper::Error,
    },
    #[error("the runtime's streaming server at {host} does not answer")]
    Silent { host: String },
    #[error("the backend attempted to redirect this request, which is not permitted")]
    Redirect,
}

/// Whether the client wants to change to WebSocket.
pub(super) fn is_web_socket(headers: &HeaderMap) -> bool {
    let upgrade = headers.get(UPGRADE).and_then(|value| value.to_str().ok());
    is_upgrade(headers) && upgrade.is_some_and(|value| value.eq_ignore_ascii_case("websocket"))
}

fn protocols(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let lines = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(str::trim)
}

/// Whether the WebSocket is to carry SPDY.
pub(super) fn is_tunnel(headers: &HeaderMap) -> bool {
    protocols(headers).any(|protocol| protocol.starts_with("SPDY/3.1+"))
}

/// Whether it is one of those that an API server would translate for an older kubelet.
pub(super) fn is_new_web_socket(headers: &HeaderMap, subresource: &str) -> bool {
    let is_new = match subresource {
        "portforward" => is_tunnel(headers),
        _ => protocols(headers).any(|protocol| protocol == "v5.channel.k8s.io"),
    };
    is_web_socket(headers) && is_new
}

fn is_upgrade(headers: &HeaderMap) -> bool {
    let mut lines = headers.get_all(CONNECTION).iter().filter_map(|line| line.to_str().ok());
    lines.any(|line| line.split(',').any(|word| word.trim().eq_ignore_ascii_case("upgrade")))
}

/// Passes the request on to `url` and, once that has agreed, the bytes both ways.
pub(super) async fn upgrade(url: &str, request: Request<Body>, idle: Duration) -> Answer {
    if !is_upgrade(request.headers()) {
        return answer::error(StatusCode::INTERNAL_SERVER_ERROR, "Upgrade request required\n");
    }
    match tokio::time::timeout(ANSWER, pass_on(url, request, idle)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => failure_answer(&error),
        Err(_) => failure_answer(&Error::Silent { host: url.to_owned() }),
    }
}

fn failure_answer(error: &Error) -> Answer {
    let cause = std::error::Error::source(error).map(ToString::to_string);
    tracing::warn!(%error, cause, "error while proxying request");
    let text = cause.map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"));
    answer::error(StatusCode::INTERNAL_SERVER_ERROR, format!("{text}\n"))
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

async fn dial(uri: &Uri) -> Result<(Box<dyn Stream>, String), Error> {
    let bad = || Error::Address { url: uri.to_string() };
    let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(bad)?;
    let tls = match uri.scheme_str() {
        Some("http") => false,
        Some("https") => true,
        _ => return Err(bad()),
    };
    let port = uri.port_u16().unwrap_or(if tls { 443 } else { 80 });
    let authority = format!("{host}:{port}");
    let wrap = |source| Error::Dial { host: authority.clone(), source };
    let stream = TcpStream::connect(&authority).await.map_err(wrap)?;
    stream.set_nodelay(true).map_err(wrap)?;
    if !tls {
        return Ok((Box::new(stream), authority));
    }
    let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned()).map_err(|_| bad())?;
    let stream = TlsConnector::from(insecure_tls_config()).connect(name, stream).await.map_err(wrap)?;
    Ok((Box::new(stream), authority))
}

async fn pass_on(url: &str, mut request: Request<Body>, idle: Duration) -> Result<Answer, Error> {
    let uri: Uri = url.parse().map_err(|_| Error::Address { url: url.to_owned() })?;
    let (stream, host) = dial(&uri).await?;
    let wrap = |source| Error::Speak { host: host.clone(), source };
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(wrap)?;
    tokio::spawn(connection.with_upgrades());
    let client = hyper::upgrade::on(&mut request);
    let outgoing = outgoing(&uri, &host, &request)?;
    let mut response = sender.send_request(outgoing).await.map_err(wrap)?;
    if response.status().is_redirection() {
        return Err(Error::Redirect);
    }
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(response.map(Body::new));
    }
    let runtime = hyper::upgrade::on(&mut response);
    tokio::spawn(async move {
        match tokio::try_join!(client, runtime) {
            Ok((client, runtime)) => couple(TokioIo::new(client), TokioIo::new(runtime), idle).await,
            Err(error) => tracing::debug!(%error, "a stream was not taken up"),
        }
    });
    Ok(response.map(|_| Body::empty()))
}

/// The client's own request, to the path and with the token that the runtime gave.
fn outgoing(uri: &Uri, host: &str, request: &Request<Body>) -> Result<Request<Body>, Error> {
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let bad = || Error::Address { url: uri.to_string() };
    let mut outgoing = Request::new(Body::empty());
    *outgoing.method_mut() = request.method().clone();
    *outgoing.uri_mut() = path.parse().map_err(|_| bad())?;
    *outgoing.headers_mut() = request.headers().clone();
    let headers = outgoing.headers_mut();
    headers.insert(HOST, HeaderValue::from_str(host).map_err(|_| bad())?);
    // Who spoke for whom is settled: the runtime believes the token alone.
    headers.remove(FORWARDED_FOR);
    Ok(outgoing)
}

/// Copies both ways until one side is done and the other has taken it, or nothing moved for `idle`.
async fn couple<A, B>(a: A, b: B, idle: Duration)
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let (moved, mut seen) = watch::channel(Instant::now());
    let (a_in, a_out) = tokio::io::split(a);
    let (b_in, b_out) = tokio::io::split(b);
    let quiet = async {
        // As upstream: nothing is no timeout.
        if idle.is_zero() {
            return std::future::pending().await;
        }
        loop {
            let last = *seen.borrow_and_update();
            tokio::time::sleep_until(last + idle).await;
            if *seen.borrow() == last {
                return;
            }
        }
    };
    let (up, mut down) = (pin!(copy(a_in, b_out, &moved)), pin!(copy(b_in, a_out, &moved)));
    // As upstream: the end of one direction is the end of the stream.
    tokio::select! {
        end = up => if end == StreamEnd::Refused {
            // The runtime is done and hears no more; what it has said before is still on its way.
            let _ = tokio::time::timeout(LAST_WORDS, &mut down).await;
        },
        _ = &mut down => {}
        () = quiet => tracing::info!("a stream was idle for {} s and is closed", idle.as_secs()),
    }
}

/// How one direction came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamEnd {
    /// Nothing more is said.
    Said,
    /// Nobody listens any more.
    Refused,
}

async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    moved: &watch::Sender<Instant>,
) -> StreamEnd {
    let mut buffer = vec![0; 32 << 10];
    // A connection that breaks is one that ends.
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let passed = async {
            to.write_all(buffer.get(..count).unwrap_or_default()).await?;
            to.flush().await
        };
        if passed.await.is_err() {
            return StreamEnd::Refused;
        }
        moved.send_replace(Instant::now());
    }
    match to.shutdown().await {
        Ok(()) => StreamEnd::Said,
        Err(_) => StreamEnd::Refused,
    }
}

mod trust {
    //! A runtime's streaming server over TLS has a certificate of its own making, for loopback:
    //! upstream checks none either, and the token in the path is what counts.

    use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
    use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
    use rustls::{DigitallySignedStruct, Error, SignatureScheme};
    use std::sync::Arc;

    #[derive(Debug)]
    pub(super) struct Any(pub(super) Arc<CryptoProvider>);

    impl ServerCertVerifier for Any {
        fn verify_server_cert(
            &self,
            _: &CertificateDer<'_>,
            _: &[CertificateDer<'_>],
            _: &ServerName<'_>,
            _: &[u8],
            _: UnixTime,
        ) -> Result<ServerCertVerified, Error> {
            Ok(ServerCertVerified::assertion())
        }

        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.0.signature_verification_algorithms.supported_schemes()
        }
    }
}

fn insecure_tls_config() -> Arc<rustls::ClientConfig> {
    let provider = super::client_ca::provider();
    let any = Arc::new(trust::Any(provider));
    let builder = rustls::ClientConfig::builder().dangerous();
    Arc::new(builder.with_custom_certificate_verifier(any).with_no_client_auth())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_idle_stream_is_closed_and_a_busy_one_is_not() {
        let minute = Duration::from_secs(60);
        let (mut client, a) = tokio::io::duplex(64);
        let (mut runtime, b) = tokio::io::duplex(64);
        let begun = Instant::now();
        let coupled = tokio::spawn(couple(a, b, minute));
        for _ in 0..3 {
            tokio::time::sleep(minute / 2).await;
            client.write_all(b"x").await.unwrap();
            let mut byte = [0];
            runtime.read_exact(&mut byte).await.unwrap();
        }
        coupled.await.unwrap();
        assert_eq!(begun.elapsed().as_secs(), 150);
        assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_runtime_said_before_it_went_arrives() {
        let ((mut client, a), (mut runtime, b)) = (tokio::io::duplex(8), tokio::io::duplex(64));
        tokio::spawn(couple(a, b, Duration::ZERO));
        runtime.write_all(b"more than the client has room for").await.unwrap();
        drop(runtime);
        // The direction to the runtime breaks, while the other one is held up.
        client.write_all(b"x").await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let mut said = String::new();
        client.read_to_string(&mut said).await.unwrap();
        assert_eq!(said, "more than the client has room for");
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_timeout_an_idle_stream_stays() {
        let ((mut client, a), (mut runtime, b)) = (tokio::io::duplex(64), tokio::io::duplex(64));
        tokio::spawn(couple(a, b, Duration::ZERO));
        tokio::time::sleep(Duration::from_secs(86_400)).await;
        client.write_all(b"x").await.unwrap();
        assert_eq!(runtime.read_u8().await.unwrap(), b'x');
    }

    #[tokio::test]
    async fn what_is_no_upgrade_is_not_passed_on() {
        let answer = upgrade("http://127.0.0.1:1/x", Request::new(Body::empty()), ANSWER).await;
        assert_eq!(answer.status(), 500);
        let mut request = Request::new(Body::empty());
        request.headers_mut().insert(CONNECTION, HeaderValue::from_static("keep-alive, Upgrade"));
        assert!(is_upgrade(request.headers()) && !is_web_socket(request.headers()));
        for url in ["/exec/abc", "unix:///x", "ftp://127.0.0.1/"] {
            let answer = upgrade(url, request.map(|_| Body::empty()), ANSWER).await;
            assert_eq!(answer.status(), 500, "{url}");
            request = Request::new(Body::empty());
            request.headers_mut().insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        }
    }
}
