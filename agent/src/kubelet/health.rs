//! The port of `/healthz`. Owns the listener; never an answer. Called by [`super::run`].

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use std::{fs, io};

use crate::healthz::Checks;
use tokio::net::TcpListener;

/// Where Go's wildcard is: 0.0.0.0 is every address of both families, where the host has both.
pub(super) async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    const ONLY_V6: &str = "/proc/sys/net/ipv6/bindv6only";
    let both =
        address.ip() == Ipv4Addr::UNSPECIFIED && fs::read_to_string(ONLY_V6).is_ok_and(|on| on.trim() == "0");
    if both {
        match TcpListener::bind((Ipv6Addr::UNSPECIFIED, address.port())).await {
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => {}
            done => return done,
        }
    }
    TcpListener::bind(address).await
}

/// Serves for good; what fails is tried again.
pub(super) async fn serve(address: SocketAddr, checks: Checks) {
    loop {
        let served = async {
            let listener = listen(address).await?;
            axum::serve(listener, checks.router()).await
        };
        if let Err(error) = served.await {
            tracing::error!(err = %error, "Failed to start healthz server");
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
}
