//! Addresses of registries and patterns of them: `*.example.com:5000/team`. Pure: owns the syntax and
//! the comparison, as upstream's of URLs without a scheme. Called by the keyring and by plugins.

/// Host and path of an image, or a pattern of these.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Address {
    /// Host and port, as written.
    pub(super) authority: String,
    host: String,
    port: String,
    /// Empty, or from the first slash on.
    pub(super) path: String,
}

impl Address {
    /// None when it could not stand behind `https://`.
    pub(super) fn of(text: &str) -> Option<Self> {
        if text.chars().any(|c| c.is_control() || c == ' ') {
            return None;
        }
        let end = text.find(['/', '?', '#']).unwrap_or(text.len());
        let (authority, rest) = text.split_at_checked(end)?;
        let path = rest.split(['?', '#']).next().unwrap_or_default();
        // What stands before an @ is a user, not a place.
        let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let (host, port) = split(authority)?;
        Some(Self { authority: authority.to_owned(), host, port, path: path.to_owned() })
    }
}

fn split(authority: &str) -> Option<(String, String)> {
    if let Some(rest) = authority.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        let port = if rest.is_empty() { "" } else { rest.strip_prefix(':')? };
        return is_port(port).then(|| (host.to_owned(), port.to_owned()));
    }
    if authority.contains(['[', ']', '<', '>', '"', '\\', '^', '`', '{', '|', '}', '%']) {
        return None;
    }
    match authority.rsplit_once(':') {
        None => Some((authority.to_owned(), String::new())),
        Some((host, port)) if is_port(port) && !host.contains(':') => {
            Some((host.to_owned(), port.to_owned()))
        }
        Some(_) => None,
    }
}

fn is_port(port: &str) -> bool {
    port.bytes().all(|byte| byte.is_ascii_digit())
}

/// Each part of the host by its own pattern, the port exactly, the path by its beginning.
pub(super) fn fits(pattern: &Address, image: &Address) -> bool {
    if pattern.port != image.port || !image.path.starts_with(&pattern.path) {
        return false;
    }
    let wanted: Vec<&str> = pattern.host.split('.').collect();
    let given: Vec<&str> = image.host.split('.').collect();
    wanted.len() == given.len()
        && wanted.iter().zip(given).all(|(pattern, part)| matches(pattern.as_bytes(), part.as_bytes()))
}

/// `*` stands for any number of characters, `?` for one. Takes time in proportion to both lengths.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut read) = (0, 0);
    // Where to go on when a star has to take one more.
    let mut star: Option<(usize, usize)> = None;
    while let Some(byte) = text.get(read) {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, read));
                at += 1;
            }
            Some(wanted) if *wanted == b'?' || wanted == byte => {
                at += 1;
                read += 1;
            }
            _ => match star {
                Some((star_at, taken)) => {
                    star = Some((star_at, taken + 1));
                    (at, read) = (star_at + 1, taken + 1);
                }
                None => return false,
            },
        }
    }
    pattern.get(at..).is_some_and(|rest| rest.iter().all(|byte| *byte == b'*'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_fit_as_in_kubernetes() {
        for (address, image, expected) in [
            ("reg.io", "reg.io/a/b", true),
            ("reg.io", "reg.io:5000/a", false),
            ("reg.io:5000", "reg.io:5000/a", true),
            ("reg.io/a", "reg.io/a/b", true),
            ("reg.io/b", "reg.io/a/b", false),
            ("*.reg.io", "x.reg.io/a", true),
            ("*.reg.io", "x.y.reg.io/a", false),
            ("*.*.reg.io", "x.y.reg.io/a", true),
            ("p*x.reg.io", "prefix.reg.io/a", true),
            ("p?x.reg.io", "prefix.reg.io/a", false),
            ("*a*b*.reg.io", "xaxxbx.reg.io/a", true),
            ("*a*b.reg.io", "xbxa.reg.io/a", false),
            ("127.0.0.1:5000", "127.0.0.1:5000/web", true),
            ("[::1]:5000", "[::1]:5000/web", true),
        ] {
            let (pattern, target) = (Address::of(address).unwrap(), Address::of(image).unwrap());
            assert_eq!(fits(&pattern, &target), expected, "{address} {image}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for bad in ["a b", "reg.io:http", "a:1:2", "[::1", "[::1]x", "a\nb", "a%b"] {
            assert_eq!(Address::of(bad), None, "{bad}");
        }
    }
}
