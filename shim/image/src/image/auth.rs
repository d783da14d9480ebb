//! Credentials of a pull and the registry's challenge. Owns reading the CRI's AuthConfig and the
//! `WWW-Authenticate` header (RFC 9110 §11.6.1, distribution's token specification). Pure: sends
//! nothing, remembers nothing. Called by `registry`.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};

use super::digest::clip;

/// The CRI's AuthConfig, field for field; empty strings where nothing was given.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Auth {
    /// With `password`: basic credentials.
    pub username: String,
    /// See `username`.
    pub password: String,
    /// Base64 of `username:password`, as in docker's config.json.
    pub auth: String,
    /// The registry these are for; others never see them. Empty: the one of the pull.
    pub server_address: String,
    /// An OAuth 2 refresh token for the token server.
    pub identity_token: String,
    /// A bearer token for the registry itself.
    pub registry_token: String,
}

/// Why an AuthConfig can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// `auth` is no base64 of `user:password`.
    #[error("the auth field of the pull's credentials is not base64 of user:password")]
    Encoding,
    /// `server_address` is no address.
    #[error("the server address {address:?} of the pull's credentials is not a host or URL")]
    Address { address: String },
}

/// What a pull may show to its registry or its token server.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub(crate) enum Credentials {
    #[default]
    Anonymous,
    Basic {
        username: String,
        password: String,
    },
    Refresh(String),
    Bearer(String),
}

/// What the registry wants to see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Challenge {
    Basic,
    Bearer { realm: String, service: Option<String>, scope: Option<String> },
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No secret may reach a log through a request that is printed.
        f.debug_struct("Auth").field("server_address", &self.server_address).finish_non_exhaustive()
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Anonymous => "Anonymous",
            Self::Basic { .. } => "Basic",
            Self::Refresh(_) => "Refresh",
            Self::Bearer(_) => "Bearer",
        })
    }
}

impl Auth {
    /// The credentials as far as they are meant for `domain`; those for another registry are none.
    ///
    /// # Errors
    /// [`AuthError`] when a field can't be read.
    pub(crate) fn credentials_for(&self, domain: &str) -> Result<Credentials, AuthError> {
        if !self.server_address.is_empty() && !self.is_for(domain)? {
            return Ok(Credentials::Anonymous);
        }
        if !self.username.is_empty() || !self.password.is_empty() {
            let (username, password) = (self.username.clone(), self.password.clone());
            return Ok(Credentials::Basic { username, password });
        }
        if !self.identity_token.is_empty() {
            return Ok(Credentials::Refresh(self.identity_token.clone()));
        }
        if !self.auth.is_empty() {
            return decode(&self.auth).ok_or(AuthError::Encoding);
        }
        if !self.registry_token.is_empty() {
            return Ok(Credentials::Bearer(self.registry_token.clone()));
        }
        Ok(Credentials::Anonymous)
    }

    fn is_for(&self, domain: &str) -> Result<bool, AuthError> {
        let address = self.server_address.as_str();
        let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
        let host = rest.split('/').next().unwrap_or_default();
        if host.is_empty() || host.contains(['@', ' ']) {
            return Err(AuthError::Address { address: clip(address) });
        }
        // Docker Hub is known by several names; config.json says https://index.docker.io/v1/.
        let canonical = |host: &str| match host.to_ascii_lowercase().as_str() {
            "index.docker.io" | "registry-1.docker.io" => "docker.io".to_owned(),
            other => other.to_owned(),
        };
        Ok(canonical(host) == canonical(domain))
    }
}

/// `Basic …` as it goes into a header.
pub(crate) fn basic_header(username: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{username}:{password}")))
}

/// The challenge to answer, the strongest first: bearer, then basic. Unknown schemes are passed over.
pub(crate) fn challenge<'a>(headers: impl Iterator<Item = &'a str>) -> Option<Challenge> {
    let mut basic = None;
    for (scheme, params) in headers.flat_map(split_challenges) {
        let get = |name: &str| {
            params.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.clone())
        };
        if scheme.eq_ignore_ascii_case("bearer") {
            if let Some(realm) = get("realm") {
                return Some(Challenge::Bearer { realm, service: get("service"), scope: get("scope") });
            }
        } else if scheme.eq_ignore_ascii_case("basic") {
            basic = Some(Challenge::Basic);
        }
    }
    basic
}

type Scheme = (String, Vec<(String, String)>);

/// One header may hold several challenges, whose parameters are parted by the same commas.
fn split_challenges(header: &str) -> Vec<Scheme> {
    let mut challenges: Vec<Scheme> = Vec::new();
    let mut rest = header.trim_start_matches([' ', ',', '\t']);
    while !rest.is_empty() {
        let end = rest.find([' ', '=', ',']).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        rest = match after.trim_start().strip_prefix('=') {
            Some(value) if !word.is_empty() => {
                let (value, after) = param_value(value.trim_start());
                if let Some((_, params)) = challenges.last_mut() {
                    params.push((word.to_owned(), value));
                }
                after
            }
            _ if word.is_empty() => after.get(1..).unwrap_or_default(),
            _ => {
                challenges.push((word.to_owned(), Vec::new()));
                after
            }
        };
        rest = rest.trim_start_matches([' ', ',', '\t']);
    }
    challenges
}

fn param_value(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([',', ' ']).unwrap_or(text.len());
        return (text[..end].to_owned(), &text[end..]);
    };
    let (mut value, mut escaped) = (String::new(), false);
    for (index, letter) in quoted.char_indices() {
        match letter {
            _ if escaped => {
                value.push(letter);
                escaped = false;
            }
            '\\' => escaped = true,
            '"' => return (value, &quoted[index + 1..]),
            _ => value.push(letter),
        }
    }
    (value, "")
}

fn decode(auth: &str) -> Option<Credentials> {
    let bytes = STANDARD_NO_PAD.decode(auth.trim().trim_end_matches('=')).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    let (username, password) = text.split_once(':')?;
    Some(Credentials::Basic {
        username: username.to_owned(),
        password: password.trim_end_matches('\0').to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bearer(realm: &str, service: Option<&str>, scope: Option<&str>) -> Option<Challenge> {
        let own = |text: Option<&str>| text.map(str::to_owned);
        Some(Challenge::Bearer { realm: realm.into(), service: own(service), scope: own(scope) })
    }

    fn parse(header: &str) -> Option<Challenge> {
        challenge([header].into_iter())
    }

    #[test]
    fn challenges_are_read() {
        assert_eq!(
            parse(r#"Bearer realm="https://a.b/token",service="s",scope="repository:x/y:pull,push""#),
            bearer("https://a.b/token", Some("s"), Some("repository:x/y:pull,push"))
        );
        assert_eq!(parse(r#"bearer REALM = "r\"x" "#), bearer("r\"x", None, None));
        assert_eq!(parse("Basic realm=x"), Some(Challenge::Basic));
        assert_eq!(parse(r#"Basic realm="a", Bearer realm="b""#), bearer("b", None, None));
        assert_eq!(parse(r#"Negotiate, Basic realm="a""#), Some(Challenge::Basic));
        for nothing in ["", "Negotiate abc==", "Bearer", "=,=,=\"", "Bearer scope=x", ",,, ,"] {
            assert_eq!(parse(nothing), None, "{nothing}");
        }
    }

    #[test]
    fn auth_fields_are_read_in_containerds_order() {
        let auth = Auth { auth: "dXNlcjpwYTpzcw==".into(), ..Auth::default() };
        let user = Credentials::Basic { username: "user".into(), password: "pa:ss".into() };
        assert_eq!(auth.credentials_for("h").unwrap(), user);
        let named = Auth { username: "u".into(), password: "p".into(), ..auth.clone() };
        let basic = Credentials::Basic { username: "u".into(), password: "p".into() };
        assert_eq!(named.credentials_for("h").unwrap(), basic);
        let token = Auth { registry_token: "t".into(), ..Auth::default() };
        assert_eq!(token.credentials_for("h").unwrap(), Credentials::Bearer("t".into()));
        let bad = Auth { auth: "%%%".into(), ..Auth::default() };
        assert_eq!(bad.credentials_for("h"), Err(AuthError::Encoding));
    }

    #[test]
    fn credentials_for_another_registry_are_none() {
        let auth =
            |address: &str| Auth { username: "u".into(), server_address: address.into(), ..Auth::default() };
        let is_for = |address: &str, domain: &str| {
            auth(address).credentials_for(domain).unwrap() != Credentials::Anonymous
        };
        assert!(is_for("https://index.docker.io/v1/", "docker.io"));
        assert!(is_for("host:5000", "host:5000"));
        assert!(!is_for("host:5000", "host:5001"));
        assert!(!is_for("host.evil", "host"));
        assert!(auth("https://").credentials_for("h").is_err());
    }

    #[test]
    fn secrets_are_not_printed() {
        let auth = Auth { username: "u".into(), password: "hunter2".into(), ..Auth::default() };
        let printed = format!("{auth:?} {:?}", auth.credentials_for("h").unwrap());
        assert!(!printed.contains("hunter2"), "{printed}");
        assert_eq!(basic_header("user", "pa:ss"), "Basic dXNlcjpwYTpzcw==");
    }
}
