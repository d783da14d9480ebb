//! Credentials for registries, and which of them fit an image. Pure: owns docker's formats and
//! Kubernetes' matching of addresses; never logs a password. Called by everything that has
//! credentials to offer.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use gantry_model::go_json;
use gantry_model::names::without_tag;
use serde::{Deserialize, Serialize};

use super::glob::{self, Address};
use crate::runtime::RegistryAuth;

/// Where images without a host come from, and where docker keeps credentials for it.
const DEFAULT_HOST: &str = "docker.io";
const DEFAULT_KEY: &str = "index.docker.io";

/// An object of the API that credentials came from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Coordinates {
    /// Of this very object.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// Whose credentials they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Every pod of the node may use them.
    Node,
    /// A pull secret.
    Secret(Coordinates),
    /// Got for a service account by a plugin.
    ServiceAccount(Coordinates),
}

/// Credentials that fit an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// What the registry is shown.
    pub auth: RegistryAuth,
    /// Tells these credentials from others without saying them; as upstream counts it.
    pub hash: String,
    /// Whose they are.
    pub origin: Origin,
}

/// One entry, as docker writes it.
#[derive(Deserialize, Default)]
struct Written {
    username: Option<String>,
    password: Option<String>,
    email: Option<String>,
    auth: Option<String>,
    identitytoken: Option<String>,
    registrytoken: Option<String>,
}

/// One entry. Serialised as upstream does, since the records hold a hash of that.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written")]
pub struct Login {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub username: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub password: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub email: String,
    #[serde(skip_serializing_if = "String::is_empty", rename = "identitytoken")]
    pub identity_token: String,
    #[serde(skip_serializing_if = "String::is_empty", rename = "registrytoken")]
    pub registry_token: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").finish_non_exhaustive()
    }
}

impl TryFrom<Written> for Login {
    type Error = &'static str;

    fn try_from(written: Written) -> Result<Self, Self::Error> {
        let Written { username, password, email, auth, identitytoken, registrytoken } = written;
        let (mut username, mut password) = (username.unwrap_or_default(), password.unwrap_or_default());
        if let Some(auth) = auth.filter(|auth| !auth.is_empty()) {
            (username, password) = decode_auth(&auth)?;
        }
        Ok(Self {
            username,
            password,
            email: email.unwrap_or_default(),
            identity_token: identitytoken.unwrap_or_default(),
            registry_token: registrytoken.unwrap_or_default(),
        })
    }
}

/// `base64(<username>:<password>)`, with padding or without.
fn decode_auth(field: &str) -> Result<(String, String), &'static str> {
    let bad = "unable to parse auth field, must be formatted as base64(username:password)";
    let engine = if field.trim().ends_with('=') { STANDARD } else { STANDARD_NO_PAD };
    let bytes = engine.decode(field).map_err(|_| bad)?;
    let text = String::from_utf8(bytes).map_err(|_| bad)?;
    let (username, password) = text.split_once(':').ok_or(bad)?;
    Ok((username.to_owned(), password.to_owned()))
}

/// Credentials by the address that they are for.
pub type DockerConfig = BTreeMap<String, Login>;

/// `config.json`; what else it holds is for other programs.
#[derive(Deserialize, Default)]
struct ConfigJson {
    auths: Option<DockerConfig>,
}

/// A text that is not what docker writes. Says nothing of the text: it may hold a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("error occurred while trying to unmarshal json")]
pub struct Malformed;

/// Reads `config.json`.
///
/// # Errors
/// When it is none.
pub fn config_json(text: &[u8]) -> Result<DockerConfig, Malformed> {
    let config: ConfigJson = serde_json::from_slice(text).map_err(|_| Malformed)?;
    Ok(config.auths.unwrap_or_default())
}

/// Reads the older `.dockercfg`.
///
/// # Errors
/// When it is none.
pub fn dockercfg(text: &[u8]) -> Result<DockerConfig, Malformed> {
    let config: Option<DockerConfig> = serde_json::from_slice(text).map_err(|_| Malformed)?;
    Ok(config.unwrap_or_default())
}

/// Credentials of one kind of source.
#[derive(Debug, Clone, Default)]
pub struct Keyring {
    by_address: BTreeMap<String, Vec<Offer>>,
}

impl Keyring {
    /// All entries whose addresses are addresses.
    pub fn add(&mut self, origin: &Origin, config: &DockerConfig) {
        for (address, login) in config {
            match key(address) {
                Some(key) => {
                    self.by_address.entry(key).or_default().push(offer(login, origin.clone()));
                }
                None => tracing::error!(address, "an entry of credentials is for no address: ignored"),
            }
        }
    }

    /// What fits, the most specific address first.
    #[must_use]
    pub fn lookup(&self, repository: &str) -> Vec<Offer> {
        let image = Address::of(repository);
        let fits = |key: &str| match (Address::of(key), &image) {
            (Some(key), Some(image)) => glob::fits(&key, image),
            _ => false,
        };
        // Reverse order puts the longer path first, as upstream.
        let found = self.by_address.iter().rev().filter(|(key, _)| fits(key));
        let found: Vec<Offer> = found.flat_map(|(_, offers)| offers.clone()).collect();
        let is_default = repository.strip_prefix(DEFAULT_HOST).is_some_and(|rest| rest.starts_with('/'));
        if found.is_empty() && is_default {
            return self.by_address.get(DEFAULT_KEY).cloned().unwrap_or_default();
        }
        found
    }
}

fn offer(login: &Login, origin: Origin) -> Offer {
    let auth = RegistryAuth {
        username: login.username.clone(),
        password: login.password.clone(),
        identity_token: login.identity_token.clone(),
        registry_token: login.registry_token.clone(),
    };
    Offer { auth, hash: hash(login), origin }
}

/// Of the entry's JSON as Go writes it: some characters are escaped that need not be.
fn hash(login: &Login) -> String {
    go_json::text(login).map_or_else(|_| String::new(), |text| sha256(text.as_bytes()))
}

/// In lower-case hexadecimal.
pub(super) fn sha256(bytes: &[u8]) -> String {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The address as it is compared: host and path, without docker's version of the API.
fn key(written: &str) -> Option<String> {
    let plain = written.strip_prefix("https://").or_else(|| written.strip_prefix("http://"));
    let Address { authority, path, .. } = Address::of(plain.unwrap_or(written))?;
    let cut = ["/v1/", "/v2/"].iter().any(|version| path.starts_with(version));
    let path = if cut { path.get(3..).unwrap_or_default() } else { path.as_str() };
    Some(if path == "/" { authority } else { authority + path })
}

/// The image's name in full, without tag and digest: `docker.io/library/busybox`.
#[must_use]
pub fn repository(image: &str) -> String {
    let name = without_tag(image);
    match name.split_once('/') {
        Some((DEFAULT_HOST | DEFAULT_KEY, rest)) if rest.contains('/') => format!("{DEFAULT_HOST}/{rest}"),
        Some((DEFAULT_HOST | DEFAULT_KEY, rest)) => format!("{DEFAULT_HOST}/library/{rest}"),
        Some((first, _)) if first.contains(['.', ':']) || first == "localhost" => name.to_owned(),
        Some(_) => format!("{DEFAULT_HOST}/{name}"),
        None => format!("{DEFAULT_HOST}/library/{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(text: &str) -> Keyring {
        let mut ring = Keyring::default();
        ring.add(&Origin::Node, &dockercfg(text.as_bytes()).unwrap());
        ring
    }

    fn users(ring: &Keyring, image: &str) -> Vec<String> {
        ring.lookup(&repository(image)).into_iter().map(|offer| offer.auth.username).collect()
    }

    #[test]
    fn the_most_specific_address_comes_first() {
        let ring = ring(
            r#"{"https://reg.io/v2/": {"username": "all"}, "reg.io/team": {"auth": "dGVhbTpwOnE="},
                "*.io": {"username": "star", "email": null}, "other.io": {"username": "x"}, "a b": {}}"#,
        );
        let offers = ring.lookup(&repository("reg.io/team/web:v1"));
        let seen: Vec<_> =
            offers.iter().map(|o| (o.auth.username.as_str(), o.auth.password.as_str())).collect();
        assert_eq!(seen, [("team", "p:q"), ("all", ""), ("star", "")]);
        assert_eq!(users(&ring, "reg.io/other"), ["all", "star"]);
        assert_eq!(users(&ring, "localhost/web"), Vec::<String>::new());
    }

    #[test]
    fn images_without_a_host_take_dockers_own_when_nothing_else_fits() {
        let both = ring(
            r#"{"https://index.docker.io/v1/": {"username": "hub"}, "docker.io/library": {"username": "lib"}}"#,
        );
        assert_eq!(users(&both, "busybox"), ["lib"]);
        assert_eq!(users(&both, "me/web"), ["hub"]);
        assert_eq!(users(&both, "index.docker.io/me/web@sha256:0"), ["hub"]);
        assert_eq!(users(&both, "reg.io/busybox"), Vec::<String>::new());
    }

    #[test]
    fn names_are_told_in_full_and_without_a_tag() {
        for (image, full) in [
            ("busybox:1.36", "docker.io/library/busybox"),
            ("docker.io/busybox", "docker.io/library/busybox"),
            ("me/web@sha256:0", "docker.io/me/web"),
            ("127.0.0.1:5000/web:v1", "127.0.0.1:5000/web"),
            ("localhost/a/b", "localhost/a/b"),
        ] {
            assert_eq!(repository(image), full);
        }
        assert_eq!(without_tag("localhost:5000/a:b@sha256:c"), "localhost:5000/a");
    }

    /// The right sides are what Go's encoder writes for these.
    #[test]
    fn the_hash_is_that_of_upstreams_json() {
        let login = |username: &str, password: &str| Login {
            username: username.to_owned(),
            password: password.to_owned(),
            ..Login::default()
        };
        assert_eq!(hash(&login("user", "pass")), sha256(br#"{"username":"user","password":"pass"}"#));
        assert_eq!(
            hash(&login("a<b", "\u{2028}&\"")),
            sha256(b"{\"username\":\"a\\u003cb\",\"password\":\"\\u2028\\u0026\\\"\"}")
        );
        assert_eq!(hash(&Login::default()), sha256(b"{}"));
    }

    #[test]
    fn what_docker_does_not_write_is_refused_without_a_word_of_it() {
        let told = config_json(br#"{"auths": {"reg.io": {"auth": "c2VjcmV0"}}}"#).unwrap_err().to_string();
        assert_eq!(told, "error occurred while trying to unmarshal json");
        assert!(dockercfg(b"[]").is_err());
        assert_eq!(config_json(br#"{"credsStore": "x", "auths": null}"#).unwrap(), DockerConfig::new());
    }
}
