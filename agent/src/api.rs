//! What the agent asks of the place where pods come from: the ConfigMaps and Secrets that they
//! refer to. Owns the trait and its errors; never a pod. Called by [`crate::pod::configure`] and
//! [`crate::volumes`].

#[cfg(any(test, feature = "testing"))]
pub mod fake;
pub mod files;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;

/// A ConfigMap's content. No key is in both.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigMap {
    /// What variables may use.
    pub data: BTreeMap<String, String>,
    /// Decoded; for files only.
    pub binary: BTreeMap<String, Vec<u8>>,
}

/// A Secret's content, decoded.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret {
    /// Such as `kubernetes.io/dockerconfigjson`.
    pub kind: String,
    /// By key.
    pub data: BTreeMap<String, Vec<u8>>,
}

/// Only the keys: a secret does not belong into a log.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret").field("kind", &self.kind).field("keys", &self.data.keys()).finish()
    }
}

/// What asking for an object comes to; none when there is no such object.
pub type Answer<'a, T> = BoxFuture<'a, Result<Option<Arc<T>>, Error>>;

/// A source of objects.
pub trait Api: Send + Sync + fmt::Debug {
    /// By namespace and name.
    fn config_map<'a>(&'a self, namespace: &'a str, name: &'a str) -> Answer<'a, ConfigMap>;
    /// By namespace and name.
    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> Answer<'a, Secret>;
}

/// An object could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("read {kind} {namespace}/{name}: {message}")]
#[expect(missing_docs, reason = "the message says it")]
pub struct Error {
    pub kind: &'static str,
    pub namespace: String,
    pub name: String,
    pub message: String,
}
