//! How probes and hooks reach a container from outside it. Owns the trait; never counts
//! successes (the pod's worker does). Exec goes through [`crate::runtime::Runtime`].

use std::fmt;
use std::time::Duration;

use futures_util::future::BoxFuture;

/// One try of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// With what was answered.
    Success(String),
    /// With what is wrong, as the kubelet's events print it.
    Failure(String),
    /// Nothing is known: the try itself failed.
    Unknown(String),
}

/// The network side of probes and hooks. A try ends within `timeout`, or is a failure.
pub trait ProbeIo: Send + Sync + fmt::Debug {
    /// Success: 200 to 399. Redirects to the same host are followed, others are a success with a warning.
    fn http(&self, request: HttpRequest, timeout: Duration) -> BoxFuture<'_, Verdict>;
    /// Success: the connection opens.
    fn tcp(&self, host: String, port: u16, timeout: Duration) -> BoxFuture<'_, Verdict>;
    /// Success: SERVING.
    fn grpc(&self, host: String, port: u16, service: String, timeout: Duration) -> BoxFuture<'_, Verdict>;
}

/// A page to ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "named as in HTTPGetAction")]
pub struct HttpRequest {
    pub host: String,
    pub port: u16,
    pub path: String,
    /// HTTPS without verification.
    pub tls: bool,
    pub headers: Vec<(String, String)>,
}
