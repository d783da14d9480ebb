//! A span for each call of the runtime that is made within one, by the names of Go's otelgrpc; the runtime is told of it
//! by `traceparent`. Never changes a call otherwise, and never fails one.

use gantry_trace::context::TRACEPARENT;
use gantry_trace::span::{SpanKind, TraceSpan};
use gantry_trace::{current, rpc};
use http::{HeaderValue, Request, Response};
use tonic::body::Body;
use tonic::{Status, transport};

pub(crate) fn start(request: &mut Request<Body>) -> Option<TraceSpan> {
    let path = request.uri().path().trim_start_matches('/').to_owned();
    let mut span = match current::child(&path, SpanKind::Client) {
        Ok(span) => span?,
        Err(error) => {
            tracing::warn!(call = %path, %error, "the call has no span: the kernel gave no random bytes");
            return None;
        }
    };
    rpc::name_call(&mut span, &path);
    if let Ok(header) = HeaderValue::try_from(span.context().traceparent()) {
        request.headers_mut().insert(TRACEPARENT, header);
    }
    Some(span)
}

pub(crate) fn end(span: Option<TraceSpan>, answer: &Result<Response<Body>, transport::Error>) {
    let Some(span) = span else { return };
    let status = match answer {
        Err(error) => Status::unavailable(gantry_base::error::chain(error)),
        // A call that fails has nothing but headers, and says so in them.
        Ok(answer) => Status::from_header_map(answer.headers()).unwrap_or_else(|| Status::ok("")),
    };
    rpc::end_client(span, &status);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use gantry_proto::cri::runtime_service_client::RuntimeServiceClient;
    use gantry_proto::cri::runtime_service_server::{RuntimeService, RuntimeServiceServer};
    use gantry_proto::cri::{StatusRequest, VersionRequest, VersionResponse};
    use gantry_trace::context::SpanContext;
    use gantry_trace::endpoint::CollectorEndpoint;
    use gantry_trace::export;
    use gantry_trace::sampler::Sampler;
    use gantry_trace::testing::{self, attributes};
    use tokio::net::TcpListener;
    use tokio::sync::mpsc;
    use tokio_stream::wrappers::TcpListenerStream;
    use tonic::transport::{Endpoint, Server};

    use super::*;
    use crate::counted::Counted;

    const STATUS: &str = "rpc.response.status_code";

    /// Tells the `traceparent` of each call.
    struct Runtime(mpsc::UnboundedSender<Option<String>>);

    #[tonic::async_trait]
    impl RuntimeService for Runtime {
        async fn version(
            &self,
            request: tonic::Request<VersionRequest>,
        ) -> Result<tonic::Response<VersionResponse>, Status> {
            let header = request.metadata().get(TRACEPARENT).map(|value| value.to_str().unwrap().to_owned());
            self.0.send(header).unwrap();
            Ok(tonic::Response::new(VersionResponse::default()))
        }
    }

    #[tokio::test]
    async fn a_call_within_a_span_has_its_own_and_carries_it_to_the_runtime() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (sender, mut headers) = mpsc::unbounded_channel();
        let (collector, mut requests) = testing::service();
        let server =
            Server::builder().add_service(RuntimeServiceServer::new(Runtime(sender))).add_service(collector);
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
        let mut client = RuntimeServiceClient::new(Counted::new(channel, std::sync::Arc::default()));

        client.version(VersionRequest::default()).await.unwrap();
        assert_eq!(headers.recv().await.unwrap(), None, "in no span");

        let all = Sampler { per_million: 1_000_000 };
        let at = CollectorEndpoint::parse(&address).unwrap();
        let (tracer, exporter) = export::start(&at, all, "kubelet", &[]);
        let pod = tracer.start("syncPod", SpanKind::Internal, None).unwrap();
        current::within(Some(&pod), client.version(VersionRequest::default())).await.unwrap();
        let header = headers.recv().await.unwrap().unwrap();
        let called = SpanContext::parse(&header).unwrap();
        current::within(Some(&pod), client.status(StatusRequest::default())).await.unwrap_err();
        assert!(exporter.shutdown(Duration::from_secs(60)).await);

        let request = requests.try_recv().unwrap();
        let [version, status] = request.resource_spans[0].scope_spans[0].spans.as_slice() else {
            panic!("{request:?}")
        };
        assert_eq!(version.name, "runtime.v1.RuntimeService/Version");
        assert_eq!(version.span_id, called.span_id, "what the runtime was told");
        assert_eq!(version.trace_id, called.trace_id);
        assert_eq!(version.parent_span_id, pod.context().span_id);
        let common = ("rpc.system.name", "grpc");
        let method = ("rpc.method", "runtime.v1.RuntimeService/Version");
        assert_eq!(attributes(version), [common, method, (STATUS, "OK")].into());
        assert_eq!(version.status, None);
        let method = ("rpc.method", "runtime.v1.RuntimeService/Status");
        assert_eq!(attributes(status), [common, method, (STATUS, "Unimplemented")].into());
        assert!(status.status.is_some());
    }
}
