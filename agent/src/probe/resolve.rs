//! Addresses of the names that probes and hooks give. Owns the threads that look them up, at most
//! [`AT_ONCE`] on the node, and never takes one of tokio's: a lookup cannot be stopped, and a name server
//! that does not answer must not keep volumes and logs waiting. Called by [`super::net`].

#![expect(
    clippy::disallowed_methods,
    reason = "a lookup that hangs is left to end by itself, one for a name"
)]

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::net::join;

/// Lookups of the whole node.
pub(super) const AT_ONCE: usize = 8;

type Lookup = dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync;
/// An error of the system cannot be copied: its kind and its text.
type Outcome = Result<Vec<IpAddr>, (io::ErrorKind, String)>;

/// Shared by all probes.
#[derive(Clone)]
pub(super) struct Resolver {
    inner: Arc<ResolverState>,
}

struct ResolverState {
    lookup: Box<Lookup>,
    permits: Arc<Semaphore>,
    /// By name: those who want one share one lookup.
    in_flight: Mutex<HashMap<String, Arc<watch::Sender<Option<Outcome>>>>>,
}

/// One lookup in flight, which all who ask for its name meanwhile share. Dropped, the next who asks begins another.
struct InFlight {
    inner: Arc<ResolverState>,
    name: String,
    result: Arc<watch::Sender<Option<Outcome>>>,
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver").field("permits", &self.inner.permits).finish_non_exhaustive()
    }
}

impl ResolverState {
    fn in_flight(&self) -> MutexGuard<'_, HashMap<String, Arc<watch::Sender<Option<Outcome>>>>> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut in_flight = self.inner.in_flight();
        // Nobody waited for this one: who came later began another under the same name.
        if in_flight.get(&self.name).is_some_and(|result| Arc::ptr_eq(result, &self.result)) {
            in_flight.remove(&self.name);
        }
    }
}

impl InFlight {
    /// Waits for a permit, then asks on a thread. A lookup that nobody waits for any more is not begun.
    async fn begin(self) {
        let Ok(permit) = self.inner.permits.clone().acquire_owned().await else { return };
        let unwanted = {
            let mut in_flight = self.inner.in_flight();
            let unwanted = self.result.receiver_count() == 0;
            if unwanted {
                in_flight.remove(&self.name);
            }
            unwanted
        };
        if unwanted {
            return;
        }
        let result = self.result.clone();
        let thread = std::thread::Builder::new().name("probe lookup".to_owned());
        if let Err(error) = thread.spawn(move || self.look(permit)) {
            result.send_replace(Some(Err((error.kind(), error.to_string()))));
        }
    }

    fn look(self, permit: OwnedSemaphorePermit) {
        let found = (self.inner.lookup)(&self.name);
        self.result.send_replace(Some(found.map_err(|error| (error.kind(), error.to_string()))));
        drop(self);
        drop(permit);
    }
}

impl Resolver {
    /// Asks the system, which knows the node's hosts file and name servers.
    pub(super) fn new() -> Self {
        Self::with(|name| Ok((name, 0).to_socket_addrs()?.map(|address| address.ip()).collect()))
    }

    pub(super) fn with(lookup: impl Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync + 'static) -> Self {
        let (lookup, permits) = (Box::new(lookup), Arc::new(Semaphore::new(AT_ONCE)));
        Self { inner: Arc::new(ResolverState { lookup, permits, in_flight: Mutex::default() }) }
    }

    /// Waits until it is known: whoever asks has the limit of time.
    async fn find(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        let mut seen = self.follow(name);
        let outcome = match seen.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone(),
            Err(_) => None,
        };
        match outcome {
            Some(Ok(addresses)) => Ok(addresses),
            Some(Err((kind, text))) => Err(io::Error::new(kind, text)),
            None => Err(io::Error::other("the lookup ended without an answer")),
        }
    }

    fn follow(&self, name: &str) -> watch::Receiver<Option<Outcome>> {
        let mut in_flight = self.inner.in_flight();
        if let Some(result) = in_flight.get(name) {
            return result.subscribe();
        }
        let (sender, seen) = watch::channel(None);
        let result = Arc::new(sender);
        in_flight.insert(name.to_owned(), result.clone());
        let lookup = InFlight { inner: self.inner.clone(), name: name.to_owned(), result };
        tokio::spawn(lookup.begin());
        seen
    }

    /// A connection to the first of the host's addresses that takes one.
    pub(super) async fn connect(&self, host: &str, port: u16) -> io::Result<TcpStream> {
        if let Ok(address) = join(host, port).parse::<SocketAddr>() {
            return TcpStream::connect(address).await;
        }
        let found = self.find(host).await?;
        let addresses: Vec<SocketAddr> = found.into_iter().map(|ip| SocketAddr::new(ip, port)).collect();
        TcpStream::connect(&addresses[..]).await
    }
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let resolver = self.clone();
        Box::pin(async move {
            let found = resolver.find(name.as_str()).await?;
            let addresses: Addrs = Box::new(found.into_iter().map(|ip| SocketAddr::new(ip, 0)));
            Ok(addresses)
        })
    }
}

#[cfg(test)]
mod tests;
