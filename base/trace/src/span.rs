//! A piece of work that is timed, and its way into the queue. A span ends when it is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

pub use gantry_proto::otlp::span::SpanKind;
use gantry_proto::otlp::status::StatusCode;
use gantry_proto::otlp::{self, any_value};
use tokio::sync::mpsc;

use crate::context::SpanContext;
use crate::sampler::Sampler;

/// Starts spans. Clones share the queue.
#[derive(Debug, Clone)]
pub struct Tracer {
    sampler: Sampler,
    queue: mpsc::Sender<otlp::Span>,
    dropped: Arc<AtomicU64>,
}

impl Tracer {
    pub(crate) fn new(sampler: Sampler, queue: mpsc::Sender<otlp::Span>, dropped: Arc<AtomicU64>) -> Self {
        Self { sampler, queue, dropped }
    }

    /// Below `parent`, or at the root of a new trace. Fails where the kernel gives no random bytes.
    pub fn start(
        &self,
        name: &str,
        kind: SpanKind,
        parent: Option<&SpanContext>,
    ) -> std::io::Result<TraceSpan> {
        let trace_id = match parent {
            Some(parent) => parent.trace_id,
            None => random()?,
        };
        let sampled = self.sampler.samples(parent, &trace_id);
        let context = SpanContext { trace_id, span_id: random()?, sampled };
        let record = otlp::Span {
            trace_id: trace_id.to_vec(),
            span_id: context.span_id.to_vec(),
            parent_span_id: parent.map(|parent| parent.span_id.to_vec()).unwrap_or_default(),
            name: name.to_owned(),
            kind: kind.into(),
            start_time_unix_nano: now(),
            ..otlp::Span::default()
        };
        Ok(TraceSpan { context, record: sampled.then_some(record), tracer: self.clone() })
    }

    /// Work that is over, below `parent`: its name, and from when to when in nanoseconds since 1970. Fails as `start` does.
    pub(crate) fn add(
        &self,
        name: &str,
        [start, end]: [i64; 2],
        detail: &str,
        parent: &SpanContext,
    ) -> std::io::Result<()> {
        let mut span = self.start(name, SpanKind::Internal, Some(parent))?;
        let Some(mut record) = span.record.take() else { return Ok(()) };
        record.start_time_unix_nano = u64::try_from(start).unwrap_or_default();
        record.end_time_unix_nano = u64::try_from(end).unwrap_or_default();
        if !detail.is_empty() {
            record.attributes.push(attribute("detail", detail));
        }
        self.end(record);
        Ok(())
    }

    /// The first span of a new trace. None where the kernel gives no random bytes: the log says so, and the work goes on.
    pub fn root(&self, name: &str) -> Option<TraceSpan> {
        self.start(name, SpanKind::Internal, None)
            .inspect_err(
                |error| tracing::warn!(name, %error, "a span is missing: the kernel gave no random bytes"),
            )
            .ok()
    }

    /// Spans that found the queue full or closed, since start.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Never waits.
    fn end(&self, record: otlp::Span) {
        if self.queue.try_send(record).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Work under way.
#[derive(Debug)]
pub struct TraceSpan {
    context: SpanContext,
    /// None where the trace is not sampled.
    record: Option<otlp::Span>,
    tracer: Tracer,
}

impl TraceSpan {
    /// What its children and the calls within it carry.
    pub fn context(&self) -> &SpanContext {
        &self.context
    }

    pub(crate) fn tracer(&self) -> &Tracer {
        &self.tracer
    }

    pub fn set(&mut self, key: &str, value: &str) {
        if let Some(record) = &mut self.record {
            record.attributes.push(attribute(key, value));
        }
    }

    pub fn set_number(&mut self, key: &str, value: i64) {
        if let Some(record) = &mut self.record {
            let value = otlp::AnyValue { value: Some(any_value::Value::IntValue(value)) };
            record.attributes.push(otlp::KeyValue { key: key.to_owned(), value: Some(value) });
        }
    }

    pub fn fail(&mut self, message: &str) {
        if let Some(record) = &mut self.record {
            record.status =
                Some(otlp::Status { message: message.to_owned(), code: StatusCode::Error.into() });
        }
    }
}

impl Drop for TraceSpan {
    fn drop(&mut self) {
        if let Some(mut record) = self.record.take() {
            record.end_time_unix_nano = now();
            self.tracer.end(record);
        }
    }
}

pub(crate) fn attribute(key: &str, value: &str) -> otlp::KeyValue {
    let value = otlp::AnyValue { value: Some(any_value::Value::StringValue(value.to_owned())) };
    otlp::KeyValue { key: key.to_owned(), value: Some(value) }
}

/// Nanoseconds since 1970. A clock before that or after 2554 gives 0.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or_default()
}

/// Not all zero: that is how an absent id is written.
fn random<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    while bytes == [0; N] {
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(bytes)
}
