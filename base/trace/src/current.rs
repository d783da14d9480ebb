//! Which span a task works in: calls made there become its children. Owns the task's record of it; nothing is told by
//! arguments, as Go tells it by its context.

use std::future::Future;
use std::io;

use crate::context::SpanContext;
use crate::span::{SpanKind, TraceSpan, Tracer};

tokio::task_local! {
    static CURRENT: Option<(Tracer, SpanContext)>;
}

/// Does `work` as part of `span`; in none where there is none. A task that `work` spawns is not part of it.
pub fn within<F: Future>(span: Option<&TraceSpan>, work: F) -> impl Future<Output = F::Output> + use<F> {
    CURRENT.scope(span.map(|span| (span.tracer().clone(), *span.context())), work)
}

/// Does `work` in a span of its own, at the root of a new trace; just does it without a tracer.
pub async fn root<F: Future>(tracer: Option<&Tracer>, name: &str, work: F) -> F::Output {
    let span = tracer.and_then(|tracer| tracer.root(name));
    within(span.as_ref(), work).await
}

/// A child of the span that this task works in; None where it works in none. Fails as [`Tracer::start`] does.
pub fn child(name: &str, kind: SpanKind) -> io::Result<Option<TraceSpan>> {
    let current = CURRENT.try_with(Clone::clone).ok().flatten();
    current.map(|(tracer, parent)| tracer.start(name, kind, Some(&parent))).transpose()
}

/// A stage of the work that this task does, which is over: from when to when in nanoseconds since 1970. Of no effect in no
/// span. Fails as [`Tracer::start`] does.
pub fn add(name: &str, times: [i64; 2], detail: &str) -> io::Result<()> {
    let current = CURRENT.try_with(Clone::clone).ok().flatten();
    current.map_or(Ok(()), |(tracer, parent)| tracer.add(name, times, detail, &parent))
}

/// Whether this task works in a span that is sent.
pub fn is_sampled() -> bool {
    CURRENT.try_with(|current| current.as_ref().is_some_and(|(_, parent)| parent.sampled)).unwrap_or(false)
}
