//! `gantry timeline --otlp URL`: sends a pod's start to a collector of OpenTelemetry, by OTLP over HTTP in its JSON form.
//! Owns the request; the form of spans is the agent's. Called by [`super`].

use std::time::Duration;

use anyhow::{Context, Result, bail};
use gantry_agent::timeline::{Span, otlp};
use reqwest::header::CONTENT_TYPE;
use reqwest::redirect::Policy;
use reqwest::{Client, Response, Url};
use serde_json::Value;

use crate::args::Target;
use crate::manifests::{display_url, is_loopback};

/// From the name's look-up to the collector's answer.
const WHOLE: Duration = Duration::from_secs(10);
/// What is read of an answer.
const MOST: usize = 64 << 10;

/// Where a collector takes traces: `/v1/traces` when the address has no path (`OTEL_EXPORTER_OTLP_ENDPOINT` of the
/// specification).
fn endpoint(text: &str) -> Result<Url> {
    let mut url = Url::parse(text).with_context(|| format!("--otlp: {text:?} is no URL"))?;
    if !matches!(url.scheme(), "http" | "https") {
        bail!("--otlp: {text:?}: expected http:// or https://, as in http://127.0.0.1:4318");
    }
    if url.path() == "/" {
        url.set_path("/v1/traces");
    }
    Ok(url)
}

/// Sends it. Returns where, for people.
///
/// # Errors
/// When the collector cannot be reached, refuses it, or takes a part alone.
pub(super) async fn send(to: &str, pod: &Target, spans: &[Span], now: i64) -> Result<String> {
    let url = endpoint(to)?;
    let version = env!("CARGO_PKG_VERSION");
    let request = otlp::request(&pod.namespace, &pod.name, version, spans, now);
    let agent = concat!("gantry/", env!("CARGO_PKG_VERSION"));
    let mut client = Client::builder().user_agent(agent).timeout(WHOLE).redirect(Policy::none());
    if is_loopback(&url) {
        client = client.no_proxy();
    }
    let client =
        client.build().context("set up the HTTP client (https needs the package ca-certificates)")?;
    let place = display_url(&url);
    let post = client.post(url).header(CONTENT_TYPE, "application/json").body(request.to_string());
    let response = post.send().await.map_err(reqwest::Error::without_url);
    let response =
        response.with_context(|| format!("send the timeline to {place}: does a collector listen there?"))?;
    let status = response.status();
    let answer = read(response).await.with_context(|| format!("read the answer of {place}"))?;
    if !status.is_success() {
        bail!("{place} answers {status}: {}", crate::output::one_line(&answer));
    }
    match parse_rejection(&answer) {
        Some(why) => bail!("{place} took only a part: {}", crate::output::one_line(&why)),
        None => Ok(place),
    }
}

async fn read(mut response: Response) -> Result<String> {
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(reqwest::Error::without_url)? {
        bytes.extend_from_slice(&chunk[..chunk.len().min(MOST - bytes.len())]);
        if bytes.len() == MOST {
            break;
        }
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// `partialSuccess` of an answer, when spans were left out. The number is a string in this form.
fn parse_rejection(answer: &str) -> Option<String> {
    let answer: Value = serde_json::from_str(answer).ok()?;
    let part = answer.get("partialSuccess")?;
    let count = part.get("rejectedSpans")?;
    let count = count.as_i64().or_else(|| count.as_str()?.parse().ok()).filter(|count| *count > 0)?;
    let why = part.get("errorMessage").and_then(Value::as_str).unwrap_or_default();
    Some(format!("{count} spans refused: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    #[test]
    fn an_address_alone_is_that_of_a_collector() {
        let of = |text: &str| endpoint(text).map(|url| url.to_string()).map_err(|error| error.to_string());
        assert_eq!(of("http://127.0.0.1:4318").unwrap(), "http://127.0.0.1:4318/v1/traces");
        assert_eq!(of("https://otel.test/custom/path").unwrap(), "https://otel.test/custom/path");
        assert!(of("grpc://a:4317").unwrap_err().contains("expected http://"));
        assert!(of("localhost").unwrap_err().contains("is no URL"));
    }

    /// A collector that gives this answer to one request; and what it was sent.
    async fn answered(answer: &'static str) -> (Result<String>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let serve = async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let (mut got, mut chunk) = (Vec::new(), [0; 4096]);
            // The request's JSON ends with the list of resources.
            while !got.ends_with(b"}]}") {
                let count = stream.read(&mut chunk).await.unwrap();
                assert!(count > 0, "the request ended early: {}", String::from_utf8_lossy(&got));
                got.extend_from_slice(&chunk[..count]);
            }
            stream.write_all(answer.as_bytes()).await.unwrap();
            String::from_utf8(got).unwrap()
        };
        let pod = Target { namespace: "shop".into(), name: "web".into() };
        let span = Span {
            name: "sandbox".into(),
            container: String::new(),
            start: 1,
            end: 2,
            detail: String::new(),
        };
        let spans = [span];
        let (sent, got) = tokio::join!(send(&address, &pod, &spans, 9), serve);
        (sent, got)
    }

    #[tokio::test]
    async fn a_collectors_answer_is_told() {
        let (sent, got) =
            answered("HTTP/1.1 200 OK\r\ncontent-length: 21\r\n\r\n{\"partialSuccess\":{}}").await;
        assert!(sent.unwrap().ends_with("/v1/traces"));
        assert!(got.starts_with("POST /v1/traces HTTP/1.1") && got.contains("\"k8s.pod.name\""), "{got}");
        let part = "HTTP/1.1 200 OK\r\ncontent-length: 62\r\n\r\n\
                    {\"partialSuccess\":{\"rejectedSpans\":\"2\",\"errorMessage\":\"full\"}}";
        let error = answered(part).await.0.unwrap_err().to_string();
        assert!(error.contains("took only a part: 2 spans refused: full"), "{error}");
        // Cut off: whether all was taken is not known.
        let error =
            answered("HTTP/1.1 200 OK\r\ncontent-length: 62\r\n\r\n{").await.0.unwrap_err().to_string();
        assert!(error.starts_with("read the answer of http://127.0.0.1"), "{error}");
        let refused = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\n\r\nbusy";
        let error = answered(refused).await.0.unwrap_err().to_string();
        assert!(error.contains("answers 503 Service Unavailable: busy"), "{error}");
    }
}
