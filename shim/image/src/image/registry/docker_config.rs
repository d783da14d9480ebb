//! The node's own credentials in docker's `config.json`. Owns reading the file and finding a host in it;
//! runs no credential helper. Called by `registry` for each pull, so that a login needs no restart.

pub(super) mod edit;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;

use crate::image::auth::{Auth, AuthError, Credentials};

/// Why the credentials can't be had.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DockerConfigError {
    /// The file is there and can't be read.
    #[error("read {path}", path = path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: Arc<io::Error>,
    },
    /// No JSON of its form. The text is not repeated: it may hold passwords.
    #[error("{path} is not a docker config.json: line {line}", path = path.display())]
    Parse { path: PathBuf, line: usize },
    /// The password is with a program that is not run.
    #[error(
        "{path} leaves this host to the credential helper {helper:?}, which gantry does not run: \
         log in with the password in \"auths\", or use an imagePullSecret",
        path = path.display()
    )]
    Helper { path: PathBuf, helper: String },
    /// What stands there for the host is of no use.
    #[error("{path}", path = path.display())]
    Auth {
        path: PathBuf,
        #[source]
        source: AuthError,
    },
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct DockerConfigFile {
    auths: BTreeMap<String, AuthEntry>,
    cred_helpers: BTreeMap<String, String>,
    creds_store: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AuthEntry {
    auth: String,
    username: String,
    password: String,
    identitytoken: String,
    registrytoken: String,
}

/// What the file has for `host` (with its port); anonymous without a file or an entry.
pub(super) fn credentials(path: &Path, host: &str) -> Result<Credentials, DockerConfigError> {
    let text = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Credentials::Anonymous),
        read => read
            .map_err(|source| DockerConfigError::Read { path: path.to_owned(), source: Arc::new(source) })?,
    };
    let file: DockerConfigFile = serde_json::from_slice(&text)
        .map_err(|error| DockerConfigError::Parse { path: path.to_owned(), line: error.line() })?;
    let refuse =
        |helper: &str| Err(DockerConfigError::Helper { path: path.to_owned(), helper: helper.to_owned() });
    if let Some((_, helper)) = file.cred_helpers.iter().find(|(own, _)| names(own) == names(host)) {
        return refuse(helper);
    }
    let Some((_, entry)) = file.auths.into_iter().find(|(own, _)| names(own) == names(host)) else {
        return Ok(Credentials::Anonymous);
    };
    let auth = Auth {
        username: entry.username,
        password: entry.password,
        auth: entry.auth,
        server_address: String::new(),
        identity_token: entry.identitytoken,
        registry_token: entry.registrytoken,
    };
    // Docker leaves an empty entry for what its store has.
    if auth == Auth::default() && !file.creds_store.is_empty() {
        return refuse(&file.creds_store);
    }
    auth.credentials_for(host).map_err(|source| DockerConfigError::Auth { path: path.to_owned(), source })
}

/// The host of `https://index.docker.io/v1/`, `host:5000`, `http://host`; Docker Hub by one name.
pub(super) fn names(entry: &str) -> String {
    let rest = entry.split_once("://").map_or(entry, |(_, rest)| rest);
    match rest.split('/').next().unwrap_or_default().to_ascii_lowercase().as_str() {
        "index.docker.io" | "registry-1.docker.io" => "docker.io".to_owned(),
        host => host.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(text: &str, host: &str) -> Result<Credentials, DockerConfigError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        fs::write(&path, text).unwrap();
        credentials(&path, host)
    }

    const CONFIG: &str = r#"{
        "auths": {
            "https://index.docker.io/v1/": {"auth": "dXNlcjpwYXNz"},
            "host:5000": {"username": "u", "password": "p"},
            "token.example": {"identitytoken": "t"},
            "stored.example": {}
        },
        "credHelpers": {"aws.example": "ecr-login"},
        "credsStore": "desktop"
    }"#;

    #[test]
    fn hosts_are_found_by_name_and_port_and_nobody_elses() {
        let basic = |username: &str, password: &str| Credentials::Basic {
            username: username.into(),
            password: password.into(),
        };
        assert_eq!(find(CONFIG, "docker.io").unwrap(), basic("user", "pass"));
        assert_eq!(find(CONFIG, "host:5000").unwrap(), basic("u", "p"));
        assert_eq!(find(CONFIG, "token.example").unwrap(), Credentials::Refresh("t".into()));
        for other in ["host", "host:5001", "host:5000.evil", "docker.io.evil"] {
            assert_eq!(find(CONFIG, other).unwrap(), Credentials::Anonymous, "{other}");
        }
        assert_eq!(credentials(Path::new("/no/such/file"), "h").unwrap(), Credentials::Anonymous);
    }

    #[test]
    fn helpers_are_refused_by_name_and_passwords_never_printed() {
        for (host, helper) in [("aws.example", "ecr-login"), ("stored.example", "desktop")] {
            let error = find(CONFIG, host).unwrap_err().to_string();
            assert!(error.contains(helper), "{error}");
        }
        let error = find(r#"{"auths": {"h": {"password": hunter2}}}"#, "h").unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    }
}
