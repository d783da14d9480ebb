//! Notices that a client has hung up while what it sent before finds nobody to take it: nothing reads
//! from its socket then, and so nothing reads the end. Owns a second descriptor of the socket, for as
//! long as somebody waits. A client that is idle for too long is taken for gone as well. Used by
//! `streaming::http` for the transports.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use tokio::io::unix::AsyncFd;

use super::idle::Activity;

/// How long what a client sent last may still be taken: it may have left in good order.
const GRACE: Duration = Duration::from_secs(10);

/// The end of a client.
#[derive(Debug)]
pub(crate) struct HangUp {
    socket: Option<AsyncFd<OwnedFd>>,
    activity: Option<Activity>,
}

impl HangUp {
    /// Of the client behind `socket`.
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub(crate) fn of(socket: &impl AsFd) -> io::Result<Self> {
        let own = socket.as_fd().try_clone_to_owned()?;
        Ok(Self { socket: Some(crate::sys::watch(own)?), activity: None })
    }

    /// Of a client that is known to be there: it lives in this process.
    pub(crate) fn never() -> Self {
        Self { socket: None, activity: None }
    }

    /// That, or nothing has moved for too long.
    pub(crate) fn or_idle(self, activity: Activity) -> Self {
        Self { activity: Some(activity), ..self }
    }

    /// Waits until the client sends no more, and a while longer.
    pub(crate) async fn wait(self) {
        let left = async {
            self.wait_gone().await;
            tokio::time::sleep(GRACE).await;
        };
        let idle = async {
            match &self.activity {
                Some(activity) => activity.wait_until_idle().await,
                None => std::future::pending().await,
            }
            tracing::info!("closing an idle stream");
        };
        // Both are only waits.
        tokio::select! {
            () = left => {}
            () = idle => {}
        }
    }

    async fn wait_gone(&self) {
        let Some(socket) = &self.socket else { return std::future::pending().await };
        loop {
            match socket.readable().await {
                // EPOLLRDHUP is told at once, whatever is still to be read.
                Ok(ready) if ready.ready().is_read_closed() => return,
                // Only more data: its reader takes it, here the next news is waited for.
                Ok(mut ready) => ready.clear_ready(),
                // The runtime ends.
                Err(_) => return std::future::pending().await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    #[tokio::test]
    async fn a_client_that_leaves_is_noticed_though_nobody_reads_what_it_sent() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        let watched = HangUp::of(&server).unwrap();
        let hung_up = tokio::spawn(async move { watched.wait_gone().await });
        client.write_all(b"to nobody").await.unwrap();
        server.readable().await.unwrap();
        assert!(!hung_up.is_finished(), "it is there");
        drop(client);
        tokio::time::timeout(Duration::from_secs(60), hung_up).await.unwrap().unwrap();
    }
}
