//! What an answer holds of the node until it has been sent. Owns the way from a handler, which puts it beside its
//! answer, to the body of the HTTP response, which is dropped when its last byte is sent or the caller has gone.
//! Called by `runtime::Runtime`, around a service.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::codegen::{BoxFuture, Service};
use tonic::server::NamedService;

/// Beside an answer.
#[derive(Clone)]
struct ResponseGuard {
    _it: Arc<dyn Send + Sync>,
}

impl fmt::Debug for ResponseGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Held")
    }
}

/// An answer that keeps `it` until it has been sent.
pub(super) fn hold_until_sent<T>(answer: T, it: impl Send + Sync + 'static) -> tonic::Response<T> {
    let mut response = tonic::Response::new(answer);
    response.extensions_mut().insert(ResponseGuard { _it: Arc::new(it) });
    response
}

/// A service whose answers may hold something.
#[derive(Debug, Clone)]
pub(crate) struct UntilSent<S>(pub S);

impl<S: NamedService> NamedService for UntilSent<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<Request<Body>> for UntilSent<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Response<Body>, Infallible>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let answering = self.0.call(request);
        Box::pin(async move {
            let mut response = answering.await?;
            Ok(match response.extensions_mut().remove::<ResponseGuard>() {
                Some(held) => response.map(|body| Body::new(GuardedBody { body, _guard: held })),
                None => response,
            })
        })
    }
}

struct GuardedBody {
    body: Body,
    _guard: ResponseGuard,
}

impl hyper::body::Body for GuardedBody {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As tonic answers.
    #[derive(Clone)]
    struct Answering(Arc<()>);

    impl Service<Request<Body>> for Answering {
        type Response = Response<Body>;
        type Error = Infallible;
        type Future = BoxFuture<Response<Body>, Infallible>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<Body>) -> Self::Future {
            let (_, body, extensions) = hold_until_sent(String::from("answer"), self.0.clone()).into_parts();
            let mut answer = Response::new(Body::new(body));
            *answer.extensions_mut() = extensions;
            Box::pin(async move { Ok(answer) })
        }
    }

    #[tokio::test]
    async fn what_an_answer_holds_is_let_go_with_its_body() {
        let held = Arc::new(());
        let mut service = UntilSent(Answering(held.clone()));
        let answer = service.call(Request::new(Body::empty())).await.unwrap();
        drop(service);
        let (head, mut body) = answer.into_parts();
        // The server sends it first, and drops it.
        drop(head);
        assert_eq!(Arc::strong_count(&held), 2);
        let frame =
            std::future::poll_fn(|context| hyper::body::Body::poll_frame(Pin::new(&mut body), context));
        assert_eq!(frame.await.unwrap().unwrap().into_data().unwrap(), "answer");
        assert_eq!(Arc::strong_count(&held), 2);
        // Sent to its end, or nobody reads it any more.
        drop(body);
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
