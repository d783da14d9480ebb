//! Streams on which nothing moves. Owns the time of the last byte, whichever way it went; what ends because of it is
//! `hangup`'s. Used by `streaming::http` around each upgraded connection.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

/// As containerd's `stream_idle_timeout` and the kubelet's `streamingConnectionIdleTimeout` are by default.
pub(crate) const LIMIT: Duration = Duration::from_secs(4 * 60 * 60);

/// When bytes moved last; clones tell of the same connection.
#[derive(Debug, Clone)]
pub(crate) struct Activity {
    begun: Instant,
    /// Milliseconds after that.
    last: Arc<AtomicU64>,
    limit: Duration,
}

impl Activity {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { begun: Instant::now(), last: Arc::default(), limit }
    }

    fn note(&self) {
        let since = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(since, Ordering::Relaxed);
    }

    /// Waits until nothing has moved for as long as the limit says.
    pub(crate) async fn wait_until_idle(&self) {
        loop {
            let until = self.begun + Duration::from_millis(self.last.load(Ordering::Relaxed)) + self.limit;
            if until <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }
}

/// A connection whose bytes are taken note of.
#[derive(Debug)]
pub(crate) struct ActivityTracked<S> {
    inner: S,
    activity: Activity,
}

impl<S> ActivityTracked<S> {
    pub(crate) fn new(inner: S, activity: Activity) -> Self {
        Self { inner, activity }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ActivityTracked<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(context, buffer))?;
        if buffer.filled().len() > before {
            self.activity.note();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> ActivityTracked<S> {
    fn note_written(&self, count: usize) -> Poll<io::Result<usize>> {
        if count > 0 {
            self.activity.note();
        }
        Poll::Ready(Ok(count))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ActivityTracked<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let count = ready!(Pin::new(&mut self.inner).poll_write(context, bytes))?;
        self.note_written(count)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let count = ready!(Pin::new(&mut self.inner).poll_write_vectored(context, bytes))?;
        self.note_written(count)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::streaming::command::{self, SPDY_PROTOCOLS, WS_PROTOCOLS};
    use crate::streaming::hangup::HangUp;
    use crate::streaming::session::Streams;
    use crate::streaming::spdy;
    use crate::streaming::spdy::connection::Role;

    const MINUTE: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn a_byte_either_way_keeps_a_stream_and_nothing_ends_it() {
        let (ours, mut theirs) = tokio::io::duplex(64);
        let activity = Activity::new(MINUTE);
        let mut watched = ActivityTracked::new(ours, activity.clone());
        let begun = Instant::now();
        let over = tokio::spawn(async move { activity.wait_until_idle().await });
        for _ in 0..3 {
            tokio::time::sleep(MINUTE / 2 + MINUTE / 4).await;
            watched.write_all(b"x").await.unwrap();
            assert_eq!(theirs.read_u8().await.unwrap(), b'x');
            tokio::time::sleep(MINUTE / 2 + MINUTE / 4).await;
            theirs.write_all(b"y").await.unwrap();
            assert_eq!(watched.read_u8().await.unwrap(), b'y');
            assert!(!over.is_finished(), "{:?}", begun.elapsed());
        }
        let last = begun.elapsed();
        over.await.unwrap();
        assert_eq!((begun.elapsed() - last).as_secs(), 60);
    }

    fn all() -> Streams {
        Streams { stdin: true, stdout: true, stderr: true, tty: false }
    }

    /// Until the other end is closed, after how long.
    async fn wait_until_closed(mut theirs: impl AsyncRead + Unpin, begun: Instant) -> u64 {
        let mut rest = Vec::new();
        theirs.read_to_end(&mut rest).await.unwrap();
        begun.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_command_over_websocket_is_closed() {
        let (ours, theirs) = tokio::io::duplex(4096);
        let activity = Activity::new(MINUTE);
        let (begun, hang_up) = (Instant::now(), HangUp::never().or_idle(activity.clone()));
        let socket = ActivityTracked::new(ours, activity);
        let session = command::over_websocket(socket, WS_PROTOCOLS[0], all(), hang_up).await;
        assert_eq!(wait_until_closed(theirs, begun).await, 60);
        session.out.closed().await;
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_command_over_spdy_is_closed() {
        let (ours, theirs) = tokio::io::duplex(4096);
        let activity = Activity::new(MINUTE);
        let (begun, hang_up) = (Instant::now(), HangUp::never().or_idle(activity.clone()));
        let client = spdy::Connection::with_activity(theirs, Role::Client, std::future::pending()).unwrap();
        let handle = client.handle();
        let opening = async {
            let mut streams = Vec::new();
            for kind in ["error", "stdin", "stdout", "stderr"] {
                let headers = std::iter::once(("streamtype".to_owned(), kind.to_owned())).collect();
                streams.push(handle.open(headers).await.unwrap());
            }
            streams
        };
        let socket = ActivityTracked::new(ours, activity);
        let (session, streams) =
            tokio::join!(command::over_spdy(socket, SPDY_PROTOCOLS[0], all(), hang_up), opening);
        let session = session.unwrap();
        session.out.closed().await;
        assert_eq!(begun.elapsed().as_secs(), 60);
        drop((streams, client));
    }
}
