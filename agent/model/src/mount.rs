//! A mount of a container, as the volumes make it and the runtime is told. Owns the type; never mounts. Made by
//! `volumes`, read by the runtime client. Pure.

use std::path::PathBuf;

use super::pod::volume::Propagation;

/// An image that is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountedImage {
    /// The runtime's.
    pub id: String,
    /// As the pod writes it.
    pub written: String,
    /// Which part of it; all when empty.
    pub sub_path: String,
}

/// One bind mount of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// On the node; empty when it is an image.
    pub host_path: PathBuf,
    /// Instead of a path of the node.
    pub image: Option<MountedImage>,
    /// In the container.
    pub container_path: String,
    /// No writes.
    pub read_only: bool,
    /// No writes below it either.
    pub recursive_read_only: bool,
    /// Whether later mounts cross.
    pub propagation: Propagation,
    /// The runtime may give it the container's SELinux label.
    pub relabel: bool,
}
