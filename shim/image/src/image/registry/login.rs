//! Logging in to a registry: whether it accepts a user name and a password. Asks as a pull asks, and at the
//! registry's own server alone, since mirrors have credentials of their own. Keeps nothing; `docker_config::edit`
//! does. Called by the command line.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

pub use super::docker_config::edit::{EditError, check_file, forget, remember};
use super::docker_config::names;
use super::retry_policy::{TransferState, retry};
use super::token::Authorization;
use super::{Endpoint, Http, RegistryError, TransferLimits, default_base, hosts};
use crate::image::auth::Auth;
use crate::image::digest::clip;
use crate::image::reference::Reference;

/// What a registry says to credentials that it does not refuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoginVerdict {
    /// It asked for them, and they are good.
    Accepted,
    /// It answers without any, so nobody knows whether they are good.
    NotAsked,
}

/// A registry as names of images have it: `host`, `host:port`, and `docker.io` for Docker Hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Domain(String);

/// Why a text is no registry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no registry: give the host of its images' names, with a dot in it or with its port, as in \
     registry.example.com or registry:5000"
)]
pub struct NoDomain {
    text: String,
}

impl Domain {
    /// The host, and its port where it was named.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Domain {
    type Err = NoDomain;

    /// A scheme and a path are left out, as docker does.
    fn from_str(text: &str) -> Result<Self, NoDomain> {
        let host = names(text);
        // What a pull would not take for a host is looked up at Docker Hub.
        match Reference::parse(&format!("{host}/name")) {
            Ok(reference) if reference.domain() == host => Ok(Self(host)),
            _ => Err(NoDomain { text: clip(text) }),
        }
    }
}

/// Shows `auth` to the registry.
///
/// # Errors
/// [`RegistryError::Unauthorized`] when it refuses them; the way to it otherwise.
pub async fn check(
    domain: &Domain,
    auth: &Auth,
    hosts_dir: Option<&Path>,
) -> Result<LoginVerdict, RegistryError> {
    let name = || domain.0.clone();
    let hosts = hosts::of_registry(hosts_dir, &domain.0, &default_base(&domain.0)?)
        .map_err(|source| RegistryError::Hosts { domain: name(), source })?;
    let host = hosts.into_iter().find(|host| host.own).ok_or(RegistryError::NoPlace)?;
    let credentials =
        auth.credentials_for(&domain.0).map_err(|source| RegistryError::Auth { domain: name(), source })?;
    let endpoint = Endpoint {
        http: Arc::new(Http::new(TransferLimits::default(), None)),
        base: host.base.clone(),
        path: String::new(),
        namespace: None,
        host,
        authorization: Authorization::new(credentials),
    };
    // The root of the API, which registries answer to those alone who may pull (distribution's specification).
    retry(TransferState::NotStarted, || endpoint.get(endpoint.base.clone(), None, None)).await?;
    Ok(match endpoint.authorization.header().await {
        Some(_) => LoginVerdict::Accepted,
        None => LoginVerdict::NotAsked,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::tests::server::{Registry, RegistryRequest, TestAnswer};

    fn auth(password: &str) -> Auth {
        Auth { username: "user".into(), password: password.into(), ..Auth::default() }
    }

    fn shows(request: &RegistryRequest, value: &str) -> bool {
        request.headers.get("authorization").is_some_and(|own| own == value)
    }

    async fn verdict(registry: &Registry, password: &str) -> Result<LoginVerdict, RegistryError> {
        check(&registry.address.to_string().parse().unwrap(), &auth(password), None).await
    }

    #[test]
    fn registries_have_the_names_that_images_have() {
        let parse = |text: &str| text.parse::<Domain>().map(|domain| domain.0).map_err(|e| e.to_string());
        for (text, domain) in [
            ("docker.io", "docker.io"),
            ("https://index.docker.io/v1/", "docker.io"),
            ("https://Registry.example/v2/a", "registry.example"),
            ("registry:5000", "registry:5000"),
            ("[::1]:5000", "[::1]:5000"),
            ("localhost", "localhost"),
        ] {
            assert_eq!(parse(text).as_deref(), Ok(domain), "{text}");
        }
        for text in ["", "/", "registry", "u:p@registry.example", "a.b:port", "a b.c", "-x.io"] {
            assert!(parse(text).unwrap_err().contains("is no registry"), "{text}");
        }
    }

    #[tokio::test]
    async fn basic_credentials_are_checked_at_the_root_of_the_api() {
        let registry = Registry::new();
        registry.script(|request| {
            let denied = TestAnswer::new(401)
                .header("www-authenticate", "Basic realm=\"x\"")
                .body(br#"{"errors":[{"code":"UNAUTHORIZED","message":"no"}]}"#);
            Some(if shows(request, "Basic dXNlcjpwYXNz") { TestAnswer::new(200) } else { denied })
        });
        assert_eq!(verdict(&registry, "pass").await.unwrap(), LoginVerdict::Accepted);
        match verdict(&registry, "wrong").await {
            Err(RegistryError::Unauthorized { status: 401, detail, .. }) => {
                assert_eq!(detail, "UNAUTHORIZED: no");
            }
            other => panic!("{other:?}"),
        }
        assert!(registry.log().iter().all(|request| request.path == "/v2/"), "{:?}", registry.log());
    }

    #[tokio::test]
    async fn a_token_is_asked_for_no_repository() {
        let registry = Registry::new();
        let realm = format!("http://{}/token", registry.address);
        registry.script(move |request| {
            if request.path.starts_with("/token") {
                let good = shows(request, "Basic dXNlcjpwYXNz");
                return Some(TestAnswer::new(if good { 200 } else { 401 }).body(br#"{"token":"t"}"#));
            }
            let challenge = format!(r#"Bearer realm="{realm}",service="s""#);
            let denied = TestAnswer::new(401).header("www-authenticate", challenge);
            Some(if shows(request, "Bearer t") { TestAnswer::new(200) } else { denied })
        });
        assert_eq!(verdict(&registry, "pass").await.unwrap(), LoginVerdict::Accepted);
        assert_eq!(registry.log()[1].path, "/token?service=s");
        assert!(matches!(verdict(&registry, "wrong").await, Err(RegistryError::Unauthorized { .. })));
    }

    #[tokio::test]
    async fn a_registry_that_asks_nobody_has_checked_nothing() {
        let registry = Registry::new();
        registry.script(|_| Some(TestAnswer::new(200)));
        assert_eq!(verdict(&registry, "pass").await.unwrap(), LoginVerdict::NotAsked);
        assert!(registry.log().iter().all(|request| !request.headers.contains_key("authorization")));
    }
}
