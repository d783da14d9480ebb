//! Results of ADD on disk, in libcni's own format (`cniCacheV1`), under its own file names.
//!
//! Owns the files `<network>-<container id>-<interface>` of the cache's folder: other tools look there, and a runtime
//! that takes the node over needs them for DEL. Never decides what is in a result. Called by the chain.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use std::collections::BTreeMap;

use gantry_base::error::chain;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Attachment, Conflist, ConflistError, ValidAttachment};
use crate::result::CniResult;

const KIND: &str = "cniCacheV1";

/// Why a result could not be cached, its file not read or not removed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot put the result into words")]
    Encode(#[source] serde_json::Error),
    #[error("cannot make folder {path}")]
    Folder {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot write {path}")]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot remove {path}")]
    Remove {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot list {path}")]
    List {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot read {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{path} is no cached result")]
    Parse {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
}

/// An attachment as it lies in the cache.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CachedAttachment {
    kind: String,
    /// The sandbox's id.
    pub container_id: String,
    /// The list's JSON; Go writes bytes as base64.
    config: String,
    /// The interface in the sandbox.
    pub if_name: String,
    /// The network.
    pub network_name: String,
    /// The path of the network namespace.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub netns: String,
    /// `CNI_ARGS` of ADD.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cni_args: Vec<(String, String)>,
    /// Capability arguments of ADD.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub capability_args: BTreeMap<String, Value>,
    #[serde(skip_serializing_if = "Value::is_null")]
    result: Value,
}

impl CachedAttachment {
    /// The attachment as GC names it.
    pub fn attachment(&self) -> ValidAttachment {
        ValidAttachment { container_id: self.container_id.clone(), ifname: self.if_name.clone() }
    }

    /// The configuration that ADD was called with.
    ///
    /// # Errors
    /// When what lies there is none.
    pub fn conflist(&self) -> Result<Conflist, ConflistError> {
        let text = decode_base64(&self.config).unwrap_or_default();
        Conflist::parse(
            &String::from_utf8_lossy(&text),
            &format!("the cache of container {}", self.container_id),
        )
    }

    fn is_whole(&self) -> bool {
        self.kind == KIND
            && !self.container_id.is_empty()
            && !self.if_name.is_empty()
            && !self.network_name.is_empty()
    }
}

/// Every attachment in the cache's folder; files of other forms are passed over, as libcni does.
pub(super) fn attachments(dir: &Path) -> Result<Vec<CachedAttachment>, Error> {
    let failed = |source| Error::List { path: dir.into(), source };
    let entries = match dir.read_dir() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(failed)?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        let is_draft = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        if is_draft || path.is_dir() {
            continue;
        }
        match parse(&path) {
            Ok(Some(cached)) if cached.is_whole() => found.push(cached),
            Ok(_) => {}
            Err(error) => tracing::warn!("{}", chain(&error)),
        }
    }
    found.sort_by(|a, b| (&a.container_id, &a.if_name).cmp(&(&b.container_id, &b.if_name)));
    Ok(found)
}

/// The result that ADD had, in the shape of the list's version; `None` without a file.
pub(super) fn read_result(
    dir: &Path,
    list: &Conflist,
    attachment: &Attachment<'_>,
) -> Result<Option<CniResult>, Error> {
    let path = file(dir, list.name(), attachment);
    let Some(cached) = parse(&path)? else { return Ok(None) };
    let result: CniResult =
        serde_json::from_value(cached.result).map_err(|source| Error::Parse { path, source })?;
    Ok(Some(result.in_version(list.cni_version())))
}

fn parse(path: &Path) -> Result<Option<CachedAttachment>, Error> {
    let bytes = match std::fs::read(path) {
        Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(|source| Error::Read { path: path.into(), source })?,
    };
    serde_json::from_slice(&bytes).map(Some).map_err(|source| Error::Parse { path: path.into(), source })
}

/// Stores a result, all of it or nothing.
pub(super) fn write(
    dir: &Path,
    list: &Conflist,
    attachment: &Attachment<'_>,
    result: &CniResult,
) -> Result<(), Error> {
    let bytes = encode(list, attachment, result).map_err(Error::Encode)?;
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(|source| Error::Folder { path: dir.into(), source })?;
    let path = file(dir, list.name(), attachment);
    let draft = draft(dir, attachment);
    write_draft(&draft, &bytes).and_then(|()| std::fs::rename(&draft, &path)).map_err(|source| {
        if let Err(error) = std::fs::remove_file(&draft) {
            tracing::debug!(draft = %draft.display(), %error, "draft of a cached result left behind");
        }
        Error::Write { path, source }
    })
}

fn write_draft(draft: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(draft)?;
    file.write_all(bytes)
}

/// Removes a result's file, and what an ADD left that was killed before it had its name; their absence is fine.
pub(super) fn remove(dir: &Path, network: &str, attachment: &Attachment<'_>) -> Result<(), Error> {
    for path in [draft(dir, attachment), file(dir, network, attachment)] {
        match std::fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(Error::Remove { path, source });
            }
            _ => {}
        }
    }
    Ok(())
}

/// A network's name begins with a letter or digit, so no result's file has a draft's name.
fn draft(dir: &Path, attachment: &Attachment<'_>) -> PathBuf {
    dir.join(format!(".draft-{}-{}", attachment.container_id, attachment.ifname))
}

fn file(dir: &Path, network: &str, attachment: &Attachment<'_>) -> PathBuf {
    dir.join(format!("{network}-{}-{}", attachment.container_id, attachment.ifname))
}

fn encode(
    list: &Conflist,
    attachment: &Attachment<'_>,
    result: &CniResult,
) -> Result<Vec<u8>, serde_json::Error> {
    serde_json::to_vec(&CachedAttachment {
        kind: KIND.into(),
        container_id: attachment.container_id.into(),
        config: base64(&serde_json::to_vec(list.raw())?),
        if_name: attachment.ifname.into(),
        network_name: list.name().into(),
        netns: attachment.netns.to_string_lossy().into_owned(),
        cni_args: attachment.args.clone(),
        capability_args: attachment.capabilities.clone(),
        result: serde_json::to_value(result)?,
    })
}

/// The letters of RFC 4648 §4. The only use of base64 here, so no crate for it.
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// `None` when the text is no base64.
fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end_matches('=');
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    let (mut group, mut bits) = (0_u32, 0);
    for letter in text.bytes() {
        let digit = ALPHABET.iter().position(|known| *known == letter)?;
        group = group << 6 | u32::try_from(digit).ok()?;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push(u8::try_from(group >> bits & 0xff).ok()?);
        }
    }
    Some(bytes)
}

/// With padding.
fn base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group =
            chunk.iter().fold(0_u32, |group, byte| group << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for digit in 0..4 {
            let index = (group >> (18 - 6 * digit)) & 0x3f;
            let letter = if digit > chunk.len() { b'=' } else { ALPHABET[index as usize] };
            text.push(char::from(letter));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn attachment(netns: &Path) -> Attachment<'_> {
        Attachment {
            container_id: "c1",
            netns,
            ifname: "eth0",
            args: vec![("K8S_POD_NAME".into(), "web".into())],
            capabilities: [("portMappings".to_owned(), json!([{"hostPort": 80}]))].into(),
        }
    }

    #[test]
    fn base64_is_that_of_the_rfc() {
        for (plain, coded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(plain.as_bytes()), coded);
            assert_eq!(decode_base64(coded).unwrap(), plain.as_bytes());
        }
        assert_eq!(decode_base64("Zm9v!"), None);
        assert_eq!(base64(&[0xfb, 0xff, 0xfe]), "+//+");
    }

    #[test]
    fn the_file_is_as_libcni_writes_it() {
        let dir = tempfile::tempdir().unwrap();
        let list =
            Conflist::parse(r#"{"cniVersion":"1.0.0","name":"a","plugins":[{"type":"bridge"}]}"#, "here")
                .unwrap();
        let netns = PathBuf::from("/run/netns/x");
        let attachment = attachment(&netns);
        let result = CniResult::default().in_version("1.0.0");
        let results = dir.path().join("results");
        write(&results, &list, &attachment, &result).unwrap();
        let text = std::fs::read_to_string(results.join("a-c1-eth0")).unwrap();
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            value,
            json!({
                "kind": "cniCacheV1", "containerId": "c1", "ifName": "eth0", "networkName": "a", "netns": "/run/netns/x",
                "cniArgs": [["K8S_POD_NAME", "web"]],
                "capabilityArgs": {"portMappings": [{"hostPort": 80}]}, "result": {"cniVersion": "1.0.0"},
                "config": base64(serde_json::to_string(list.raw()).unwrap().as_bytes()),
            })
        );
        assert_eq!(results.read_dir().unwrap().count(), 1, "no draft stays");
        std::fs::write(results.join("other-file"), "{}").unwrap();
        std::fs::write(results.join("torn-file"), "{").unwrap();
        let found = attachments(&results).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].conflist().unwrap().raw(), list.raw());
        assert_eq!(read_result(&results, &list, &attachment).unwrap().unwrap(), result);
        std::fs::remove_file(results.join("other-file")).unwrap();
        std::fs::remove_file(results.join("torn-file")).unwrap();
        remove(&results, "a", &attachment).unwrap();
        remove(&results, "a", &attachment).unwrap();
        assert_eq!(results.read_dir().unwrap().count(), 0);
    }
}
