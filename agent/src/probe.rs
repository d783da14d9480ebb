//! How probes and hooks reach a container from outside it. Owns the trait and what an answer means;
//! never counts successes (the pod's worker does). Exec goes through [`crate::runtime::Runtime`].

#[cfg(any(test, feature = "testing"))]
pub mod fake;
mod grpc;
mod http;
pub mod net;
pub mod request;
mod resolve;

use std::fmt;
use std::time::Duration;

use futures_util::future::BoxFuture;

/// One try of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeResult {
    /// With what was answered.
    Success(String),
    /// As good, but people should know.
    Warning(String),
    /// With what is wrong, as the kubelet's events print it.
    Failure(String),
    /// Nothing is known: the try itself failed, and counts for nothing.
    Unknown(String),
}

/// The network side of probes and hooks. A try ends within `timeout`.
pub trait ProbeIo: Send + Sync + fmt::Debug {
    /// Asks for a page; redirects to the same host are followed.
    fn http(&self, request: HttpRequest, timeout: Duration)
    -> BoxFuture<'_, Result<HttpResponse, HttpError>>;
    /// Opens a connection and closes it; the error as upstream words it.
    fn tcp(&self, host: String, port: u16, timeout: Duration) -> BoxFuture<'_, Result<(), String>>;
    /// Asks the gRPC health service.
    fn grpc(&self, host: String, port: u16, service: String, timeout: Duration)
    -> BoxFuture<'_, ProbeResult>;
}

/// A page to ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpRequest {
    pub host: String,
    pub port: u16,
    pub path: String,
    /// HTTPS without verification.
    pub tls: bool,
    /// All of them, User-Agent included.
    pub headers: Vec<(String, String)>,
}

/// The page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpResponse {
    /// 100 to 999.
    pub status: u16,
    /// At most 10 KiB of it.
    pub body: String,
}

/// Why there is no page.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HttpError {
    /// No connection, no answer, or too many redirects.
    #[error("{0}")]
    NoAnswer(String),
    /// The other side speaks plain HTTP.
    #[error("{0}")]
    NotTls(String),
    /// It broke off within the page.
    #[error("{0}")]
    Body(String),
    /// The request cannot be put together.
    #[error("{0}")]
    Request(String),
}
