//! The authorization of one pull at one repository: a fixed header, or a token fetched when the
//! registry asks for one. Owns the token and the talk with the token server; never follows that
//! server's redirects. Called by `registry` only.

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use reqwest::Url;
use serde::Deserialize;
use tokio::sync::Mutex;

use super::{Endpoint, RegistryError, is_loopback, same_origin, shown};
use crate::image::auth::{Challenge, Credentials, basic_header};
use crate::image::digest::clip;

const MAX_TOKEN: usize = 1 << 20;

/// The lock is held while a token is fetched: layers that meet the same 401 wait for one token.
pub(super) struct Authorization {
    credentials: Credentials,
    header: Mutex<Option<HeaderValue>>,
}

#[derive(Deserialize)]
struct TokenResponse {
    token: Option<String>,
    access_token: Option<String>,
}

impl Authorization {
    pub(super) fn new(credentials: Credentials) -> Self {
        Self { credentials, header: Mutex::new(None) }
    }

    /// What to send along; nothing before the first challenge.
    pub(super) async fn header(&self) -> Option<HeaderValue> {
        self.header.lock().await.clone()
    }
}

impl Endpoint {
    /// Answers a challenge met with the header `shown_before`. False: there is nothing (more) to
    /// show, and the 401 stands.
    pub(super) async fn answer_challenge(
        &self,
        url: &Url,
        challenge: &Challenge,
        shown_before: Option<HeaderValue>,
    ) -> Result<bool, RegistryError> {
        let mut header = self.authorization.header.lock().await;
        if header.is_some() && *header != shown_before {
            return Ok(true); // Another request has fetched a token in the meantime.
        }
        let value = match (challenge, &self.authorization.credentials) {
            (_, Credentials::Bearer(token)) => format!("Bearer {token}"),
            (Challenge::Basic, Credentials::Basic { username, password }) => basic_header(username, password),
            (Challenge::Basic, _) => return Ok(false),
            (Challenge::Bearer { realm, service, scope }, _) => {
                let token = self.fetch(url, realm, service.as_deref(), scope.as_deref()).await?;
                format!("Bearer {token}")
            }
        };
        let mut value = HeaderValue::from_str(&value).map_err(|_| RegistryError::Challenge {
            url: shown(url),
            detail: "the token or password has characters that no header may hold".to_owned(),
        })?;
        value.set_sensitive(true);
        if shown_before.as_ref() == Some(&value) {
            return Ok(false); // The same again would be refused again.
        }
        *header = Some(value);
        Ok(true)
    }

    async fn fetch(
        &self,
        url: &Url,
        realm: &str,
        service: Option<&str>,
        scope: Option<&str>,
    ) -> Result<String, RegistryError> {
        let refuse = |detail: String| RegistryError::Challenge { url: shown(url), detail };
        let mut server =
            Url::parse(realm).map_err(|_| refuse(format!("realm {:?} is not a URL", clip(realm))))?;
        let plain = server.scheme() == "http" && (is_loopback(&server) || same_origin(&server, &self.base));
        if server.scheme() != "https" && !plain {
            return Err(refuse(format!("token server {:?} does not speak https", clip(realm))));
        }
        // A login is about no repository.
        let own = (!self.path.is_empty()).then(|| format!("repository:{}:pull", self.path));
        let (service, scope) = (service.unwrap_or_default(), scope.or(own.as_deref()));
        let mut headers = HeaderMap::new();
        let (method, body) = match &self.authorization.credentials {
            Credentials::Refresh(token) => {
                (Method::POST, Some(refresh_form(token, service, scope.unwrap_or_default())))
            }
            credentials => {
                let scope = scope.map(|scope| ("scope", scope));
                server.query_pairs_mut().append_pair("service", service).extend_pairs(scope);
                if let Credentials::Basic { username, password } = credentials {
                    let value = HeaderValue::from_str(&basic_header(username, password));
                    let mut value = value.map_err(|_| refuse("credentials fit no header".to_owned()))?;
                    value.set_sensitive(true);
                    headers.insert(AUTHORIZATION, value);
                }
                (Method::GET, None)
            }
        };
        let response = self.send(&server, method, headers, body).await?;
        if response.status() != StatusCode::OK {
            let trusted = same_origin(&server, &self.base);
            return Err(self.http.refusal(&server, response, trusted).await);
        }
        let page = self.http.body(&shown(&server), response, MAX_TOKEN).await?;
        let answer: Option<TokenResponse> = serde_json::from_slice(&page).ok();
        answer
            .and_then(|answer| answer.token.or(answer.access_token))
            .filter(|token| !token.is_empty())
            .ok_or_else(|| refuse(format!("no token in the answer of {}", shown(&server))))
    }
}

/// RFC 6749 section 6.
fn refresh_form(token: &str, service: &str, scope: &str) -> String {
    let pairs = [
        ("grant_type", "refresh_token"),
        ("refresh_token", token),
        ("client_id", "gantry"),
        ("service", service),
        ("scope", scope),
    ];
    let pairs: Vec<String> = pairs.iter().map(|(name, value)| format!("{name}={}", encode(value))).collect();
    pairs.join("&")
}

/// application/x-www-form-urlencoded, everything but letters and digits escaped.
fn encode(value: &str) -> String {
    value.bytes().fold(String::with_capacity(value.len()), |mut text, byte| {
        if byte.is_ascii_alphanumeric() {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
        text
    })
}
