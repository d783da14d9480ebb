//! How a machine that knows nothing but a token and a hash finds a cluster it may trust: kubeadm's token
//! discovery. Owns the forms of token, hash and endpoint, and what is checked of `kube-public/cluster-info`;
//! never writes anything. Called by `gantry join` and `gantry doctor --join`.
//!
//! The ConfigMap is read first from whoever answers. Its kubeconfig counts when it is signed with the token (a
//! detached JWS, RFC 7515 appendix F) and its authority's public key has the hash that was given; then it is read
//! again over TLS that this authority vouches for, and must be the same.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::{digest, hmac};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use gantry_kube_client::identity::client;
use gantry_kube_client::identity::kubeconfig::{Access, Authorization, Trust, User};
use gantry_kube_client::identity::pair;
use gantry_metrics::Metrics;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use rustls::pki_types::CertificateDer;
use serde_json::Value;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Between two looks for a signature that the control plane has yet to write.
const RHYTHM: Duration = Duration::from_secs(1);
/// For one answer; [`Error::Late`] says it.
const ANSWER: Duration = Duration::from_secs(15);
/// Before the token's id, the key of its signature.
const SIGNATURE: &str = "jws-kubeconfig-";

/// `abcdef.0123456789abcdef`: id and secret.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Token {
    id: String,
    secret: String,
}

/// `sha256:…` of a public key with its algorithm (SubjectPublicKeyInfo, DER).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct CaHash([u8; 32]);

/// `HOST:PORT` of an API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// Without the brackets of an IPv6 address.
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// A cluster that was found, and is the one that was meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClusterInfo {
    /// Where its nodes reach the API server, as the cluster says: `https://kind-control-plane:6443`.
    pub(crate) server: Endpoint,
    /// Its certificate authorities, PEM.
    pub(crate) authority: Vec<u8>,
}

/// Why a cluster was not found, or must not be trusted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("a client for {0}")]
    Client(Endpoint, #[source] client::Error),
    #[error(
        "read the ConfigMap kube-public/cluster-info from {0}: check the address, that the API server runs, and that \
         the cluster was made by kubeadm"
    )]
    Read(Endpoint, #[source] Box<kube::Error>),
    #[error("{0} did not answer within 15 s: check the address and the firewalls between")]
    Late(Endpoint),
    #[error("the ConfigMap kube-public/cluster-info has no kubeconfig: this cluster takes no tokens")]
    NoKubeconfig,
    #[error(
        "the cluster does not know the token {0}…, or it has expired: make one with `kubeadm token create \
         --print-join-command` on the control plane"
    )]
    UnknownToken(String),
    #[error(
        "cluster-info is not signed with this token: its secret is wrong, or this is not your API server"
    )]
    BadSignature,
    #[error("the kubeconfig in cluster-info: {0}")]
    Kubeconfig(String),
    #[error(
        "the cluster's certificate authority has {found}, not the hash that was given: compare it with `openssl x509 \
         -pubkey -in /etc/kubernetes/pki/ca.crt -noout | openssl pkey -pubin -outform der | sha256sum` on the control \
         plane"
    )]
    OtherAuthority { found: String },
    #[error("{0} shows a certificate that the cluster's own authority does not vouch for")]
    Untrusted(Endpoint, #[source] Box<kube::Error>),
    #[error("cluster-info was another one when it was read again: somebody stands between")]
    Changed,
}

impl Token {
    /// The public part.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// The part that proves it.
    pub(crate) fn secret(&self) -> &str {
        &self.secret
    }
}

impl FromStr for Token {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let word = |text: &str, length: usize| {
            text.len() == length && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
        };
        match text.split_once('.') {
            Some((id, secret)) if word(id, 6) && word(secret, 16) => {
                Ok(Self { id: id.to_owned(), secret: secret.to_owned() })
            }
            _ => Err("expected 6 and 16 characters of a-z and 0-9 with a dot between, as in \
                      abcdef.0123456789abcdef"
                .to_owned()),
        }
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.id, self.secret)
    }
}

/// The secret is shown to nobody who looks for faults.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({}.<masked>)", self.id)
    }
}

impl CaHash {
    /// Of a certificate's key.
    ///
    /// # Errors
    /// When it is no certificate.
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Result<Self, Error> {
        let (_, parsed) = X509Certificate::from_der(certificate)
            .map_err(|error| Error::Kubeconfig(format!("certificate-authority-data: {error}")))?;
        let hash = digest::digest(&digest::SHA256, parsed.tbs_certificate.subject_pki.raw);
        let mut bytes = [0; 32];
        bytes.copy_from_slice(hash.as_ref());
        Ok(Self(bytes))
    }
}

impl FromStr for CaHash {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || "expected sha256: and 64 hexadecimal digits".to_owned();
        let digits = text.strip_prefix("sha256:").filter(|rest| rest.len() == 64).ok_or_else(bad)?;
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| bad())?;
            // from_str_radix takes a sign, too.
            *byte = u8::from_str_radix(pair, 16).ok().filter(|_| !pair.starts_with('+')).ok_or_else(bad)?;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for CaHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha256:")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for CaHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("expected HOST:PORT, as in 10.0.0.1:6443, not {text:?}");
        let rest = text.strip_prefix("https://").unwrap_or(text).trim_end_matches('/');
        let (host, port) = rest.rsplit_once(':').ok_or_else(bad)?;
        let host = match host.strip_prefix('[') {
            Some(inner) => inner.strip_suffix(']').ok_or_else(bad)?,
            // An IPv6 address stands in brackets.
            None if host.contains(':') => return Err(bad()),
            None => host,
        };
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '%');
        let port = port.parse().ok().filter(|port| *port != 0).ok_or_else(bad)?;
        if host.is_empty() || !host.chars().all(fits) {
            return Err(bad());
        }
        Ok(Self { host: host.to_owned(), port })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl Endpoint {
    /// How to reach it.
    ///
    /// # Errors
    /// When the host is no name.
    pub(crate) fn access(
        &self,
        server_name: Option<&str>,
        trust: Trust,
        user: User,
    ) -> Result<Access, Error> {
        let server = format!("https://{self}");
        let server = server.parse().map_err(|error| Error::Kubeconfig(format!("{server}: {error}")))?;
        Ok(Access { server, server_name: server_name.map(str::to_owned), trust, proxy: None, user })
    }
}

/// A client that shows no certificate.
///
/// # Errors
/// When what `access` names cannot be read.
pub(crate) fn connect(access: &Access) -> Result<kube::Client, client::Error> {
    let (_, nobody) = tokio::sync::watch::channel(None);
    client::single(access, &nobody, &Arc::new(Metrics::default()))
}

/// Who has a token and nothing else.
pub(crate) fn bearer(token: &Token) -> User {
    User { certificate: None, authorization: Some(Authorization::Header(format!("Bearer {token}"))) }
}

/// Finds the cluster at `endpoint`, whose certificate must bear `server_name` when that is not the endpoint's host.
/// A signature that is missing is waited for as long as `patience`, since the control plane writes it some time after
/// a token was made.
///
/// # Errors
/// When nobody answers, or whoever does is not the cluster that token and hashes belong to.
pub(crate) async fn cluster_info(
    endpoint: &Endpoint,
    server_name: Option<&str>,
    token: &Token,
    hashes: &[CaHash],
    patience: Duration,
) -> Result<ClusterInfo, Error> {
    let deadline = tokio::time::Instant::now() + patience;
    let text = loop {
        match verify_signature(&read(endpoint, server_name, Trust::Anybody).await?, token) {
            Err(Error::UnknownToken(_)) if tokio::time::Instant::now() < deadline => {
                tokio::time::sleep(RHYTHM).await;
            }
            known => break known?,
        }
    };
    let found = parse(&text)?;
    verify_pins(&found.authority, hashes)?;
    let again = read(endpoint, server_name, Trust::Data(found.authority.clone())).await?;
    if kubeconfig(&again)? != text {
        return Err(Error::Changed);
    }
    Ok(found)
}

/// The ConfigMap, as anybody may read it.
///
/// # Errors
/// When nobody answers, or with anything else; under an authority, when it does not vouch for the server.
pub(crate) async fn read(
    endpoint: &Endpoint,
    server_name: Option<&str>,
    trust: Trust,
) -> Result<ConfigMap, Error> {
    let verified = trust != Trust::Anybody;
    let access = endpoint.access(server_name, trust, User::default())?;
    let client = connect(&access).map_err(|error| Error::Client(endpoint.clone(), error))?;
    let maps: Api<ConfigMap> = Api::namespaced(client, "kube-public");
    match tokio::time::timeout(ANSWER, maps.get("cluster-info")).await {
        Err(_) => Err(Error::Late(endpoint.clone())),
        Ok(answer) => answer.map_err(|error| match (verified, &error) {
            // It answered before: what fails now is what is checked now.
            (true, kube::Error::HyperError(_) | kube::Error::Service(_)) => {
                Error::Untrusted(endpoint.clone(), Box::new(error))
            }
            _ => Error::Read(endpoint.clone(), Box::new(error)),
        }),
    }
}

/// What the ConfigMap holds.
///
/// # Errors
/// When it holds none.
pub(crate) fn kubeconfig(map: &ConfigMap) -> Result<&str, Error> {
    let text = map.data.as_ref().and_then(|data| data.get("kubeconfig"));
    text.map(String::as_str).filter(|text| !text.is_empty()).ok_or(Error::NoKubeconfig)
}

/// The kubeconfig, when it is signed with the token.
///
/// # Errors
/// When it is not.
pub(crate) fn verify_signature(map: &ConfigMap, token: &Token) -> Result<String, Error> {
    let text = kubeconfig(map)?;
    let signature = map.data.as_ref().and_then(|data| data.get(&format!("{SIGNATURE}{}", token.id)));
    let Some(signature) = signature.filter(|text| !text.is_empty()) else {
        return Err(Error::UnknownToken(token.id.clone()));
    };
    match verify(signature, text, token) {
        Some(()) => Ok(text.to_owned()),
        None => Err(Error::BadSignature),
    }
}

/// `HEADER..SIGNATURE`: HS256 with the secret as its key, the text in place of what is left out between the dots.
fn verify(signature: &str, text: &str, token: &Token) -> Option<()> {
    let (header, code) = signature.split_once("..")?;
    let said: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(header).ok()?).ok()?;
    let word = |key: &str| said.get(key).and_then(Value::as_str);
    if word("alg") != Some("HS256") || word("kid") != Some(&token.id) {
        return None;
    }
    let key = hmac::Key::new(hmac::HMAC_SHA256, token.secret.as_bytes());
    let whole = format!("{header}.{}", URL_SAFE_NO_PAD.encode(text));
    hmac::verify(&key, whole.as_bytes(), &URL_SAFE_NO_PAD.decode(code).ok()?).ok()
}

/// The one cluster of a kubeconfig without users.
///
/// # Errors
/// When there is none, or it says too little.
pub(crate) fn parse(text: &str) -> Result<ClusterInfo, Error> {
    let wrong = |what: &str| Error::Kubeconfig(what.to_owned());
    let file: Value = serde_saphyr::from_str(text).map_err(|error| Error::Kubeconfig(error.to_string()))?;
    let clusters = file.get("clusters").and_then(Value::as_array).ok_or_else(|| wrong("no clusters"))?;
    let [cluster] = clusters.as_slice() else { return Err(wrong("not exactly one cluster")) };
    let word = |key: &str| cluster.get("cluster").and_then(|c| c.get(key)).and_then(Value::as_str);
    let server = word("server").ok_or_else(|| wrong("no server"))?;
    let data = word("certificate-authority-data").ok_or_else(|| wrong("no certificate-authority-data"))?;
    let authority = STANDARD.decode(data.trim());
    Ok(ClusterInfo {
        server: server.parse().map_err(Error::Kubeconfig)?,
        authority: authority
            .map_err(|error| Error::Kubeconfig(format!("certificate-authority-data: {error}")))?,
    })
}

/// One of the authorities has one of the hashes.
///
/// # Errors
/// When none has.
pub(crate) fn verify_pins(authority: &[u8], hashes: &[CaHash]) -> Result<(), Error> {
    let certificates = pair::certificates_of(authority)
        .map_err(|error| Error::Kubeconfig(format!("certificate-authority-data: {error}")))?;
    let found = certificates.iter().map(CaHash::of).collect::<Result<Vec<_>, _>>()?;
    if found.iter().any(|hash| hashes.contains(hash)) {
        return Ok(());
    }
    let found: Vec<String> = found.iter().map(ToString::to_string).collect();
    Err(Error::OtherAuthority { found: found.join(", ") })
}

#[cfg(test)]
mod tests;
