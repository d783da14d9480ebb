//! `proxy-url` of a cluster in a kubeconfig. Pure: owns what may stand there; never a connection. Called by [`super`].

use http::Uri;

/// How a proxy is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyScheme {
    /// CONNECT.
    Http,
    /// The same over TLS.
    Https,
    /// SOCKS 5; names are looked up by the proxy.
    Socks5,
}

/// The proxy on the way to an API server.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy {
    pub scheme: ProxyScheme,
    /// With its port.
    pub place: Uri,
    /// User and password.
    pub login: Option<(String, String)>,
    /// As it was given.
    pub given: String,
}

/// What is before the host is secret.
impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Proxy").field("place", &self.place).finish_non_exhaustive()
    }
}

impl Proxy {
    /// Reads it.
    ///
    /// # Errors
    /// When it is no URL of a proxy. It is not repeated: it may hold a password.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let uri: Uri = text.parse().map_err(|error| format!("invalid proxy-url: {error}"))?;
        let scheme = match uri.scheme_str().unwrap_or_default() {
            "http" => ProxyScheme::Http,
            "https" => ProxyScheme::Https,
            "socks5" => ProxyScheme::Socks5,
            other => {
                return Err(format!(
                    "invalid proxy-url: unsupported scheme {other:?}, must be http, https, or socks5"
                ));
            }
        };
        let host = uri.host().filter(|host| !host.is_empty()).ok_or("invalid proxy-url: it has no host")?;
        let port = uri.port_u16().unwrap_or(match scheme {
            ProxyScheme::Http => 80,
            ProxyScheme::Https => 443,
            ProxyScheme::Socks5 => 1080,
        });
        // The connection to a SOCKS proxy is plain, whatever comes after it.
        let plain = if scheme == ProxyScheme::Https { "https" } else { "http" };
        let place = format!("{plain}://{host}:{port}").parse();
        Ok(Self {
            scheme,
            place: place.map_err(|error| format!("invalid proxy-url: {error}"))?,
            login: uri.authority().and_then(|authority| login(authority.as_str())),
            given: text.to_owned(),
        })
    }
}

fn login(authority: &str) -> Option<(String, String)> {
    let (login, _) = authority.rsplit_once('@')?;
    let (user, password) = login.split_once(':').unwrap_or((login, ""));
    Some((decode(user), decode(password)))
}

/// `%40` is `@`; what is no such code stays.
fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let code = (*first == b'%').then(|| after.get(..2)).flatten();
        let code = code.and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { after.get(2..).unwrap_or_default() } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxies_of_three_kinds_are_read_with_their_ports() {
        let place = |text: &str| Proxy::parse(text).map(|proxy| (proxy.scheme, proxy.place.to_string()));
        assert_eq!(place("http://h:3128").unwrap(), (ProxyScheme::Http, "http://h:3128/".to_owned()));
        assert_eq!(place("https://h/").unwrap(), (ProxyScheme::Https, "https://h:443/".to_owned()));
        assert_eq!(place("socks5://[::1]").unwrap(), (ProxyScheme::Socks5, "http://[::1]:1080/".to_owned()));
        let proxy = Proxy::parse("http://me%40x:p%3Aw%@h").unwrap();
        assert_eq!(proxy.login, Some(("me@x".to_owned(), "p:w%".to_owned())));
        assert!(!format!("{proxy:?}").contains("me"));
        assert_eq!(proxy.place.to_string(), "http://h:80/");
    }

    #[test]
    fn anything_else_is_refused_without_its_password() {
        for (text, why) in [
            ("ftp://u:secret@h", "unsupported scheme \"ftp\", must be http, https, or socks5"),
            ("h", "unsupported scheme \"\""),
            ("http://", "invalid proxy-url: "),
        ] {
            let error = Proxy::parse(text).unwrap_err();
            assert!(error.contains(why) && !error.contains("secret"), "{error}");
        }
    }
}
