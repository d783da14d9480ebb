//! The requests of a list and a watch, and what their failures mean. Owns the query strings; never
//! tries twice. Called by [`super`].

use std::fmt;
use std::io::ErrorKind;
use std::time::Duration;

use futures_util::io::AsyncBufReadExt;
use futures_util::{Stream, StreamExt};
use gantry_base::error::chain;
use http::HeaderValue;
use http::header::ACCEPT_ENCODING;
use kube::Client;
use tokio::time::timeout;

use super::parse::{self, Unreadable, WatchLine};
use super::{Object, Query};

/// client-go's page, where there are pages.
const PAGE: usize = 500;

/// The server, or the way to it, said no.
#[derive(Debug)]
pub(super) enum Refusal {
    Api(Box<kube::Error>),
    /// Nobody answered in time.
    Silence,
    /// The query is no URL.
    Query(http::Error),
}

impl Refusal {
    /// The server knows nothing of the version asked for: it was compacted, or is yet to come.
    pub(super) fn version_unknown(&self) -> bool {
        let Self::Api(error) = self else { return false };
        let kube::Error::Api(status) = &**error else { return false };
        let too_large = || {
            let causes = status.details.iter().flat_map(|details| &details.causes);
            causes.into_iter().any(|cause| cause.reason == "ResourceVersionTooLarge")
        };
        status.code == 410 || matches!(status.reason.as_str(), "Expired" | "Gone") || too_large()
    }
}

impl From<kube::Error> for Refusal {
    fn from(error: kube::Error) -> Self {
        Self::Api(Box::new(error))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Api(error) => write!(f, "{}", chain(&**error)),
            Self::Silence => f.write_str("no answer"),
            Self::Query(error) => write!(f, "{error}"),
        }
    }
}

/// Version and items of the list, from a version not older than given; the newest, in pages, when
/// none is.
pub(super) async fn list<K: Object>(
    client: &Client,
    query: &Query,
    version: Option<&str>,
    patience: Duration,
) -> Result<(String, Vec<Result<K, Unreadable>>), Refusal> {
    let mut all = Vec::new();
    let mut next = String::new();
    loop {
        let mut parameters = selector(query);
        if !next.is_empty() {
            parameters.push(("continue", next));
        }
        match version {
            Some(version) => {
                parameters.push(("resourceVersion", version.to_owned()));
                parameters.push(("resourceVersionMatch", "NotOlderThan".to_owned()));
            }
            None => parameters.push(("limit", PAGE.to_string())),
        }
        let asked = client.request_text(get(&query.path, &parameters)?);
        let text = timeout(patience, asked).await.map_err(|_| Refusal::Silence)??;
        let page = parse::page::<K>(&text).map_err(kube::Error::SerdeError)?;
        all.extend(page.items.into_iter().map(|item| {
            item.map(|mut item| {
                item.metadata_mut().managed_fields = None;
                item
            })
        }));
        next = page.metadata.continue_.unwrap_or_default();
        if next.is_empty() {
            return Ok((page.metadata.resource_version.unwrap_or_default(), all));
        }
    }
}

/// The changes since a version.
pub(super) async fn watch<K: Object>(
    client: &Client,
    query: &Query,
    version: &str,
    seconds: f64,
) -> Result<impl Stream<Item = kube::Result<WatchLine<K>>> + use<K>, Refusal> {
    let mut parameters = selector(query);
    parameters.push(("watch", "true".to_owned()));
    parameters.push(("allowWatchBookmarks", "true".to_owned()));
    parameters.push(("resourceVersion", version.to_owned()));
    parameters.push(("timeoutSeconds", format!("{seconds:.0}")));
    let mut request = get(&query.path, &parameters)?;
    // A server of 1.37 compresses each event by itself, which nothing here takes apart.
    request.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    let lines = client.request_stream(request).await?.lines();
    Ok(lines.filter_map(async |line| match line {
        Ok(line) => parse::change(&line).transpose(),
        // As client-go: such an end is one from which the watch is resumed.
        Err(error)
            if error.kind() == ErrorKind::UnexpectedEof || chain(&error).contains("unexpected EOF") =>
        {
            None
        }
        Err(error) => Some(Err(kube::Error::ReadEvents(error))),
    }))
}

fn selector(query: &Query) -> Vec<(&'static str, String)> {
    match query.field_selector.as_str() {
        "" => Vec::new(),
        selector => vec![("fieldSelector", selector.to_owned())],
    }
}

fn get(path: &str, parameters: &[(&str, String)]) -> Result<http::Request<Vec<u8>>, Refusal> {
    let mut url = format!("{path}?");
    for (index, (name, value)) in parameters.iter().enumerate() {
        if index > 0 {
            url.push('&');
        }
        url.push_str(name);
        url.push('=');
        escape(value, &mut url);
    }
    http::Request::get(url).body(Vec::new()).map_err(Refusal::Query)
}

/// RFC 3986: all but the unreserved characters.
fn escape(text: &str, url: &mut String) {
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => url.push(char::from(byte)),
            _ => url.push_str(&format!("%{byte:02X}")),
        }
    }
}
