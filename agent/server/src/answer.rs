//! Answers as upstream forms them. Owns their headers; never what they say. Used by all of
//! [`super`].

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use hyper::body::{Frame, SizeHint};
use serde::Serialize;

/// An answer.
pub(super) type Answer = Response<Body>;

/// The body of an answer, and what lasts until it has been sent or given up.
pub(super) struct KeptBody<T> {
    body: Body,
    _kept: T,
}

impl<T> KeptBody<T> {
    pub(super) fn new(body: Body, kept: T) -> Self {
        Self { body, _kept: kept }
    }
}

impl<T: Unpin> HttpBody for KeptBody<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

const NOSNIFF: HeaderName = HeaderName::from_static("x-content-type-options");

/// Text.
pub(super) fn text(status: StatusCode, body: impl Into<Body>) -> Answer {
    of_type(status, "text/plain; charset=utf-8", body)
}

/// Text of an error that a browser shall not take for anything else.
pub(super) fn error(status: StatusCode, body: impl Into<Body>) -> Answer {
    let mut answer = text(status, body);
    answer.headers_mut().insert(NOSNIFF, HeaderValue::from_static("nosniff"));
    answer
}

/// Bytes of some type.
pub(super) fn of_type(status: StatusCode, kind: &'static str, body: impl Into<Body>) -> Answer {
    let mut answer = Response::new(body.into());
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

/// A value as JSON.
pub(super) fn json(value: &impl Serialize) -> Answer {
    match serde_json::to_vec(value) {
        Ok(bytes) => of_type(StatusCode::OK, "application/json", bytes),
        Err(cause) => error(StatusCode::INTERNAL_SERVER_ERROR, format!("{cause}\n")),
    }
}

/// As upstream's router says it.
pub(super) fn not_found() -> Answer {
    text(StatusCode::NOT_FOUND, "404: Page Not Found")
}

/// As upstream's router says it.
pub(super) fn method_not_allowed() -> Answer {
    text(StatusCode::METHOD_NOT_ALLOWED, "405: Method Not Allowed")
}
