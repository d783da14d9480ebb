//! The objects over HTTP. Owns paths, codes and streams; never an object. Called by
//! [`super::FakeApiServer`].

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::response::Response;
use futures_util::{Stream, StreamExt, stream};
use http::{Method, Request, StatusCode};
use serde_json::{Value, json};
use tower::{Service, ServiceExt};

use super::store::{Change, No, Target};
use super::{FakeApiServer, RecordedRequest, Shared, Wrong};

const MOST: usize = 16 << 20;

pub(super) fn router(shared: Arc<Shared>) -> axum::Router {
    axum::Router::new().fallback(move |request: Request<Body>| answer(shared.clone(), request))
}

/// The server as a client's connection: no socket, so paused time does not run away.
#[derive(Clone)]
pub(super) struct InProcess {
    shared: Arc<Shared>,
    router: axum::Router,
}

impl InProcess {
    pub(super) fn new(server: &FakeApiServer) -> Self {
        Self { shared: server.shared.clone(), router: server.router() }
    }
}

type ResponseFuture = Pin<Box<dyn Future<Output = Result<Response, std::io::Error>> + Send>>;

impl<B> Service<Request<B>> for InProcess
where
    B: axum::body::HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<axum::BoxError>,
{
    type Response = Response;
    type Error = std::io::Error;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (shared, router) = (self.shared.clone(), self.router.clone());
        Box::pin(async move {
            let refused = || std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
            if shared.lock().down {
                return Err(refused());
            }
            let answered = router
                .oneshot(request.map(Body::new))
                .await
                .unwrap_or_else(|never: Infallible| match never {});
            match answered.headers().contains_key("x-lost") {
                true => Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset)),
                false => Ok(answered),
            }
        })
    }
}

async fn answer(shared: Arc<Shared>, request: Request<Body>) -> Response {
    let (parts, body) = request.into_parts();
    let bytes = axum::body::to_bytes(body, MOST).await.unwrap_or_default();
    let body: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let path = parts.uri.path().to_owned();
    let query = parts.uri.query().unwrap_or_default().to_owned();
    let asked = RecordedRequest {
        method: parts.method.to_string(),
        path: path.clone(),
        query: query.clone(),
        body: body.clone(),
    };
    let wrong = {
        let mut inner = shared.lock();
        inner.asked.push(asked);
        let fits = |fault: &&mut super::InjectedFault| {
            fault.times > 0
                && path.contains(&fault.path)
                && (fault.method.is_empty() || parts.method.as_str() == fault.method)
        };
        inner.faults.iter_mut().find(fits).map(|fault| {
            fault.times -= 1;
            fault.what
        })
    };
    match wrong {
        Some(Wrong::Refused(code, reason)) => {
            return status(&No(code, reason, "as the test wants it".to_owned()));
        }
        Some(Wrong::Hangs) => std::future::pending::<()>().await,
        Some(Wrong::Lost) | None => {}
    }
    if parts.method == Method::POST && path.ends_with("/token") {
        return token(&shared, body);
    }
    let Some(target) = Target::parse(&path) else {
        return status(&No(404, "NotFound", "no such path".to_owned()));
    };
    let mut answer = carry_out(&shared, &parts.method, target, &parameters(&query), &body);
    shared.tick();
    if wrong == Some(Wrong::Lost) {
        answer.headers_mut().insert("x-lost", http::HeaderValue::from_static("1"));
    }
    answer
}

/// A TokenRequest with its status: `token-1`, `token-2` …
fn token(shared: &Shared, mut body: Value) -> Response {
    let mut inner = shared.lock();
    inner.tokens += 1;
    let life = body["spec"]["expirationSeconds"].as_i64().unwrap_or(3600);
    let expires = jiff::Timestamp::from_second(inner.now + life).unwrap_or_default();
    body["status"] =
        json!({ "token": format!("token-{}", inner.tokens), "expirationTimestamp": expires.to_string() });
    json_response(201, &body)
}

fn carry_out(
    shared: &Arc<Shared>,
    method: &Method,
    target: Target,
    query: &BTreeMap<String, String>,
    body: &Value,
) -> Response {
    let mut inner = shared.lock();
    let store = &mut inner.store;
    let result = match (method, &target.name) {
        (&Method::GET, None) => {
            drop(inner);
            return collection(shared, &target, query);
        }
        (&Method::GET, Some(_)) => match store.get(&target.key()) {
            Some(object) => Ok(object.clone()),
            None => Err(No(404, "NotFound", format!("{} not found", target.plural))),
        },
        (&Method::POST, None) => store.create(target, body.clone()),
        (&Method::PUT, Some(_)) => store.update(target, body.clone()),
        (&Method::PATCH, Some(_)) => store.patch(target, body),
        (&Method::DELETE, Some(_)) => store.delete(&target, body),
        (&Method::DELETE, None) => {
            Ok(store.delete_all(&target, query.get("fieldSelector").map_or("", String::as_str)))
        }
        _ => Err(No(405, "MethodNotAllowed", "not here".to_owned())),
    };
    match result {
        Ok(object) => json_response(if method == Method::POST { 201 } else { 200 }, &object),
        Err(no) => status(&no),
    }
}

fn collection(shared: &Arc<Shared>, target: &Target, query: &BTreeMap<String, String>) -> Response {
    let selector = query.get("fieldSelector").cloned().unwrap_or_default();
    let asked: u64 = query.get("resourceVersion").and_then(|version| version.parse().ok()).unwrap_or(0);
    if query.get("watch").is_some_and(|watch| watch == "true") {
        return watch(shared, target, &selector, asked);
    }
    let inner = shared.lock();
    let version = inner.store.version();
    if asked > version {
        let details = json!({ "causes": [{ "reason": "ResourceVersionTooLarge", "message": "Too large resource version" }] });
        let body = json!({ "kind": "Status", "status": "Failure", "code": 504, "reason": "Timeout",
            "message": "Too large resource version", "details": details });
        return json_response(504, &body);
    }
    let all = inner.store.list(target, &selector);
    let from: usize = query.get("continue").and_then(|token| token.parse().ok()).unwrap_or(0);
    let limit = query.get("limit").and_then(|limit| limit.parse().ok()).unwrap_or(usize::MAX);
    let page: Vec<Value> = all.iter().skip(from).take(limit).cloned().collect();
    let next = from.saturating_add(page.len());
    let token = if next < all.len() { next.to_string() } else { String::new() };
    json_response(
        200,
        &json!({ "kind": "List", "metadata": { "resourceVersion": version.to_string(), "continue": token }, "items": page }),
    )
}

fn watch(shared: &Arc<Shared>, target: &Target, selector: &str, version: u64) -> Response {
    let begun = {
        let inner = shared.lock();
        if inner.store.since(target, selector, version).is_none() {
            return status(&No(410, "Expired", format!("too old resource version: {version}")));
        }
        inner.cuts
    };
    let body =
        Body::from_stream(changes(shared.clone(), target.clone(), selector.to_owned(), version, begun));
    Response::new(body)
}

fn changes(
    shared: Arc<Shared>,
    target: Target,
    selector: String,
    version: u64,
    begun: u64,
) -> impl Stream<Item = Result<Bytes, Infallible>> {
    let ticks = shared.tick.subscribe();
    let start = (shared, ticks, version);
    stream::unfold(start, move |(shared, mut ticks, mut version)| {
        let (target, selector) = (target.clone(), selector.clone());
        async move {
            loop {
                ticks.mark_unchanged();
                let news = {
                    let inner = shared.lock();
                    if inner.cuts != begun {
                        return None;
                    }
                    inner.store.since(&target, &selector, version)
                };
                let Some(news) = news else {
                    let gone = json!({ "type": "ERROR", "object": { "kind": "Status", "status": "Failure",
                        "code": 410, "reason": "Expired", "message": "too old resource version" } });
                    return Some((vec![line(&gone)], (shared, ticks, u64::MAX)));
                };
                if let Some(last) = news.last() {
                    version = last.version;
                    let lines: Vec<_> = news.iter().map(event).collect();
                    return Some((lines, (shared, ticks, version)));
                }
                if version == u64::MAX || ticks.changed().await.is_err() {
                    return None;
                }
            }
        }
    })
    .flat_map(stream::iter)
}

fn event(change: &Change) -> Result<Bytes, Infallible> {
    let mut object = change.object.clone();
    if change.kind == "BOOKMARK" {
        object["kind"] = json!("Bookmark");
        object["apiVersion"] = json!("v1");
    }
    line(&json!({ "type": change.kind, "object": object }))
}

fn line(value: &Value) -> Result<Bytes, Infallible> {
    Ok(Bytes::from(format!("{value}\n")))
}

fn status(no: &No) -> Response {
    let No(code, reason, message) = no;
    let body = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
        "reason": reason, "message": message });
    json_response(*code, &body)
}

fn json_response(code: u16, body: &Value) -> Response {
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
        .headers_mut()
        .insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    response
}

fn parameters(query: &str) -> BTreeMap<String, String> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), unescape(value))).collect()
}

fn unescape(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let digit = |byte: Option<u8>| byte.and_then(|b| char::from(b).to_digit(16)).unwrap_or(0);
        match byte {
            b'%' => {
                let value = digit(rest.next()) * 16 + digit(rest.next());
                bytes.push(u8::try_from(value).unwrap_or(b'?'));
            }
            b'+' => bytes.push(b' '),
            other => bytes.push(other),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
