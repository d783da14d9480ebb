//! A span for each call of CRI, by the names of Go's otelgrpc, below the caller's (`traceparent`); within it the stages of
//! the timeline. Never changes a call, and never fails one. Called by `runtime::Runtime`, around a service.

use std::convert::Infallible;
use std::task::{Context, Poll};

use gantry_base::timeline::Recorder;
use gantry_trace::context::{SpanContext, TRACEPARENT};
use gantry_trace::span::{SpanKind, TraceSpan, Tracer};
use gantry_trace::{current, rpc};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::codegen::{BoxFuture, Service};
use tonic::server::NamedService;

/// A service whose calls have spans, where there is a tracer.
#[derive(Debug, Clone)]
pub(crate) struct Traced<S> {
    pub service: S,
    pub tracer: Option<Tracer>,
}

impl<S: NamedService> NamedService for Traced<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<Request<Body>> for Traced<S>
where
    S: Service<
            Request<Body>,
            Response = Response<Body>,
            Error = Infallible,
            Future = BoxFuture<Response<Body>, Infallible>,
        >,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Response<Body>, Infallible>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Some(span) = self.tracer.as_ref().and_then(|tracer| start(tracer, &request)) else {
            return self.service.call(request);
        };
        let answering = current::within(Some(&span), self.service.call(request));
        Box::pin(async move {
            let response = answering.await?;
            // A call that fails has nothing but headers, and says so in them. A stream's span ends with its beginning.
            let status = Status::from_header_map(response.headers()).unwrap_or_else(|| Status::ok(""));
            rpc::end_server(span, &status);
            Ok(response)
        })
    }
}

fn start(tracer: &Tracer, request: &Request<Body>) -> Option<TraceSpan> {
    let call = request.uri().path().trim_start_matches('/');
    let caller =
        request.headers().get(TRACEPARENT).and_then(|header| SpanContext::parse(header.to_str().ok()?));
    let span = tracer.start(call, SpanKind::Server, caller.as_ref());
    let told = span.inspect_err(|error| tell_missing(call, error));
    let mut span = told.ok()?;
    rpc::name_call(&mut span, call);
    Some(span)
}

/// The stages of the call under way: those that began since then, in nanoseconds since 1970.
pub(super) fn tell_stages(recorder: &Recorder, since: i64) {
    if !current::is_sampled() {
        return;
    }
    for stage in recorder.spans().iter().filter(|stage| stage.start >= since) {
        if let Err(error) = current::add(&stage.name, [stage.start, stage.end], &stage.detail) {
            tell_missing(&stage.name, &error);
        }
    }
}

fn tell_missing(name: &str, error: &std::io::Error) {
    tracing::warn!(name, %error, "a span is missing: the kernel gave no random bytes");
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use gantry_base::timeline::Span;
    use gantry_proto::cri::image_service_client::ImageServiceClient;
    use gantry_proto::cri::image_service_server::{ImageService, ImageServiceServer};
    use gantry_proto::cri::{ImageFsInfoRequest, PullImageRequest, PullImageResponse, RemoveImageRequest};
    use gantry_proto::cri::{RemoveImageResponse, image_service_server};
    use gantry_trace::endpoint::CollectorEndpoint;
    use gantry_trace::export;
    use gantry_trace::sampler::Sampler;
    use gantry_trace::testing::{self, attributes};
    use tokio::net::TcpListener;
    use tokio_stream::wrappers::TcpListenerStream;
    use tonic::transport::{Endpoint, Server};

    use super::*;

    /// Pulls in one stage, beside one of an earlier call; knows no image to remove, and nothing else.
    #[derive(Clone)]
    struct OneStage;

    #[tonic::async_trait]
    impl ImageService for OneStage {
        async fn pull_image(
            &self,
            _: tonic::Request<PullImageRequest>,
        ) -> Result<tonic::Response<PullImageResponse>, Status> {
            let recorder = Recorder::default();
            let stage = |start: i64| Span {
                name: format!("at {start}"),
                start,
                end: start + 5,
                detail: "7 bytes".to_owned(),
            };
            [stage(9), stage(10)].into_iter().for_each(|stage| recorder.add(stage));
            tell_stages(&recorder, 10);
            Ok(tonic::Response::new(PullImageResponse::default()))
        }

        async fn remove_image(
            &self,
            _: tonic::Request<RemoveImageRequest>,
        ) -> Result<tonic::Response<RemoveImageResponse>, Status> {
            Err(Status::not_found("no such image"))
        }
    }

    fn within<T>(message: T, traceparent: &str) -> tonic::Request<T> {
        let mut request = tonic::Request::new(message);
        request.metadata_mut().insert(TRACEPARENT, traceparent.parse().unwrap());
        request
    }

    #[tokio::test]
    async fn a_call_of_a_trace_has_a_span_with_its_stages_and_others_by_the_rate() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (collector, mut requests) = testing::service();
        let at = CollectorEndpoint::parse(&address).unwrap();
        let (tracer, exporter) = export::start(&at, Sampler { per_million: 0 }, "gantry", &[]);
        let service = Traced { service: ImageServiceServer::new(OneStage), tracer: Some(tracer) };
        assert_eq!(
            <Traced<ImageServiceServer<OneStage>> as NamedService>::NAME,
            image_service_server::SERVICE_NAME
        );
        let server = Server::builder().add_service(service).add_service(collector);
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
        let mut client = ImageServiceClient::new(channel);

        let (trace, caller) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
        let (asked, unasked) = (format!("00-{trace}-{caller}-01"), format!("00-{trace}-{caller}-00"));
        client.pull_image(PullImageRequest::default()).await.unwrap();
        client.pull_image(within(PullImageRequest::default(), &unasked)).await.unwrap();
        client.pull_image(within(PullImageRequest::default(), &asked)).await.unwrap();
        client.remove_image(within(RemoveImageRequest::default(), &asked)).await.unwrap_err();
        client.image_fs_info(within(ImageFsInfoRequest {}, &asked)).await.unwrap_err();
        assert!(exporter.shutdown(Duration::from_secs(60)).await);

        let request = requests.try_recv().unwrap();
        let [stage, pull, remove, unknown] = request.resource_spans[0].scope_spans[0].spans.as_slice() else {
            panic!("{request:?}")
        };
        for span in [pull, remove, unknown] {
            let id = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
            assert_eq!((id(&span.trace_id), id(&span.parent_span_id)), (trace.to_owned(), caller.to_owned()));
            assert_eq!(span.kind, i32::from(SpanKind::Server));
        }
        let expected = |name: &'static str, code| {
            [("rpc.system.name", "grpc"), ("rpc.method", name), ("rpc.response.status_code", code)].into()
        };
        let name = "runtime.v1.ImageService/PullImage";
        assert_eq!((pull.name.as_str(), attributes(pull)), (name, expected(name, "OK")));
        let name = "runtime.v1.ImageService/RemoveImage";
        assert_eq!((remove.name.as_str(), attributes(remove)), (name, expected(name, "NotFound")));
        assert_eq!(remove.status, None, "the caller's mistake");
        let name = "runtime.v1.ImageService/ImageFsInfo";
        assert_eq!(attributes(unknown), expected(name, "Unimplemented"));
        assert!(unknown.status.is_some());
        assert_eq!((stage.name.as_str(), &stage.parent_span_id), ("at 10", &pull.span_id));
        assert_eq!((stage.start_time_unix_nano, stage.end_time_unix_nano), (10, 15));
        assert_eq!(attributes(stage), [("detail", "7 bytes")].into());
    }
}
