//! Garbage collection, which keeps a node's disk from filling: logs are rotated, unused images removed. Owns the loops;
//! never touches what a pod uses. Started by the kubelet.
//!
//! decide: `plan` (pure) · do: [`Keeper`], the files · tell: notes about the node

#[cfg(test)]
pub(crate) mod fake;
pub(crate) mod images;
pub(crate) mod links;
pub(crate) mod logs;

use std::fmt;

use futures_util::future::BoxFuture;
use gantry_model::failure::Failure;

/// What comes of asking the runtime.
pub(crate) type KeeperFuture<'a, T> = BoxFuture<'a, Result<T, Failure>>;

/// What housekeeping asks of the runtime.
pub trait Keeper: Send + Sync + fmt::Debug {
    /// Running containers.
    fn running(&self) -> KeeperFuture<'_, Vec<String>>;
    /// Where a container's log is.
    fn log_path<'a>(&'a self, container: &'a str) -> KeeperFuture<'a, String>;
    /// The runtime opens the log's path anew.
    fn reopen_log<'a>(&'a self, container: &'a str) -> KeeperFuture<'a, ()>;
    /// All images of the node.
    fn images(&self) -> KeeperFuture<'_, Vec<StoredImage>>;
    /// IDs of the images that containers stand on, dead ones, too, or have mounted.
    fn images_in_use(&self) -> KeeperFuture<'_, Vec<ImageUse>>;
    /// By ID.
    fn remove_image<'a>(&'a self, id: &'a str) -> KeeperFuture<'a, ()>;
    /// A folder on the file system that holds the images.
    fn image_folder(&self) -> KeeperFuture<'_, String>;
}

/// That a container needs an image, as its own or for a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageUse {
    /// The image's ID.
    pub image: String,
    /// For people: namespace, pod and container.
    pub container: String,
}

/// An image on the node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredImage {
    /// Its ID.
    pub id: String,
    /// Names, for whoever reads what was removed.
    pub names: Vec<String>,
    /// Bytes.
    pub size: u64,
    /// Never removed.
    pub pinned: bool,
}
