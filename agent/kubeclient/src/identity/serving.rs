//! The certificate of the kubelet's own API: from files, by request, or made here. Owns which of
//! the three; never who connects. Called by the wiring, for the server.

#![expect(
    clippy::disallowed_methods,
    reason = "the tasks that renew the certificate live as long as the kubelet"
)]

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gantry_metrics::Metrics;
use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyUsagePurpose, SanType,
};
use rustls::server::ResolvesServerCert;
use tokio::sync::{mpsc, watch};

use super::csr::{self, Signer, Template};
use super::rotation::{self, Ask, Rotation};
use super::store::{self, Store};
use super::{Current, Names, Notice, Shown, bootstrap};

/// Where the certificate comes from.
pub enum ServingCertSource {
    /// `tlsCertFile` and `tlsPrivateKeyFile`; they may change.
    Files {
        /// With those of the authorities between, if any.
        certificate: PathBuf,
        /// Its key.
        key: PathBuf,
    },
    /// `serverTLSBootstrap`: asked for, with the names of the node.
    Requested {
        /// The node's name.
        node: String,
        /// None until they are known.
        names: watch::Receiver<Option<Names>>,
        /// Through whom.
        client: kube::Client,
        /// What may be there already.
        given: Option<(PathBuf, PathBuf)>,
        /// Where trouble is told.
        notices: mpsc::Sender<Notice>,
        /// Counts how renewals go.
        metrics: Arc<Metrics>,
    },
    /// Made here, once, for this host name.
    SelfSigned {
        /// As `--hostname-override` or the kernel says.
        host: String,
    },
}

impl std::fmt::Debug for ServingCertSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Files { .. } => "Files",
            Self::Requested { .. } => "Requested",
            Self::SelfSigned { .. } => "SelfSigned",
        })
    }
}

/// A certificate to serve with.
#[derive(Debug, Clone)]
pub struct Serving {
    current: Current,
}

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("serving certificate")]
    Store(#[from] store::Error),
    #[error("unable to generate self signed cert")]
    Make(#[source] rcgen::Error),
    #[error("unable to generate self signed cert")]
    Key(#[from] csr::Error),
}

impl Serving {
    /// Starts to look after it.
    ///
    /// # Errors
    /// When files are missing or broken.
    pub fn start(cert_dir: &Path, source: ServingCertSource) -> Result<Self, Error> {
        let current = match source {
            ServingCertSource::Files { certificate, key } => bootstrap::follow_files(certificate, key)?,
            ServingCertSource::SelfSigned { host } => {
                let (certificate, key) = (cert_dir.join("kubelet.crt"), cert_dir.join("kubelet.key"));
                if !(certificate.exists() && key.exists()) {
                    let made = generate_self_signed(&host, Timestamp::now())?;
                    store::replace(&certificate, made.certificates.as_bytes(), 0o644)?;
                    store::replace(&key, made.key.as_bytes(), 0o600)?;
                }
                bootstrap::follow_files(certificate, key)?
            }
            ServingCertSource::Requested { node, names, client, given, notices, metrics } => {
                let store = Store::open("kubelet-server", cert_dir, given)?;
                let first = store.current()?.filter(|pair| !pair.is_expired(Timestamp::now()));
                let (out, current) = watch::channel(first.map(Arc::new));
                let ask: Ask = Box::new(move |_| Ok(client.clone()));
                let shown = current.clone();
                metrics.certificate_manager_server_expiration.of(move || rotation::remaining_seconds(&shown));
                let rotation = Rotation {
                    store,
                    signer: Signer::Serving,
                    template: templates(node, names),
                    current: out,
                    ask,
                    notices,
                    healthy: watch::channel(true).0,
                    force: false,
                    key_file: None,
                    metrics,
                };
                tokio::spawn(rotation.run());
                current
            }
        };
        Ok(Self { current })
    }

    /// For the TLS of a server.
    #[must_use]
    pub fn resolver(&self) -> Arc<dyn ResolvesServerCert> {
        Arc::new(Shown(self.current.clone()))
    }

    /// The certificate itself.
    #[must_use]
    pub fn current(&self) -> Current {
        self.current.clone()
    }
}

/// A node without names asks for nothing.
fn templates(node: String, mut names: watch::Receiver<Option<Names>>) -> watch::Receiver<Option<Template>> {
    let template = move |names: Option<Names>| {
        names
            .filter(|names| !names.dns.is_empty() || !names.ips.is_empty())
            .map(|names| Template { node: node.clone(), names })
    };
    let (out, templates) = watch::channel(template(names.borrow_and_update().clone()));
    tokio::spawn(async move {
        while names.changed().await.is_ok() {
            let wanted = template(names.borrow_and_update().clone());
            out.send_if_modified(|old| {
                let changed = *old != wanted;
                *old = wanted;
                changed
            });
        }
        // What was wanted last is wanted still.
        out.closed().await;
    });
    templates
}

/// PEM texts.
struct GeneratedPair {
    certificates: String,
    key: String,
}

/// A certificate for a year, and the authority that signed it.
fn generate_self_signed(host: &str, now: Timestamp) -> Result<GeneratedPair, Error> {
    let (start, end) = (now - SignedDuration::from_hours(1), now + SignedDuration::from_hours(24 * 365));
    let time = |time: Timestamp| {
        let date = time.to_zoned(jiff::tz::TimeZone::UTC);
        rcgen::date_time_ymd(i32::from(date.year()), date.month().unsigned_abs(), date.day().unsigned_abs())
    };
    let named = |name: String| {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        (params.not_before, params.not_after) = (time(start), time(end));
        params
    };
    let stamp = now.as_second();
    let mut authority = named(format!("{host}-ca@{stamp}"));
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages = vec![
        KeyUsagePurpose::KeyEncipherment,
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::KeyCertSign,
    ];
    let authority = CertifiedIssuer::self_signed(authority, csr::new_key()?).map_err(Error::Make)?;
    let mut leaf = named(format!("{host}@{stamp}"));
    leaf.key_usages = vec![KeyUsagePurpose::KeyEncipherment, KeyUsagePurpose::DigitalSignature];
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    leaf.subject_alt_names.push(match host.parse::<IpAddr>() {
        Ok(ip) => SanType::IpAddress(ip),
        Err(_) => SanType::DnsName(host.try_into().map_err(Error::Make)?),
    });
    let key = csr::new_key()?;
    let leaf = leaf.signed_by(&key, &authority).map_err(Error::Make)?;
    Ok(GeneratedPair { certificates: format!("{}{}", leaf.pem(), authority.pem()), key: key.serialize_pem() })
}

#[cfg(test)]
mod tests;
