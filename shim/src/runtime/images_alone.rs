//! The images of a node whose runtime does not run. Owns the lock that a runtime would hold, so that one of the two is
//! there at a time; finds no pod and touches none. Called by `gantry pull`, `images`, `rmi` and `image load`.

use std::future::Future;
use std::io;
use std::path::Path;
use std::sync::Arc;

use gantry_image::Images;
use gantry_proto::cri::image_service_server::ImageServiceServer;
use gantry_proto::runtime_ext::runtime_extensions_server::RuntimeExtensionsServer;
use tokio::io::DuplexStream;
use tokio_stream::Stream;
use tonic::transport::Server;

use super::{Error, MAX_MESSAGE, OpenedNode, open};
use crate::config::RuntimeConfig;
use crate::cri::images::alone::ImageServiceOnly;
use crate::node::Programs;

/// The store, open. Layers that containers of this boot stand on are kept, whoever removes their image.
#[derive(Debug)]
pub struct ImagesAlone {
    images: Images,
    config: Arc<RuntimeConfig>,
    /// The unpacker is started from it.
    _programs: Programs,
    _lock: std::fs::File,
}

impl ImagesAlone {
    /// Whether there is a store to open: who only looks at images makes none.
    #[must_use]
    pub fn is_there(root: &Path) -> bool {
        Images::are_there(root)
    }

    /// Opens the store, as the runtime's start does.
    ///
    /// # Errors
    /// [`Error::InUse`] when a runtime runs; what keeps the store from being opened.
    pub async fn open(config: RuntimeConfig) -> Result<Self, Error> {
        let OpenedNode { config, lock, programs, boot_id: _, images } =
            tokio::task::spawn_blocking(move || open(config)).await??;
        Ok(Self { images, config: Arc::new(config), _programs: programs, _lock: lock })
    }

    /// Serves the images until `shutdown`, and makes durable what came: nobody is there to do so afterwards.
    ///
    /// # Errors
    /// When the transport or the disk fails.
    pub async fn serve_stream<S>(self, incoming: S, shutdown: impl Future<Output = ()>) -> Result<(), Error>
    where
        S: Stream<Item = io::Result<DuplexStream>>,
    {
        let service = ImageServiceOnly { images: self.images.clone(), config: Arc::clone(&self.config) };
        let router = Server::builder()
            .add_service(
                ImageServiceServer::new(service.clone())
                    .max_decoding_message_size(MAX_MESSAGE)
                    .max_encoding_message_size(MAX_MESSAGE),
            )
            .add_service(RuntimeExtensionsServer::new(service));
        router.serve_with_incoming_shutdown(incoming, shutdown).await.map_err(Error::Serve)?;
        let images = self.images.clone();
        Ok(tokio::task::spawn_blocking(move || images.flush()).await??)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(folder: &std::path::Path) -> RuntimeConfig {
        let programs = folder.join("programs");
        std::fs::create_dir_all(&programs).unwrap();
        for name in ["gantry-monitor", "gantry-pause", "gantry-unpack"] {
            std::fs::write(programs.join(name), "a program").unwrap();
        }
        RuntimeConfig {
            root: folder.join("root"),
            state: folder.join("state"),
            programs_dir: Some(programs),
            ..RuntimeConfig::default()
        }
    }

    #[tokio::test]
    async fn one_runtime_or_one_store_alone_and_nothing_else_is_made() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        assert!(!ImagesAlone::is_there(&root));
        let alone = ImagesAlone::open(config(folder.path())).await.unwrap();
        assert!(ImagesAlone::is_there(&root));
        let error = ImagesAlone::open(config(folder.path())).await.unwrap_err();
        assert!(matches!(error, Error::InUse { .. }), "{error}");
        for absent in ["root/sandboxes", "root/containers", "state/monitors", "state/boot"] {
            assert!(!folder.path().join(absent).exists(), "{absent} is a runtime's");
        }
        drop(alone);
        ImagesAlone::open(config(folder.path())).await.unwrap();
    }
}
