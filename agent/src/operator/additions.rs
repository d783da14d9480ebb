//! Objects that are added to those of a running agent. Owns what is asked and what became of it; never adds one. Sent
//! by [`super::Service`] to whoever owns the agent's pods.

use tokio::sync::oneshot;

use crate::api::files::Change;
use crate::manifest::Loaded;

/// All of it is added, or none.
#[derive(Debug)]
pub struct Addition {
    /// What the manifests describe.
    pub loaded: Loaded,
    /// Whether a pod of the same name that is described otherwise gives way.
    pub replace: bool,
    /// Dropped when the agent ends instead.
    pub answer: oneshot::Sender<Result<Vec<Added>, Refused>>,
}

/// Why nothing was added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused(pub String);

/// One object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Added {
    /// `pod`, `ConfigMap`, `Secret`.
    pub kind: &'static str,
    /// Where it is.
    pub namespace: String,
    /// Of it.
    pub name: String,
    /// Whether there was one.
    pub change: Change,
}
