//! The port of `/healthz`. Owns the listener; never an answer. Called by [`super::run`].

use std::net::SocketAddr;
use std::time::Duration;

use gantry_agent::healthz::Checks;
use tokio::net::TcpListener;

/// Serves for good; what fails is tried again.
pub(super) async fn serve(address: SocketAddr, checks: Checks) {
    loop {
        let served = async {
            let listener = TcpListener::bind(address).await?;
            axum::serve(listener, checks.router()).await
        };
        if let Err(error) = served.await {
            tracing::error!(err = %error, "Failed to start healthz server");
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
}
