//! A span for each request that is let in, by the names of upstream's filter, Go's otelrestful; calls of the runtime within
//! it are its children. Owns what a span says; never changes an answer. Called by [`super::serve`].
//!
//! Upstream's kubelet sets no propagator for this filter: a `traceparent` of the client is passed over, here as there.

use axum::body::Body;
use gantry_trace::span::{SpanKind, TraceSpan, Tracer};
use http::header::{HOST, USER_AGENT};
use http::uri::Authority;
use http::{Method, Request, StatusCode, Version};

use super::answer::{Answer, KeptBody};
use super::pending_connections::Admission;
use super::route::{Route, is_of_service};

/// What upstream gives as the server's address.
const SERVER: &str = "kubelet";
const FORWARDED_FOR: &str = "x-forwarded-for";

/// None without a tracer, and of a path that upstream's router does not have.
pub(super) fn start(
    tracer: Option<&Tracer>,
    request: &Request<Body>,
    path: &str,
    route: &Route,
    is_tls: bool,
) -> Option<TraceSpan> {
    let tracer = tracer.filter(|_| *route != Route::NotFound || (is_tls && is_of_service(path)))?;
    let template = route.template();
    let told = tracer.start(&template, SpanKind::Server, None);
    let told = told.inspect_err(
        |error| tracing::warn!(path, %error, "the request has no span: the kernel gave no random bytes"),
    );
    let mut span = told.ok()?;
    span.set("server.address", SERVER);
    name_method(&mut span, request.method());
    span.set("url.scheme", if is_tls { "https" } else { "http" });
    let usual = if is_tls { 443 } else { 80 };
    if let Some(port) = port(request).filter(|port| *port != usual) {
        span.set_number("server.port", port.into());
    }
    let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
    let peer = request.extensions().get::<Admission>().and_then(Admission::peer);
    if let Some(peer) = peer {
        span.set("network.peer.address", &peer.ip().to_string());
        span.set_number("network.peer.port", peer.port().into());
    }
    if let Some(agent) = header(USER_AGENT.as_str()) {
        span.set("user_agent.original", agent);
    }
    let forwarded = header(FORWARDED_FOR).and_then(|all| all.split(',').next());
    let client = forwarded.filter(|first| !first.is_empty()).map(str::to_owned);
    if let Some(client) = client.or_else(|| peer.map(|peer| peer.ip().to_string())) {
        span.set("client.address", &client);
    }
    span.set("url.path", path);
    span.set("network.protocol.version", version(request.version()));
    let route = if template.is_empty() { route.pattern(path) } else { template };
    span.set("http.route", &route);
    Some(span)
}

/// The span ends with the answer's body; that of a stream of its own, as `exec` has it, with the stream's beginning.
pub(super) fn end(span: Option<TraceSpan>, answer: Answer) -> Answer {
    let Some(mut span) = span else { return answer };
    let status = match answer.status() {
        // Upstream's filter sees no answer there, and takes it for one that went well.
        StatusCode::SWITCHING_PROTOCOLS => StatusCode::OK,
        status => status,
    };
    span.set_number("http.response.status_code", status.as_u16().into());
    if status.is_server_error() {
        span.fail("");
    }
    answer.map(|body| Body::new(KeptBody::new(body, span)))
}

/// One that nobody knows counts as GET, with its own name beside it.
fn name_method(span: &mut TraceSpan, method: &Method) {
    let known = matches!(
        *method,
        Method::CONNECT
            | Method::DELETE
            | Method::GET
            | Method::HEAD
            | Method::OPTIONS
            | Method::PATCH
            | Method::POST
            | Method::PUT
            | Method::TRACE
    );
    span.set("http.request.method", if known { method.as_str() } else { "GET" });
    if !known {
        span.set("http.request.method_original", method.as_str());
    }
}

/// As the client names the server.
fn port(request: &Request<Body>) -> Option<u16> {
    if let Some(port) = request.uri().port_u16() {
        return Some(port);
    }
    request.headers().get(HOST)?.to_str().ok()?.parse::<Authority>().ok()?.port_u16()
}

fn version(version: Version) -> &'static str {
    match version {
        Version::HTTP_2 => "2.0",
        Version::HTTP_10 => "1.0",
        _ => "1.1",
    }
}
