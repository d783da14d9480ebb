//! The network as it is. Owns the HTTP client and the wording of connection errors; never retries.
//! Called through [`ProbeIo`].

use std::io::ErrorKind;
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::http::Client;
use super::resolve::Resolver;
use super::{HttpError, HttpRequest, HttpResponse, ProbeIo, ProbeResult, grpc};

/// The real thing.
#[derive(Debug, Clone)]
pub struct NetProbe {
    http: Client,
    names: Resolver,
}

/// The HTTP client cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("prepare the HTTP client of probes")]
pub struct Error {
    #[source]
    source: reqwest::Error,
}

impl NetProbe {
    /// Ready to probe.
    ///
    /// # Errors
    /// When TLS cannot be set up.
    pub fn new() -> Result<Self, Error> {
        Self::with(Resolver::new())
    }

    pub(super) fn with(names: Resolver) -> Result<Self, Error> {
        Ok(Self { http: Client::new(names.clone()).map_err(|source| Error { source })?, names })
    }
}

impl ProbeIo for NetProbe {
    fn http(
        &self,
        request: HttpRequest,
        timeout: Duration,
    ) -> BoxFuture<'_, Result<HttpResponse, HttpError>> {
        Box::pin(self.http.get(request, timeout))
    }

    fn tcp(&self, host: String, port: u16, timeout: Duration) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            let address = join(&host, port);
            match tokio::time::timeout(timeout, self.names.connect(&host, port)).await {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(error)) => Err(dial(&address, &error)),
                Err(_) => Err(format!("dial tcp {address}: i/o timeout")),
            }
        })
    }

    fn grpc(
        &self,
        host: String,
        port: u16,
        service: String,
        timeout: Duration,
    ) -> BoxFuture<'_, ProbeResult> {
        Box::pin(grpc::check(self.names.clone(), host, port, service, timeout))
    }
}

/// `host:port`, an IPv6 address in brackets.
pub(super) fn join(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// A failed connection as Go's net package words it: people search for these words.
pub(super) fn dial(address: &str, error: &std::io::Error) -> String {
    let what = match error.kind() {
        ErrorKind::ConnectionRefused => "connect: connection refused".to_owned(),
        ErrorKind::HostUnreachable => "connect: no route to host".to_owned(),
        ErrorKind::NetworkUnreachable => "connect: network is unreachable".to_owned(),
        ErrorKind::TimedOut => "connect: connection timed out".to_owned(),
        _ => error.to_string(),
    };
    format!("dial tcp {address}: {what}")
}

#[cfg(test)]
mod tests;
