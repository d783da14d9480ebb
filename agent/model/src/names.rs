//! What names may look like. Pure: owns the rules of RFC 1123 names, labels, image
//! references and pod UIDs; never guesses. Called by the manifest converter and the
//! image step.

/// RFC 1123 label: at most 63 of [a-z0-9-], alphanumeric at both ends.
#[must_use]
pub fn is_dns_label(name: &str) -> bool {
    name.len() <= 63 && is_dns_word(name)
}

/// RFC 1123 subdomain: words joined by dots, at most 253 in all. As in the API, a word may be longer
/// than a label of DNS.
#[must_use]
pub fn is_dns_subdomain(name: &str) -> bool {
    name.len() <= 253 && name.split('.').all(is_dns_word)
}

/// Of [a-z0-9-], alphanumeric at both ends.
fn is_dns_word(name: &str) -> bool {
    let edge = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    edge(name.bytes().next())
        && edge(name.bytes().last())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

/// The name of a label or resource: at most 63 of [A-Za-z0-9-_.], alphanumeric at both ends, with a DNS subdomain and a
/// slash before it or without.
#[must_use]
pub fn is_qualified_name(name: &str) -> bool {
    let (prefix, name) = match name.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, name),
    };
    let edge = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_alphanumeric());
    prefix.is_none_or(is_dns_subdomain)
        && name.len() <= 63
        && edge(name.bytes().next())
        && edge(name.bytes().last())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}

/// A UID becomes part of a folder's name, so it may hold nothing that steers a path.
#[must_use]
pub fn is_uid(uid: &str) -> bool {
    !uid.is_empty()
        && uid.len() <= 63
        && uid.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        && !uid.starts_with('-')
}

/// A label's key: an optional DNS prefix and a name of [A-Za-z0-9._-].
#[must_use]
pub fn is_qualified_key(key: &str) -> bool {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    prefix.is_none_or(is_dns_subdomain) && !name.is_empty() && is_label_value(name)
}

/// A label's value: empty, or at most 63 of [A-Za-z0-9._-] with alphanumeric ends.
#[must_use]
pub fn is_label_value(value: &str) -> bool {
    let edge = |b: Option<u8>| b.is_none_or(|b| b.is_ascii_alphanumeric());
    value.len() <= 63
        && edge(value.bytes().next())
        && edge(value.bytes().last())
        && value.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

/// A key of a ConfigMap or Secret: it becomes a file's name.
#[must_use]
pub fn is_config_key(key: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    !key.is_empty() && key.len() <= 253 && key.bytes().all(word) && key != "." && !key.starts_with("..")
}

const SIGNALS: &[&str] = &[
    "ABRT", "ALRM", "BUS", "CHLD", "CLD", "CONT", "FPE", "HUP", "ILL", "INT", "IO", "IOT", "KILL", "PIPE",
    "POLL", "PROF", "PWR", "QUIT", "RTMAX", "RTMIN", "SEGV", "STKFLT", "STOP", "SYS", "TERM", "TRAP", "TSTP",
    "TTIN", "TTOU", "URG", "USR1", "USR2", "VTALRM", "WINCH", "XCPU", "XFSZ",
];

/// `SIGTERM`, `SIGRTMIN+1` and the like, as CRI knows them.
#[must_use]
pub fn is_signal(name: &str) -> bool {
    let Some(name) = name.strip_prefix("SIG") else { return false };
    let within = |text: &str, most: u8| {
        !text.starts_with(['0', '+']) && text.parse::<u8>().is_ok_and(|n| (1..=most).contains(&n))
    };
    SIGNALS.contains(&name)
        || name.strip_prefix("RTMIN+").is_some_and(|n| within(n, 15))
        || name.strip_prefix("RTMAX-").is_some_and(|n| within(n, 14))
}

/// The name of an HTTP header.
#[must_use]
pub fn is_http_token(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

/// Segments of [a-z0-9_-] joined by dots or slashes.
#[must_use]
pub fn is_sysctl(name: &str) -> bool {
    let edge = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_');
    name.len() <= 253
        && name
            .split(['.', '/'])
            .all(|part| edge(part.bytes().next()) && edge(part.bytes().last()) && part.bytes().all(word))
}

/// An image reference by the distribution grammar, split where the kubelet needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageName {
    /// With the tag `latest` added when it had neither tag nor digest.
    pub full: String,
    /// Whether the tag is `latest`, which makes `Always` the default pull policy.
    pub is_latest: bool,
}

/// Reads `[host[:port]/]path[:tag][@digest]`.
#[must_use]
pub fn parse_image(name: &str) -> Option<ImageName> {
    let (rest, digest) = match name.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (name, None),
    };
    if !digest.is_none_or(is_digest) {
        return None;
    }
    let last = rest.rfind('/').map_or(0, |slash| slash + 1);
    let (path, tag) = match rest.get(last..)?.split_once(':') {
        Some((leaf, tag)) => (rest.get(..last + leaf.len())?, Some(tag)),
        None => (rest, None),
    };
    if !tag.is_none_or(is_tag) || !is_repository(path) {
        return None;
    }
    let full = if tag.is_none() && digest.is_none() { format!("{name}:latest") } else { name.to_owned() };
    Some(ImageName { full, is_latest: digest.is_none() && tag.is_none_or(|tag| tag == "latest") })
}

fn is_digest(digest: &str) -> bool {
    digest.split_once(':').is_some_and(|(algorithm, hex)| {
        !algorithm.is_empty()
            && algorithm.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'.' | b'_' | b'-'))
            && hex.len() >= 32
            && hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    })
}

fn is_tag(tag: &str) -> bool {
    tag.len() <= 128
        && tag.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_')
        && tag.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

fn is_repository(path: &str) -> bool {
    if path.len() > 255 {
        return false;
    }
    let mut parts = path.split('/').peekable();
    // The first part is a host when it could not be a path component, or says so by a
    // dot, a port or the name localhost.
    if let Some(first) = parts.peek()
        && path.contains('/')
        && (first.contains(['.', ':']) || *first == "localhost")
    {
        if !is_host(first) {
            return false;
        }
        parts.next();
    }
    parts.all(is_path_component)
}

fn is_host(host: &str) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !host.ends_with(']') => (name, Some(port)),
        _ => (host, None),
    };
    let v6 = name.strip_prefix('[').and_then(|n| n.strip_suffix(']'));
    let name_ok = match v6 {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => is_dns_subdomain(&name.to_ascii_lowercase()),
    };
    name_ok && port.is_none_or(|port| port.parse::<u16>().is_ok())
}

/// Lower-case words joined by one dot, one or two underscores, or dashes.
fn is_path_component(part: &str) -> bool {
    let word = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = part.as_bytes();
    let edges = bytes.first().is_some_and(word) && bytes.last().is_some_and(word);
    edges
        && bytes
            .split(word)
            .all(|gap| matches!(gap, b"" | b"." | b"_" | b"__") || gap.iter().all(|b| *b == b'-'))
}

/// The image's name as written, but for tag and digest.
#[must_use]
pub fn without_tag(image: &str) -> &str {
    let name = image.split('@').next().unwrap_or(image);
    let leaf = name.rfind('/').map_or(0, |slash| slash + 1);
    let end = name.get(leaf..).and_then(|rest| rest.find(':')).map_or(name.len(), |colon| leaf + colon);
    name.get(..end).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_qualified_name_has_one_domain_at_most() {
        for name in ["cpu", "vendor.com/gpu", "requests.a.b/c_D.e-1"] {
            assert!(is_qualified_name(name), "{name}");
        }
        for name in ["", "/a", "a/", "a/b/c", "A.com/b", "a/-b", "a/b.", "a b"] {
            assert!(!is_qualified_name(name), "{name}");
        }
        assert!(is_qualified_name(&"a".repeat(63)) && !is_qualified_name(&"a".repeat(64)));
    }

    #[test]
    fn names_follow_rfc_1123() {
        for good in ["a", "web-1", "0", &"a".repeat(63)] {
            assert!(is_dns_label(good), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a.b", "a_b", "../x", &"a".repeat(64)] {
            assert!(!is_dns_label(bad), "{bad}");
        }
        assert!(is_dns_subdomain("a.b-c.d"));
        assert!(is_dns_subdomain(&"a".repeat(253)));
        assert!(!is_dns_subdomain(&"a".repeat(254)));
        assert!(!is_dns_subdomain("a..b"));
    }

    #[test]
    fn uids_and_labels_cannot_steer_a_path() {
        assert!(is_uid("0b0d5c6e-2f3a-4c55-9c5e-1f0a3b5d7e9f"));
        for bad in ["", "..", "a/b", "a b", "-x"] {
            assert!(!is_uid(bad), "{bad}");
        }
        assert!(is_qualified_key("app.kubernetes.io/name"));
        assert!(!is_qualified_key("/name"));
        assert!(!is_qualified_key("a b"));
        assert!(is_label_value(""));
        assert!(!is_label_value("-x"));
    }

    #[test]
    fn images_get_the_default_tag() {
        for (name, full, latest) in [
            ("busybox", "busybox:latest", true),
            ("busybox:1.36", "busybox:1.36", false),
            ("localhost:5000/a/b", "localhost:5000/a/b:latest", true),
            ("127.0.0.1:5000/web:latest", "127.0.0.1:5000/web:latest", true),
            ("[::1]:5000/web:v1", "[::1]:5000/web:v1", false),
            ("a__b/c-d.e", "a__b/c-d.e:latest", true),
        ] {
            assert_eq!(parse_image(name), Some(ImageName { full: full.into(), is_latest: latest }), "{name}");
        }
        let digest = format!("web@sha256:{}", "0".repeat(64));
        assert_eq!(parse_image(&digest), Some(ImageName { full: digest.clone(), is_latest: false }));
    }

    #[test]
    fn signals_are_those_of_cri() {
        for good in ["SIGTERM", "SIGUSR1", "SIGRTMIN", "SIGRTMIN+15", "SIGRTMAX-14"] {
            assert!(is_signal(good), "{good}");
        }
        for bad in ["TERM", "SIGFOO", "SIGRTMIN+16", "SIGRTMIN+0", "SIGRTMIN++1", "SIGRTMAX-", "15"] {
            assert!(!is_signal(bad), "{bad}");
        }
    }

    #[test]
    fn wrong_images_are_refused() {
        for bad in [
            "",
            "Web",
            "web:",
            "web:a b",
            "a//b",
            "/a",
            "a/",
            "web@sha256:xyz",
            "a___b",
            "a..b",
            "x.y:z/a",
            "web:-t",
            "localhost:99999/a",
            "http://host/a",
        ] {
            assert_eq!(parse_image(bad), None, "{bad}");
        }
    }
}
