//! One connection to a plugin that is kept for all calls, and whose end is told: whether a plugin is there is known without
//! a call. Owns the socket; never connects again. Used where upstream watches a connection.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

/// A connection.
#[derive(Debug)]
pub struct Kept {
    /// For calls. They fail once the connection has ended.
    pub channel: Channel,
    ended: oneshot::Receiver<()>,
}

impl Kept {
    /// Until the connection has ended. Cancel-safe.
    pub async fn wait_ended(&mut self) {
        // Nobody sends: the other half goes with the socket.
        let _ = (&mut self.ended).await;
    }
}

/// The socket, and who hears of its end.
struct KeptSocket {
    stream: UnixStream,
    _end: oneshot::Sender<()>,
}

impl AsyncRead for KeptSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for KeptSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Connects once, with the authority that upstream's kubelet sends.
///
/// # Errors
/// Why nobody answers there within that time, as Go's gRPC prints it.
pub async fn keep(socket: &Path, within: Duration) -> Result<Kept, String> {
    let failed = |why: &str| {
        let at = socket.display();
        let said = format!("transport: Error while dialing: dial unix {at}: {why}");
        format!("rpc error: code = Unavailable desc = connection error: desc = {said:?}")
    };
    let connected = match timeout(within, UnixStream::connect(socket)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(failed(&format!("connect: {}", errno_in_go(&error)))),
        Err(_) => return Err(failed("i/o timeout")),
    };
    let (end, ended) = oneshot::channel();
    let first = Arc::new(Mutex::new(Some(TokioIo::new(KeptSocket { stream: connected, _end: end }))));
    let connect = service_fn(move |_| {
        let taken = first.lock().unwrap_or_else(PoisonError::into_inner).take();
        let over = || io::Error::new(io::ErrorKind::NotConnected, "the connection has ended");
        async move { taken.ok_or_else(over) }
    });
    let endpoint = Endpoint::from_static("http://localhost");
    match timeout(within, endpoint.connect_with_connector(connect)).await {
        Ok(Ok(channel)) => Ok(Kept { channel, ended }),
        Ok(Err(error)) => Err(failed(&gantry_base::error::chain(&error))),
        Err(_) => Err(failed("i/o timeout")),
    }
}

/// `connection refused`, without Rust's number.
fn errno_in_go(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split_once(" (os error ").map_or(text.as_str(), |(text, _)| text);
    text.to_lowercase()
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixListener;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn the_end_of_a_connection_is_told_without_a_call() {
        let folder = std::env::temp_dir().join(format!("gantry-kept-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let socket = folder.join("s");
        let nobody = keep(&socket, PATIENCE).await.unwrap_err();
        let words = format!("dial unix {}: connect: no such file or directory", socket.display());
        assert!(nobody.contains(&words) && nobody.starts_with("rpc error: code = Unavailable"), "{nobody}");
        let listener = UnixListener::bind(&socket).unwrap();
        let mut kept = keep(&socket, PATIENCE).await.unwrap();
        let (other, _) = listener.accept().await.unwrap();
        drop(other);
        timeout(PATIENCE, kept.wait_ended()).await.expect("it is told");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
