//! HTTP connections to registries: clients by kind of trust, one request at a time, small bodies, and
//! what the answers mean when they are no success. Owns time limits and how a URL may be shown; knows
//! no credentials and follows no redirect. Called by `registry` and `token`.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RANGE, RETRY_AFTER};
use http::{HeaderMap, Method};
use reqwest::{Certificate, Identity, Response, Url};
use tokio::time::{Instant, timeout};

use super::RegistryError;
use super::host_cache::HostCache;
use super::hosts::Tls;
use super::range_limit::RangeLimit;
use super::range_spool::RangeSpool;
use crate::image::digest::clip;

/// Enough of an error page to find the registry's own words.
const MAX_ERROR_PAGE: usize = 16 << 10;
const AGENT: &str = concat!("gantry/", env!("CARGO_PKG_VERSION"));
/// Bytes that must come in a minute of waiting: slower, a layer takes weeks, and everybody who wants it
/// waits along.
const LEAST: u64 = 64 << 10;
/// Kinds of connection that are kept.
const MOST_CLIENTS: usize = 64;

/// How long a registry may take, and how slow it may be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TransferLimits {
    pub(crate) connect: Duration,
    /// Longest time without a byte, the wait for the first one included.
    pub(crate) stall: Duration,
    /// Over each such time of waiting, [`LEAST`] bytes must come.
    pub(crate) window: Duration,
    /// Bytes for each second of waiting below which one connection is slow, and a large blob comes by
    /// several.
    pub(crate) slow: f64,
    /// For so long a layer that another pull brings from another registry may come slowly.
    pub(crate) hedge_after: Duration,
    /// Bytes a second below which that is slow.
    pub(crate) brisk: f64,
}

impl Default for TransferLimits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(15),
            stall: Duration::from_secs(30),
            window: Duration::from_secs(60),
            slow: 80e6,
            hedge_after: Duration::from_secs(10),
            brisk: 1_048_576.0,
        }
    }
}

/// How fast one answer comes. Only the wait for the network counts, not what the node does in between.
#[derive(Debug)]
pub(super) struct ThroughputGuard {
    limits: TransferLimits,
    waited: Duration,
    came: u64,
}

impl ThroughputGuard {
    pub(super) fn new(limits: TransferLimits) -> Self {
        Self { limits, waited: Duration::ZERO, came: 0 }
    }

    /// The next bytes of the answer from `url`; None at its end.
    ///
    /// # Errors
    /// `Stalled`, `Slow`, `Lost`.
    pub(super) async fn chunk(
        &mut self,
        response: &mut Response,
        url: &str,
    ) -> Result<Option<Bytes>, RegistryError> {
        let began = Instant::now();
        let chunk = timeout(self.limits.stall, response.chunk()).await;
        let chunk = chunk.map_err(|_| stalled_error(url.to_owned(), self.limits.stall))?;
        let chunk = chunk.map_err(|source| RegistryError::Lost {
            url: url.to_owned(),
            source: Arc::new(source.without_url()),
        })?;
        self.waited += began.elapsed();
        let Some(chunk) = chunk else { return Ok(None) };
        self.came += chunk.len() as u64;
        if self.waited >= self.limits.window {
            if self.came < LEAST {
                let (bytes, seconds) = (self.came, self.waited.as_secs());
                return Err(RegistryError::Slow { url: url.to_owned(), bytes, seconds, least: LEAST });
            }
            (self.waited, self.came) = (Duration::ZERO, 0);
        }
        Ok(Some(chunk))
    }
}

/// Connections shared by all pulls.
#[derive(Debug)]
pub(crate) struct Http {
    limits: TransferLimits,
    range_limit: Arc<RangeLimit>,
    spool: Option<RangeSpool>,
    host_cache: HostCache,
    clients: Mutex<HashMap<ClientKind, reqwest::Client>>,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct ClientKind {
    /// Loopback: a proxy of the environment is not for it.
    direct: bool,
    plain: bool,
    tls: Tls,
    dial: Option<Duration>,
    /// A connection for each request: ranges are for registries that limit each connection.
    apart: bool,
}

impl ClientKind {
    fn builder(&self, limits: TransferLimits) -> reqwest::Result<reqwest::ClientBuilder> {
        let mut builder = reqwest::Client::builder()
            .user_agent(AGENT)
            .connect_timeout(self.dial.unwrap_or(limits.connect))
            // Redirects are followed by hand: each hop decides anew whether it may see credentials.
            .redirect(reqwest::redirect::Policy::none());
        if self.direct {
            builder = builder.no_proxy();
        }
        if self.apart {
            builder = builder.http1_only();
        }
        if self.plain {
            // None are asked for: a host without root certificates can still pull over plain HTTP.
            return Ok(builder.tls_certs_only([]));
        }
        for pem in &self.tls.authorities {
            builder = builder.tls_certs_merge(Certificate::from_pem_bundle(pem)?);
        }
        if let Some(pem) = &self.tls.client {
            builder = builder.identity(Identity::from_pem(pem)?);
        }
        Ok(builder.tls_danger_accept_invalid_certs(self.tls.skip_verify))
    }
}

impl Http {
    /// `spool`: for large blobs that come by several connections at a time; None: they don't.
    pub(crate) fn new(limits: TransferLimits, spool: Option<RangeSpool>) -> Self {
        let range_limit = Arc::default();
        Self { limits, range_limit, spool, host_cache: HostCache::default(), clients: Mutex::default() }
    }

    /// For ranges of blobs, shared by all pulls.
    pub(super) fn range_limit(&self) -> &Arc<RangeLimit> {
        &self.range_limit
    }

    /// Where such ranges wait.
    pub(super) fn spool(&self) -> Option<&RangeSpool> {
        self.spool.as_ref()
    }

    /// How hosts serve blobs.
    pub(super) fn host_cache(&self) -> &HostCache {
        &self.host_cache
    }

    pub(crate) fn limits(&self) -> TransferLimits {
        self.limits
    }

    /// As if that had been found out.
    #[cfg(test)]
    pub(crate) fn record_range_support(&self, url: &str) {
        self.host_cache.record(
            &super::host_cache::Origin::of(&Url::parse(url).unwrap()),
            super::host_cache::RangeSupport::Ranges,
        );
    }

    /// Whether ranges are to be had from the host of this URL, where that is known.
    #[cfg(test)]
    pub(crate) fn is_range_host(&self, url: &str) -> Option<bool> {
        let fact = self.host_cache.get(&super::host_cache::Origin::of(&Url::parse(url).unwrap()));
        fact.map(|fact| fact == super::host_cache::RangeSupport::Ranges)
    }

    /// Made on first use, one for each kind of connection: connections of one may not serve another.
    fn client(
        &self,
        url: &Url,
        tls: &Tls,
        dial: Option<Duration>,
        apart: bool,
    ) -> Result<reqwest::Client, RegistryError> {
        let (direct, plain) = (is_loopback(url), url.scheme() == "http");
        let tls = if plain { Tls::default() } else { tls.clone() };
        let kind = ClientKind { direct, plain, tls, dial, apart };
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = clients.get(&kind) {
            return Ok(client.clone());
        }
        let fail = |source| RegistryError::Client { url: shown(url), source: Arc::new(source) };
        let client = kind.builder(self.limits).and_then(reqwest::ClientBuilder::build).map_err(fail)?;
        if clients.len() >= MOST_CLIENTS {
            // Certificates that were renewed; connections of pulls under way go on.
            clients.clear();
        }
        clients.insert(kind, client.clone());
        Ok(client)
    }

    /// One request, no redirects, headers within the stall limit.
    pub(super) async fn send(
        &self,
        url: &Url,
        tls: &Tls,
        dial: Option<Duration>,
        method: Method,
        headers: HeaderMap,
        body: Option<String>,
    ) -> Result<Response, RegistryError> {
        let client = self.client(url, tls, dial, headers.contains_key(RANGE))?;
        let mut request = client.request(method, url.clone()).headers(headers);
        if let Some(body) = body {
            request = request.header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(body);
        }
        let connect = dial.unwrap_or(self.limits.connect);
        match timeout(connect + self.limits.stall, request.send()).await {
            Ok(answer) => answer.map_err(|source| lost(url, source.without_url())),
            Err(_) => Err(stalled_error(shown(url), self.limits.stall)),
        }
    }

    /// A whole small body.
    pub(super) async fn body(
        &self,
        url: &str,
        mut response: Response,
        limit: usize,
    ) -> Result<Bytes, RegistryError> {
        let (mut body, mut throughput) = (Vec::new(), ThroughputGuard::new(self.limits));
        loop {
            let Some(chunk) = throughput.chunk(&mut response, url).await? else { return Ok(body.into()) };
            if body.len() + chunk.len() > limit {
                return Err(RegistryError::Large { url: url.to_owned(), limit });
            }
            body.extend_from_slice(&chunk);
        }
    }

    /// Turns an answer other than success into an error with the registry's own words in it.
    pub(super) async fn refusal(&self, url: &Url, response: Response, trusted: bool) -> RegistryError {
        let (status, headers) = (response.status(), response.headers().clone());
        let url = shown(url);
        // The words of a redirect's target are not repeated: it may be a host that only this node
        // can reach.
        let page = if trusted { self.body(&url, response, MAX_ERROR_PAGE).await } else { Ok(Bytes::new()) };
        let mut detail = page.ok().and_then(|page| error_message(&page)).unwrap_or_else(|| {
            status.canonical_reason().map_or_else(|| "no reason given".to_owned(), str::to_lowercase)
        });
        let after = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        if let Some(after) = after {
            detail = format!("{detail} (retry after {})", clip(after));
        }
        let after = after.and_then(|after| after.trim().parse().ok()).map(Duration::from_secs);
        let status = status.as_u16();
        match status {
            404 => RegistryError::NotFound { url, detail },
            401 | 403 => RegistryError::Unauthorized { url, status, detail },
            _ => RegistryError::Status { url, status, detail, after },
        }
    }
}

/// localhost, 127.0.0.0/8 and ::1.
pub(super) fn is_loopback(url: &Url) -> bool {
    let Some(host) = url.host_str() else { return false };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost"
        || bare.parse::<Ipv4Addr>().map(IpAddr::V4).is_ok_and(|ip| ip.is_loopback())
        || bare.parse::<Ipv6Addr>().is_ok_and(|ip| ip.is_loopback())
}

/// A URL as it may be shown: queries of blob stores hold signatures, which are credentials.
pub(super) fn shown(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    // Both fail only for URLs without a host, which can't be fetched in the first place.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.to_string()
}

pub(super) fn lost(url: &Url, source: reqwest::Error) -> RegistryError {
    let (url, connect) = (shown(url), source.is_connect());
    let words = gantry_base::error::chain(&source);
    let source = Arc::new(source);
    // rustls's words: reqwest hands its errors on as opaque ones.
    if connect && words.contains("invalid peer certificate") {
        RegistryError::Untrusted { url, source }
    } else if connect && words.contains("InvalidContentType") {
        RegistryError::Plain { url, source }
    } else if connect {
        RegistryError::Connect { url, source }
    } else {
        RegistryError::Lost { url, source }
    }
}

fn stalled_error(url: String, stall: Duration) -> RegistryError {
    RegistryError::Stalled { url, seconds: stall.as_secs() }
}

/// The first error of distribution's error document: `{"errors":[{"code":…,"message":…}]}`.
fn error_message(page: &[u8]) -> Option<String> {
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
    fn errors_show_no_signatures_and_speak_the_registrys_words() {
        let url = Url::parse("https://u:p@h/x?X-Amz-Signature=secret#f").unwrap();
        assert_eq!(shown(&url), "https://h/x");
        let page = br#"{"errors":[{"code":"NAME_UNKNOWN","message":"no such\u001b[31m thing"}]}"#;
        assert_eq!(error_message(page).unwrap(), "NAME_UNKNOWN: no such[31m thing");
        assert_eq!(error_message(b"<html>"), None);
    }
}
