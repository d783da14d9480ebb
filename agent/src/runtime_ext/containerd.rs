//! containerd, beside CRI on the same socket: OOM events of its task event stream, and pulls by what its
//! content store takes in. Owns the connection's manners (namespace, bounds, patience); never changes
//! anything there. Started by [`super::RuntimeExtensions`].

#![expect(clippy::disallowed_methods, reason = "the listeners end with their last receiver")]

mod content;
mod events;
#[cfg(test)]
mod fake;
mod layers;
mod pulls;

use std::time::Duration;

use tokio::sync::watch;
use tonic::Request;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;

use super::RuntimeExtensions;
use super::oom_counts::Ooms;
use super::pulls::Pulls;
use content::ContentStore;

/// Where its CRI keeps what is a kubelet's.
const NAMESPACE: &str = "k8s.io";
/// For one answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Follows it for as long as this process lives.
pub(super) fn listen(channel: &Channel) -> RuntimeExtensions {
    let (told, ooms) = watch::channel(Ooms::default());
    let pulls = Pulls::default();
    tokio::spawn(events::follow(channel.clone(), told));
    tokio::spawn(pulls::follow(ContentStore::new(channel.clone()), pulls.clone()));
    RuntimeExtensions { pulls: Some(pulls), ooms: Some(ooms) }
}

/// A request in the namespace of CRI.
fn named<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("containerd-namespace", MetadataValue::from_static(NAMESPACE));
    request
}

/// The same, with a deadline.
fn timed<T>(message: T) -> Request<T> {
    let mut request = named(message);
    request.set_timeout(TIMEOUT);
    request
}

#[cfg(test)]
mod tests;
