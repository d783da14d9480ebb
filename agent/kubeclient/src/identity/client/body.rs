//! A body that keeps its place on a connection for as long as it is read. Owns the count; never the
//! bytes. Called by [`super`].

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use hyper::body::{Body, Frame, SizeHint};

/// One stream of a connection; dropping it gives it back.
#[derive(Debug)]
pub(super) struct StreamPermit(Arc<AtomicUsize>);

impl StreamPermit {
    pub(super) fn new(busy: Arc<AtomicUsize>) -> Self {
        busy.fetch_add(1, Ordering::Relaxed);
        Self(busy)
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A body and its seat.
#[derive(Debug)]
pub(super) struct StreamBody<B> {
    body: B,
    _seat: StreamPermit,
}

impl<B> StreamBody<B> {
    pub(super) fn new(body: B, seat: StreamPermit) -> Self {
        Self { body, _seat: seat }
    }
}

impl<B: Body + Unpin> Body for StreamBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
