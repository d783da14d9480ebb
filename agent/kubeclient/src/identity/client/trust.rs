//! Whose certificate of an API server is believed. Owns the verifiers; never who we are. Called by
//! [`super`].

use std::sync::Arc;

use hyper_rustls::ConfigBuilderExt as _;
use rustls::client::WantsClientCert;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ConfigBuilder, DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::identity::kubeconfig::Trust;
use crate::identity::{ca, pair};

/// Why nobody can be trusted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the certificate authorities of the system")]
    System(#[source] std::io::Error),
    #[error("the certificate authority")]
    File(#[from] ca::Error),
    #[error("certificate-authority-data")]
    Data(#[source] rustls::pki_types::pem::Error),
    #[error("a certificate authority that is none")]
    Root(#[source] rustls::Error),
    #[error("TLS versions")]
    Versions(#[source] rustls::Error),
}

/// A client that knows whom to believe, and not yet who it is.
pub(super) fn config(trust: &Trust) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, Error> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(Error::Versions)?;
    let roots = |bundle: &[CertificateDer<'static>]| {
        let mut roots = RootCertStore::empty();
        bundle.iter().try_for_each(|one| roots.add(one.clone())).map_err(Error::Root).map(|()| roots)
    };
    Ok(match trust {
        Trust::System => builder.with_native_roots().map_err(Error::System)?,
        Trust::File(path) => builder.with_root_certificates(roots(&ca::read(path)?)?),
        Trust::Data(data) => {
            builder.with_root_certificates(roots(&pair::certificates_of(data).map_err(Error::Data)?)?)
        }
        Trust::Anybody => builder.dangerous().with_custom_certificate_verifier(Arc::new(Anybody(provider))),
    })
}

/// insecure-skip-tls-verify: the key is checked, the name on it is not.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
