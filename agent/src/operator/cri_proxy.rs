//! The runtime's own API through the agent's socket: `gantry images`, `gantry exec` and crictl
//! speak plain CRI to whichever socket they are given, also when the runtime has none of its own
//! (`gantry run`). Owns passing calls on, byte for byte; never reads one. Served by
//! [`super::socket`].

use std::convert::Infallible;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::server::NamedService;
use tonic::transport::Channel;
use tower::{Service, ServiceExt};

/// Passes `runtime.v1.RuntimeService` on.
#[derive(Debug, Clone)]
pub struct RuntimeProxy(pub Channel);

/// Passes `runtime.v1.ImageService` on.
#[derive(Debug, Clone)]
pub struct ImageProxy(pub Channel);

impl NamedService for RuntimeProxy {
    const NAME: &'static str = "runtime.v1.RuntimeService";
}

impl NamedService for ImageProxy {
    const NAME: &'static str = "runtime.v1.ImageService";
}

fn pass_on(
    channel: Channel,
    request: Request<Body>,
) -> BoxFuture<'static, Result<Response<Body>, Infallible>> {
    Box::pin(async move {
        let answer = channel.oneshot(request).await;
        Ok(answer.unwrap_or_else(|error| {
            Status::unavailable(format!("the runtime does not answer: {error}")).into_http()
        }))
    })
}

impl Service<Request<Body>> for RuntimeProxy {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        pass_on(self.0.clone(), request)
    }
}

impl Service<Request<Body>> for ImageProxy {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        pass_on(self.0.clone(), request)
    }
}
