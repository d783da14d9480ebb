//! The streaming server's HTTP: token, protocol, upgrade. Owns the connections until they are upgraded;
//! answers what is wrong with a request in upstream's codes and headers. Started by
//! `StreamingServer`.

#![expect(clippy::disallowed_methods, reason = "a connection is one task, which pending_connections may end")]

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ::http::header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use ::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use gantry_base::error::chain;
use gantry_failpoint::failpoint;
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;

use super::command;
use super::forward::{self, ForwardTarget};
use super::hangup::HangUp;
use super::idle::{self, Activity, ActivityTracked};
use super::pending_connections::{Admission, PendingConnections};
use super::session::{self, SessionCommand};
use super::token::{Tokens, Waiting};
use super::ws::{accept_key, tunnel};
use crate::node::Node;
use gantry_base::mutex::lock;

/// Clients that have not upgraded yet; one more makes the oldest of them go.
const MAX_CONNECTIONS: usize = 1000;
/// How long a client may take to say what it wants.
const REQUEST: Duration = Duration::from_secs(5);
/// How long a connection may last before its upgrade, whatever it does: idle ones must not keep others
/// out.
const BEFORE_UPGRADE: Duration = Duration::from_secs(10);

const PROTOCOL: &str = "x-stream-protocol-version";
const ACCEPTED_PROTOCOLS: &str = "x-accepted-stream-protocol-versions";
const SPDY: &str = "SPDY/3.1";

/// Serves until the listener is dropped.
pub(super) async fn accept(listener: TcpListener, node: Arc<Node>, tokens: Arc<Tokens>) {
    let mut pending = PendingConnections::new(MAX_CONNECTIONS);
    loop {
        let accepted = listener.accept().await;
        failpoint!("task.streaming");
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors, most likely: others will be closed.
                tracing::warn!("accept a streaming client: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        // Keystrokes must not wait for each other.
        let _ = stream.set_nodelay(true);
        let hang_up = match HangUp::of(&stream) {
            Ok(hang_up) => Mutex::new(Some(hang_up)),
            Err(error) => {
                tracing::warn!("watch a streaming client: {error}");
                continue;
            }
        };
        let (node, tokens) = (node.clone(), tokens.clone());
        let admission = Admission::default();
        let known = admission.clone();
        let task = tokio::spawn(async move {
            let service = hyper::service::service_fn(move |request| {
                let answer = answer(&node, &tokens, &hang_up, &known, request);
                async move { Ok::<_, Infallible>(answer) }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(REQUEST)
                .serve_connection(TokioIo::new(stream), service)
                .with_upgrades();
            match tokio::time::timeout(BEFORE_UPGRADE, connection).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!("a streaming client: {}", chain(&error)),
                Err(_) => tracing::debug!("a streaming client is hung up on: it asks for nothing"),
            }
        });
        pending.add(admission, task.abort_handle());
    }
}

/// What a request gets instead of an upgrade.
#[derive(Debug, PartialEq, Eq)]
struct HttpRefusal {
    status: StatusCode,
    text: String,
    accepted: Vec<&'static str>,
}

impl HttpRefusal {
    fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, text: text.into(), accepted: Vec::new() }
    }
}

impl From<HttpRefusal> for Response<String> {
    fn from(refusal: HttpRefusal) -> Self {
        let mut response = Response::new(format!("{}\n", refusal.text));
        *response.status_mut() = refusal.status;
        for protocol in refusal.accepted {
            response.headers_mut().append(ACCEPTED_PROTOCOLS, HeaderValue::from_static(protocol));
        }
        response
    }
}

/// The transport agreed on.
#[derive(Debug, PartialEq, Eq)]
enum Upgrade {
    Spdy(&'static str),
    /// With the answer to the client's key.
    WebSocket(&'static str, String),
}

fn answer(
    node: &Arc<Node>,
    tokens: &Tokens,
    hang_up: &Mutex<Option<HangUp>>,
    admission: &Admission,
    mut request: Request<Incoming>,
) -> Response<String> {
    let upgrade = hyper::upgrade::on(&mut request);
    match prepare(node, tokens, &request) {
        Ok((agreed, work)) => {
            admission.admit();
            let response = switching(&agreed);
            // Nothing is asked on a connection after its upgrade.
            let hang_up = lock(hang_up).take().unwrap_or_else(HangUp::never);
            tokio::spawn(serve(node.clone(), (work, agreed), upgrade, hang_up));
            response.unwrap_or_else(|refusal| refusal.into())
        }
        Err(refusal) => refusal.into(),
    }
}

/// What is to be done once the connection is upgraded.
#[derive(Debug)]
enum UpgradedWork {
    Command(SessionCommand),
    Forward(ForwardTarget, Vec<u16>),
}

fn prepare<B>(
    node: &Node,
    tokens: &Tokens,
    request: &Request<B>,
) -> Result<(Upgrade, UpgradedWork), HttpRefusal> {
    let not_found = || HttpRefusal::new(StatusCode::NOT_FOUND, "404 page not found");
    if !matches!(*request.method(), Method::GET | Method::POST) {
        return Err(HttpRefusal::new(StatusCode::METHOD_NOT_ALLOWED, "405: Method Not Allowed"));
    }
    let path = request.uri().path().trim_start_matches('/');
    let (method, token) = path.split_once('/').ok_or_else(not_found)?;
    let waiting = tokens.take(token, Instant::now()).ok_or_else(not_found)?;
    let headers = request.headers();
    match (method, waiting) {
        ("exec", Waiting::Exec(exec)) => command_work(headers, SessionCommand::Exec(exec)),
        ("attach", Waiting::Attach(attach)) => command_work(headers, SessionCommand::Attach(attach)),
        ("portforward", Waiting::PortForward(forward)) => {
            let target = ForwardTarget::of(node, &forward.pod_sandbox_id)
                .map_err(|error| HttpRefusal::new(StatusCode::INTERNAL_SERVER_ERROR, chain(&error)))?;
            let agreed = if is_websocket(headers) {
                let tunnel = std::iter::once(forward::TUNNEL_PROTOCOL);
                let known: Vec<_> = tunnel.chain(forward::WS_PROTOCOLS).collect();
                websocket(headers, &known)?
            } else {
                spdy(headers, &forward::SPDY_PROTOCOLS)?
            };
            let legacy =
                matches!(agreed, Upgrade::WebSocket(protocol, _) if protocol != forward::TUNNEL_PROTOCOL);
            let ports = if legacy {
                forward::ports_of(&forward.port, request.uri().query().unwrap_or_default())
                    .map_err(|why| HttpRefusal::new(StatusCode::BAD_REQUEST, why))?
            } else {
                Vec::new()
            };
            Ok((agreed, UpgradedWork::Forward(target, ports)))
        }
        _ => Err(not_found()),
    }
}

fn command_work(
    headers: &HeaderMap,
    command: SessionCommand,
) -> Result<(Upgrade, UpgradedWork), HttpRefusal> {
    let agreed = if is_websocket(headers) {
        websocket(headers, &command::WS_PROTOCOLS)?
    } else {
        spdy(headers, &command::SPDY_PROTOCOLS)?
    };
    Ok((agreed, UpgradedWork::Command(command)))
}

fn has_token(headers: &HeaderMap, name: ::http::HeaderName, token: &str) -> bool {
    headers.get_all(name).iter().any(|value| {
        value.to_str().is_ok_and(|value| value.to_ascii_lowercase().contains(&token.to_ascii_lowercase()))
    })
}

fn is_websocket(headers: &HeaderMap) -> bool {
    has_token(headers, UPGRADE, "websocket") && has_token(headers, CONNECTION, "upgrade")
}

/// Comma-separated values of a header that may come several times.
fn values(headers: &HeaderMap, name: &str) -> Vec<String> {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|value| value.trim().to_owned())
        .filter(|value| !value.is_empty())
        .collect()
}

/// The first of the client's protocols that is known: its order counts, not ours.
fn common(wanted: &[String], known: &[&'static str]) -> Option<&'static str> {
    wanted.iter().find_map(|wanted| known.iter().find(|known| *known == wanted).copied())
}

fn spdy(headers: &HeaderMap, known: &[&'static str]) -> Result<Upgrade, HttpRefusal> {
    let wanted = values(headers, PROTOCOL);
    if wanted.is_empty() {
        let text = if headers.contains_key(PROTOCOL) {
            "unable to upgrade: header X-Stream-Protocol-Version contains no valid protocols".to_owned()
        } else {
            format!(
                "unable to upgrade: header X-Stream-Protocol-Version does not exist in request with {} headers",
                headers.keys_len()
            )
        };
        return Err(HttpRefusal::new(StatusCode::BAD_REQUEST, text));
    }
    let Some(protocol) = common(&wanted, known) else {
        let text = format!(
            "unable to upgrade: unable to negotiate protocol: client supports [{}], server accepts [{}]",
            wanted.join(" "),
            known.join(" ")
        );
        return Err(HttpRefusal { status: StatusCode::FORBIDDEN, text, accepted: known.to_vec() });
    };
    if !(has_token(headers, CONNECTION, "upgrade") && has_token(headers, UPGRADE, SPDY)) {
        let text = "unable to upgrade: missing upgrade headers in request";
        return Err(HttpRefusal::new(StatusCode::BAD_REQUEST, text));
    }
    Ok(Upgrade::Spdy(protocol))
}

fn websocket(headers: &HeaderMap, known: &[&'static str]) -> Result<Upgrade, HttpRefusal> {
    let refused = |text: String| Err(HttpRefusal::new(StatusCode::BAD_REQUEST, text));
    let Some(key) = headers.get(SEC_WEBSOCKET_KEY).and_then(|key| key.to_str().ok()) else {
        return refused("the request has no Sec-WebSocket-Key".into());
    };
    let mut wanted = values(headers, SEC_WEBSOCKET_PROTOCOL.as_str());
    if wanted.is_empty() {
        wanted.push(String::new());
    }
    match common(&wanted, known) {
        Some(protocol) => Ok(Upgrade::WebSocket(protocol, accept_key(key))),
        // Upstream's WebSocket library answers so, too.
        None => {
            let (wanted, known) = (wanted.join(" "), known.join(" "));
            let text = format!("requested protocol(s) are not supported: [{wanted}]; supports [{known}]");
            Err(HttpRefusal::new(StatusCode::FORBIDDEN, text))
        }
    }
}

/// 101 with what was agreed on.
fn switching(agreed: &Upgrade) -> Result<Response<String>, HttpRefusal> {
    let mut response =
        Response::builder().status(StatusCode::SWITCHING_PROTOCOLS).header(CONNECTION, "Upgrade");
    response = match agreed {
        Upgrade::Spdy(protocol) => response.header(UPGRADE, SPDY).header(PROTOCOL, *protocol),
        Upgrade::WebSocket(protocol, accept) => {
            let response = response.header(UPGRADE, "websocket").header(SEC_WEBSOCKET_ACCEPT, accept);
            // None asked for, none named.
            if protocol.is_empty() { response } else { response.header(SEC_WEBSOCKET_PROTOCOL, *protocol) }
        }
    };
    response
        .body(String::new())
        .map_err(|error| HttpRefusal::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
}

async fn serve(
    node: Arc<Node>,
    (work, agreed): (UpgradedWork, Upgrade),
    upgrade: OnUpgrade,
    hang_up: HangUp,
) {
    let activity = Activity::new(idle::LIMIT);
    let hang_up = hang_up.or_idle(activity.clone());
    let socket = match upgrade.await {
        Ok(socket) => ActivityTracked::new(TokioIo::new(socket), activity),
        Err(error) => {
            tracing::debug!("a streaming client left before its upgrade: {}", chain(&error));
            return;
        }
    };
    match (work, agreed) {
        (UpgradedWork::Command(command), Upgrade::WebSocket(protocol, _)) => {
            let session = command::over_websocket(socket, protocol, command.streams(), hang_up).await;
            session::run(node, command, session).await;
        }
        (UpgradedWork::Command(command), Upgrade::Spdy(protocol)) => {
            match command::over_spdy(socket, protocol, command.streams(), hang_up).await {
                Ok(session) => session::run(node, command, session).await,
                Err(error) => tracing::debug!("a SPDY client: {error}"),
            }
        }
        (UpgradedWork::Forward(target, ports), Upgrade::WebSocket(protocol, _)) => {
            if protocol != forward::TUNNEL_PROTOCOL {
                forward::over_websocket(socket, protocol, ports, target, hang_up).await;
            } else if let Err(error) = forward::over_spdy(tunnel::start(socket), target, hang_up).await {
                tracing::debug!("a port forward in a tunnel: {error}");
            }
        }
        (UpgradedWork::Forward(target, _), Upgrade::Spdy(_)) => {
            if let Err(error) = forward::over_spdy(socket, target, hang_up).await {
                tracing::debug!("a port forward: {error}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    const UPGRADE_SPDY: [(&str, &str); 2] = [("connection", "Upgrade"), ("upgrade", "SPDY/3.1")];

    #[test]
    fn the_clients_first_protocol_that_is_known_wins() {
        let offer = [
            ("x-stream-protocol-version", "v9.channel.k8s.io, v2.channel.k8s.io"),
            ("x-stream-protocol-version", "v4.channel.k8s.io"),
        ];
        let agreed = spdy(&headers(&[&UPGRADE_SPDY[..], &offer].concat()), &command::SPDY_PROTOCOLS);
        assert_eq!(agreed, Ok(Upgrade::Spdy("v2.channel.k8s.io")));
    }

    #[test]
    fn a_missing_protocol_is_400_and_an_unknown_one_403_with_what_is_known() {
        let refusal = spdy(&headers(&UPGRADE_SPDY), &command::SPDY_PROTOCOLS).unwrap_err();
        assert_eq!(refusal.status, StatusCode::BAD_REQUEST);
        let offer = [&UPGRADE_SPDY[..], &[("x-stream-protocol-version", "v9.channel.k8s.io")]].concat();
        let refusal = spdy(&headers(&offer), &command::SPDY_PROTOCOLS).unwrap_err();
        let response = Response::from(refusal);
        assert_eq!(response.status(), StatusCode::FORBIDDEN);
        let accepted: Vec<_> = response.headers().get_all(ACCEPTED_PROTOCOLS).iter().collect();
        assert_eq!(accepted, command::SPDY_PROTOCOLS);
    }

    #[test]
    fn websocket_clients_may_name_no_protocol_and_get_their_key_answered() {
        let base = [
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "WebSocket"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ];
        let plain = headers(&base);
        assert!(is_websocket(&plain));
        let agreed = websocket(&plain, &command::WS_PROTOCOLS).unwrap();
        let response = switching(&agreed).unwrap();
        assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
        assert_eq!(response.headers()[SEC_WEBSOCKET_ACCEPT], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert!(!response.headers().contains_key(SEC_WEBSOCKET_PROTOCOL));
        let offer = [("sec-websocket-protocol", "v5.channel.k8s.io,v4.channel.k8s.io")];
        let agreed = websocket(&headers(&[&base[..], &offer].concat()), &command::WS_PROTOCOLS).unwrap();
        assert_eq!(switching(&agreed).unwrap().headers()[SEC_WEBSOCKET_PROTOCOL], "v5.channel.k8s.io");
        let offer = [("sec-websocket-protocol", "chat")];
        assert!(websocket(&headers(&[&base[..], &offer].concat()), &command::WS_PROTOCOLS).is_err());
    }
}
