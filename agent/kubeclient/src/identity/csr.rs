//! Certificate signing requests: made, sent, and waited for. Owns their names, usages and checks;
//! never keeps a certificate. Called by bootstrap and rotation.

use std::time::Duration;

use aws_lc_rs::digest::{SHA512_256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::{StreamExt as _, pin_mut};
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, PostParams, WatchEvent, WatchParams};
use rcgen::{CertificateParams, DnType, KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData as _, SanType};

use super::Names;

/// Who signs, and what for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signer {
    /// To be known to the API server.
    Client,
    /// To be known to those who ask this node.
    Serving,
}

impl Signer {
    const fn name(self) -> &'static str {
        match self {
            Self::Client => "kubernetes.io/kube-apiserver-client-kubelet",
            Self::Serving => "kubernetes.io/kubelet-serving",
        }
    }

    /// Of keys on elliptic curves, which encipher nothing.
    const fn usages(self) -> [&'static str; 2] {
        match self {
            Self::Client => ["digital signature", "client auth"],
            Self::Serving => ["digital signature", "server auth"],
        }
    }
}

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    /// The node's name.
    pub node: String,
    /// Nothing for a client.
    pub names: Names,
}

impl Template {
    /// As the node authorizer wants it.
    #[must_use]
    pub fn common_name(&self) -> String {
        format!("system:node:{}", self.node)
    }
}

/// The organization of every node.
pub const NODES: &str = "system:nodes";

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("unable to generate a new private key")]
    Key(#[source] rcgen::Error),
    #[error("unable to generate certificate request")]
    Make(#[source] rcgen::Error),
    #[error("cannot create certificate signing request")]
    Create(#[source] Box<kube::Error>),
    #[error("cannot retrieve certificate signing request {name}")]
    Get {
        name: String,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("retrieved csr {0} is not compatible: it is for another key")]
    Foreign(String),
    #[error("csr {0:?} was deleted")]
    Deleted(String),
    #[error("csr {0:?} changed UIDs")]
    Replaced(String),
    #[error("certificate signing request {0}")]
    Refused(String),
    #[error("certificate signing request {0} was not signed in time")]
    Late(String),
}

/// A new key, and its PEM text.
///
/// # Errors
/// When the system has no randomness.
pub fn new_key() -> Result<KeyPair, Error> {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(Error::Key)
}

/// The request itself, in PEM.
fn request(template: &Template, key: &KeyPair) -> Result<String, Error> {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, NODES);
    params.distinguished_name.push(DnType::CommonName, template.common_name());
    for name in &template.names.dns {
        let name = name.as_str().try_into().map_err(Error::Make)?;
        params.subject_alt_names.push(SanType::DnsName(name));
    }
    params.subject_alt_names.extend(template.names.ips.iter().map(|ip| SanType::IpAddress(*ip)));
    params.serialize_request(key).and_then(|request| request.pem()).map_err(Error::Make)
}

/// A name that the same node gives the same key, so that a restart finds its request again.
#[must_use]
pub fn digested_name(template: &Template, key: &KeyPair, signer: Signer) -> String {
    let mut text = String::new();
    let mut add = |part: &[u8]| {
        text.push_str(&URL_SAFE_NO_PAD.encode(part));
        text.push('|');
    };
    add(&key.subject_public_key_info());
    add(template.common_name().as_bytes());
    add(NODES.as_bytes());
    signer.usages().iter().for_each(|usage| add(usage.as_bytes()));
    let hash = digest(&SHA512_256, text.as_bytes());
    format!("node-csr-{}", URL_SAFE_NO_PAD.encode(hash.as_ref()))
}

/// A request under way.
#[derive(Debug, Clone)]
pub struct PendingCsr {
    name: String,
    uid: Option<String>,
}

/// Sends a request; with a name, one that is there already is taken up.
///
/// # Errors
/// When the API server refuses it, or the one that is there is of another key.
pub async fn ask(
    client: kube::Client,
    template: &Template,
    key: &KeyPair,
    signer: Signer,
    name: Option<String>,
) -> Result<PendingCsr, Error> {
    let api: Api<CertificateSigningRequest> = Api::all(client);
    let object = CertificateSigningRequest {
        metadata: ObjectMeta {
            generate_name: name.is_none().then(|| "csr-".to_owned()),
            name: name.clone(),
            ..ObjectMeta::default()
        },
        spec: CertificateSigningRequestSpec {
            request: ByteString(request(template, key)?.into_bytes()),
            signer_name: signer.name().to_owned(),
            usages: Some(signer.usages().map(str::to_owned).to_vec()),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    };
    match (api.create(&PostParams::default(), &object).await, name) {
        (Ok(made), _) => {
            Ok(PendingCsr { name: made.metadata.name.unwrap_or_default(), uid: made.metadata.uid })
        }
        (Err(kube::Error::Api(status)), Some(name)) if status.is_already_exists() => {
            let found =
                api.get(&name).await.map_err(|e| Error::Get { name: name.clone(), source: Box::new(e) })?;
            if !is_of(&found.spec.request.0, key) {
                return Err(Error::Foreign(name));
            }
            Ok(PendingCsr { name, uid: found.metadata.uid })
        }
        (Err(error), _) => Err(Error::Create(Box::new(error))),
    }
}

/// Whether a request in PEM was made with this key.
fn is_of(pem: &[u8], key: &KeyPair) -> bool {
    use x509_parser::prelude::{FromDer, X509CertificationRequest};
    let Ok((_, block)) = x509_parser::pem::parse_x509_pem(pem) else { return false };
    let Ok((_, found)) = X509CertificationRequest::from_der(&block.contents) else { return false };
    found.certification_request_info.subject_pki.raw == key.subject_public_key_info().as_slice()
}

/// What one look at a request tells.
#[derive(Debug, PartialEq, Eq)]
enum CsrStatus {
    Pending,
    Issued(Vec<u8>),
}

fn judge(asked: &PendingCsr, found: &CertificateSigningRequest) -> Result<CsrStatus, Error> {
    if found.metadata.uid != asked.uid {
        return Err(Error::Replaced(asked.name.clone()));
    }
    let Some(status) = &found.status else { return Ok(CsrStatus::Pending) };
    let mut approved = false;
    for condition in status.conditions.iter().flatten() {
        let told = || {
            format!(
                "reason: {}, message: {}",
                condition.reason.as_deref().unwrap_or_default(),
                condition.message.as_deref().unwrap_or_default()
            )
        };
        match condition.type_.as_str() {
            "Denied" => return Err(Error::Refused(format!("is denied, {}", told()))),
            "Failed" => return Err(Error::Refused(format!("failed, {}", told()))),
            "Approved" => approved = true,
            _ => {}
        }
    }
    match &status.certificate {
        Some(certificate) if approved && !certificate.0.is_empty() => {
            Ok(CsrStatus::Issued(certificate.0.clone()))
        }
        _ => Ok(CsrStatus::Pending),
    }
}

/// Waits until it is signed; gives back the certificates in PEM.
///
/// # Errors
/// When it is refused or gone, or takes longer than `within`.
pub async fn wait(client: kube::Client, asked: &PendingCsr, within: Duration) -> Result<Vec<u8>, Error> {
    let signed = async {
        loop {
            match look(client.clone(), asked).await {
                Ok(Some(certificate)) => return Ok(certificate),
                // The watch ended by itself.
                Ok(None) => {}
                Err(Error::Get { name, source }) => {
                    tracing::debug!(csr = name, error = %source, "cannot look at the certificate signing request");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
                Err(error) => return Err(error),
            }
        }
    };
    tokio::time::timeout(within, signed).await.unwrap_or_else(|_| Err(Error::Late(asked.name.clone())))
}

async fn look(client: kube::Client, asked: &PendingCsr) -> Result<Option<Vec<u8>>, Error> {
    let api: Api<CertificateSigningRequest> = Api::all(client);
    let wrap = |source| Error::Get { name: asked.name.clone(), source: Box::new(source) };
    let found = api.get_opt(&asked.name).await.map_err(wrap)?;
    let found = found.ok_or_else(|| Error::Deleted(asked.name.clone()))?;
    if let CsrStatus::Issued(certificate) = judge(asked, &found)? {
        return Ok(Some(certificate));
    }
    let params = WatchParams::default().fields(&format!("metadata.name={}", asked.name)).timeout(290);
    let version = found.metadata.resource_version.unwrap_or_default();
    let events = api.watch(&params, &version).await.map_err(wrap)?;
    pin_mut!(events);
    while let Some(event) = events.next().await {
        match event.map_err(wrap)? {
            WatchEvent::Added(found) | WatchEvent::Modified(found) => {
                if let CsrStatus::Issued(certificate) = judge(asked, &found)? {
                    return Ok(Some(certificate));
                }
            }
            WatchEvent::Deleted(_) => return Err(Error::Deleted(asked.name.clone())),
            WatchEvent::Bookmark(_) => {}
            WatchEvent::Error(_) => return Ok(None),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
