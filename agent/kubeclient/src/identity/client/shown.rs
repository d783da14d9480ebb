//! The certificates that a server shows, whether they are believed or not, and what is wrong with them. Owns the
//! handshake and the three questions apart; a client that wants an answer asks none of them. Called by `gantry doctor`.

use std::sync::Arc;

use rustls::RootCertStore;
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::{Error, trust};
use crate::identity::kubeconfig::Trust;
use crate::identity::pair::{self, Leaf};

/// What a server shows: its certificate and those that came with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain(Vec<CertificateDer<'static>>);

/// Why nothing is shown.
#[derive(Debug, thiserror::Error)]
pub enum Hidden {
    #[error("a client for it")]
    Client(#[from] Error),
    #[error("{0:?} is no name of a server")]
    Name(String),
    #[error("the TLS handshake")]
    Handshake(#[source] std::io::Error),
    #[error("it shows no certificate")]
    Nothing,
}

impl Chain {
    /// Shakes hands over a connection that stands, as who asks for `name`, and believes whoever is there: nothing that
    /// is worth anything may be sent to him.
    ///
    /// # Errors
    /// When he speaks no TLS.
    pub async fn of(stream: TcpStream, name: &str) -> Result<Self, Hidden> {
        let config = trust::config(&Trust::Anybody).map_err(Error::from)?.with_no_client_auth();
        let server = server_name(name).ok_or_else(|| Hidden::Name(name.to_owned()))?;
        let stream =
            TlsConnector::from(Arc::new(config)).connect(server, stream).await.map_err(Hidden::Handshake)?;
        let (_, session) = stream.get_ref();
        let chain: Vec<CertificateDer<'static>> =
            session.peer_certificates().into_iter().flatten().map(|one| one.clone().into_owned()).collect();
        if chain.is_empty() { Err(Hidden::Nothing) } else { Ok(Self(chain)) }
    }

    /// What the server's own certificate says.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn leaf(&self) -> Result<Leaf, pair::Error> {
        Leaf::parse(self.0.first().ok_or(pair::Error::NoCertificate)?)
    }

    /// Whether it is for a server of this name or address.
    #[must_use]
    pub fn bears(&self, name: &str) -> bool {
        let parsed = self.0.first().and_then(|leaf| ParsedCertificate::try_from(leaf).ok());
        let server = server_name(name);
        parsed.zip(server).is_some_and(|(leaf, server)| verify_server_name(&leaf, &server).is_ok())
    }

    /// Whether one of these authorities has signed it, whatever the hour.
    ///
    /// # Errors
    /// Why not.
    pub fn signed_by(&self, authorities: &[CertificateDer<'static>]) -> Result<(), rustls::Error> {
        let (leaf, between) = self.0.split_first().ok_or(rustls::Error::NoCertificatesPresented)?;
        let mut roots = RootCertStore::empty();
        authorities.iter().try_for_each(|one| roots.add(one.clone()))?;
        // An hour at which it is valid: whether that is now is another question.
        let begin = Leaf::parse(leaf).map_or(0, |leaf| leaf.not_before.as_second());
        let then =
            UnixTime::since_unix_epoch(std::time::Duration::from_secs(u64::try_from(begin).unwrap_or(0)));
        let provider = aws_lc_rs::default_provider();
        verify_server_cert_signed_by_trust_anchor(
            &ParsedCertificate::try_from(leaf)?,
            &roots,
            between,
            then,
            provider.signature_verification_algorithms.all,
        )
    }
}

fn server_name(name: &str) -> Option<ServerName<'static>> {
    ServerName::try_from(name.to_owned()).ok()
}
