//! What `gantry-unpack` tells the runtime when it is done: one JSON document. Owns its form; the runtime
//! believes of it only what cannot harm: numbers that are shown, and paths that it opens beneath the
//! layer's own folder.

use gantry_base::error::chain;
use serde::{Deserialize, Serialize};

use crate::error::{UnpackError, UnpackErrorKind};

/// What came out.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct UnpackReport {
    /// Directories that had to be made without an entry of their own; the root is "".
    #[serde(with = "paths")]
    pub implied: Vec<Vec<u8>>,
    /// Directories that hide what lower layers have in them: the runtime marks them, since the mark is
    /// an xattr that only CAP_SYS_ADMIN may set.
    #[serde(with = "paths")]
    pub opaque: Vec<Vec<u8>>,
    /// Of the archive.
    pub entries: u64,
    /// In files.
    pub bytes: u64,
    /// The layer hides all layers below it.
    pub opaque_root: bool,
    /// A later entry took the place of an earlier one: the files in the folder may have less than `bytes`.
    #[serde(default)]
    pub replaced: bool,
}

/// Why a layer was not unpacked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct UnpackRefusal {
    /// Who is to blame.
    pub kind: UnpackErrorKind,
    /// The steps, outermost first.
    pub message: String,
}

/// The document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum UnpackVerdict {
    /// All is in the folder.
    Unpacked(UnpackReport),
    /// The folder is good for nothing.
    Refused(UnpackRefusal),
}

impl From<Result<UnpackReport, UnpackError>> for UnpackVerdict {
    fn from(result: Result<UnpackReport, UnpackError>) -> Self {
        match result {
            Ok(report) => Self::Unpacked(report),
            Err(error) => Self::Refused(UnpackRefusal::from(&error)),
        }
    }
}

impl From<&UnpackError> for UnpackRefusal {
    fn from(error: &UnpackError) -> Self {
        Self { kind: error.kind(), message: chain(error) }
    }
}

/// A path as text: what is not printable ASCII, and `%`, becomes `%XX`.
#[must_use]
pub fn escape(path: &[u8]) -> String {
    path.iter().fold(String::with_capacity(path.len()), |mut text, byte| {
        if (b' '..=b'~').contains(byte) && *byte != b'%' {
            text.push(char::from(*byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
        text
    })
}

/// The path of [`escape`]'s text.
#[must_use]
pub fn unescape(text: &str) -> Vec<u8> {
    let mut path = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        let code = after.get(..2).and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(code) if *byte == b'%' => {
                path.push(code);
                rest = &after[2..];
            }
            _ => {
                path.push(*byte);
                rest = after;
            }
        }
    }
    path
}

mod paths {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(paths: &[Vec<u8>], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(paths.iter().map(|path| super::escape(path)))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Vec<u8>>, D::Error> {
        let paths = Vec::<String>::deserialize(from)?;
        Ok(paths.iter().map(|path| super::unescape(path)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_path_survives_escaping() {
        let all: Vec<u8> = (1..=255).collect();
        for path in [&b"usr/share/x"[..], b"", b"100%", b"%41", b"caf\xc3\xa9/\xff\n", &all] {
            assert_eq!(unescape(&escape(path)), path, "{path:?}");
            assert!(escape(path).is_ascii());
        }
    }

    #[test]
    fn a_verdict_survives_the_pipe() {
        let report = UnpackReport {
            implied: vec![b"".to_vec(), b"a\xff".to_vec()],
            entries: 3,
            ..UnpackReport::default()
        };
        let refused = UnpackError::Climbs { path: "../x".into() };
        for verdict in [UnpackVerdict::Unpacked(report), UnpackVerdict::from(Err(refused))] {
            let text = serde_json::to_vec(&verdict).unwrap();
            assert_eq!(serde_json::from_slice::<UnpackVerdict>(&text).unwrap(), verdict);
        }
    }
}
