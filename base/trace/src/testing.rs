//! A collector on loopback and what it was sent, for tests of this crate and of those above it. Owns its task; it ends with
//! the test's runtime.

#![expect(clippy::disallowed_methods, reason = "the collector lives as long as the test")]

use std::collections::BTreeMap;
use std::io;

use gantry_proto::otlp::any_value::Value;
use gantry_proto::otlp::trace_service_server::{TraceService, TraceServiceServer};
use gantry_proto::otlp::{ExportTraceServiceRequest, ExportTraceServiceResponse, Span};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

/// Passes on what it is sent.
#[derive(Debug)]
pub struct FakeCollector(mpsc::UnboundedSender<ExportTraceServiceRequest>);

#[tonic::async_trait]
impl TraceService for FakeCollector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.0.send(request.into_inner()).map_err(|_| Status::internal("the test is over"))?;
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

/// One to be served, and what it will be sent.
#[must_use]
pub fn service() -> (TraceServiceServer<FakeCollector>, mpsc::UnboundedReceiver<ExportTraceServiceRequest>) {
    let (sender, received) = mpsc::unbounded_channel();
    (TraceServiceServer::new(FakeCollector(sender)), received)
}

/// Serves one; its address, and what it will be sent.
///
/// # Errors
/// When there is no port.
pub async fn collector() -> io::Result<(String, mpsc::UnboundedReceiver<ExportTraceServiceRequest>)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    let (service, received) = service();
    let server = tonic::transport::Server::builder().add_service(service);
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    Ok((address, received))
}

/// All of them that are numbers.
#[must_use]
pub fn numbers(span: &Span) -> BTreeMap<&str, i64> {
    let pairs =
        span.attributes.iter().filter_map(|attribute| match attribute.value.as_ref()?.value.as_ref()? {
            Value::IntValue(value) => Some((attribute.key.as_str(), *value)),
            _ => None,
        });
    pairs.collect()
}

/// All of them that are text.
#[must_use]
pub fn attributes(span: &Span) -> BTreeMap<&str, &str> {
    let pairs =
        span.attributes.iter().filter_map(|attribute| match attribute.value.as_ref()?.value.as_ref()? {
            Value::StringValue(value) => Some((attribute.key.as_str(), value.as_str())),
            _ => None,
        });
    pairs.collect()
}
