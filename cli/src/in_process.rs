//! A runtime within this process, or the images of a node alone, reached over in-memory connections. Owns the pairing of
//! client and server ends; never looks at a call. Called by `gantry run`, `gantry node`, and by `image_store`.

#![expect(clippy::disallowed_methods, reason = "the handle is kept and awaited")]

use std::io;
use std::path::PathBuf;
use std::pin::Pin;

use anyhow::{Context, Result, anyhow};
use gantry_shim::config::RuntimeConfig;
use gantry_shim::runtime::Error;
use gantry_shim::runtime::images_alone::ImagesAlone;
use hyper_util::rt::TokioIo;
use tokio::io::DuplexStream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;

use crate::{output, runtime};

/// Bytes under way in each direction; larger messages take turns.
const BUFFER: usize = 256 << 10;

type Incoming = ReceiverStream<io::Result<DuplexStream>>;
/// When it is time to end.
type Ended = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A runtime that serves as long as this lives.
#[derive(Debug)]
pub(crate) struct InProcess {
    shutdown: oneshot::Sender<()>,
    server: JoinHandle<Result<(), Error>>,
}

impl InProcess {
    /// Starts the runtime and a channel to it.
    pub(crate) async fn start(config: RuntimeConfig) -> Result<(Self, Channel)> {
        let runtime = runtime::start_own(config).await?;
        Self::serve(|incoming, ended| async move {
            runtime.serve_stream(incoming, ended).await?;
            runtime.tidy_up().await
        })
        .await
    }

    /// The same for a runtime that outlives its pods' kubelet: on a unix socket, too, where other clients find it, and
    /// whatever it has made stays.
    pub(crate) async fn start_on(config: RuntimeConfig, socket: PathBuf) -> Result<(Self, Channel)> {
        let runtime = runtime::start_own(config).await?;
        let (ends, _) = watch::channel(());
        let (mut of_socket, mut of_stream) = (ends.subscribe(), ends.subscribe());
        Self::serve(|incoming, ended| async move {
            // Both servers wait for the sender to go.
            let told = async move {
                ended.await;
                drop(ends);
                Ok(())
            };
            let listening = || output::say(&format!("the runtime serves at unix://{}", socket.display()));
            let on_socket = runtime
                .serve_unix(&socket, listening, async move { of_socket.changed().await.unwrap_or_default() });
            let on_stream =
                runtime.serve_stream(incoming, async move { of_stream.changed().await.unwrap_or_default() });
            tokio::try_join!(told, on_socket, on_stream).map(|_| ())
        })
        .await
    }

    /// Until the serving ends, which it does not by itself: why it has.
    pub(crate) async fn ended(&mut self) -> anyhow::Error {
        match (&mut self.server).await {
            Ok(Ok(())) => anyhow!("the runtime's server has ended"),
            Ok(Err(error)) => anyhow::Error::new(error).context("serve the runtime in this process"),
            Err(error) => anyhow::Error::new(error).context("the runtime's server died"),
        }
    }

    /// Serves images that were opened, and no more of a runtime.
    pub(crate) async fn images(images: ImagesAlone) -> Result<(Self, Channel)> {
        Self::serve(|incoming, ended| images.serve_stream(incoming, ended)).await
    }

    async fn serve<S>(serve: impl FnOnce(Incoming, Ended) -> S) -> Result<(Self, Channel)>
    where
        S: Future<Output = Result<(), Error>> + Send + 'static,
    {
        let (connections, incoming) = mpsc::channel::<io::Result<DuplexStream>>(16);
        let (shutdown, ended) = oneshot::channel();
        let ended = async {
            // Dropped or sent: either way it is time.
            let _ = ended.await;
        };
        let server = tokio::spawn(serve(ReceiverStream::new(incoming), Box::pin(ended)));
        let connect = service_fn(move |_: Uri| {
            let connections = connections.clone();
            async move {
                let (ours, theirs) = tokio::io::duplex(BUFFER);
                let gone = |_| io::Error::new(io::ErrorKind::ConnectionRefused, "the runtime has ended");
                connections.send(Ok(theirs)).await.map_err(gone)?;
                Ok::<_, io::Error>(TokioIo::new(ours))
            }
        });
        let connected = Endpoint::from_static("http://localhost").connect_with_connector(connect).await;
        let it = Self { shutdown, server };
        match connected {
            Ok(channel) => Ok((it, channel)),
            Err(error) => {
                // Why it has ended says more than that it has.
                it.stop().await?;
                Err(error).context("connect to the runtime in this process")
            }
        }
    }

    /// Ends the serving; pods that are left run on.
    pub(crate) async fn stop(self) -> Result<()> {
        // A server that has ended already is reported below.
        let _ = self.shutdown.send(());
        self.server.await.context("the runtime's server died")?.context("serve the runtime in this process")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_runtime_that_ends_at_its_start_says_why() {
        let path = PathBuf::from("/run/taken.sock");
        // Before anybody connects.
        let taken = |incoming, _| {
            drop(incoming);
            async move { Err(Error::SocketTaken { path }) }
        };
        let error = InProcess::serve(taken).await.map(drop).unwrap_err();
        assert!(format!("{error:#}").contains("/run/taken.sock is in the way"), "{error:#}");
    }
}
