//! The way to the API server's port: straight, or through the proxy of a kubeconfig's `proxy-url`. Owns both; never
//! what is said to the server. Called by [`super`].

use std::pin::Pin;
use std::task::{Context, Poll};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderValue, Uri};
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tower::{BoxError, Service};

use crate::identity::kubeconfig::{Proxy, ProxyScheme};

/// What reaches the server's port.
#[derive(Clone)]
pub(super) enum Dial {
    Direct(HttpConnector),
    /// CONNECT.
    Http(Tunnel<HttpConnector>),
    /// The same over TLS.
    Https(Tunnel<HttpsConnector<HttpConnector>>),
    Socks(SocksV5<HttpConnector>),
}

impl Dial {
    /// `tls` is how the proxy itself is spoken to, where it wants that.
    pub(super) fn new(proxy: Option<&Proxy>, tcp: HttpConnector, tls: ClientConfig) -> Self {
        let Some(proxy) = proxy else { return Self::Direct(tcp) };
        let place = proxy.place.clone();
        let auth = proxy.login.as_ref().and_then(|(user, password)| {
            HeaderValue::from_str(&format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))).ok()
        });
        match proxy.scheme {
            ProxyScheme::Http => {
                let tunnel = Tunnel::new(place, tcp);
                Self::Http(match auth {
                    Some(auth) => tunnel.with_auth(auth),
                    None => tunnel,
                })
            }
            ProxyScheme::Https => {
                let https = hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(tls).https_only();
                let tunnel = Tunnel::new(place, https.enable_http1().wrap_connector(tcp));
                Self::Https(match auth {
                    Some(auth) => tunnel.with_auth(auth),
                    None => tunnel,
                })
            }
            ProxyScheme::Socks5 => {
                let socks = SocksV5::new(place, tcp);
                Self::Socks(match proxy.login.clone() {
                    Some((user, password)) => socks.with_auth(user, password),
                    None => socks,
                })
            }
        }
    }
}

/// With a port: a proxy is told where to.
fn with_port(server: Uri) -> Uri {
    if server.port().is_some() || server.scheme_str() != Some("http") {
        return server;
    }
    let mut parts = server.clone().into_parts();
    parts.authority = server.host().and_then(|host| format!("{host}:80").parse().ok());
    Uri::from_parts(parts).unwrap_or(server)
}

/// A proxy may take the connection and say nothing.
async fn within<T, E: Into<BoxError>>(dialing: impl Future<Output = Result<T, E>>) -> Result<T, BoxError> {
    match tokio::time::timeout(super::CONNECT, dialing).await {
        // Its causes, too: the client that passes it on tells only the first.
        Ok(stream) => stream.map_err(|error| {
            let error: BoxError = error.into();
            format!("proxyconnect: {}", gantry_base::error::chain(&*error)).into()
        }),
        Err(_) => Err("proxyconnect: no answer within 30 s".into()),
    }
}

type Stream = MaybeHttpsStream<TokioIo<TcpStream>>;

impl Service<Uri> for Dial {
    type Response = Stream;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        match self {
            Self::Direct(tcp) => tcp.poll_ready(cx).map_err(Into::into),
            Self::Http(tunnel) => tunnel.poll_ready(cx).map_err(Into::into),
            Self::Https(tunnel) => tunnel.poll_ready(cx).map_err(Into::into),
            Self::Socks(socks) => socks.poll_ready(cx).map_err(Into::into),
        }
    }

    fn call(&mut self, server: Uri) -> Self::Future {
        match self {
            Self::Direct(tcp) => {
                let dialing = tcp.call(server);
                Box::pin(async move { Ok(MaybeHttpsStream::Http(dialing.await?)) })
            }
            Self::Http(tunnel) => {
                let dialing = tunnel.call(with_port(server));
                Box::pin(async move { Ok(MaybeHttpsStream::Http(within(dialing).await?)) })
            }
            Self::Https(tunnel) => {
                let dialing = tunnel.call(with_port(server));
                Box::pin(async move { within(dialing).await })
            }
            Self::Socks(socks) => {
                let dialing = socks.call(with_port(server));
                Box::pin(async move { Ok(MaybeHttpsStream::Http(within(dialing).await?)) })
            }
        }
    }
}
