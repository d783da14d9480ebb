//! Which span a task works in: calls made there become its children. Owns the task's record of it; nothing is told by
//! arguments, as Go tells it by its context.

use std::future::Future;
use std::io;

use gantry_proto::otlp::span::SpanKind;

use crate::context::SpanContext;
use crate::span::{Span, Tracer};

tokio::task_local! {
    static CURRENT: (Tracer, SpanContext);
}

/// Does `work` as part of `span`. A task that `work` spawns is not part of it.
pub async fn within<F: Future>(span: &Span, work: F) -> F::Output {
    CURRENT.scope((span.tracer().clone(), *span.context()), work).await
}

/// A child of the span that this task works in; None where it works in none. Fails as [`Tracer::start`] does.
pub fn child(name: &str, kind: SpanKind) -> io::Result<Option<Span>> {
    let started = CURRENT.try_with(|(tracer, parent)| tracer.start(name, kind, Some(parent)));
    started.ok().transpose()
}
