//! Image names: `busybox`, `host:5000/a/b:tag`, `x@sha256:…`. Owns their grammar and the familiar
//! forms (docker.io, library, latest) of distribution's reference grammar; never looks anything up.
//! Called by the CRI's edge and by `store` for look-ups.

use std::fmt;
use std::str::FromStr;

use super::digest::{Digest, DigestError, clip};

/// A name in canonical form: registry, repository, and a tag or a digest or both.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reference {
    domain: String,
    path: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

/// Why a text is no image name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// Nothing there.
    #[error("the image name is empty")]
    Empty,
    /// The part before the first slash is no host.
    #[error("{text:?} is not an image name: {domain:?} is no registry host")]
    Domain { text: String, domain: String },
    /// The repository breaks the grammar.
    #[error(
        "{text:?} is not an image name: repository {path:?} must be lower-case words joined by . _ __ - or /"
    )]
    Path { text: String, path: String },
    /// Domain and path together pass 255 characters.
    #[error("{text:?}... is not an image name: longer than 255 characters")]
    Long { text: String },
    /// The tag breaks the grammar.
    #[error("{text:?} is not an image name: tag {tag:?} must be 1 to 128 letters, digits, _ . or -")]
    Tag { text: String, tag: String },
    /// The digest can't be used.
    #[error("{text:?} is not an image name")]
    Digest {
        text: String,
        #[source]
        source: DigestError,
    },
    /// 64 hex digits name an image id, not a repository.
    #[error("{text:?} is an image id, not a name that can be pulled")]
    Id { text: String },
}

impl Reference {
    /// Parses a name and normalises it: `busybox` is `docker.io/library/busybox:latest`.
    ///
    /// # Errors
    /// [`ReferenceError`], naming the part that breaks the grammar.
    pub fn parse(text: &str) -> Result<Self, ReferenceError> {
        if text.is_empty() {
            return Err(ReferenceError::Empty);
        }
        if text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)) {
            return Err(ReferenceError::Id { text: text.to_owned() });
        }
        let (rest, digest) = match text.split_once('@') {
            None => (text, None),
            Some((rest, digest)) => {
                let digest =
                    digest.parse().map_err(|source| ReferenceError::Digest { text: clip(text), source })?;
                (rest, Some(digest))
            }
        };
        // A colon after the last slash begins the tag; before it, a port.
        let (name, tag) = match rest.rfind(':') {
            Some(colon) if !rest[colon..].contains('/') => (&rest[..colon], Some(&rest[colon + 1..])),
            _ => (rest, None),
        };
        let (domain, path) = split_domain(name);
        check(text, &domain, &path, tag)?;
        let tag = match (tag, digest) {
            (Some(tag), _) => Some(tag.to_owned()),
            (None, Some(_)) => None,
            (None, None) => Some("latest".to_owned()),
        };
        Ok(Self { domain, path, tag, digest })
    }

    /// The registry as named, with its port: `docker.io`, `localhost:5000`.
    #[must_use]
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// The repository within the registry: `library/busybox`.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Registry and repository: `docker.io/library/busybox`.
    #[must_use]
    pub fn repository(&self) -> String {
        format!("{}/{}", self.domain, self.path)
    }

    /// The tag, if named; `latest` when neither tag nor digest was.
    #[must_use]
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// The digest, if named.
    #[must_use]
    pub fn digest(&self) -> Option<Digest> {
        self.digest
    }

    /// `repository:tag`, which a pull makes point at its image. None for a pull by digest: with
    /// both given the digest decides and the tag is not believed, as in containerd.
    #[must_use]
    pub fn tag_name(&self) -> Option<String> {
        match (&self.tag, self.digest) {
            (Some(tag), None) => Some(format!("{}:{tag}", self.repository())),
            _ => None,
        }
    }
}

impl FromStr for Reference {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        Self::parse(text)
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.domain, self.path)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

/// The first part is a host if it looks like one: a dot, a port, `localhost`, or upper case (which
/// no repository may have).
fn split_domain(name: &str) -> (String, String) {
    let (domain, path) = match name.split_once('/') {
        Some((first, rest))
            if first.contains(['.', ':'])
                || first == "localhost"
                || first.chars().any(|c| c.is_ascii_uppercase()) =>
        {
            (first, rest)
        }
        _ => ("docker.io", name),
    };
    let domain = if domain == "index.docker.io" { "docker.io" } else { domain };
    let path = if domain == "docker.io" && !path.contains('/') {
        format!("library/{path}")
    } else {
        path.to_owned()
    };
    (domain.to_owned(), path)
}

fn check(text: &str, domain: &str, path: &str, tag: Option<&str>) -> Result<(), ReferenceError> {
    if domain.len() + 1 + path.len() > 255 {
        return Err(ReferenceError::Long { text: text.chars().take(40).collect() });
    }
    if !is_domain(domain) {
        return Err(ReferenceError::Domain { text: clip(text), domain: clip(domain) });
    }
    if !path.split('/').all(is_component) {
        return Err(ReferenceError::Path { text: clip(text), path: clip(path) });
    }
    match tag {
        Some(tag) if !is_tag(tag) => Err(ReferenceError::Tag { text: clip(text), tag: clip(tag) }),
        _ => Ok(()),
    }
}

fn is_domain(domain: &str) -> bool {
    let (host, port) = match domain.rfind(':') {
        Some(colon) if !domain[colon..].contains(']') => (&domain[..colon], Some(&domain[colon + 1..])),
        _ => (domain, None),
    };
    // Digits alone: a number may have a sign for Rust, a port has none.
    let port_fits = port.is_none_or(|port| {
        port.bytes().all(|digit| digit.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|number| number > 0)
    });
    let host_fits = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(v6) => v6.parse::<std::net::Ipv6Addr>().is_ok(),
        None => host.split('.').all(|label| {
            !label.is_empty()
                && !label.starts_with('-')
                && !label.ends_with('-')
                && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        }),
    };
    port_fits && host_fits
}

/// Words of lower-case letters and digits, joined by `.`, `_`, `__` or any number of `-`.
fn is_component(component: &str) -> bool {
    let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let edges = component.starts_with(word) && component.ends_with(word);
    edges
        && component
            .split(word)
            .all(|joint| matches!(joint, "" | "." | "_" | "__") || joint.bytes().all(|b| b == b'-'))
}

fn is_tag(tag: &str) -> bool {
    let first = tag.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    first && tag.len() <= 128 && tag.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    const D: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn check(text: &str, canonical: &str) {
        let reference = Reference::parse(text).unwrap();
        assert_eq!(reference.to_string(), canonical, "{text}");
        assert_eq!(Reference::parse(canonical).unwrap(), reference, "canonical form is stable");
    }

    #[test]
    fn familiar_names_are_normalised() {
        check("busybox", "docker.io/library/busybox:latest");
        check("busybox:1.37", "docker.io/library/busybox:1.37");
        check("index.docker.io/busybox", "docker.io/library/busybox:latest");
        check("grafana/loki", "docker.io/grafana/loki:latest");
        check("localhost/a", "localhost/a:latest");
        check("localhost:5000/a", "localhost:5000/a:latest");
        check("host:5000/a/b:tag", "host:5000/a/b:tag");
        check("[::1]:5000/a", "[::1]:5000/a:latest");
        check(
            "registry.k8s.io/e2e-test-images/agnhost:2.63.0",
            "registry.k8s.io/e2e-test-images/agnhost:2.63.0",
        );
        check("a__b.c---d", "docker.io/library/a__b.c---d:latest");
    }

    #[test]
    fn digests_take_no_default_tag_and_keep_a_named_one() {
        check(&format!("x@{D}"), &format!("docker.io/library/x@{D}"));
        check(&format!("x:1@{D}"), &format!("docker.io/library/x:1@{D}"));
        assert_eq!(Reference::parse(&format!("x:1@{D}")).unwrap().tag_name(), None);
        assert_eq!(Reference::parse("x:1").unwrap().tag_name().unwrap(), "docker.io/library/x:1");
    }

    #[test]
    fn nonsense_is_refused_by_part() {
        let error = |text: &str| Reference::parse(text).unwrap_err();
        assert_eq!(error(""), ReferenceError::Empty);
        assert!(matches!(error(&"a".repeat(64)), ReferenceError::Id { .. }));
        assert!(matches!(error(&"a/".repeat(200)), ReferenceError::Long { .. }));
        for text in
            ["Busybox", "a//b", "a/../b", "-a", "a_", "a___b", "a..b", "a b", "/a", "a/", "host:5000/"]
        {
            assert!(matches!(error(text), ReferenceError::Path { .. }), "{text}");
        }
        for text in [
            "ho_st.x/a",
            "h.x:0/a",
            "h.x:99999/a",
            "h.x:+80/a",
            "h.x:/a",
            "-h.x/a",
            "[::g]/a",
            "h.x:5/../a@b",
        ] {
            let error = error(text);
            assert!(
                matches!(error, ReferenceError::Domain { .. } | ReferenceError::Digest { .. }),
                "{text}: {error}"
            );
        }
        for text in ["a:", "a:-x", "a:x y", &format!("a:{}", "t".repeat(129))] {
            assert!(matches!(error(text), ReferenceError::Tag { .. }), "{text}");
        }
        assert!(matches!(error("a@sha256:12"), ReferenceError::Digest { .. }));
    }
}
