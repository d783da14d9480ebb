//! What the agent asks of the place where pods come from: the ConfigMaps and Secrets that they
//! refer to. Owns the trait and its errors; never a pod. Called by [`crate::pod::configure`] and
//! [`crate::volumes`].

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;

/// The content of a ConfigMap or Secret, decoded.
pub type Data = Arc<BTreeMap<String, Vec<u8>>>;

/// A source of objects.
pub trait Api: Send + Sync + fmt::Debug {
    /// None when there is no such object.
    fn config_map<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Data>, Error>>;
    /// None when there is no such object.
    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Result<Option<Data>, Error>>;
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
