//! kubeconfig files: how to reach an API server, and as whom. Owns how they are read and written,
//! and what in them is refused; never a connection. Called by the wiring and by bootstrap.

mod proxy;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Uri;
use serde::Deserialize;
use serde_json::{Value, json};

pub use self::proxy::{Proxy, ProxyScheme};
use super::exec::{Program, config};
use super::pair::Pair;
use super::store;

/// Where an API server is, and who we are to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// With a scheme and a host.
    pub server: Uri,
    /// The name in its certificate, when it is not that of the URL.
    pub server_name: Option<String>,
    /// Who signs its certificate.
    pub trust: Trust,
    /// What stands before it.
    pub proxy: Option<Proxy>,
    /// How we say who we are.
    pub user: User,
}

/// Who signs the certificate of an API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trust {
    /// Whom the system trusts.
    System,
    /// The certificates of this file; it may change.
    File(PathBuf),
    /// These, in PEM.
    Data(Vec<u8>),
    /// Anybody.
    Anybody,
}

/// How we say who we are; the certificate and one of the others may stand together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct User {
    /// A client certificate with its key.
    pub certificate: Option<Certificate>,
    /// What the Authorization header says.
    pub authorization: Option<Authorization>,
}

/// Where a client certificate is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Certificate {
    Files { certificate: PathBuf, key: PathBuf },
    Data { certificate: Vec<u8>, key: Vec<u8> },
}

/// What the Authorization header says.
#[derive(Clone, PartialEq, Eq)]
pub enum Authorization {
    /// Always this.
    Header(String),
    /// The token of this file; it may change.
    TokenFile(PathBuf),
    /// What this program says; it may give a client certificate, too.
    Program(Arc<Program>),
}

impl std::fmt::Debug for Authorization {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Header(_) => f.write_str("Header(<masked>)"),
            Self::TokenFile(path) => f.debug_tuple("TokenFile").field(path).finish(),
            Self::Program(program) => f.debug_tuple("Program").field(program).finish(),
        }
    }
}

/// Why a file is of no use.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} is no kubeconfig", path.display())]
    Parse {
        path: PathBuf,
        #[source]
        source: Box<serde_saphyr::Error>,
    },
    #[error("{}: {problem}", path.display())]
    Content { path: PathBuf, problem: String },
    #[error("write {}", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: store::Error,
    },
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct File {
    clusters: Vec<Named>,
    users: Vec<Named>,
    contexts: Vec<Named>,
    current_context: String,
}

/// Three lists of the file, each entry under a name.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
struct Named {
    name: String,
    cluster: Option<Value>,
    user: Option<Value>,
    context: Option<Value>,
}

/// What of a user is not done, and what to do instead.
const REFUSED_USER: [(&str, &str); 5] = [
    ("auth-provider", "give the kubelet a certificate, a token, or a program in exec"),
    ("as", "the kubelet speaks for itself alone"),
    ("as-uid", "the kubelet speaks for itself alone"),
    ("as-groups", "the kubelet speaks for itself alone"),
    ("as-user-extra", "the kubelet speaks for itself alone"),
];

/// Reads the current context of a file; paths in it are seen from its folder.
///
/// # Errors
/// When it cannot be read, or says too little, or what is not done.
pub fn read(path: &Path) -> Result<Access, Error> {
    let text = fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    parse(&text, path)
}

/// The same of a text that is, or would be, at `path`.
///
/// # Errors
/// As [`read`].
pub fn parse(text: &str, path: &Path) -> Result<Access, Error> {
    let file: File = serde_saphyr::from_str(text)
        .map_err(|source| Error::Parse { path: path.to_owned(), source: Box::new(source) })?;
    let folder = path.parent().unwrap_or(Path::new("."));
    access(file, folder).map_err(|problem| Error::Content { path: path.to_owned(), problem })
}

fn find_named(list: Vec<Named>, what: &str, name: &str) -> Result<Named, String> {
    list.into_iter().find(|entry| entry.name == name).ok_or_else(|| format!("{what} {name:?} does not exist"))
}

fn access(file: File, folder: &Path) -> Result<Access, String> {
    if file.current_context.is_empty() {
        return Err("no current-context is set".to_owned());
    }
    let context = find_named(file.contexts, "context", &file.current_context)?.context.unwrap_or_default();
    let name = |key: &str| context.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let cluster = find_named(file.clusters, "cluster", &name("cluster"))?.cluster.unwrap_or_default();
    let user_name = name("user");
    let user = match user_name.as_str() {
        "" => Value::Null,
        user => find_named(file.users, "user", user)?.user.unwrap_or_default(),
    };
    let text =
        |value: &Value, key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let proxy = Some(text(&cluster, "proxy-url")).filter(|url| !url.is_empty());
    for (key, remedy) in REFUSED_USER {
        if user.get(key).is_some_and(|value| !value.is_null()) {
            return Err(format!("{key} of a user is not supported: {remedy}"));
        }
    }
    let program = config::parse(&user, &cluster, &user_name, folder)?;
    // As upstream: what the file itself says is not asked for.
    let authorization = authorization(&user, folder)
        .or_else(|| program.map(|config| Authorization::Program(Arc::new(Program::new(config)))));
    let server = text(&cluster, "server");
    let server: Uri = server.parse().map_err(|e| format!("server {server:?}: {e}"))?;
    if server.host().is_none() || !matches!(server.scheme_str(), Some("https" | "http")) {
        return Err(format!("server {server:?} must be a URL, as in https://host:6443"));
    }
    Ok(Access {
        server,
        server_name: Some(text(&cluster, "tls-server-name")).filter(|name| !name.is_empty()),
        trust: trust(&cluster, folder)?,
        proxy: proxy.map(|url| Proxy::parse(&url)).transpose()?,
        user: User { certificate: certificate(&user, folder)?, authorization },
    })
}

fn data(value: &Value, key: &str) -> Result<Option<Vec<u8>>, String> {
    match value.get(key).and_then(Value::as_str).filter(|text| !text.is_empty()) {
        Some(text) => STANDARD.decode(text.trim()).map(Some).map_err(|e| format!("{key}: {e}")),
        None => Ok(None),
    }
}

fn file(value: &Value, key: &str, folder: &Path) -> Option<PathBuf> {
    value.get(key).and_then(Value::as_str).filter(|text| !text.is_empty()).map(|text| folder.join(text))
}

fn trust(cluster: &Value, folder: &Path) -> Result<Trust, String> {
    let insecure = cluster.get("insecure-skip-tls-verify").and_then(Value::as_bool).unwrap_or(false);
    let given = match (
        data(cluster, "certificate-authority-data")?,
        file(cluster, "certificate-authority", folder),
    ) {
        (Some(data), _) => Some(Trust::Data(data)),
        (None, Some(path)) => Some(Trust::File(path)),
        (None, None) => None,
    };
    match (insecure, given) {
        (true, Some(_)) => {
            Err("specifying a root certificates file with the insecure flag is not allowed".to_owned())
        }
        (true, None) => Ok(Trust::Anybody),
        (false, given) => Ok(given.unwrap_or(Trust::System)),
    }
}

fn certificate(user: &Value, folder: &Path) -> Result<Option<Certificate>, String> {
    let given = (data(user, "client-certificate-data")?, data(user, "client-key-data")?);
    let files = (file(user, "client-certificate", folder), file(user, "client-key", folder));
    match (given, files) {
        ((Some(certificate), Some(key)), _) => Ok(Some(Certificate::Data { certificate, key })),
        ((None, None), (Some(certificate), Some(key))) => Ok(Some(Certificate::Files { certificate, key })),
        ((None, None), (None, None)) => Ok(None),
        _ => Err("client-certificate and client-key must both be given, and in the same way".to_owned()),
    }
}

fn authorization(user: &Value, folder: &Path) -> Option<Authorization> {
    let text = |key: &str| user.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    if let Some(path) = file(user, "tokenFile", folder) {
        return Some(Authorization::TokenFile(path));
    }
    if let Some(token) = text("token") {
        return Some(Authorization::Header(format!("Bearer {token}")));
    }
    let password = text("password").unwrap_or_default();
    text("username")
        .map(|name| Authorization::Header(format!("Basic {}", STANDARD.encode(format!("{name}:{password}")))))
}

impl Certificate {
    /// Reads it.
    ///
    /// # Errors
    /// When a file is missing, or what stands there is no pair.
    pub fn load(&self) -> Result<Pair, store::Error> {
        match self {
            Self::Files { certificate, key } => store::load(certificate, key),
            Self::Data { certificate, key } => Pair::parse(certificate, key).map_err(|source| {
                store::Error::Pair { path: PathBuf::from("client-certificate-data"), source }
            }),
        }
    }
}

/// Writes the file of a node that has got its certificate: the server of `access`, and the
/// certificate and key at `pem`.
///
/// # Errors
/// When it cannot be written.
pub fn write(path: &Path, access: &Access, pem: &Path) -> Result<(), Error> {
    // Go's own URL has no slash at its end.
    let server = access.server.to_string();
    let mut cluster = json!({ "server": server.trim_end_matches('/') });
    match &access.trust {
        Trust::System => {}
        Trust::File(path) => cluster["certificate-authority"] = json!(path),
        Trust::Data(data) => cluster["certificate-authority-data"] = STANDARD.encode(data).into(),
        Trust::Anybody => cluster["insecure-skip-tls-verify"] = true.into(),
    }
    if let Some(name) = &access.server_name {
        cluster["tls-server-name"] = name.as_str().into();
    }
    if let Some(proxy) = &access.proxy {
        cluster["proxy-url"] = proxy.given.as_str().into();
    }
    // JSON is YAML; every client reads it.
    let file = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "default-cluster", "cluster": cluster }],
        "users": [{ "name": "default-auth", "user": { "client-certificate": pem, "client-key": pem } }],
        "contexts": [{
            "name": "default-context",
            "context": { "cluster": "default-cluster", "namespace": "default", "user": "default-auth" },
        }],
        "current-context": "default-context",
    });
    let text = serde_saphyr::to_string(&file).unwrap_or_else(|_| file.to_string());
    store::replace(path, text.as_bytes(), 0o600)
        .map_err(|source| Error::Write { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests;
