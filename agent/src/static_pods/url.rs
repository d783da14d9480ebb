//! A URL of static pods, asked from time to time. Owns the requests; never decides which pods run. Called by
//! [`super::follow_all`].

#![expect(clippy::disallowed_methods, reason = "the task ends with who listens to it")]

use std::collections::BTreeMap;
use std::error::Error as _;
use std::path::PathBuf;
use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, StatusCode, Url};
use tokio::sync::watch;

use super::choice::StaticPods;
use super::fetched::{Fetched, Loudness};
use super::offer;
use crate::manifest::MAX_BYTES;

/// For one answer, as upstream.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where pods come from, and how it is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    /// The kubelet's staticPodURL.
    pub url: String,
    /// Its staticPodURLHeader.
    pub header: BTreeMap<String, Vec<String>>,
    /// Its httpCheckFrequency.
    pub every: Duration,
}

impl Address {
    /// The URL as messages may have it: what stands before the host or in the query may be a secret.
    pub(super) fn shown(&self) -> String {
        let Ok(mut url) = Url::parse(&self.url) else { return "staticPodURL".to_owned() };
        url.set_query(None);
        url.set_fragment(None);
        // Both fail only for URLs without a host, which have no such part.
        let _ = url.set_username("");
        let _ = url.set_password(None);
        url.to_string()
    }

    fn headers(&self) -> Result<HeaderMap, String> {
        let mut headers = HeaderMap::new();
        for (name, values) in &self.header {
            for value in values {
                let key = HeaderName::from_bytes(name.as_bytes());
                let key = key.map_err(|_| format!("staticPodURLHeader: {name:?} is no header's name"))?;
                let value = HeaderValue::from_str(value);
                let mut value =
                    value.map_err(|_| format!("staticPodURLHeader: the value of {name:?} is none"))?;
                value.set_sensitive(true);
                headers.append(key, value);
            }
        }
        Ok(headers)
    }

    fn client() -> Result<Client, String> {
        Client::builder()
            .timeout(PATIENCE)
            .build()
            .map_err(|error| format!("set up the HTTP client: {}", words(&error)))
    }
}

/// Asks until nobody listens any more. What is found is there later: a server may be away.
pub(super) fn follow(address: Address, node: String) -> watch::Receiver<StaticPods> {
    let shown = address.shown();
    tracing::info!(url = shown, "Adding pod URL with HTTP header");
    let mut fetched = Fetched::new(address.url.clone(), shown, node);
    let (sender, receiver) = watch::channel(fetched.static_pods());
    tokio::spawn(async move {
        loop {
            ask(&mut fetched, &address).await;
            offer(&sender, fetched.static_pods());
            tokio::select! {
                () = tokio::time::sleep(address.every) => {}
                () = sender.closed() => return,
            }
        }
    });
    receiver
}

async fn ask(fetched: &mut Fetched, address: &Address) {
    let got = match get(address).await {
        Ok(body) => fetched.take(body, jiff::Timestamp::now()),
        Err(error) => Err(error),
    };
    match got {
        Ok(()) if fetched.succeed() => tracing::info!("Successfully read pods from URL"),
        Ok(()) => {}
        Err(error) => match fetched.fail() {
            Loudness::Warn => tracing::warn!(error, "Failed to read pods from URL"),
            Loudness::Last => {
                tracing::warn!(
                    error,
                    "Failed to read pods from URL. Dropping verbosity of this message to V(4)"
                );
            }
            Loudness::Debug => tracing::debug!(error, "Failed to read pods from URL"),
        },
    }
}

async fn get(address: &Address) -> Result<Vec<u8>, String> {
    let request = Address::client()?.get(&address.url).headers(address.headers()?);
    let mut response =
        request.send().await.map_err(|error| format!("{}: {}", address.shown(), words(&error)))?;
    if response.status() != StatusCode::OK {
        return Err(format!("{}: {}", address.shown(), response.status()));
    }
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| words(&error))? {
        if (body.len() + chunk.len()) as u64 > MAX_BYTES {
            return Err(format!("{}: larger than {MAX_BYTES} bytes", address.shown()));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// Why, without the URL.
fn words(error: &reqwest::Error) -> String {
    match error.source() {
        Some(source) => gantry_base::error::chain(source),
        None if error.is_timeout() => "timed out".to_owned(),
        None if error.is_builder() => "no URL of http or https".to_owned(),
        None => "the request failed".to_owned(),
    }
}

/// As a problem of a pod there names it.
pub(super) fn place(address: &Address) -> PathBuf {
    PathBuf::from(address.shown())
}

#[cfg(test)]
mod tests;
