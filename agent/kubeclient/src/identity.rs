//! Who the kubelet is: its credentials for the API server and the certificate of its own API. Owns
//! how they are read, asked for, renewed and swapped while connections stay; never what is said over
//! them. Called by the kubelet's assembly.

pub mod bootstrap;
pub mod ca;
pub mod client;
pub mod csr;
pub mod exec;
pub mod kubeconfig;
pub mod pair;
pub mod rotation;
pub mod serving;
pub mod store;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use rustls::client::ResolvesClientCert;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::sync::watch;

pub use self::client::Clients;
pub use self::pair::Pair;

/// A certificate that others hold, and that is swapped under them.
pub type Current = watch::Receiver<Option<Arc<Pair>>>;

/// What a node is called, for its serving certificate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    /// Host names.
    pub dns: BTreeSet<String>,
    /// Addresses.
    pub ips: BTreeSet<IpAddr>,
}

/// What the node's events should say about a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// Else it is good news.
    pub warning: bool,
    /// An event's reason.
    pub reason: &'static str,
    /// An event's message.
    pub message: String,
}

/// Shows whatever certificate is current to whoever asks in a handshake: connections that stand
/// keep theirs.
#[derive(Debug)]
pub struct Shown(pub Current);

impl ResolvesClientCert for Shown {
    fn resolve(&self, _: &[&[u8]], _: &[rustls::SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        // An expired one is as good as none, and says less about us.
        self.0
            .borrow()
            .as_ref()
            .filter(|pair| !pair.is_expired(jiff::Timestamp::now()))
            .map(|pair| pair.key())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.borrow().as_ref().map(|pair| pair.key())
    }
}

#[cfg(test)]
mod tests;
