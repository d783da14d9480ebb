//! Ports of a pod on this machine: each connection to a local port becomes a pair of streams on one
//! SPDY connection. Owns the copying; never binds a port. Called by `gantry port-forward`.

#![expect(clippy::disallowed_methods, reason = "forwarding ends with the command")]

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use bytes::{Bytes, BytesMut};
use gantry_shim::streaming::spdy::connection::Role;
use gantry_shim::streaming::spdy::{Connection, Handle, Headers, SpdyStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::connect;

/// Forwards every connection to one of the listeners to its port inside the pod, until the connection
/// to the runtime ends. `failed` hears of connections that could not be forwarded.
///
/// # Errors
/// When the URL can't be reached, or the runtime hangs up.
pub(crate) async fn port_forward(
    url: &str,
    listeners: Vec<(TcpListener, u16)>,
    failed: impl Fn(String) + Send + Sync + Clone + 'static,
) -> Result<()> {
    let socket = connect::spdy(url, "portforward.k8s.io").await?;
    let connection = Connection::new(socket, Role::Client).context("set up SPDY")?;
    let handle = connection.handle();
    let (accepted, mut incoming) = mpsc::channel(16);
    for (listener, port) in listeners {
        tokio::spawn(accept(listener, port, accepted.clone()));
    }
    drop(accepted);
    loop {
        tokio::select! {
            // Cancel-safe per the documentation of recv.
            Some((stream, port)) = incoming.recv() => {
                let (handle, failed) = (handle.clone(), failed.clone());
                tokio::spawn(async move {
                    if let Err(error) = forward(&handle, stream, port).await {
                        failed(format!("{error:#}"));
                    }
                });
            }
            // Cancel-safe: only a wait.
            () = handle.closed() => anyhow::bail!("the runtime has closed the connection"),
        }
    }
}

async fn accept(listener: TcpListener, port: u16, accepted: mpsc::Sender<(TcpStream, u16)>) {
    // An error of accept is this connection's, or passes: others are served.
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                if accepted.send((stream, port)).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                tracing::warn!("accept a connection to forward: {error}");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        }
    }
}

fn headers(kind: &str, port: u16, request: u64) -> Headers {
    [("streamtype", kind.to_owned()), ("port", port.to_string()), ("requestid", request.to_string())]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

async fn forward(handle: &Handle, local: TcpStream, port: u16) -> Result<()> {
    static REQUESTS: AtomicU64 = AtomicU64::new(0);
    let request = REQUESTS.fetch_add(1, Ordering::Relaxed);
    // In this order, as upstream's clients.
    let mut error = handle.open(headers("error", port, request)).await.context("open a stream")?;
    error.writer.finish().await.context("open a stream")?;
    let data = handle.open(headers("data", port, request)).await.context("open a stream")?;
    copy(local, data).await;
    let mut message = Vec::new();
    while let Some(bytes) = error.incoming.recv().await {
        message.extend_from_slice(&bytes);
    }
    if message.is_empty() {
        return Ok(());
    }
    anyhow::bail!("{}", String::from_utf8_lossy(&message))
}

/// Both ways, each until its end.
async fn copy(local: TcpStream, data: SpdyStream) {
    let (mut from_local, mut to_local) = local.into_split();
    let SpdyStream { mut incoming, writer, .. } = data;
    let up = async {
        let mut buffer = BytesMut::with_capacity(32 << 10);
        // An error of either side is the end of this way.
        while let Ok(1..) = from_local.read_buf(&mut buffer).await {
            let bytes: Bytes = buffer.split().freeze();
            if writer.write(bytes).await.is_err() {
                return;
            }
            buffer.reserve(32 << 10);
        }
        // A pod that is gone needs no end.
        let _ = writer.finish().await;
    };
    let down = async {
        while let Some(bytes) = incoming.recv().await {
            if to_local.write_all(&bytes).await.is_err() {
                writer.reset().await;
                return;
            }
        }
        let _ = to_local.shutdown().await;
    };
    tokio::pin!(up, down);
    tokio::select! {
        // The pod has closed: nothing the client sends now is read by anybody.
        () = &mut down => {}
        // The client has closed its way: the answer still comes. `down` was only polled.
        () = &mut up => down.await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_is_a_pair_of_streams_and_an_error_is_told() {
        let (ours, theirs) = tokio::io::duplex(4096);
        let client = Connection::new(ours, Role::Client).unwrap();
        let mut server = Connection::new(theirs, Role::Server).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (local, _) = listener.accept().await.unwrap();
        let handle = client.handle();
        let forwarding = tokio::spawn(async move { forward(&handle, local, 80).await });
        let error = server.next().await.unwrap();
        let mut data = server.next().await.unwrap();
        assert_eq!((error.headers.get("streamtype"), data.headers.get("port")), (Some("error"), Some("80")));
        assert_eq!(error.headers.get("requestid"), data.headers.get("requestid"));
        peer.write_all(b"question").await.unwrap();
        assert_eq!(data.incoming.recv().await.unwrap(), "question");
        data.writer.write(Bytes::from_static(b"answer")).await.unwrap();
        let mut answer = [0u8; 6];
        peer.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"answer");
        error.writer.write(Bytes::from_static(b"it broke")).await.unwrap();
        error.writer.finish().await.unwrap();
        data.writer.reset().await;
        assert_eq!(forwarding.await.unwrap().unwrap_err().to_string(), "it broke");
    }
}
