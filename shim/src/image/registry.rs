//! The registry client: distribution's pull API over HTTP. Owns connections, authorization,
//! redirects, time limits and the classes of failure; never parses manifests, never writes files,
//! and never shows credentials to any host but the registry and the token server it names. Called
//! by `pull`.

mod token;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, LOCATION, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use reqwest::{Response, Url};
use tokio::time::timeout;

use super::auth::{self, Auth, AuthError, Credentials};
use super::digest::{Digest, clip};
use super::manifest::{Blob, DOCKER_LIST, DOCKER_MANIFEST, OCI_INDEX, OCI_MANIFEST};
use super::reference::Reference;
use token::Authorization;

/// A manifest may not be larger; distribution's own limit.
const MAX_MANIFEST: usize = 4 << 20;
/// Enough of an error page to find the registry's own words.
const MAX_ERROR_PAGE: usize = 16 << 10;
const MAX_REDIRECTS: usize = 5;
const AGENT: &str = concat!("gantry/", env!("CARGO_PKG_VERSION"));

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
    /// Not a byte for too long.
    #[error("{url}: no data for {seconds} s")]
    Stalled { url: String, seconds: u64 },
    /// 429, 5xx, or another answer that makes no sense here.
    #[error("{url} answered {status}: {detail}")]
    Status { url: String, status: u16, detail: String },
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

/// Patience with a registry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    pub(crate) connect: Duration,
    /// Longest time without a byte, the wait for the first one included.
    pub(crate) stall: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { connect: Duration::from_secs(15), stall: Duration::from_secs(30) }
    }
}

/// Connections shared by all pulls.
#[derive(Debug)]
pub(crate) struct Http {
    patience: Patience,
    /// Loopback (a proxy of the environment is not for it) by http and https, all others by http and https.
    clients: [OnceLock<reqwest::Client>; 4],
}

/// One repository as seen by one pull with its credentials.
pub(crate) struct Repository {
    http: Arc<Http>,
    base: Url,
    path: String,
    authorization: Authorization,
}

/// A manifest's bytes, digest known.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub(crate) bytes: Bytes,
    pub(crate) digest: Digest,
    pub(crate) content_type: String,
}

/// A blob on its way: bytes neither counted nor hashed yet.
pub(crate) struct Download {
    url: String,
    response: Response,
    stall: Duration,
}

impl Http {
    pub(crate) fn new(patience: Patience) -> Self {
        Self { patience, clients: Default::default() }
    }

    /// Made on first use, one for each kind of connection.
    fn client(&self, url: &Url) -> Result<reqwest::Client, RegistryError> {
        let (direct, plain) = (is_loopback(url), url.scheme() == "http");
        let cell = match (direct, plain) {
            (true, true) => &self.clients[0],
            (true, false) => &self.clients[1],
            (false, true) => &self.clients[2],
            (false, false) => &self.clients[3],
        };
        if let Some(client) = cell.get() {
            return Ok(client.clone());
        }
        let mut builder = reqwest::Client::builder()
            .user_agent(AGENT)
            .connect_timeout(self.patience.connect)
            // Redirects are followed by hand: each hop decides anew whether it may see credentials.
            .redirect(reqwest::redirect::Policy::none());
        if direct {
            builder = builder.no_proxy();
        }
        if plain {
            // None are asked for: a host without root certificates can still pull over plain HTTP.
            builder = builder.tls_certs_only([]);
        }
        let client = builder
            .build()
            .map_err(|source| RegistryError::Client { url: shown(url), source: Arc::new(source) })?;
        Ok(cell.get_or_init(|| client).clone())
    }

    /// One request, no redirects, headers within the stall limit.
    async fn send(
        &self,
        url: &Url,
        method: Method,
        headers: HeaderMap,
        body: Option<String>,
    ) -> Result<Response, RegistryError> {
        let mut request = self.client(url)?.request(method, url.clone()).headers(headers);
        if let Some(body) = body {
            request = request.header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(body);
        }
        match timeout(self.patience.connect + self.patience.stall, request.send()).await {
            Ok(answer) => answer.map_err(|source| lost(url, source.without_url())),
            Err(_) => Err(stalled(shown(url), self.patience.stall)),
        }
    }

    /// A whole small body.
    async fn body(&self, url: &str, mut response: Response, limit: usize) -> Result<Bytes, RegistryError> {
        let mut body = Vec::new();
        loop {
            let chunk = timeout(self.patience.stall, response.chunk()).await;
            let chunk = chunk.map_err(|_| stalled(url.to_owned(), self.patience.stall))?;
            let lost = |source: reqwest::Error| RegistryError::Lost {
                url: url.to_owned(),
                source: Arc::new(source.without_url()),
            };
            let Some(chunk) = chunk.map_err(lost)? else { return Ok(body.into()) };
            if body.len() + chunk.len() > limit {
                return Err(RegistryError::Large { url: url.to_owned(), limit });
            }
            body.extend_from_slice(&chunk);
        }
    }

    /// Turns an answer other than success into an error with the registry's own words in it.
    async fn refusal(&self, url: &Url, response: Response, trusted: bool) -> RegistryError {
        let (status, headers) = (response.status(), response.headers().clone());
        let url = shown(url);
        // The words of a redirect's target are not repeated: it may be a host that only this node
        // can reach.
        let page = if trusted { self.body(&url, response, MAX_ERROR_PAGE).await } else { Ok(Bytes::new()) };
        let mut detail = page.ok().and_then(|page| spoken(&page)).unwrap_or_else(|| {
            status.canonical_reason().map_or_else(|| "no reason given".to_owned(), str::to_lowercase)
        });
        if let Some(after) = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()) {
            detail = format!("{detail} (retry after {})", clip(after));
        }
        let status = status.as_u16();
        match status {
            404 => RegistryError::NotFound { url, detail },
            401 | 403 => RegistryError::Unauthorized { url, status, detail },
            _ => RegistryError::Status { url, status, detail },
        }
    }
}

impl Repository {
    /// The repository of `reference`, with those of `auth` that are meant for it. Sends nothing.
    ///
    /// # Errors
    /// Credentials that can't be read; a host that makes no URL.
    pub(crate) fn new(
        http: Arc<Http>,
        reference: &Reference,
        auth: Option<&Auth>,
    ) -> Result<Self, RegistryError> {
        let domain = reference.domain();
        let credentials = auth.map_or(Ok(Credentials::Anonymous), |auth| auth.credentials_for(domain));
        let credentials =
            credentials.map_err(|source| RegistryError::Auth { domain: domain.to_owned(), source })?;
        let host = if domain == "docker.io" { "registry-1.docker.io" } else { domain };
        let parse = |text: String| Url::parse(&text).map_err(|_| RegistryError::Url { url: text });
        let mut base = parse(format!("https://{host}/"))?;
        if is_loopback(&base) {
            base = parse(format!("http://{host}/"))?;
        }
        let path = reference.path().to_owned();
        Ok(Self { http, base, path, authorization: Authorization::new(credentials) })
    }

    /// Fetches a manifest or index by tag or digest and knows its digest afterwards.
    ///
    /// # Errors
    /// [`RegistryError`]; `Digest` when the bytes are not those asked for or announced.
    pub(crate) async fn manifest(
        &self,
        name: &str,
        wanted: Option<Digest>,
    ) -> Result<Fetched, RegistryError> {
        let url = self.url("manifests", name)?;
        let accept = [OCI_INDEX, OCI_MANIFEST, DOCKER_LIST, DOCKER_MANIFEST, "*/*;q=0.1"].join(", ");
        let response = self.get(url.clone(), Some(&accept)).await?;
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
        Ok(Fetched { bytes, digest: found, content_type })
    }

    /// Fetches a small blob whole and verifies it.
    ///
    /// # Errors
    /// [`RegistryError`], `Size` and `Digest` included.
    pub(crate) async fn small_blob(&self, blob: &Blob, limit: usize) -> Result<Bytes, RegistryError> {
        let url = shown(&self.url("blobs", &blob.digest.to_string())?);
        if blob.size > limit as u64 {
            return Err(RegistryError::Large { url, limit });
        }
        let download = self.blob(blob).await?;
        let bytes = self.http.body(&url, download.response, limit).await?;
        if bytes.len() as u64 != blob.size {
            return Err(RegistryError::Size { url, wanted: blob.size, found: bytes.len() as u64 });
        }
        let found = Digest::of(&bytes);
        if found != blob.digest {
            return Err(RegistryError::Digest { url, wanted: blob.digest, found });
        }
        Ok(bytes)
    }

    /// Opens a blob. The caller counts and hashes what comes.
    ///
    /// # Errors
    /// [`RegistryError`]; `Size` when the server announces another length than the manifest.
    pub(crate) async fn blob(&self, blob: &Blob) -> Result<Download, RegistryError> {
        let url = self.url("blobs", &blob.digest.to_string())?;
        let response = self.get(url.clone(), None).await?;
        let url = shown(&url);
        match response.content_length() {
            Some(found) if found != blob.size => Err(RegistryError::Size { url, wanted: blob.size, found }),
            _ => Ok(Download { url, response, stall: self.http.patience.stall }),
        }
    }

    fn url(&self, kind: &str, name: &str) -> Result<Url, RegistryError> {
        let path = format!("v2/{}/{kind}/{name}", self.path);
        self.base.join(&path).map_err(|_| RegistryError::Url { url: format!("{}{path}", self.base) })
    }

    /// GET with authorization and redirects, until there is a 200.
    async fn get(&self, start: Url, accept: Option<&str>) -> Result<Response, RegistryError> {
        let (mut url, mut challenged) = (start.clone(), false);
        let mut hops = 0;
        loop {
            let own = same_origin(&url, &self.base);
            let mut headers = HeaderMap::new();
            if let Some(accept) = accept.and_then(|text| HeaderValue::from_str(text).ok()) {
                headers.insert(ACCEPT, accept);
            }
            if let Some(value) = if own { self.authorization.header().await } else { None } {
                headers.insert(AUTHORIZATION, value);
            }
            let shown_before = headers.get(AUTHORIZATION).cloned();
            let response = self.http.send(&url, Method::GET, headers, None).await?;
            let status = response.status();
            if status == StatusCode::OK {
                return Ok(response);
            }
            if status == StatusCode::UNAUTHORIZED && own && !challenged {
                challenged = true;
                let texts = response.headers().get_all(WWW_AUTHENTICATE).iter();
                if let Some(challenge) = auth::challenge(texts.filter_map(|text| text.to_str().ok()))
                    && self.answer(&url, &challenge, shown_before).await?
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
}

impl Download {
    /// What an error about these bytes should name.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The next bytes; None at the end of the answer, which need not be that of the blob.
    ///
    /// # Errors
    /// `Stalled`, `Lost`.
    pub(crate) async fn chunk(&mut self) -> Result<Option<Bytes>, RegistryError> {
        match timeout(self.stall, self.response.chunk()).await {
            Ok(chunk) => chunk.map_err(|source| RegistryError::Lost {
                url: self.url.clone(),
                source: Arc::new(source.without_url()),
            }),
            Err(_) => Err(stalled(self.url.clone(), self.stall)),
        }
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

/// localhost, 127.0.0.0/8 and ::1 speak plain HTTP: nobody can listen in between.
fn is_loopback(url: &Url) -> bool {
    let Some(host) = url.host_str() else { return false };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost"
        || bare.parse::<Ipv4Addr>().map(IpAddr::V4).is_ok_and(|ip| ip.is_loopback())
        || bare.parse::<Ipv6Addr>().is_ok_and(|ip| ip.is_loopback())
}

/// A URL as it may be shown: queries of blob stores hold signatures, which are credentials.
fn shown(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    // Both fail only for URLs without a host, which can't be fetched in the first place.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.to_string()
}

fn lost(url: &Url, source: reqwest::Error) -> RegistryError {
    let (url, connect, source) = (shown(url), source.is_connect(), Arc::new(source));
    if connect { RegistryError::Connect { url, source } } else { RegistryError::Lost { url, source } }
}

fn stalled(url: String, stall: Duration) -> RegistryError {
    RegistryError::Stalled { url, seconds: stall.as_secs() }
}

/// The first error of distribution's error document: `{"errors":[{"code":…,"message":…}]}`.
fn spoken(page: &[u8]) -> Option<String> {
    let page: serde_json::Value = serde_json::from_slice(page).ok()?;
    let error = page.get("errors")?.get(0)?;
    let text = |key: &str| error.get(key).and_then(|value| value.as_str()).map(clip);
    match (text("code"), text("message")) {
        (Some(code), Some(message)) => Some(format!("{code}: {message}")),
        (code, message) => code.or(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_speaks_plain_http() {
        for (name, base) in [
            ("localhost:5000/a", "http://localhost:5000/"),
            ("127.3.2.1:5000/a", "http://127.3.2.1:5000/"),
            ("[::1]:5000/a", "http://[::1]:5000/"),
            ("busybox", "https://registry-1.docker.io/"),
            ("10.0.0.1:5000/a", "https://10.0.0.1:5000/"),
            ("localhost.evil.com/a", "https://localhost.evil.com/"),
        ] {
            let reference = Reference::parse(name).unwrap();
            let http = Arc::new(Http::new(Patience::default()));
            let repository = Repository::new(http, &reference, None).unwrap();
            assert_eq!(repository.base.as_str(), base, "{name}");
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

    #[test]
    fn errors_show_no_signatures_and_speak_the_registrys_words() {
        let url = Url::parse("https://u:p@h/x?X-Amz-Signature=secret#f").unwrap();
        assert_eq!(shown(&url), "https://h/x");
        let page = br#"{"errors":[{"code":"NAME_UNKNOWN","message":"no such\u001b[31m thing"}]}"#;
        assert_eq!(spoken(page).unwrap(), "NAME_UNKNOWN: no such[31m thing");
        assert_eq!(spoken(b"<html>"), None);
    }
}
