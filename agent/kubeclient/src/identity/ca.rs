//! Certificates of authorities in a file that may change. Owns the looking; never what is trusted
//! for what. Called by the server of the kubelet's own API and by clients.

#![expect(clippy::disallowed_methods, reason = "the task that follows the file lives as long as the kubelet")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use tokio::sync::watch;

use super::pair;

/// How often a file is looked at.
pub const EVERY: Duration = Duration::from_secs(10);

/// What is wrong with a bundle.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("the certificates of {}", path.display())]
    Parse {
        path: PathBuf,
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    #[error("{} holds no certificate", .0.display())]
    Empty(PathBuf),
}

/// The certificates of a file.
pub type Bundle = Arc<Vec<CertificateDer<'static>>>;

/// Reads a bundle once.
///
/// # Errors
/// When there is none.
pub fn read(path: &Path) -> Result<Bundle, Error> {
    let text = std::fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    let found =
        pair::certificates_of(&text).map_err(|source| Error::Parse { path: path.to_owned(), source })?;
    if found.is_empty() { Err(Error::Empty(path.to_owned())) } else { Ok(Arc::new(found)) }
}

/// The last good bundle of a file, until nobody looks any more.
///
/// # Errors
/// When the first look finds none.
pub fn follow(path: &Path, every: Duration) -> Result<watch::Receiver<Bundle>, Error> {
    let (out, seen) = watch::channel(read(path)?);
    let path = path.to_owned();
    tokio::spawn(async move {
        let mut told = String::new();
        loop {
            tokio::select! {
                // Both arms only wait.
                () = out.closed() => return,
                () = tokio::time::sleep(every) => {}
            }
            match read(&path) {
                Ok(bundle) => {
                    told.clear();
                    out.send_if_modified(|old| {
                        let changed = *old != bundle;
                        if changed {
                            tracing::info!(path = %path.display(), "the certificate authorities have changed");
                            *old = bundle;
                        }
                        changed
                    });
                }
                // Half a file is seen while somebody writes it: the old one stays, the trouble is told once.
                Err(error) => {
                    let text =
                        format!("{error}: {:?}", std::error::Error::source(&error).map(ToString::to_string));
                    if told != text {
                        tracing::warn!(error = text, "keeping the certificate authorities as they were");
                        told = text;
                    }
                }
            }
        }
    });
    Ok(seen)
}
