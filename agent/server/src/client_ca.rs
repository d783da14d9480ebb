//! Client certificates: any is taken in the handshake, so that somebody with a foreign one may still
//! show a token, as upstream does; whether a client CA vouches for it is asked at each request. Owns
//! the CAs in force and their replacement while connections stay; never reads a file. Called by
//! [`super::authn`] and whoever watches the CA file.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::user::{CREDENTIAL_ID, User};

/// Why a bundle is no use.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("read the client CA bundle as PEM")]
    Pem(#[source] rustls::pki_types::pem::Error),
    #[error("the client CA bundle holds no certificate")]
    Empty,
    #[error("take up a certificate of the client CA bundle")]
    Certificate(#[source] rustls::Error),
    #[error("make a verifier of the client CA bundle")]
    Verifier(#[source] rustls::server::VerifierBuilderError),
}

/// The client CAs in force; none at first.
#[derive(Clone, Default)]
pub struct ClientCa {
    now: Arc<RwLock<Option<Arc<dyn ClientCertVerifier>>>>,
}

impl fmt::Debug for ClientCa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientCa").finish_non_exhaustive()
    }
}

impl ClientCa {
    /// From a bundle of PEM.
    ///
    /// # Errors
    /// As [`Self::replace`].
    pub fn new(pem: &[u8]) -> Result<Self, Error> {
        let ca = Self::default();
        ca.replace(pem)?;
        Ok(ca)
    }

    /// These from now on, for requests on open connections, too.
    ///
    /// # Errors
    /// When the bundle cannot be used; the old ones stay in force then.
    pub fn replace(&self, pem: &[u8]) -> Result<(), Error> {
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        self.trust(&certificates.map_err(Error::Pem)?)
    }

    /// The same, of certificates.
    ///
    /// # Errors
    /// As [`Self::replace`].
    pub fn trust(&self, certificates: &[CertificateDer<'static>]) -> Result<(), Error> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates {
            roots.add(certificate.clone()).map_err(Error::Certificate)?;
        }
        if roots.is_empty() {
            return Err(Error::Empty);
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
        let verifier = verifier.build().map_err(Error::Verifier)?;
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = Some(verifier);
        Ok(())
    }

    /// Whom the certificate names, by its common name and organizations. `None` when no CA is set or
    /// the certificate names nobody.
    ///
    /// # Errors
    /// When no CA vouches for it now.
    pub(super) fn user(&self, chain: &[CertificateDer<'_>]) -> Result<Option<User>, rustls::Error> {
        let verifier = self.now.read().unwrap_or_else(PoisonError::into_inner).clone();
        let (Some((leaf, between)), Some(verifier)) = (chain.split_first(), verifier) else {
            return Ok(None);
        };
        verifier.verify_client_cert(leaf, between, UnixTime::now())?;
        let bad = || rustls::Error::InvalidCertificate(rustls::CertificateError::BadEncoding);
        let (_, certificate) = X509Certificate::from_der(leaf).map_err(|_| bad())?;
        let text = |value: &x509_parser::x509::AttributeTypeAndValue<'_>| value.as_str().map(str::to_owned);
        let subject = certificate.subject();
        // Go keeps the last common name of a subject that has several.
        let name = subject.iter_common_name().last().map(text).transpose().map_err(|_| bad())?;
        let groups = subject.iter_organization().map(text).collect::<Result<_, _>>().map_err(|_| bad())?;
        let digest = aws_lc_rs_digest(leaf);
        Ok(name.filter(|name| !name.is_empty()).map(|name| User {
            name,
            groups,
            uid: String::new(),
            extra: [(CREDENTIAL_ID.to_owned(), vec![format!("X509SHA256={digest}")])].into(),
        }))
    }
}

fn aws_lc_rs_digest(bytes: &[u8]) -> String {
    let digest = ::aws_lc_rs::digest::digest(&::aws_lc_rs::digest::SHA256, bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The one that the whole program uses.
pub(super) fn provider() -> Arc<CryptoProvider> {
    CryptoProvider::get_default().cloned().unwrap_or_else(|| Arc::new(aws_lc_rs::default_provider()))
}

/// Asks for a certificate and takes any whose key the client holds.
#[derive(Debug)]
pub(super) struct TakeAny(pub(super) Arc<CryptoProvider>);

impl ClientCertVerifier for TakeAny {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // No hints: a client would keep its certificate back for a CA that is new to this node.
        &[]
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
