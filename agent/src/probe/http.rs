//! The HTTP side of probes and hooks. Owns the client: no proxy, no certificate check, no
//! connection kept, redirects only within the host. Called by [`super::net`].

use std::error::Error as _;
use std::time::Duration;

use gantry_base::error::root_cause;
use reqwest::header::{CONNECTION, HeaderName, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Response, Url};

use super::net::{dial, join};
use super::resolve::Resolver;
use super::{HttpError, HttpRequest, HttpResponse};

/// maxRespBodyLength.
const MOST: usize = 10 << 10;
const MOST_REDIRECTS: usize = 10;

/// Shared by all probes.
#[derive(Debug, Clone)]
pub(super) struct Client {
    inner: reqwest::Client,
}

impl Client {
    pub(super) fn new(names: Resolver) -> Result<Self, reqwest::Error> {
        let within_host = Policy::custom(|attempt| {
            let first = attempt.previous().first().map(|url| url.host_str().map(str::to_owned));
            if first != Some(attempt.url().host_str().map(str::to_owned)) {
                attempt.stop()
            } else if attempt.previous().len() >= MOST_REDIRECTS {
                attempt.error("stopped after 10 redirects")
            } else {
                attempt.follow()
            }
        });
        let builder = reqwest::Client::builder()
            .no_proxy()
            .dns_resolver(names)
            .redirect(within_host)
            .pool_max_idle_per_host(0)
            .tls_danger_accept_invalid_certs(true)
            .tls_danger_accept_invalid_hostnames(true);
        Ok(Self { inner: builder.build()? })
    }

    pub(super) async fn get(&self, ask: HttpRequest, timeout: Duration) -> Result<HttpResponse, HttpError> {
        let address = join(&ask.host, ask.port);
        let scheme = if ask.tls { "https" } else { "http" };
        let slash = if ask.path.is_empty() || ask.path.starts_with(['/', '?']) { "" } else { "/" };
        let text = format!("{scheme}://{address}{slash}{}", ask.path);
        let url: Url =
            text.parse().map_err(|error| HttpError::Request(format!("parse {text:?}: {error}")))?;
        let mut request = self.inner.get(url).timeout(timeout);
        for (name, value) in &ask.headers {
            let bad = |what: &str| HttpError::Request(format!("invalid header {what} {name:?}"));
            let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad("name"))?;
            let value = HeaderValue::from_str(value).map_err(|_| bad("value of"))?;
            request = request.header(header, value);
        }
        let sent = request.header(CONNECTION, "close").send().await;
        read(sent.map_err(|error| no_answer(&text, &address, &error))?).await
    }
}

async fn read(mut response: Response) -> Result<HttpResponse, HttpError> {
    let status = response.status().as_u16();
    let mut body = Vec::new();
    while body.len() < MOST {
        match response.chunk().await {
            Ok(Some(chunk)) => body.extend_from_slice(&chunk),
            Ok(None) => break,
            Err(error) => return Err(HttpError::Body(root_cause(&error).to_string())),
        }
    }
    body.truncate(MOST);
    Ok(HttpResponse { status, body: String::from_utf8_lossy(&body).into_owned() })
}

/// As Go's client words it.
fn no_answer(url: &str, address: &str, error: &reqwest::Error) -> HttpError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = error.source();
    let mut io = None;
    while let Some(inner) = cause {
        if let Some(found) = inner.downcast_ref::<std::io::Error>() {
            io = Some(found);
        }
        cause = inner.source();
    }
    let text = root_cause(error).to_string();
    if text.contains("InvalidContentType") || text.contains("corrupt message") {
        return HttpError::NotTls(format!("Get {url:?}: http: server gave HTTP response to HTTPS client"));
    }
    let what = match io {
        _ if error.is_timeout() => {
            "context deadline exceeded (Client.Timeout exceeded while awaiting headers)".to_owned()
        }
        Some(io) if error.is_connect() => dial(address, io),
        _ => text,
    };
    HttpError::NoAnswer(format!("Get {url:?}: {what}"))
}
