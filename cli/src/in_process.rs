//! A runtime within this process, reached over in-memory connections. Owns the pairing of
//! client and server ends; never looks at a call. Called by `gantry run`.

use std::io;

use anyhow::{Context, Result};
use gantry_shim::config::Config;
use gantry_shim::runtime::Runtime;
use hyper_util::rt::TokioIo;
use tokio::io::DuplexStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;

/// Bytes under way in each direction; larger messages take turns.
const BUFFER: usize = 256 << 10;

/// A runtime that serves as long as this lives.
#[derive(Debug)]
pub(crate) struct InProcess {
    shutdown: oneshot::Sender<()>,
    server: JoinHandle<Result<(), gantry_shim::runtime::Error>>,
}

impl InProcess {
    /// Starts the runtime and a channel to it.
    pub(crate) async fn start(config: Config) -> Result<(Self, Channel)> {
        let runtime = Runtime::start(config).await.context("start the runtime")?;
        let (connections, incoming) = mpsc::channel::<io::Result<DuplexStream>>(16);
        let (shutdown, ended) = oneshot::channel();
        let server = tokio::spawn(async move {
            let ended = async {
                // Dropped or sent: either way it is time.
                let _ = ended.await;
            };
            runtime.serve_stream(ReceiverStream::new(incoming), ended).await?;
            runtime.tidy_up().await
        });
        let connect = service_fn(move |_: Uri| {
            let connections = connections.clone();
            async move {
                let (ours, theirs) = tokio::io::duplex(BUFFER);
                let gone = |_| io::Error::new(io::ErrorKind::ConnectionRefused, "the runtime has ended");
                connections.send(Ok(theirs)).await.map_err(gone)?;
                Ok::<_, io::Error>(TokioIo::new(ours))
            }
        });
        let channel = Endpoint::from_static("http://localhost")
            .connect_with_connector(connect)
            .await
            .context("connect to the runtime in this process")?;
        Ok((Self { shutdown, server }, channel))
    }

    /// Ends the serving; pods that are left run on.
    pub(crate) async fn stop(self) -> Result<()> {
        // A server that has ended already is reported below.
        let _ = self.shutdown.send(());
        self.server.await.context("the runtime's server died")?.context("serve the runtime in this process")
    }
}
