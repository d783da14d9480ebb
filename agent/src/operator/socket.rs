//! A unix socket that is only ours. Owns its file: mode 0600, a dead owner's is replaced, a
//! live one's is not, and it is removed at the end. Called by `gantry run`.

use std::io::{Error as IoError, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::fs;
use tokio::net::{UnixListener, UnixStream};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;

use super::cri_proxy::{ImageProxy, RuntimeExtensionsProxy, RuntimeProxy};
use super::{OperatorDeps, Service};

/// What failed, on which socket.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{} is in use: another agent serves there; stop it or choose another socket", path.display())]
    InUse { path: PathBuf },
    #[error("{} is not a socket: it is left alone, choose another path", path.display())]
    NotASocket { path: PathBuf },
    #[error("make the folder {}", path.display())]
    Folder {
        path: PathBuf,
        #[source]
        source: IoError,
    },
    #[error("look at {}", path.display())]
    Look {
        path: PathBuf,
        #[source]
        source: IoError,
    },
    #[error("remove the socket {} of an agent that is gone", path.display())]
    RemoveStale {
        path: PathBuf,
        #[source]
        source: IoError,
    },
    #[error("listen on {}", path.display())]
    Listen {
        path: PathBuf,
        #[source]
        source: IoError,
    },
    #[error("serve on {}", path.display())]
    Serve {
        path: PathBuf,
        #[source]
        source: tonic::transport::Error,
    },
}

/// A socket that is listened on; its file goes when this is dropped.
#[derive(Debug)]
pub struct Socket {
    path: PathBuf,
    listener: Option<UnixListener>,
    /// Device and inode: a successor's file under the same name is not ours to remove.
    identity: (u64, u64),
}

impl Socket {
    /// Listens on `path`.
    ///
    /// # Errors
    /// When somebody serves there, or the path cannot be used.
    pub async fn bind(path: &Path) -> Result<Self, Error> {
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            let wrap = |source| Error::Folder { path: folder.to_owned(), source };
            fs::create_dir_all(folder).await.map_err(wrap)?;
        }
        clear_stale(path).await?;
        let wrap = |source| Error::Listen { path: path.to_owned(), source };
        // Bound under a name nobody dials and moved when its mode is right: there is no
        // moment at which others may connect.
        let mut fresh = path.as_os_str().to_owned();
        fresh.push(format!(".{}", std::process::id()));
        let fresh = PathBuf::from(fresh);
        clear_stale(&fresh).await?;
        let listener = UnixListener::bind(&fresh).map_err(wrap)?;
        let ready = async {
            fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o600)).await?;
            let metadata = fs::symlink_metadata(&fresh).await?;
            fs::rename(&fresh, path).await?;
            Ok((metadata.dev(), metadata.ino()))
        };
        match ready.await {
            Ok(identity) => Ok(Self { path: path.to_owned(), listener: Some(listener), identity }),
            Err(source) => {
                if let Err(error) = fs::remove_file(&fresh).await {
                    tracing::warn!(path = %fresh.display(), %error, "a socket was left behind");
                }
                Err(wrap(source))
            }
        }
    }

    /// Serves the operator API until `shutdown` ends.
    ///
    /// # Errors
    /// When the listener fails.
    pub async fn serve(
        mut self,
        sources: OperatorDeps,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Result<(), Error> {
        let Some(listener) = self.listener.take() else {
            return Ok(());
        };
        let (runtime, pulls) = (sources.runtime.clone(), sources.pulls.clone());
        let mut router = Server::builder().add_service(Service::new(sources));
        if let Some(channel) = runtime {
            let images = ImageProxy::new(channel.clone(), pulls);
            let runtime_ext = RuntimeExtensionsProxy::new(channel.clone());
            router =
                router.add_service(RuntimeProxy::new(channel)).add_service(images).add_service(runtime_ext);
        }
        router
            .serve_with_incoming_shutdown(UnixListenerStream::new(listener), shutdown)
            .await
            .map_err(|source| Error::Serve { path: self.path.clone(), source })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let ours = std::fs::symlink_metadata(&self.path).is_ok_and(|m| (m.dev(), m.ino()) == self.identity);
        if ours && let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "the socket was left behind");
        }
    }
}

async fn clear_stale(path: &Path) -> Result<(), Error> {
    match fs::symlink_metadata(path).await {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(Error::Look { path: path.to_owned(), source }),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(Error::NotASocket { path: path.to_owned() });
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path).await {
        Ok(_) => Err(Error::InUse { path: path.to_owned() }),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            fs::remove_file(path).await.map_err(|source| Error::RemoveStale { path: path.to_owned(), source })
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(source) => Err(Error::Look { path: path.to_owned(), source }),
    }
}
