//! A certificate with its key. Pure but for parsing: owns what can be read of it; never where it is
//! kept. Called by the stores, the clients and the server.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// What TLS needs of a certificate, and what it says about itself.
#[derive(Debug)]
pub struct Pair {
    key: Arc<CertifiedKey>,
    leaf: Leaf,
}

/// What a certificate says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaf {
    pub not_before: Timestamp,
    pub not_after: Timestamp,
    pub common_name: String,
    pub organizations: BTreeSet<String>,
    pub dns: BTreeSet<String>,
    pub ips: BTreeSet<IpAddr>,
}

/// Why PEM text is no certificate with its key.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no certificate in it")]
    NoCertificate,
    #[error("the certificates")]
    Certificates(#[source] rustls::pki_types::pem::Error),
    #[error("the private key")]
    Key(#[source] rustls::pki_types::pem::Error),
    #[error("a private key of this kind, or the certificate of another key")]
    Kind(#[source] rustls::Error),
    #[error("the certificate's content: {0}")]
    Content(String),
}

impl Pair {
    /// Reads both; they may stand in one text.
    ///
    /// # Errors
    /// When one is missing or broken, or they do not belong together.
    pub fn parse(certificates: &[u8], key: &[u8]) -> Result<Self, Error> {
        let chain = certificates_of(certificates).map_err(Error::Certificates)?;
        let first = chain.first().ok_or(Error::NoCertificate)?;
        let leaf = Leaf::parse(first)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(Error::Key)?;
        let key = any_supported_type(&key).map_err(Error::Kind)?;
        let key = CertifiedKey::new(chain, key);
        key.keys_match().map_err(Error::Kind)?;
        Ok(Self { key: Arc::new(key), leaf })
    }

    /// For a handshake.
    #[must_use]
    pub fn key(&self) -> Arc<CertifiedKey> {
        self.key.clone()
    }

    /// What it says.
    #[must_use]
    pub fn leaf(&self) -> &Leaf {
        &self.leaf
    }

    /// Whether its time is over.
    #[must_use]
    pub fn is_expired(&self, now: Timestamp) -> bool {
        now > self.leaf.not_after
    }
}

/// All certificates of a text.
///
/// # Errors
/// When one cannot be read.
pub fn certificates_of(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, rustls::pki_types::pem::Error> {
    CertificateDer::pem_slice_iter(text).collect()
}

impl Leaf {
    /// Reads a certificate.
    ///
    /// # Errors
    /// When it is none.
    pub fn parse(der: &CertificateDer<'_>) -> Result<Self, Error> {
        let wrong = |e: &dyn std::fmt::Display| Error::Content(e.to_string());
        let (_, certificate) = X509Certificate::from_der(der).map_err(|e| wrong(&e))?;
        let time = |seconds| Timestamp::from_second(seconds).map_err(|e| wrong(&e));
        let subject = certificate.subject();
        let text =
            |name: &x509_parser::x509::AttributeTypeAndValue<'_>| name.as_str().map(str::to_owned).ok();
        let (mut dns, mut ips) = (BTreeSet::new(), BTreeSet::new());
        if let Some(names) = certificate.subject_alternative_name().map_err(|e| wrong(&e))? {
            for name in &names.value.general_names {
                match name {
                    GeneralName::DNSName(name) => {
                        dns.insert((*name).to_owned());
                    }
                    GeneralName::IPAddress(bytes) => ips.extend(address(bytes)),
                    _ => {}
                }
            }
        }
        Ok(Self {
            not_before: time(certificate.validity().not_before.timestamp())?,
            not_after: time(certificate.validity().not_after.timestamp())?,
            common_name: subject.iter_common_name().find_map(text).unwrap_or_default(),
            organizations: subject.iter_organization().filter_map(text).collect(),
            dns,
            ips,
        })
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(four) = <[u8; 4]>::try_from(bytes) {
        return Some(four.into());
    }
    <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from)
}
