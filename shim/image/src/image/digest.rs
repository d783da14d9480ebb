//! SHA-256 digests as registries write them (`sha256:` and 64 hex digits). Owns parsing, printing
//! and the running hash; knows no other algorithm and never reads files or the network. Used by
//! every other file of `image`.

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::digest::{Context, SHA256, digest};

pub(crate) use gantry_unpack::clip;

/// A verified or promised SHA-256.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

/// Why a text is not a digest that can be used here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DigestError {
    /// The text has no `algorithm:hex` form, or the hex is not 64 lower-case digits.
    #[error("{text:?} is not a digest: want sha256: and 64 lower-case hex digits")]
    Malformed { text: String },
    /// A well-formed digest of another algorithm.
    #[error("digest algorithm {algorithm:?} of {text:?} is not supported: use a sha256 digest")]
    Algorithm { algorithm: String, text: String },
}

/// A hash under way.
pub(crate) struct Hasher(Context);

const BASE32: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

impl Digest {
    /// Hashes bytes that are already in memory.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self::from_ring(digest(&SHA256, bytes).as_ref())
    }

    /// The 64 hex digits.
    #[must_use]
    pub fn hex(&self) -> String {
        self.0.iter().fold(String::with_capacity(64), |mut hex, byte| {
            hex.push(char::from(b"0123456789abcdef"[usize::from(byte >> 4)]));
            hex.push(char::from(b"0123456789abcdef"[usize::from(byte & 15)]));
            hex
        })
    }

    /// The first 128 bits in base32: 26 characters. A folder name; overlay's option strings are
    /// limited, and 64 digits for each layer end at about 60 layers.
    #[must_use]
    pub fn short(&self) -> String {
        let bit = |index: usize| (self.0[index / 8] >> (7 - index % 8)) & 1;
        (0..26)
            .map(|letter| {
                let value = (0..5).fold(0_u8, |value, offset| {
                    let index = letter * 5 + offset;
                    (value << 1) | if index < 128 { bit(index) } else { 0 }
                });
                char::from(BASE32[usize::from(value)])
            })
            .collect()
    }

    fn from_ring(bytes: &[u8]) -> Self {
        let mut own = [0; 32];
        for (to, from) in own.iter_mut().zip(bytes) {
            *to = *from;
        }
        Self(own)
    }
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let malformed = || DigestError::Malformed { text: clip(text) };
        let (algorithm, hex) = text.split_once(':').ok_or_else(malformed)?;
        if algorithm != "sha256" {
            let known = !algorithm.is_empty()
                && algorithm.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
            return Err(if known {
                DigestError::Algorithm { algorithm: clip(algorithm), text: clip(text) }
            } else {
                malformed()
            });
        }
        let nibble = |digit: u8| match digit {
            b'0'..=b'9' => Some(digit - b'0'),
            b'a'..=b'f' => Some(digit - b'a' + 10),
            _ => None,
        };
        if hex.len() != 64 {
            return Err(malformed());
        }
        let mut own = [0; 32];
        for (byte, pair) in own.iter_mut().zip(hex.as_bytes().chunks_exact(2)) {
            let (high, low) = nibble(pair[0]).zip(nibble(pair[1])).ok_or_else(malformed)?;
            *byte = high << 4 | low;
        }
        Ok(Self(own))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Hasher {
    pub(crate) fn new() -> Self {
        Self(Context::new(&SHA256))
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn finish(self) -> Digest {
        Digest::from_ring(self.0.finish().as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn prints_what_it_parsed() {
        let digest: Digest = EMPTY.parse().unwrap();
        assert_eq!(digest.to_string(), EMPTY);
        assert_eq!(digest, Digest::of(b""));
        assert_eq!(digest, Hasher::new().finish());
    }

    #[test]
    fn short_name_is_base32_of_the_first_16_bytes() {
        let digest: Digest = EMPTY.parse().unwrap();
        assert_eq!(digest.short(), "4oymiquy7qobjgx36tejs35zeq");
        assert_eq!(digest.short().len(), 26);
    }

    #[test]
    fn refuses_other_algorithms_by_name_and_nonsense_as_such() {
        let sha512 = format!("sha512:{}", "a".repeat(128));
        assert!(matches!(sha512.parse::<Digest>(), Err(DigestError::Algorithm { .. })));
        for text in ["", "sha256", "sha256:", "sha256:abc", &EMPTY.to_uppercase(), "../x:aa", ":aa"] {
            assert!(matches!(text.parse::<Digest>(), Err(DigestError::Malformed { .. })), "{text}");
        }
    }
}
