//! What a node tells of its container runtime: version, health, features, images. Owns the trait and
//! its types; never runs a pod. Called by [`crate::registration`].

use std::fmt;

use super::Effect;

/// A runtime that is asked about itself.
pub trait About: Send + Sync + fmt::Debug {
    /// Its name and version.
    fn version(&self) -> Effect<'_, Version>;
    /// Whether it and its network can take pods, and what it can do.
    fn health(&self) -> Effect<'_, Health>;
    /// Every image it has.
    fn images(&self) -> Effect<'_, Vec<StoredImage>>;
    /// Tells it the addresses of this node's pods, comma separated.
    fn set_pod_cidr<'a>(&'a self, cidr: &'a str) -> Effect<'a, ()>;
}

/// As in VersionResponse.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    /// containerd, gantry …
    pub name: String,
    /// Of the runtime.
    pub version: String,
}

/// One of the runtime's conditions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// `RuntimeReady` or `NetworkReady`.
    pub kind: String,
    /// Whether it holds.
    pub holds: bool,
    /// Why not.
    pub reason: String,
    /// Details.
    pub message: String,
}

/// As upstream prints one in the node's Ready condition.
impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, holds, reason, message } = self;
        write!(f, "{kind}={holds} reason:{reason} message:{message}")
    }
}

/// As in StatusResponse.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Health {
    /// Containers can be run.
    pub runtime: Option<Condition>,
    /// They get a network.
    pub network: Option<Condition>,
    /// Any order.
    pub handlers: Vec<Handler>,
    /// None when the runtime does not say.
    pub features: Option<Features>,
}

/// A way to run pods.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Handler {
    /// Empty for the default one.
    pub name: String,
    /// Mounts can be read-only all the way down.
    pub recursive_read_only: bool,
    /// Pods can have user namespaces.
    pub user_namespaces: bool,
}

/// What the runtime can do whatever the handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    /// A pod can refuse the image's groups.
    pub supplemental_groups_policy: bool,
    /// User namespaces on the host's network.
    pub user_namespaces_host_network: bool,
}

/// An image on the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredImage {
    /// Names by digest.
    pub digests: Vec<String>,
    /// Names by tag.
    pub tags: Vec<String>,
    /// Bytes, as the runtime counts them.
    pub size: i64,
}
