//! The registry client: distribution's pull API over HTTP. Owns the order of mirrors, authorization,
//! redirects and the classes of failure; never parses manifests, never writes files, and never shows
//! credentials to any host but the one they are for and the token server it names. Called by `pull`.

mod docker_config;
mod download;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod host_cache;
mod hosts;
mod http_client;
pub mod login;
mod range_limit;
mod range_spool;
mod ranges;
mod retry_policy;
mod token;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, LOCATION, RANGE, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use reqwest::{Response, Url};

use super::auth::{self, Auth, AuthError, Credentials};
use super::digest::Digest;
use super::manifest::{Blob, DOCKER_LIST, DOCKER_MANIFEST, OCI_INDEX, OCI_MANIFEST};
use super::reference::Reference;
pub use docker_config::DockerConfigError;
pub(crate) use download::Download;
use download::{ByteSpan, is_requested_range};
pub use hosts::HostsError;
use hosts::{Host, Tls};
pub(crate) use http_client::{Http, TransferLimits};
use http_client::{is_loopback, shown};
pub(crate) use range_spool::RangeSpool;
use retry_policy::{TransferState, retry};
use token::Authorization;

/// A manifest may not be larger; distribution's own limit.
const MAX_MANIFEST: usize = 4 << 20;
const MAX_REDIRECTS: usize = 5;

/// Why a registry did not give what was asked for.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RegistryError {
    /// 404: no such repository, tag or digest.
    #[error("{url} not found: {detail}")]
    NotFound { url: String, detail: String },
    /// 401 or 403 with the credentials at hand.
    #[error("{url}: access denied ({status}): {detail}; check the pull's credentials")]
    Unauthorized { url: String, status: u16, detail: String },
    /// No connection: refused, unknown host, no route, TLS failure.
    #[error("registry unreachable: {url}")]
    Connect {
        url: String,
        #[source]
        source: Arc<reqwest::Error>,
    },
    /// The connection broke in mid-answer.
    #[error("connection lost while reading {url}")]
    Lost {
        url: String,
        #[source]
        source: Arc<reqwest::Error>,
    },
    /// Another part than was asked for, from a place that gave the right ones before.
    #[error("{url}: the answer is another part of the blob than was asked for")]
    Range { url: String },
    /// What comes in ranges waits for its turn on the disk of the images, which has no room for it, or fails.
    #[error("keeping pieces of a layer in {}", folder.display())]
    Spool {
        folder: PathBuf,
        #[source]
        source: Arc<io::Error>,
    },
    /// Not a byte for too long.
    #[error("{url}: no data for {seconds} s")]
    Stalled { url: String, seconds: u64 },
    /// A trickle, which would hold up everybody who wants the same.
    #[error("{url}: only {bytes} bytes came in {seconds} s, and {least} are the least: too slow to wait for")]
    Slow { url: String, bytes: u64, seconds: u64, least: u64 },
    /// 429, 5xx, or another answer that makes no sense here.
    #[error("{url} answered {status}: {detail}")]
    Status {
        url: String,
        status: u16,
        detail: String,
        /// Retry-After, where that is a number of seconds.
        after: Option<Duration>,
    },
    /// A redirect that leads nowhere good.
    #[error("{url}: redirect refused: {detail}")]
    Redirect { url: String, detail: String },
    /// The challenge can't be answered.
    #[error("{url}: challenge refused: {detail}")]
    Challenge { url: String, detail: String },
    /// The credentials of the pull can't be read.
    #[error("credentials for {domain}")]
    Auth {
        domain: String,
        #[source]
        source: AuthError,
    },
    /// The bytes are not those that were promised.
    #[error("{url}: digest mismatch: promised {wanted}, got {found}")]
    Digest { url: String, wanted: Digest, found: Digest },
    /// More or fewer bytes than promised.
    #[error("{url}: size mismatch: promised {wanted} bytes, got {found}")]
    Size { url: String, wanted: u64, found: u64 },
    /// A document over its limit.
    #[error("{url}: larger than the {limit} bytes allowed for a manifest or config")]
    Large { url: String, limit: usize },
    /// Neither the server nor a mirror may be asked for this.
    #[error("the registry's hosts.toml leaves no server or mirror with the capabilities pull and resolve")]
    NoPlace,
    /// All places failed; the last one's error is the source.
    #[error("mirrors failed ({failures}), and so did the last place")]
    Mirrors {
        failures: String,
        #[source]
        source: Box<RegistryError>,
    },
    /// The node's own configuration for this registry.
    #[error("configuration of registry {domain}")]
    Hosts {
        domain: String,
        #[source]
        source: HostsError,
    },
    /// The node's own credentials for this registry.
    #[error("credentials for {domain} from docker's config.json")]
    DockerConfig {
        domain: String,
        #[source]
        source: DockerConfigError,
    },
    /// The server shows a certificate that nobody here vouches for.
    #[error(
        "{url}: its certificate is not trusted: name its authority by \"ca\" in the registry's hosts.toml \
         (--registry-hosts-dir), or install it with the system's"
    )]
    Untrusted {
        url: String,
        #[source]
        source: Arc<reqwest::Error>,
    },
    /// Something answers that does not speak TLS.
    #[error(
        "{url}: the server does not speak https: for plain HTTP, put server = \"http://...\" into the \
         registry's hosts.toml (--registry-hosts-dir)"
    )]
    Plain {
        url: String,
        #[source]
        source: Arc<reqwest::Error>,
    },
    /// The address made of the reference is no URL.
    #[error("{url:?} is not a URL")]
    Url { url: String },
    /// No HTTP client, say because the host has no root certificates.
    #[error("setting up the HTTP client for {url} (a host needs the package ca-certificates for https)")]
    Client {
        url: String,
        #[source]
        source: Arc<reqwest::Error>,
    },
}

/// Where the node's registry configuration stands; read anew for each pull.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sources {
    /// containerd's `certs.d`.
    pub(crate) hosts_dir: Option<PathBuf>,
    /// docker's `config.json`.
    pub(crate) docker_config: Option<PathBuf>,
}

/// One repository as seen by one pull with its credentials: the places that may have it, in the order
/// of asking.
pub(crate) struct Repository {
    domain: String,
    endpoints: Vec<Arc<Endpoint>>,
}

/// The repository at one place.
struct Endpoint {
    http: Arc<Http>,
    base: Url,
    /// Within the registry.
    path: String,
    /// Told to a mirror: whose images it is asked for.
    namespace: Option<String>,
    host: Host,
    authorization: Authorization,
}

/// A manifest's bytes, digest known.
#[derive(Debug)]
pub(crate) struct FetchedManifest {
    pub(crate) bytes: Bytes,
    pub(crate) digest: Digest,
    pub(crate) content_type: String,
}

impl Repository {
    /// The repository of `reference`, with those of `auth` that are meant for it. Reads the node's
    /// configuration and so blocks; sends nothing.
    ///
    /// # Errors
    /// Credentials and configuration that can't be read; a host that makes no URL.
    pub(crate) fn new(
        http: &Arc<Http>,
        sources: &Sources,
        reference: &Reference,
        auth: Option<&Auth>,
    ) -> Result<Self, RegistryError> {
        let domain = reference.domain();
        let hosts = hosts::of_registry(sources.hosts_dir.as_deref(), domain, &default_base(domain)?);
        let hosts = hosts.map_err(|source| RegistryError::Hosts { domain: domain.to_owned(), source })?;
        let endpoint = |host: Host| {
            // The pull's credentials are for the registry it names; a mirror sees those that the
            // node has for the mirror itself.
            let name = if host.own { domain.to_owned() } else { authority(&host.base) };
            let given = auth.filter(|_| host.own).map(|auth| auth.credentials_for(domain)).transpose();
            let given = given.map_err(|source| RegistryError::Auth { domain: name.clone(), source })?;
            let credentials = match (given, &sources.docker_config) {
                (None | Some(Credentials::Anonymous), Some(file)) => docker_config::credentials(file, &name)
                    .map_err(|source| RegistryError::DockerConfig { domain: name, source })?,
                (given, _) => given.unwrap_or_default(),
            };
            Ok(Arc::new(Endpoint {
                http: Arc::clone(http),
                base: host.base.clone(),
                path: reference.path().to_owned(),
                namespace: (!host.own).then(|| domain.to_owned()),
                host,
                authorization: Authorization::new(credentials),
            }))
        };
        let endpoints = hosts.into_iter().map(endpoint).collect::<Result<_, _>>()?;
        Ok(Self { domain: domain.to_owned(), endpoints })
    }

    /// The registry, as names of images have it.
    pub(crate) fn domain(&self) -> &str {
        &self.domain
    }

    /// Fetches a manifest or index by tag or digest and knows its digest afterwards.
    ///
    /// # Errors
    /// [`RegistryError`] of the last place that was asked.
    pub(crate) async fn manifest(
        &self,
        name: &str,
        wanted: Option<Digest>,
    ) -> Result<FetchedManifest, RegistryError> {
        retry(TransferState::NotStarted, || self.manifest_once(name, wanted)).await
    }

    async fn manifest_once(
        &self,
        name: &str,
        wanted: Option<Digest>,
    ) -> Result<FetchedManifest, RegistryError> {
        let mut failed = FailedHosts::default();
        // What a digest means is no matter of trust.
        let may = |host: &Host| if wanted.is_some() { host.pull } else { host.pull && host.resolve };
        for endpoint in self.endpoints.iter().filter(|endpoint| may(&endpoint.host)) {
            match endpoint.manifest(name, wanted).await {
                Ok(fetched) => return Ok(fetched),
                Err(error) => failed.push(error),
            }
        }
        Err(failed.into_error())
    }

    /// Fetches a small blob whole and verifies it.
    ///
    /// # Errors
    /// [`RegistryError`] of the last place that was asked.
    pub(crate) async fn small_blob(&self, blob: &Blob, limit: usize) -> Result<Bytes, RegistryError> {
        retry(TransferState::NotStarted, || self.small_blob_once(blob, limit)).await
    }

    async fn small_blob_once(&self, blob: &Blob, limit: usize) -> Result<Bytes, RegistryError> {
        let mut failed = FailedHosts::default();
        for endpoint in self.endpoints.iter().filter(|endpoint| endpoint.host.pull) {
            match endpoint.small_blob(blob, limit).await {
                Ok(bytes) => return Ok(bytes),
                Err(error) => failed.push(error),
            }
        }
        Err(failed.into_error())
    }

    /// Opens a blob at the first place from `place` on that has it; says which that was, so that one
    /// whose bytes turn out bad is not asked again. The caller counts and hashes what comes.
    ///
    /// # Errors
    /// [`RegistryError`] of the last place that was asked.
    pub(crate) async fn blob(&self, blob: &Blob, place: usize) -> Result<(Download, usize), RegistryError> {
        retry(TransferState::NotStarted, || self.blob_once(blob, place)).await
    }

    async fn blob_once(&self, blob: &Blob, place: usize) -> Result<(Download, usize), RegistryError> {
        let mut failed = FailedHosts::default();
        for (index, endpoint) in self.endpoints.iter().enumerate().skip(place) {
            if !endpoint.host.pull {
                continue;
            }
            match endpoint.blob(blob).await {
                Ok(download) => return Ok((download, index)),
                Err(error) => failed.push(error),
            }
        }
        Err(failed.into_error())
    }

    /// Whether a place behind this one may be asked for a blob.
    pub(crate) fn has_another(&self, place: usize) -> bool {
        self.endpoints.iter().skip(place + 1).any(|endpoint| endpoint.host.pull)
    }
}

/// What went wrong so far, place by place.
#[derive(Default)]
struct FailedHosts {
    before: Vec<String>,
    last: Option<RegistryError>,
}

impl FailedHosts {
    fn push(&mut self, error: RegistryError) {
        if let Some(before) = self.last.replace(error) {
            self.before.push(gantry_base::error::chain(&before));
        }
    }

    fn into_error(self) -> RegistryError {
        match self.last {
            None => RegistryError::NoPlace,
            Some(last) if self.before.is_empty() => last,
            Some(last) => RegistryError::Mirrors { failures: self.before.join("; "), source: Box::new(last) },
        }
    }
}

impl Endpoint {
    async fn manifest(&self, name: &str, wanted: Option<Digest>) -> Result<FetchedManifest, RegistryError> {
        let url = self.url("manifests", name)?;
        let accept = [OCI_INDEX, OCI_MANIFEST, DOCKER_LIST, DOCKER_MANIFEST, "*/*;q=0.1"].join(", ");
        let response = self.get(url.clone(), Some(&accept), None).await?;
        let header = |name: &str| {
            response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
        };
        let content_type = header("content-type").split(';').next().unwrap_or_default().trim().to_owned();
        let announced = header("docker-content-digest");
        let bytes = self.http.body(&shown(&url), response, MAX_MANIFEST).await?;
        let found = Digest::of(&bytes);
        // A registry that announces another digest than that of its bytes is broken or tampered with.
        let announced = if announced.is_empty() { None } else { announced.parse().ok() };
        for wanted in wanted.into_iter().chain(announced) {
            if wanted != found {
                return Err(RegistryError::Digest { url: shown(&url), wanted, found });
            }
        }
        Ok(FetchedManifest { bytes, digest: found, content_type })
    }

    async fn small_blob(&self, blob: &Blob, limit: usize) -> Result<Bytes, RegistryError> {
        let url = shown(&self.url("blobs", &blob.digest.to_string())?);
        if blob.size > limit as u64 {
            return Err(RegistryError::Large { url, limit });
        }
        let response = self.open(blob).await?;
        let bytes = self.http.body(&url, response, limit).await?;
        if bytes.len() as u64 != blob.size {
            return Err(RegistryError::Size { url, wanted: blob.size, found: bytes.len() as u64 });
        }
        let found = Digest::of(&bytes);
        if found != blob.digest {
            return Err(RegistryError::Digest { url, wanted: blob.digest, found });
        }
        Ok(bytes)
    }

    /// `Size` when the server announces another length than the manifest.
    async fn blob(self: &Arc<Self>, blob: &Blob) -> Result<Download, RegistryError> {
        let response = self.open(blob).await?;
        let url = shown(&self.url("blobs", &blob.digest.to_string())?);
        Ok(Download::new(Arc::clone(self), blob.clone(), url, response))
    }

    async fn open(&self, blob: &Blob) -> Result<Response, RegistryError> {
        let url = self.url("blobs", &blob.digest.to_string())?;
        let response = self.get(url.clone(), None, None).await?;
        match response.content_length() {
            Some(found) if found != blob.size => {
                Err(RegistryError::Size { url: shown(&url), wanted: blob.size, found })
            }
            _ => Ok(response),
        }
    }

    /// Opens a part of a blob, at `address` where it led to before; None when the answer is another one than was
    /// asked for.
    async fn open_range(
        &self,
        blob: &Blob,
        span: ByteSpan,
        address: Option<Url>,
    ) -> Result<Option<Response>, RegistryError> {
        let url = match address {
            Some(address) => address,
            None => self.url("blobs", &blob.digest.to_string())?,
        };
        let response = self.get(url, None, Some(span)).await?;
        Ok(is_requested_range(&response, span, blob.size).then_some(response))
    }

    fn url(&self, kind: &str, name: &str) -> Result<Url, RegistryError> {
        let path = format!("{}/{kind}/{name}", self.path);
        let bad = |_| RegistryError::Url { url: format!("{}{path}", self.base) };
        // Joined to a base with a slash at its end: a colon in a digest begins no scheme.
        let mut url = self.base.join(&format!("./{path}")).map_err(bad)?;
        if let Some(namespace) = &self.namespace {
            url.query_pairs_mut().append_pair("ns", namespace);
        }
        Ok(url)
    }

    /// The TLS of this place. What identifies this node goes nowhere else, and a server that is trusted blindly
    /// does not make those trusted that it names.
    fn tls(&self, url: &Url) -> Tls {
        let (own, tls) = (same_origin(url, &self.base), &self.host.tls);
        let authorities = tls.authorities.clone();
        Tls { authorities, client: tls.client.clone().filter(|_| own), skip_verify: tls.skip_verify && own }
    }

    /// GET with authorization and redirects, until there is a 200, or a 206 where a part was asked for.
    async fn get(
        &self,
        start: Url,
        accept: Option<&str>,
        span: Option<ByteSpan>,
    ) -> Result<Response, RegistryError> {
        let (mut url, mut challenged) = (start.clone(), false);
        let mut hops = 0;
        loop {
            let own = same_origin(&url, &self.base);
            let mut headers = if own { self.host.headers.clone() } else { HeaderMap::new() };
            if let Some(accept) = accept.and_then(|text| HeaderValue::from_str(text).ok()) {
                headers.insert(ACCEPT, accept);
            }
            if let Some(ByteSpan { from, to }) = span {
                let text = format!("bytes={from}-{}", to.saturating_sub(1));
                headers.extend(HeaderValue::from_str(&text).ok().map(|value| (RANGE, value)));
            }
            let mut shown_before = None;
            if let Some(value) = if own { self.authorization.header().await } else { None } {
                shown_before = Some(value.clone());
                headers.insert(AUTHORIZATION, value);
            }
            let response = self.send(&url, Method::GET, headers, None).await?;
            let status = response.status();
            if status == StatusCode::OK || (status == StatusCode::PARTIAL_CONTENT && span.is_some()) {
                return Ok(response);
            }
            if status == StatusCode::UNAUTHORIZED && own && !challenged {
                challenged = true;
                let texts = response.headers().get_all(WWW_AUTHENTICATE).iter();
                if let Some(challenge) = auth::challenge(texts.filter_map(|text| text.to_str().ok()))
                    && self.answer_challenge(&url, &challenge, shown_before).await?
                {
                    continue;
                }
            }
            if status.is_redirection() && hops < MAX_REDIRECTS {
                url = redirect(&url, response.headers())?;
                hops += 1;
                continue;
            }
            return Err(self.http.refusal(&url, response, own).await);
        }
    }

    async fn send(
        &self,
        url: &Url,
        method: Method,
        headers: HeaderMap,
        body: Option<String>,
    ) -> Result<Response, RegistryError> {
        self.http.send(url, &self.tls(url), self.host.dial_timeout, method, headers, body).await
    }
}

fn redirect(from: &Url, headers: &HeaderMap) -> Result<Url, RegistryError> {
    let refuse = |detail: &str| RegistryError::Redirect { url: shown(from), detail: detail.to_owned() };
    let location = headers.get(LOCATION).and_then(|value| value.to_str().ok());
    let location = location.ok_or_else(|| refuse("no readable Location header"))?;
    let to = from.join(location).map_err(|_| refuse("Location is not a URL"))?;
    match (from.scheme(), to.scheme()) {
        (_, "https") | ("http", "http") => Ok(to),
        ("https", "http") => Err(refuse("it leads from https to plain http")),
        _ => Err(refuse("it leads to a scheme other than http and https")),
    }
}

fn same_origin(a: &Url, b: &Url) -> bool {
    (a.scheme(), a.host(), a.port_or_known_default()) == (b.scheme(), b.host(), b.port_or_known_default())
}

/// The registry's own server: docker.io's has another name, and loopback speaks plain HTTP, since
/// nobody can listen in between.
fn default_base(domain: &str) -> Result<Url, RegistryError> {
    let host = if domain == "docker.io" { "registry-1.docker.io" } else { domain };
    let parse = |text: String| Url::parse(&text).map_err(|_| RegistryError::Url { url: text });
    let base = parse(format!("https://{host}/v2/"))?;
    if is_loopback(&base) { parse(format!("http://{host}/v2/")) } else { Ok(base) }
}

/// Host, and port where it is named.
fn authority(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_speaks_plain_http() {
        for (domain, base) in [
            ("localhost:5000", "http://localhost:5000/v2/"),
            ("127.3.2.1:5000", "http://127.3.2.1:5000/v2/"),
            ("[::1]:5000", "http://[::1]:5000/v2/"),
            ("docker.io", "https://registry-1.docker.io/v2/"),
            ("10.0.0.1:5000", "https://10.0.0.1:5000/v2/"),
            ("localhost.evil.com", "https://localhost.evil.com/v2/"),
        ] {
            assert_eq!(default_base(domain).unwrap().as_str(), base, "{domain}");
        }
    }

    #[test]
    fn skip_verify_holds_for_its_own_host_alone() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("r.example_5000_");
        std::fs::create_dir(&own).unwrap();
        std::fs::write(own.join("hosts.toml"), "skip_verify = true\nca = \"ca.pem\"\n").unwrap();
        std::fs::write(own.join("ca.pem"), "an authority").unwrap();
        let sources = Sources { hosts_dir: Some(folder.path().to_owned()), docker_config: None };
        let http = Arc::new(Http::new(TransferLimits::default(), None));
        let reference = Reference::parse("r.example:5000/a:t").unwrap();
        let repository = Repository::new(&http, &sources, &reference, None).unwrap();
        let tls = |url: &str| repository.endpoints[0].tls(&Url::parse(url).unwrap());
        assert!(tls("https://r.example:5000/v2/a/blobs/x").skip_verify);
        for other in ["https://blobs.example/x", "https://r.example/x", "https://r.example:5001/x"] {
            assert!(!tls(other).skip_verify, "{other}");
            assert_eq!(tls(other).authorities.len(), 1, "what vouches for somebody is kept");
        }
    }

    #[test]
    fn redirects_never_lose_encryption() {
        let go = |from: &str, to: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(LOCATION, HeaderValue::from_str(to).unwrap());
            redirect(&Url::parse(from).unwrap(), &headers).map(|url| url.to_string())
        };
        assert_eq!(go("https://a/x/y", "/z").unwrap(), "https://a/z");
        assert_eq!(go("http://a/x", "http://b/z").unwrap(), "http://b/z");
        assert!(go("https://a/x", "http://a/z").is_err());
        assert!(go("http://a/x", "file:///etc/passwd").is_err());
    }
}
