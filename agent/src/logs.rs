//! Pod logs on disk: their folders, following a file. Owns the layout
//! below the pod logs' folder; never writes a line (the runtime does). Called by the
//! workers, `gantry logs` and `gantry run`.

pub mod dir;
pub mod follow;
pub mod links;

use std::fmt;
use std::path::PathBuf;

use futures_util::future::BoxFuture;
use gantry_model::pod::{Container, Pod};

/// The folders of pod logs.
pub trait PodLogs: Send + Sync + fmt::Debug {
    /// Makes the pod's folder, and the container's in it.
    fn prepare<'a>(
        &'a self,
        pod: &'a Pod,
        container: Option<&'a Container>,
    ) -> BoxFuture<'a, Result<(), Error>>;
    /// The number of the newest log of a container.
    fn highest_attempt<'a>(
        &'a self,
        pod: &'a Pod,
        container: &'a Container,
    ) -> BoxFuture<'a, Result<Option<u32>, Error>>;
    /// The log of a container that runs is to be found under its ID, too. One without a log has none.
    fn link<'a>(
        &'a self,
        pod: &'a Pod,
        container: &'a Container,
        attempt: u32,
        id: &'a str,
    ) -> BoxFuture<'a, Result<(), Error>>;
    /// The container `id` is gone, and what was made for its ID goes with it.
    fn unlink<'a>(&'a self, pod: &'a Pod, id: &'a str) -> BoxFuture<'a, Result<(), Error>>;
    /// Removes the pod's folder with everything in it; succeeds when it is not there.
    fn remove<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<(), Error>>;
}

/// What failed, on which path.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("make log folder {}", path.display())]
    Make {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("list log folder {}", path.display())]
    List {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("remove log folder {}", path.display())]
    Remove {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("Failed to create legacy symbolic link {}", path.display())]
    Link {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("failed to remove log legacy symbolic link {}", path.display())]
    Unlink {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("read log {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}
