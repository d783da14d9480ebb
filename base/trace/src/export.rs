//! Sends spans that ended to a collector, by OTLP over plaintext gRPC. One task: what it waits for, nobody else does.
#![expect(clippy::disallowed_methods, reason = "`Exporter` owns the task; `shutdown` or its drop ends it")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gantry_proto::otlp::trace_service_client::TraceServiceClient;
use gantry_proto::otlp::{self, ExportTraceServiceRequest, ResourceSpans, ScopeSpans};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tonic::transport::Channel;

use crate::endpoint::CollectorEndpoint;
use crate::sampler::Sampler;
use crate::span::{Tracer, attribute};

/// Spans that wait, at most; OpenTelemetry's default, as the two below.
pub const QUEUE: usize = 2048;
/// Spans of one request, at most.
const BATCH: usize = 512;
const SCHEDULE: Duration = Duration::from_secs(5);
/// Of one request, the connection with it: the OTLP exporter's default.
const TIMEOUT: Duration = Duration::from_secs(10);
/// For spans that wait at the end of a process; a collector that hangs holds up nobody longer.
const LAST_SPANS: Duration = Duration::from_secs(2);

/// The task that sends. Dropped, it ends at once.
#[derive(Debug)]
pub struct Exporter {
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

/// Starts the task; within a runtime of tokio. Dials `endpoint` when there are spans, not before: one that is down is no
/// error here. `scope` names who makes the spans, `resource` on what.
pub fn start(
    endpoint: &CollectorEndpoint,
    sampler: Sampler,
    scope: &str,
    resource: &[(&str, &str)],
) -> (Tracer, Exporter) {
    let channel = endpoint.0.connect_lazy();
    let (queue, spans) = mpsc::channel(QUEUE);
    let (stop, stopped) = oneshot::channel();
    let dropped: Arc<AtomicU64> = Arc::default();
    let attributes = resource.iter().map(|(key, value)| attribute(key, value)).collect();
    let sink = Sink {
        client: TraceServiceClient::new(channel),
        resource: otlp::Resource { attributes },
        scope: otlp::InstrumentationScope { name: scope.to_owned(), ..Default::default() },
        dropped: dropped.clone(),
        told: 0,
        failing: false,
        lost: 0,
    };
    let task = tokio::spawn(run(spans, stopped, sink));
    (Tracer::new(sampler, queue, dropped), Exporter { stop: Some(stop), task })
}

impl Exporter {
    /// At the end of a process: sends what waits, for 2 seconds at most. The log says where spans may be lost.
    pub async fn end(self) {
        if !self.shutdown(LAST_SPANS).await {
            tracing::warn!("the last spans may be lost: the collector did not take them within 2 seconds");
        }
    }

    /// Sends what waits, for `bound` at most; then the task is gone. False where spans may be left.
    pub async fn shutdown(mut self, bound: Duration) -> bool {
        drop(self.stop.take());
        tokio::time::timeout(bound, &mut self.task).await.is_ok_and(|ended| ended.is_ok())
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run(mut spans: mpsc::Receiver<otlp::Span>, mut stopped: oneshot::Receiver<()>, mut sink: Sink) {
    let mut open = true;
    while open {
        let mut batch = Vec::new();
        let due = tokio::time::sleep(SCHEDULE);
        tokio::pin!(due);
        while open && batch.len() < BATCH {
            let room = BATCH - batch.len();
            tokio::select! {
                count = spans.recv_many(&mut batch, room) => open = count > 0,
                () = &mut due => break,
                // What waits is still received; then the count is 0.
                _ = &mut stopped, if !spans.is_closed() => spans.close(),
            }
        }
        if !batch.is_empty() {
            sink.send(batch).await;
        }
    }
}

#[derive(Debug)]
struct Sink {
    client: TraceServiceClient<Channel>,
    resource: otlp::Resource,
    scope: otlp::InstrumentationScope,
    /// Spans that found the queue full; how many of them were told.
    dropped: Arc<AtomicU64>,
    told: u64,
    /// The last request failed: the outage is told.
    failing: bool,
    /// Spans of requests that failed, in this outage.
    lost: u64,
}

impl Sink {
    /// A batch that fails is gone: the next ones are newer.
    async fn send(&mut self, spans: Vec<otlp::Span>) {
        let count = u64::try_from(spans.len()).unwrap_or(u64::MAX);
        let scope_spans =
            vec![ScopeSpans { scope: Some(self.scope.clone()), spans, schema_url: String::new() }];
        let resource = Some(self.resource.clone());
        let resource_spans = vec![ResourceSpans { resource, scope_spans, schema_url: String::new() }];
        let request = ExportTraceServiceRequest { resource_spans };
        let outcome = match tokio::time::timeout(TIMEOUT, self.client.export(request)).await {
            Ok(answer) => answer.map(tonic::Response::into_inner),
            Err(_) => Err(tonic::Status::deadline_exceeded("the collector did not answer within 10 seconds")),
        };
        self.tell(count, outcome);
    }

    fn tell(&mut self, count: u64, outcome: Result<otlp::ExportTraceServiceResponse, tonic::Status>) {
        match outcome {
            Err(status) => {
                self.lost = self.lost.saturating_add(count);
                if !std::mem::replace(&mut self.failing, true) {
                    tracing::warn!(error = %status, "spans are lost: the collector took none; is `tracing.endpoint` right?");
                }
            }
            Ok(answer) => {
                self.failing = false;
                self.tell_lost();
                if let Some(partial) = answer.partial_success.filter(|partial| partial.rejected_spans > 0) {
                    tracing::warn!(spans = partial.rejected_spans, error = %partial.error_message, "the collector rejected spans");
                }
            }
        }
    }

    /// Once for an outage, when it is over.
    fn tell_lost(&mut self) {
        let dropped = self.dropped.load(Ordering::Relaxed);
        let full = dropped.saturating_sub(std::mem::replace(&mut self.told, dropped));
        let lost = std::mem::take(&mut self.lost).saturating_add(full);
        if lost > 0 {
            tracing::warn!(
                spans = lost,
                "spans were lost: the collector did not keep up, and takes them again"
            );
        }
    }
}
