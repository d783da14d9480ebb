//! imagePullSecrets: which credentials fit an image's registry. Owns the formats of the secrets and
//! Kubernetes' matching of their addresses; never logs a password. Called before an image is pulled.

use serde::Deserialize;
use std::collections::BTreeMap;

use crate::api::{Api, Secret};
use crate::pod::spec::Pod;
use crate::runtime::RegistryAuth;

/// Where names without a host are looked for.
const DEFAULT_HOST: &str = "index.docker.io";
const DEFAULT_PREFIX: &str = "library";

/// An entry of `auths`.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Entry {
    username: String,
    password: String,
    auth: String,
    identitytoken: String,
    registrytoken: String,
}

/// `.dockerconfigjson`; what else it holds is for other programs.
#[derive(Deserialize, Default)]
#[serde(default)]
struct DockerConfig {
    auths: BTreeMap<String, Entry>,
}

/// What the pod's secrets offer.
#[derive(Debug, Default)]
pub(in crate::pod) struct Offers {
    /// To be tried in order; none: the image is asked for without.
    pub(in crate::pod) auths: Vec<RegistryAuth>,
    /// Secrets that are not there, or not readable, by name.
    pub(in crate::pod) missing: Vec<String>,
}

/// The credentials of the pod's secrets that fit the image, the most specific address first.
pub(in crate::pod) async fn offers(api: &dyn Api, pod: &Pod, image: &str) -> Offers {
    let mut offers = Offers::default();
    let mut found: Vec<(String, RegistryAuth)> = Vec::new();
    for name in &pod.pull_secrets {
        match api.secret(&pod.namespace, name).await {
            Ok(Some(secret)) => match entries(&secret) {
                Ok(entries) => found.extend(entries.into_iter().map(|(key, entry)| auth(key, entry))),
                Err(error) => {
                    tracing::warn!(pod = pod.full_name(), secret = name, %error, "not a pull secret");
                    offers.missing.push(name.clone());
                }
            },
            Ok(None) => offers.missing.push(name.clone()),
            Err(error) => {
                tracing::warn!(pod = pod.full_name(), %error, "a pull secret cannot be read");
                offers.missing.push(name.clone());
            }
        }
    }
    let image = with_host(image);
    found.retain(|(address, _)| fits(address, &image));
    // As upstream: reverse order of the addresses puts the longer path first.
    found.sort_by(|(a, _), (b, _)| b.cmp(a));
    offers.auths = found.into_iter().map(|(_, auth)| auth).collect();
    offers
}

/// Why a secret holds no credentials; its content is not told.
#[derive(Debug, thiserror::Error)]
enum SecretError {
    #[error("secrets of type {0:?} hold no registry credentials")]
    Kind(String),
    #[error("the key {0} is missing")]
    NoKey(&'static str),
    #[error("the value of {0} is not what docker writes")]
    Format(&'static str),
}

fn entries(secret: &Secret) -> Result<BTreeMap<String, Entry>, SecretError> {
    let value = |key: &'static str| secret.data.get(key).ok_or(SecretError::NoKey(key));
    match secret.kind.as_str() {
        "kubernetes.io/dockerconfigjson" => {
            let key = ".dockerconfigjson";
            let config: DockerConfig =
                serde_json::from_slice(value(key)?).map_err(|_| SecretError::Format(key))?;
            Ok(config.auths)
        }
        "kubernetes.io/dockercfg" => {
            let key = ".dockercfg";
            serde_json::from_slice(value(key)?).map_err(|_| SecretError::Format(key))
        }
        other => Err(SecretError::Kind(other.to_owned())),
    }
}

/// The address as it is compared, and what the runtime is given.
fn auth(key: String, entry: Entry) -> (String, RegistryAuth) {
    let plain = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")).unwrap_or(&key);
    // Docker's own addresses have the API's version at the end.
    let plain = plain.trim_end_matches('/');
    let address = match plain.split_once('/') {
        Some((host, "v1" | "v2")) => host,
        _ => plain,
    };
    let address = address.to_owned();
    let auth = RegistryAuth {
        username: entry.username,
        password: entry.password,
        auth: entry.auth,
        server_address: key,
        identity_token: entry.identitytoken,
        registry_token: entry.registrytoken,
    };
    (address, auth)
}

/// The image's name with its host, without tag and digest.
fn with_host(image: &str) -> String {
    let name = image.split('@').next().unwrap_or(image);
    let leaf = name.rfind('/').map_or(0, |slash| slash + 1);
    let end = name.get(leaf..).and_then(|rest| rest.find(':')).map_or(name.len(), |colon| leaf + colon);
    let name = name.get(..end).unwrap_or(name);
    match name.split_once('/') {
        Some(("docker.io", rest)) => with_host(rest),
        Some((first, _)) if first.contains(['.', ':']) || first == "localhost" => name.to_owned(),
        Some(_) => format!("{DEFAULT_HOST}/{name}"),
        None => format!("{DEFAULT_HOST}/{DEFAULT_PREFIX}/{name}"),
    }
}

/// Each part of the host by its own pattern, the port exactly, the path by its beginning.
fn fits(address: &str, image: &str) -> bool {
    let split = |text: &str| {
        let (host, path) = text.split_once('/').unwrap_or((text, ""));
        (host.to_owned(), path.to_owned())
    };
    let ((wanted, prefix), (host, path)) = (split(address), split(image));
    let wanted = if wanted == "docker.io" { DEFAULT_HOST.to_owned() } else { wanted };
    let port = |host: &str| host.rsplit_once(':').map(|(_, port)| port.to_owned());
    let name = |host: &str| host.rsplit_once(':').map_or(host.to_owned(), |(name, _)| name.to_owned());
    if port(&wanted) != port(&host) || !path.starts_with(&prefix) {
        return false;
    }
    let (patterns, parts) = (name(&wanted), name(&host));
    let (patterns, parts): (Vec<_>, Vec<_>) = (patterns.split('.').collect(), parts.split('.').collect());
    patterns.len() == parts.len() && patterns.iter().zip(parts).all(|(pattern, part)| glob(pattern, part))
}

/// `*` stands for any number of characters, `?` for one.
fn glob(pattern: &str, text: &str) -> bool {
    let mut rest = text;
    let mut pieces = pattern.split('*');
    let first = pieces.next().unwrap_or_default();
    let Some(after) = strip(first, rest) else { return false };
    rest = after;
    let pieces: Vec<&str> = pieces.collect();
    let Some((last, middle)) = pieces.split_last() else { return rest.is_empty() };
    for piece in middle {
        let Some(after) = (0..=rest.len()).find_map(|at| strip(piece, rest.get(at..)?)) else { return false };
        rest = after;
    }
    rest.len() >= last.len()
        && rest.get(rest.len() - last.len()..).is_some_and(|end| strip(last, end) == Some(""))
}

/// The text after the piece, in which `?` fits any character.
fn strip<'a>(piece: &str, text: &'a str) -> Option<&'a str> {
    let (head, tail) = text.split_at_checked(piece.len())?;
    let same = piece.bytes().zip(head.bytes()).all(|(wanted, byte)| wanted == b'?' || wanted == byte);
    same.then_some(tail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::fake::FakeApi;
    use crate::pod::tests::pod;

    #[test]
    fn addresses_fit_as_in_kubernetes() {
        for (address, image, expected) in [
            ("reg.io", "reg.io/a/b:v1", true),
            ("reg.io", "reg.io:5000/a", false),
            ("reg.io:5000", "reg.io:5000/a", true),
            ("reg.io/a", "reg.io/a/b", true),
            ("reg.io/b", "reg.io/a/b", false),
            ("*.reg.io", "x.reg.io/a", true),
            ("*.reg.io", "x.y.reg.io/a", false),
            ("p*x.reg.io", "prefix.reg.io/a", true),
            ("p?x.reg.io", "prefix.reg.io/a", false),
            ("docker.io", "busybox", true),
            ("index.docker.io", "docker.io/library/busybox@sha256:0", true),
            ("127.0.0.1:5000", "127.0.0.1:5000/web:v1", true),
        ] {
            assert_eq!(fits(address, &with_host(image)), expected, "{address} {image}");
        }
        assert_eq!(with_host("a/b:c"), "index.docker.io/a/b");
    }

    #[tokio::test]
    async fn the_most_specific_credentials_come_first_and_missing_secrets_are_told() {
        let api = FakeApi::default();
        let config = r#"{"auths": {"https://reg.io/v2/": {"username": "all", "password": "p"},
            "reg.io/team": {"auth": "dGVhbTpw"}, "other.io": {"username": "x"}}, "credsStore": "none"}"#;
        api.put_secret("new", "kubernetes.io/dockerconfigjson", &[(".dockerconfigjson", config)]);
        api.put_secret(
            "old",
            "kubernetes.io/dockercfg",
            &[(".dockercfg", r#"{"reg.io": {"identitytoken": "t"}}"#)],
        );
        api.put_secret("wrong", "Opaque", &[("a", "b")]);
        let names = ["new", "old", "wrong", "none"];
        let pod = Pod { pull_secrets: names.map(str::to_owned).to_vec(), ..pod() };
        let offers = offers(&api, &pod, "reg.io/team/web:v1").await;
        assert_eq!(offers.missing, ["wrong", "none"]);
        let seen: Vec<_> = offers
            .auths
            .iter()
            .map(|a| (a.username.as_str(), a.auth.as_str(), a.identity_token.as_str()))
            .collect();
        assert_eq!(seen, [("", "dGVhbTpw", ""), ("all", "", ""), ("", "", "t")]);
        assert_eq!(offers.auths.get(1).unwrap().server_address, "https://reg.io/v2/");
    }
}
