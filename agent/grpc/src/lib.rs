//! What all clients of gRPC in the kubelet half have in common: how a plugin's socket is dialled, how errors are printed,
//! how calls of the runtime are counted ([`counted`]) and traced. Never knows what is asked. Used by `gantry-agent`
//! (plugins, the runtime), `gantry-server` (the runtime) and `gantry` (plugins, for `gantry doctor`).

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests run programs, spawn tasks and write files")
)]

pub mod counted;
pub mod kept;
mod traced;

use std::path::Path;
use std::time::Duration;

use gantry_base::error::chain;
pub use gantry_trace::rpc::in_go;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::time::timeout;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

/// Connects to the socket, with the authority that upstream's kubelet sends.
///
/// # Errors
/// Why nobody answers there within that time.
pub async fn dial(socket: &Path, within: Duration) -> Result<Channel, String> {
    let path = socket.to_owned();
    let connect = service_fn(move |_| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    let endpoint = Endpoint::from_static("http://localhost");
    match timeout(within, endpoint.connect_with_connector(connect)).await {
        Ok(Ok(channel)) => Ok(channel),
        Ok(Err(error)) => Err(format!("{}: {}", socket.display(), chain(&error))),
        Err(_) => Err(format!("{}: context deadline exceeded", socket.display())),
    }
}

/// As Go's gRPC prints an error.
#[must_use]
pub fn status_in_go(status: &Status) -> String {
    format!("rpc error: code = {} desc = {}", in_go(status.code()), status.message())
}
