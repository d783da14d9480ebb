//! One request and its answer. Owns the order gate, route, handler, and what is counted of a request;
//! never reads a connection. Called by [`super::listen`].

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use gantry_base::error::chain;
use gantry_trace::current;
use http::{Method, Request, StatusCode};
use k8s_openapi::List;
use k8s_openapi::api::core::v1::Pod;
use rustls::pki_types::CertificateDer;

use super::answer::{self, Answer};
use super::context::ServerContext;
use super::pending_connections::Admission;
use super::route::{Route, Switches, bucket, decode, route};
use super::{
    checkpoints, container_logs, cri, health, node_logs, pages, query, scrape, stats, streams, traced,
};

/// Through which door a request comes.
#[derive(Debug, Clone)]
pub(super) enum Door {
    /// With the certificates the client showed.
    ReadWrite(Arc<[CertificateDer<'static>]>),
    /// Asks nobody anything and shows little.
    ReadOnly,
}

/// Counts a request for as long as it lasts.
struct RequestMetrics<'a> {
    inner: &'a ServerContext,
    labels: [&'a str; 4],
    begun: Instant,
}

impl Drop for RequestMetrics<'_> {
    fn drop(&mut self) {
        let metrics = &self.inner.sources.metrics;
        metrics.http_inflight_requests.add(self.labels, -1.0);
        metrics.http_requests_duration.took(self.labels, self.begun.elapsed());
    }
}

fn counted<'a>(
    inner: &'a ServerContext,
    method: &'a Method,
    path: &'a str,
    door: &Door,
) -> RequestMetrics<'a> {
    let path = bucket(path);
    let method = match method.as_str() {
        known @ ("OPTIONS" | "GET" | "HEAD" | "POST" | "PUT" | "DELETE" | "TRACE" | "CONNECT") => known,
        _ => "other",
    };
    let kind = if matches!(door, Door::ReadOnly) { "readonly" } else { "readwrite" };
    // Upstream's own list, where portforward never matches.
    let long = if matches!(path, "exec" | "attach" | "debug") { "true" } else { "false" };
    let labels = [method, path, kind, long];
    inner.sources.metrics.http_requests.inc(labels);
    inner.sources.metrics.http_inflight_requests.inc(labels);
    RequestMetrics { inner, labels, begun: Instant::now() }
}

/// The answer to one request.
pub(super) async fn serve(inner: Arc<ServerContext>, door: Door, mut request: Request<Body>) -> Answer {
    let Some(path) = decode(request.uri().path()) else {
        return answer::error(StatusCode::BAD_REQUEST, "400 Bad Request: malformed path\n");
    };
    let method = request.method().clone();
    let _counted = counted(&inner, &method, &path, &door);
    let switches = match &door {
        Door::ReadOnly => Switches::NONE,
        Door::ReadWrite(chain) => {
            let peer =
                request.extensions().get::<Admission>().and_then(Admission::peer).map(|peer| peer.ip());
            let checked = inner.gate.check(&method, &path, chain, request.headers_mut(), peer).await;
            if let Err(refusal) = checked {
                return refusal;
            }
            if let Some(admission) = request.extensions().get::<Admission>() {
                admission.admit();
            }
            inner.settings.switches
        }
    };
    let is_tls = matches!(door, Door::ReadWrite(_));
    let route = route(&method, &path, switches);
    let span = traced::start(inner.sources.tracer.as_ref(), &request, &path, &route, is_tls);
    let answering = current::within(span.as_ref(), handle(&inner, route, request));
    traced::end(span, answering.await)
}

async fn handle(inner: &ServerContext, route: Route, request: Request<Body>) -> Answer {
    let sources = &inner.sources;
    let asked = request.uri().query().unwrap_or_default().to_owned();
    match route {
        Route::Healthz(which) => health::healthz(&sources.checks, which.as_deref(), &asked, &sources.metrics),
        Route::Pods => pods(sources.pods.pods()),
        Route::RunningPods => match cri::Cri::new(&sources.runtime, &sources.metrics).running_pods().await {
            Ok(found) => pods(found.into_iter().map(Arc::new).collect()),
            Err(status) => answer::text(StatusCode::INTERNAL_SERVER_ERROR, cri::said(&status)),
        },
        Route::Summary => summary(inner, &asked).await,
        Route::Metrics => scrape::metrics(inner).await,
        Route::MetricsCadvisor => scrape::cadvisor(inner).await,
        Route::MetricsResource => scrape::resource(inner).await,
        Route::MetricsProbes => scrape::probes(inner),
        Route::MetricsSlis => scrape::slis(inner),
        Route::ContainerLogs(target) => container_logs::serve(inner, &target, &asked).await,
        Route::Exec(target) => streams::exec(inner, &target, request).await,
        Route::Attach(target) => streams::attach(inner, &target, request).await,
        Route::PortForward(target) => streams::port_forward(inner, &target, request).await,
        Route::Run(target) => streams::run(inner, &target, &asked).await,
        Route::Checkpoint(target) => checkpoints::checkpoint(inner, &target, &asked).await,
        Route::Configz => answer::json(&serde_json::json!({ "kubeletconfig": (sources.configz)() })),
        Route::Flagz => pages::flagz(sources, request.headers()),
        Route::Statusz => pages::statusz(sources, request.headers()),
        Route::NodeLogs(path) => node_logs::serve(inner, path, &asked, request.headers()).await,
        Route::Pprof(name) => pages::pprof(&name),
        Route::DebugFlags => pages::verbosity(sources, request).await,
        Route::NotFound => answer::not_found(),
        Route::MethodNotAllowed => answer::method_not_allowed(),
        Route::Disabled(text) => answer::error(StatusCode::METHOD_NOT_ALLOWED, text),
    }
}

fn pods(pods: Vec<Arc<Pod>>) -> Answer {
    let items = pods.into_iter().map(Arc::unwrap_or_clone).collect();
    answer::json(&List::<Pod> { items, ..List::default() })
}

async fn summary(inner: &ServerContext, asked: &str) -> Answer {
    let pairs = query::pairs(asked);
    let mut values = query::all(&pairs, "only_cpu_and_memory");
    let only = values.next() == Some("true") && values.next().is_none();
    let depth = if only { stats::Depth::CpuAndMemory } else { stats::Depth::All };
    match inner.sources.stats.summary(inner.sources.stats_sources(), depth).await {
        Ok(summary) => answer::json(&summary),
        Err(error) => {
            let text = format!("Internal Error: {}", chain(&error));
            answer::text(StatusCode::INTERNAL_SERVER_ERROR, text)
        }
    }
}
