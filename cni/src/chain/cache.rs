//! Results of ADD on disk, in libcni's own format (`cniCacheV1`), under its own file names.
//!
//! Owns the files `<network>-<container id>-<interface>` of the cache's folder: other tools look there, and a runtime
//! that takes the node over needs them for DEL. Never decides what is in a result. Called by the chain.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{Attachment, Conflist};
use crate::result::CniResult;

/// Why a result could not be cached, or its file not removed.
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
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Cached<'a> {
    kind: &'static str,
    container_id: &'a str,
    /// The list's JSON; Go writes bytes as base64.
    config: String,
    if_name: &'a str,
    network_name: &'a str,
    netns: String,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    cni_args: &'a [(String, String)],
    result: &'a CniResult,
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
    // A network's name begins with a letter or digit, so no result's file has a draft's name.
    let draft = dir.join(format!(".draft-{}-{}", attachment.container_id, attachment.ifname));
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

/// Removes a result's file; its absence is fine.
pub(super) fn remove(dir: &Path, network: &str, attachment: &Attachment<'_>) -> Result<(), Error> {
    let path = file(dir, network, attachment);
    match std::fs::remove_file(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(Error::Remove { path, source }),
        _ => Ok(()),
    }
}

fn file(dir: &Path, network: &str, attachment: &Attachment<'_>) -> PathBuf {
    dir.join(format!("{network}-{}-{}", attachment.container_id, attachment.ifname))
}

fn encode(
    list: &Conflist,
    attachment: &Attachment<'_>,
    result: &CniResult,
) -> Result<Vec<u8>, serde_json::Error> {
    serde_json::to_vec(&Cached {
        kind: "cniCacheV1",
        container_id: attachment.container_id,
        config: base64(&serde_json::to_vec(list.raw())?),
        if_name: attachment.ifname,
        network_name: list.name(),
        netns: attachment.netns.to_string_lossy().into_owned(),
        cni_args: &attachment.args,
        result,
    })
}

/// RFC 4648 §4, with padding. The only use of base64 here, so no crate for it.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
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
        }
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
                "cniArgs": [["K8S_POD_NAME", "web"]], "result": {"cniVersion": "1.0.0"},
                "config": base64(serde_json::to_string(list.raw()).unwrap().as_bytes()),
            })
        );
        assert_eq!(results.read_dir().unwrap().count(), 1, "no draft stays");
        remove(&results, "a", &attachment).unwrap();
        remove(&results, "a", &attachment).unwrap();
        assert_eq!(results.read_dir().unwrap().count(), 0);
    }
}
