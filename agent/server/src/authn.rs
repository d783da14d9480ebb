//! Who somebody is: a client certificate, else a bearer token, else nobody, if nobody is let in. Owns
//! the order and the tokens seen; never decides what somebody may do. Called by [`super::gate`].

use std::time::Duration;

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::HeaderMap;
use http::header::{AUTHORIZATION, HeaderValue, SEC_WEBSOCKET_PROTOCOL};
use rustls::pki_types::CertificateDer;

use super::cache::Cache;
use super::client_ca::ClientCa;
use super::review::Reviews;
use super::user::User;

/// A browser can set no header but this one.
const PROTOCOL_PREFIX: &str = "base64url.bearer.authorization.k8s.io.";

/// How somebody may show who they are.
#[derive(Debug, Clone, Default)]
pub struct Authentication {
    /// authentication.x509.clientCAFile; reloaded through this handle.
    pub client_ca: ClientCa,
    /// authentication.webhook: how long an answer about a token is kept; `None` when off.
    pub tokens_for: Option<Duration>,
    /// authentication.anonymous.enabled.
    pub anonymous: bool,
}

/// Authenticates.
#[derive(Debug)]
pub(super) struct Authenticator {
    client_ca: ClientCa,
    tokens: Option<Tokens>,
    anonymous: bool,
}

#[derive(Debug)]
struct Tokens {
    reviews: Reviews,
    /// Tokens are not kept: only what this key makes of them.
    key: hmac::Key,
    kept: Cache<Vec<u8>, Option<User>>,
    for_long: Duration,
}

/// Why somebody is nobody.
#[derive(Debug)]
pub(super) enum AuthnFailure {
    /// With the reason, for the log only.
    Unauthorized(String),
    /// Too many are asked about already.
    Crowded,
}

impl Authenticator {
    /// `None` when tokens are to be asked about and there is nobody to ask.
    pub(super) fn new(how: Authentication, reviews: Option<Reviews>) -> Option<Self> {
        let tokens = match (how.tokens_for, reviews) {
            (None, _) => None,
            (Some(for_long), Some(reviews)) => {
                let rng = aws_lc_rs::rand::SystemRandom::new();
                let key = hmac::Key::generate(hmac::HMAC_SHA256, &rng).ok()?;
                Some(Tokens { reviews, key, kept: Cache::default(), for_long })
            }
            (Some(_), None) => return None,
        };
        Some(Self { client_ca: how.client_ca, tokens, anonymous: how.anonymous })
    }

    /// How many more tokens may be asked about.
    #[cfg(test)]
    pub(super) fn free(&self) -> Option<usize> {
        self.tokens.as_ref().map(|tokens| tokens.kept.free())
    }

    /// Who asks. A token is taken out of the headers, whether it was looked at or not, so that it is
    /// passed on to nobody.
    pub(super) async fn who(
        &self,
        chain: &[CertificateDer<'_>],
        headers: &mut HeaderMap,
    ) -> Result<User, AuthnFailure> {
        let found = self.find(chain, headers).await;
        headers.remove(AUTHORIZATION);
        strip_protocol(headers);
        found
    }

    async fn find(&self, chain: &[CertificateDer<'_>], headers: &HeaderMap) -> Result<User, AuthnFailure> {
        let mut complaints = Vec::new();
        match self.client_ca.user(chain) {
            Ok(Some(user)) => return Ok(user.with_authenticated_group()),
            Ok(None) => {}
            Err(error) => complaints.push(format!("client certificate: {error}")),
        }
        if let Some(tokens) = &self.tokens {
            for token in [bearer(headers), from_protocol(headers)].into_iter().flatten() {
                match tokens.user(&token).await {
                    Ok(Some(user)) => return Ok(user.with_authenticated_group()),
                    Ok(None) => {}
                    Err(super::review::Error::Crowded) => return Err(AuthnFailure::Crowded),
                    Err(error) => complaints.push(format!("token: {error}")),
                }
            }
        }
        // A credential that is no good makes nobody anonymous.
        match complaints.is_empty() && self.anonymous {
            true => Ok(User::anonymous()),
            false => Err(AuthnFailure::Unauthorized(complaints.join("; "))),
        }
    }
}

impl Tokens {
    async fn user(&self, token: &str) -> Result<Option<User>, super::review::Error> {
        let key = hmac::sign(&self.key, token.as_bytes()).as_ref().to_vec();
        self.kept.get(key, |_| self.for_long, self.reviews.token(token)).await
    }
}

fn bearer(headers: &HeaderMap) -> Option<String> {
    let header = headers.get(AUTHORIZATION)?.to_str().ok()?.trim();
    let (scheme, rest) = header.split_once(' ')?;
    let token = rest.split(' ').next().filter(|token| !token.is_empty())?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.to_owned())
}

fn protocols(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let lines = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(str::trim)
}

fn from_protocol(headers: &HeaderMap) -> Option<String> {
    let mut tokens = protocols(headers).filter_map(|protocol| protocol.strip_prefix(PROTOCOL_PREFIX));
    let token = tokens.next()?;
    // Two tokens, or nothing else to agree on: upstream refuses both.
    if tokens.next().is_some() || protocols(headers).count() < 2 {
        return None;
    }
    let bytes = URL_SAFE_NO_PAD.decode(token).ok()?;
    String::from_utf8(bytes).ok().filter(|token| !token.is_empty())
}

fn strip_protocol(headers: &mut HeaderMap) {
    if !protocols(headers).any(|protocol| protocol.starts_with(PROTOCOL_PREFIX)) {
        return;
    }
    let rest: Vec<&str> =
        protocols(headers).filter(|protocol| !protocol.starts_with(PROTOCOL_PREFIX)).collect();
    match HeaderValue::from_str(&rest.join(",")) {
        Ok(rest) if !rest.is_empty() => headers.insert(SEC_WEBSOCKET_PROTOCOL, rest),
        _ => headers.remove(SEC_WEBSOCKET_PROTOCOL),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: http::HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_str(value).unwrap())])
    }

    #[test]
    fn tokens_of_a_header() {
        let of = |value| bearer(&headers(AUTHORIZATION, value));
        assert_eq!(of("Bearer abc").as_deref(), Some("abc"));
        assert_eq!(of("bearer abc def").as_deref(), Some("abc"));
        for bad in ["Bearer", "Bearer ", "Bearer  abc", "Basic abc", ""] {
            assert_eq!(of(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn tokens_of_a_web_socket() {
        let token = format!("{PROTOCOL_PREFIX}{}", URL_SAFE_NO_PAD.encode("abc"));
        let mut both = headers(SEC_WEBSOCKET_PROTOCOL, &format!("{token}, v4.channel.k8s.io"));
        assert_eq!(from_protocol(&both).as_deref(), Some("abc"));
        strip_protocol(&mut both);
        assert_eq!(both[SEC_WEBSOCKET_PROTOCOL], "v4.channel.k8s.io");
        assert_eq!(from_protocol(&both), None);
        let mut only = headers(SEC_WEBSOCKET_PROTOCOL, &token);
        strip_protocol(&mut only);
        assert!(only.is_empty());
        assert_eq!(from_protocol(&headers(SEC_WEBSOCKET_PROTOCOL, &token)), None);
        assert_eq!(from_protocol(&headers(SEC_WEBSOCKET_PROTOCOL, &format!("{token},{token},x"))), None);
    }

    #[tokio::test]
    async fn a_token_is_passed_on_to_nobody_whoever_shows_who_they_are() {
        let params = |name: &str| {
            let mut params = rcgen::CertificateParams::default();
            params.distinguished_name = rcgen::DistinguishedName::new();
            params.distinguished_name.push(rcgen::DnType::CommonName, name);
            params
        };
        let mut ca = params("ca");
        ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let ca = rcgen::CertifiedIssuer::self_signed(ca, rcgen::KeyPair::generate().unwrap()).unwrap();
        let mut bob = params("bob");
        bob.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        let bob = bob.signed_by(&rcgen::KeyPair::generate().unwrap(), &ca).unwrap();
        let client_ca = ClientCa::new(ca.pem().as_bytes()).unwrap();
        let how = Authentication { client_ca, tokens_for: None, anonymous: true };
        let authenticator = Authenticator::new(how, None).unwrap();
        let token = format!("{PROTOCOL_PREFIX}{}", URL_SAFE_NO_PAD.encode("abc"));
        for (chain, name) in [(vec![bob.der().clone()], "bob"), (Vec::new(), "system:anonymous")] {
            let mut both = headers(SEC_WEBSOCKET_PROTOCOL, &format!("{token}, v4.channel.k8s.io"));
            both.append(AUTHORIZATION, HeaderValue::from_static("Bearer abc"));
            both.append(AUTHORIZATION, HeaderValue::from_static("Basic abc"));
            let user = authenticator.who(&chain, &mut both).await.unwrap();
            assert_eq!(user.name, name);
            assert_eq!(both, headers(SEC_WEBSOCKET_PROTOCOL, "v4.channel.k8s.io"));
        }
    }
}
