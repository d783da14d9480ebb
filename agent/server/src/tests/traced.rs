//! Spans of requests, at a collector.

use std::net::SocketAddr;

use gantry_proto::otlp::{ExportTraceServiceRequest, Span};
use gantry_trace::export::Exporter;
use gantry_trace::span::SpanKind;
use gantry_trace::testing::{self, attributes, numbers};
use tokio::sync::mpsc::UnboundedReceiver;

use super::super::pending_connections::Admission;
use super::*;

const CALLER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn request(method: &str, uri: &str) -> Request<Body> {
    let peer: SocketAddr = "[::ffff:10.0.0.9]:4711".parse().unwrap();
    let request = Request::builder().method(method).uri(uri).header("host", "node-1:10250");
    let request = request.header("user-agent", "curl/8").header("traceparent", CALLER);
    request.extension(Admission::from(peer)).body(Body::empty()).unwrap()
}

/// A server, and the collector that its spans go to.
struct TracedServer {
    tracer: Tracer,
    exporter: Exporter,
    sent: UnboundedReceiver<ExportTraceServiceRequest>,
    folder: tempfile::TempDir,
}

impl TracedServer {
    async fn new() -> Self {
        let (address, sent) = testing::collector().await.unwrap();
        let at = CollectorEndpoint::parse(&address).unwrap();
        let (tracer, exporter) = export::start(&at, Sampler { per_million: 1_000_000 }, "kubelet", &[]);
        Self { tracer, exporter, sent, folder: tempfile::tempdir().unwrap() }
    }

    async fn ask(&self, anonymous: bool, door: &Door, method: &str, path: &str) -> answer::Answer {
        let folder = self.folder.path();
        let sources = ServerDeps { tracer: Some(self.tracer.clone()), ..sources(folder, no_runtime()) };
        let how = Authentication { anonymous, ..Authentication::default() };
        let server = Server::new(settings(folder), sources, how, Mode::AlwaysAllow, None).unwrap();
        serve(server.inner, door.clone(), request(method, path)).await
    }

    async fn spans(mut self) -> Vec<Span> {
        assert!(self.exporter.shutdown(Duration::from_secs(60)).await);
        let mut sent = self.sent.try_recv().unwrap();
        sent.resource_spans.remove(0).scope_spans.remove(0).spans
    }
}

fn tls() -> Door {
    Door::ReadWrite(Vec::new().into())
}

#[tokio::test]
async fn a_request_that_is_let_in_has_a_span_by_upstreams_names() {
    let server = TracedServer::new().await;
    for (anonymous, door, method, path, expected) in [
        (true, tls(), "GET", "/pods?x=1", 200),
        (true, tls(), "POST", "/pods", 405),
        (true, Door::ReadOnly, "GET", "/healthz/ping", 200),
        (true, tls(), "GET", "/runningpods/", 500),
        (true, tls(), "GET", "/pods/x", 404),
        // No span, as the next.
        (true, tls(), "GET", "/no/such/path", 404),
        (false, tls(), "GET", "/pods", 401),
    ] {
        let (status, _) = said(server.ask(anonymous, &door, method, path).await).await;
        assert_eq!(status, expected, "{method} {path}");
    }
    let spans = server.spans().await;
    let [pods, posted, healthz, asked, running, nothing] = spans.as_slice() else { panic!("{spans:?}") };
    let code = |span| numbers(span)["http.response.status_code"];
    for (span, name, route, expected) in [
        (pods, "/pods/", "/pods/", 200),
        (posted, "", "/pods", 405),
        (healthz, "", "/healthz/ping", 200),
        (running, "/runningpods/", "/runningpods/", 500),
        (nothing, "", "/pods/", 404),
    ] {
        assert_eq!((&*span.name, attributes(span)["http.route"], code(span)), (name, route, expected));
        assert_eq!((span.kind, span.parent_span_id.len()), (i32::from(SpanKind::Server), 0), "{span:?}");
        assert!(!CALLER.contains(&span.trace_id.iter().map(|b| format!("{b:02x}")).collect::<String>()));
        assert_eq!(span.status.is_some(), expected == 500);
    }
    assert_eq!(attributes(healthz)["url.scheme"], "http");
    assert_eq!((asked.kind, &asked.parent_span_id), (i32::from(SpanKind::Client), &running.span_id));
}

#[tokio::test]
async fn a_span_says_who_asked_and_how() {
    let server = TracedServer::new().await;
    said(server.ask(true, &tls(), "GET", "/pods?x=1").await).await;
    let spans = server.spans().await;
    let expected = [
        ("server.address", "kubelet"),
        ("http.request.method", "GET"),
        ("url.scheme", "https"),
        ("network.peer.address", "10.0.0.9"),
        ("user_agent.original", "curl/8"),
        ("client.address", "10.0.0.9"),
        ("url.path", "/pods"),
        ("network.protocol.version", "1.1"),
        ("http.route", "/pods/"),
    ];
    assert_eq!(attributes(&spans[0]), expected.into());
    let expected = [("server.port", 10250), ("network.peer.port", 4711), ("http.response.status_code", 200)];
    assert_eq!(numbers(&spans[0]), expected.into());
}

#[tokio::test]
async fn a_span_lasts_as_long_as_the_answer() {
    let server = TracedServer::new().await;
    std::fs::write(server.folder.path().join("a.log"), "line\n").unwrap();
    let answer = server.ask(true, &tls(), "GET", "/logs/a.log").await;
    let headers = jiff::Timestamp::now().as_nanosecond();
    assert_eq!(said(answer).await, (200, "line\n".to_owned()));
    let spans = server.spans().await;
    assert_eq!((&*spans[0].name, attributes(&spans[0])["url.path"]), ("/logs/{logpath:*}", "/logs/a.log"));
    assert!(i128::from(spans[0].end_time_unix_nano) >= headers, "it had not been read");
}
