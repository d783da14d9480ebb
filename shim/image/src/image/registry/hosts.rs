//! Where a registry's images come from: `hosts.toml` and certificates in containerd's `certs.d` layout
//! (containerd docs/hosts.md). Owns finding and reading those files; sends nothing. A file that does
//! not parse is an error and never passed over: the mirror or CA in it was meant. Called by `registry`
//! for each pull, so that a change needs no restart.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use reqwest::Url;
use serde::Deserialize;

/// Why a registry's configuration can't be used.
#[derive(Debug, Clone, thiserror::Error)]
pub enum HostsError {
    /// A file or folder that can't be read.
    #[error("read {path}", path = path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: Arc<io::Error>,
    },
    /// No TOML, or a value of the wrong type.
    #[error("{path} does not parse: {detail}", path = path.display())]
    Parse { path: PathBuf, detail: String },
    /// A value that makes no sense.
    #[error("{path}: {key}: {detail}", path = path.display())]
    Value { path: PathBuf, key: String, detail: String },
}

/// One place to ask, in the order of asking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Host {
    /// Scheme, host, port and the path that the API's own paths go below, with a slash at its end.
    pub(crate) base: Url,
    /// The registry's own server, not a mirror: the pull's credentials are for it.
    pub(crate) own: bool,
    /// May be asked what a tag means.
    pub(crate) resolve: bool,
    /// May be asked for bytes by digest.
    pub(crate) pull: bool,
    pub(crate) headers: HeaderMap,
    pub(crate) tls: Tls,
    pub(crate) dial_timeout: Option<Duration>,
}

/// How to trust a server and be trusted by it: the files' contents.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Tls {
    /// PEM, beside the system's own.
    pub(crate) authorities: Vec<Vec<u8>>,
    /// PEM of certificate and key together.
    pub(crate) client: Option<Vec<u8>>,
    pub(crate) skip_verify: bool,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A client's key is in it.
        f.debug_struct("Tls").field("skip_verify", &self.skip_verify).finish_non_exhaustive()
    }
}

/// A `hosts.toml` being read: what errors name, and what its relative paths start from.
struct HostsFile<'a> {
    path: &'a Path,
    folder: &'a Path,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct HostSection {
    capabilities: Vec<String>,
    ca: Option<OneOrMany>,
    client: Option<Clients>,
    skip_verify: bool,
    header: std::collections::BTreeMap<String, OneOrMany>,
    override_path: bool,
    dial_timeout: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Clients {
    Files(OneOrMany),
    Pairs(Vec<(String, String)>),
}

impl OneOrMany {
    fn all(&self) -> &[String] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }
}

/// The places to ask for images of `domain`, its own server last.
///
/// # Errors
/// [`HostsError`], naming the file and the key.
pub(crate) fn of_registry(
    folder: Option<&Path>,
    domain: &str,
    default: &Url,
) -> Result<Vec<Host>, HostsError> {
    let own = Host {
        base: default.clone(),
        own: true,
        resolve: true,
        pull: true,
        headers: HeaderMap::new(),
        tls: Tls::default(),
        dial_timeout: None,
    };
    let Some(found) = folder.and_then(|folder| find(folder, domain)) else { return Ok(vec![own]) };
    let path = found.join("hosts.toml");
    match fs::read_to_string(&path) {
        Ok(text) if !text.trim().is_empty() => HostsFile { path: &path, folder: &found }.parse(&text, own),
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(HostsError::Read { path, source: Arc::new(source) })
        }
        _ => Ok(vec![Host { tls: docker_layout(&found)?, ..own }]),
    }
}

/// The first of `HOST_PORT_`, `HOST:PORT` and `_default` that is there.
fn find(folder: &Path, domain: &str) -> Option<PathBuf> {
    let portless = domain.rsplit_once(':').map(|(host, port)| format!("{host}_{port}_"));
    let names = portless.as_deref().into_iter().chain([domain, "_default"]);
    names.map(|name| folder.join(name)).find(|path| path.is_dir())
}

impl HostsFile<'_> {
    /// The mirrors in the order of the file, then the server itself.
    fn parse(&self, text: &str, own: Host) -> Result<Vec<Host>, HostsError> {
        let parse = |error: toml::de::Error| self.parse_error(error.to_string());
        let mut table: toml::Table = toml::from_str(text).map_err(parse)?;
        let server = match table.remove("server") {
            None => String::new(),
            Some(toml::Value::String(server)) => server,
            Some(_) => return Err(self.value("server", "want a string")),
        };
        let mirrors = match table.remove("host") {
            None => toml::Table::new(),
            Some(toml::Value::Table(mirrors)) => mirrors,
            Some(_) => return Err(self.value("host", "want tables [host.\"URL\"]")),
        };
        let mut hosts = Vec::new();
        for (name, section) in mirrors {
            let key = format!("host.{name:?}");
            let toml::Value::Table(section) = section else { return Err(self.value(&key, "want a table")) };
            let section = self.section(&key, section)?;
            let base = self.base(&key, &name, section.override_path)?;
            hosts.push(self.host(&key, &section, Host { base, own: false, ..own.clone() })?);
        }
        let section = self.section("the server", table)?;
        let base = match server.as_str() {
            "" => own.base.clone(),
            server => self.base("server", server, section.override_path)?,
        };
        hosts.push(self.host("the server", &section, Host { base, ..own })?);
        Ok(hosts)
    }

    fn section(&self, key: &str, table: toml::Table) -> Result<HostSection, HostsError> {
        const KNOWN: [&str; 7] =
            ["capabilities", "ca", "client", "skip_verify", "header", "override_path", "dial_timeout"];
        for unknown in table.keys().filter(|key| !KNOWN.contains(&key.as_str())) {
            // As containerd, whose next version may know it: the file is not ours alone.
            tracing::warn!(file = %self.path.display(), key, unknown, "a key that is not known here");
        }
        HostSection::deserialize(table)
            .map_err(|error| self.parse_error(format!("{key}: {}", error.message())))
    }

    fn host(&self, key: &str, section: &HostSection, host: Host) -> Result<Host, HostsError> {
        let (mut resolve, mut pull) = (section.capabilities.is_empty(), section.capabilities.is_empty());
        for capability in &section.capabilities {
            match capability.to_ascii_lowercase().as_str() {
                "resolve" => resolve = true,
                "pull" => pull = true,
                "push" | "referrers" => {}
                other => return Err(self.value(key, &format!("unknown capability {other:?}"))),
            }
        }
        let mut headers = HeaderMap::new();
        for (name, values) in &section.header {
            for value in values.all() {
                let bad = || self.value(key, &format!("header {name:?} can't be sent"));
                let name: HeaderName = name.parse().map_err(|_| bad())?;
                headers.append(name, HeaderValue::from_str(value).map_err(|_| bad())?);
            }
        }
        let dial_timeout = section.dial_timeout.as_deref().map(|text| {
            go_duration(text)
                .ok_or_else(|| self.value(key, &format!("dial_timeout {text:?}: want one like \"3s\"")))
        });
        Ok(Host {
            resolve,
            pull,
            headers,
            tls: self.tls(key, section)?,
            dial_timeout: dial_timeout.transpose()?,
            ..host
        })
    }

    fn tls(&self, key: &str, section: &HostSection) -> Result<Tls, HostsError> {
        let authorities = section.ca.iter().flat_map(OneOrMany::all);
        let authorities = authorities.map(|file| read(&self.folder.join(file))).collect::<Result<_, _>>()?;
        let pairs: Vec<(PathBuf, Option<PathBuf>)> = match &section.client {
            None => Vec::new(),
            Some(Clients::Files(files)) => {
                files.all().iter().map(|file| (self.folder.join(file), None)).collect()
            }
            Some(Clients::Pairs(pairs)) => pairs
                .iter()
                .map(|(certificate, secret)| (self.folder.join(certificate), Some(self.folder.join(secret))))
                .collect(),
        };
        let client = match pairs.as_slice() {
            [] => None,
            [(certificate, secret)] => Some(identity(certificate, secret.as_deref())?),
            _ => {
                return Err(
                    self.value(key, "several client certificates: name the one that this server wants")
                );
            }
        };
        Ok(Tls { authorities, client, skip_verify: section.skip_verify })
    }

    /// The URL that API paths go below. `/v2` is the API's own root, unless the path says another.
    fn base(&self, key: &str, text: &str, override_path: bool) -> Result<Url, HostsError> {
        let bad = |detail: &str| self.value(key, &format!("{text:?}: {detail}"));
        let full = if text.contains("://") { text.to_owned() } else { format!("https://{text}") };
        let mut url = Url::parse(&full).map_err(|_| bad("not a URL"))?;
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none_or(str::is_empty) {
            return Err(bad("want http:// or https:// and a host"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(bad("credentials belong into the pull or into config.json, not into a URL"));
        }
        let mut path = url.path().trim_end_matches('/').to_owned();
        if !path.ends_with("/v2") && !override_path {
            path.push_str("/v2");
        }
        url.set_path(&format!("{path}/"));
        // Nothing of the API's: containerd leaves them out as well.
        url.set_query(None);
        url.set_fragment(None);
        Ok(url)
    }

    fn parse_error(&self, detail: String) -> HostsError {
        HostsError::Parse { path: self.path.to_owned(), detail }
    }

    fn value(&self, key: &str, detail: &str) -> HostsError {
        HostsError::Value { path: self.path.to_owned(), key: key.to_owned(), detail: detail.to_owned() }
    }
}

/// Docker's layout: `*.crt` are authorities, `*.cert` with `*.key` is the client.
fn docker_layout(folder: &Path) -> Result<Tls, HostsError> {
    let fail = |source: io::Error| HostsError::Read { path: folder.to_owned(), source: Arc::new(source) };
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(folder).map_err(fail)? {
        files.push(entry.map_err(fail)?.path());
    }
    files.sort();
    let ends =
        |path: &Path, ending: &str| path.extension().is_some_and(|own| own == ending) && path.is_file();
    let mut tls = Tls::default();
    for file in &files {
        if ends(file, "crt") {
            tls.authorities.push(read(file)?);
        } else if ends(file, "cert") && tls.client.is_none() {
            let secret = file.with_extension("key");
            tls.client = Some(identity(file, secret.is_file().then_some(secret.as_path()))?);
        }
    }
    Ok(tls)
}

fn identity(certificate: &Path, secret: Option<&Path>) -> Result<Vec<u8>, HostsError> {
    let mut pem = read(certificate)?;
    if let Some(secret) = secret {
        pem.push(b'\n');
        pem.extend(read(secret)?);
    }
    Ok(pem)
}

fn read(path: &Path) -> Result<Vec<u8>, HostsError> {
    fs::read(path).map_err(|source| HostsError::Read { path: path.to_owned(), source: Arc::new(source) })
}

/// Go's durations, as far as a dial timeout needs them: whole numbers with h, m, s or ms.
fn go_duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut all = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|letter: char| !letter.is_ascii_digit())?;
        let number: u64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let letters = rest.find(|letter: char| letter.is_ascii_digit()).unwrap_or(rest.len());
        let part = match &rest[..letters] {
            "h" => Duration::from_secs(number.checked_mul(3600)?),
            "m" => Duration::from_secs(number.checked_mul(60)?),
            "s" => Duration::from_secs(number),
            "ms" => Duration::from_millis(number),
            _ => return None,
        };
        all = all.checked_add(part)?;
        rest = &rest[letters..];
    }
    (!text.is_empty()).then_some(all)
}

#[cfg(test)]
mod tests;
