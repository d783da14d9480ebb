//! From a URL to an upgraded connection. Owns the dialling and the handshake's errors. Called by
//! `remote::command` and `remote::forward`.

#![expect(clippy::disallowed_methods, reason = "the connection ends with its stream")]

use std::future::poll_fn;
use std::pin::Pin;

use anyhow::{Context, Result, bail};
use gantry_shim::streaming::ws;
use hyper::body::{Body, Incoming};
use hyper::header::{
    CONNECTION, HOST, HeaderMap, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use hyper::upgrade::Upgraded;
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// Of an answer that is not an upgrade, for the error message.
const MAX_TEXT: usize = 4096;

/// The header that names SPDY protocols, in requests and answers.
const PROTOCOL: &str = "X-Stream-Protocol-Version";

/// An upgraded connection.
pub(super) type Socket = TokioIo<Upgraded>;

/// Upgrades to WebSocket; returns the agreed subprotocol.
pub(super) async fn websocket(url: &str, protocols: &[&str]) -> Result<(Socket, String)> {
    let key = ws::new_key().context("get randomness for a key")?;
    let builder = Request::builder()
        .method(Method::GET)
        .header(UPGRADE, "websocket")
        .header(SEC_WEBSOCKET_VERSION, "13")
        .header(SEC_WEBSOCKET_KEY, &key)
        .header(SEC_WEBSOCKET_PROTOCOL, protocols.join(", "));
    let (socket, headers) = upgrade(url, builder).await?;
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if header(SEC_WEBSOCKET_ACCEPT) != ws::accept_key(&key) {
        bail!("{url} does not speak WebSocket: its answer to the key is wrong");
    }
    let agreed = header(SEC_WEBSOCKET_PROTOCOL).to_owned();
    if !protocols.contains(&agreed.as_str()) {
        bail!("{url} speaks {agreed:?}, not one of {}", protocols.join(", "));
    }
    Ok((socket, agreed))
}

/// Upgrades to SPDY/3.1 with this protocol.
pub(super) async fn spdy(url: &str, protocol: &str) -> Result<Socket> {
    let builder =
        Request::builder().method(Method::POST).header(UPGRADE, "SPDY/3.1").header(PROTOCOL, protocol);
    Ok(upgrade(url, builder).await?.0)
}

async fn upgrade(url: &str, builder: hyper::http::request::Builder) -> Result<(Socket, HeaderMap)> {
    let uri: Uri = url.parse().with_context(|| format!("{url:?} is no URL"))?;
    let (Some("http"), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        bail!("{url} is not an http:// URL with a host");
    };
    let port = authority.port_u16().unwrap_or(80);
    let stream = TcpStream::connect((authority.host().trim_matches(['[', ']']), port))
        .await
        .with_context(|| format!("connect to the runtime's streaming server at {authority}"))?;
    stream.set_nodelay(true).context("set TCP_NODELAY")?;
    let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let request = builder
        .uri(path)
        .header(HOST, authority.as_str())
        .header(CONNECTION, "Upgrade")
        .body(String::new())
        .context("make the request")?;
    let asked = || format!("ask {authority} for an upgrade");
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.with_context(asked)?;
    // Ends with the connection; what goes wrong is seen by whoever uses it.
    tokio::spawn(connection.with_upgrades());
    let response = sender.send_request(request).await.with_context(asked)?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        let status = response.status();
        bail!("{authority} refuses the connection with {status}: {}", text(response).await);
    }
    let headers = response.headers().clone();
    let upgraded = hyper::upgrade::on(response).await.with_context(asked)?;
    Ok((TokioIo::new(upgraded), headers))
}

/// The beginning of an answer's body.
async fn text(response: Response<Incoming>) -> String {
    let mut body = response.into_body();
    let mut bytes = Vec::new();
    while bytes.len() < MAX_TEXT
        && let Some(Ok(frame)) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await
    {
        if let Some(data) = frame.data_ref() {
            bytes.extend_from_slice(data);
        }
    }
    String::from_utf8_lossy(&bytes).trim().to_owned()
}
