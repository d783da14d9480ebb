//! Whether a proxy of the environment would take a connection. Pure: owns Go's rules, by which kubeadm connects; never
//! reads the environment. Called by [`super::judge`].

use std::net::IpAddr;

/// As the environment has them; empty when it has not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Proxies {
    /// `HTTPS_PROXY`.
    pub(crate) https: String,
    /// `NO_PROXY`: hosts, domains, addresses and networks.
    pub(crate) no: String,
}

impl Proxies {
    /// The upper-case name wins, as in Go.
    pub(super) fn of(variable: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let either = |upper: &str| set(upper).or_else(|| set(&upper.to_lowercase())).unwrap_or_default();
        Self { https: either("HTTPS_PROXY"), no: either("NO_PROXY") }
    }

    /// Whether HTTPS to this host goes through the proxy.
    pub(super) fn take(&self, host: &str, port: u16) -> bool {
        if self.https.is_empty() {
            return false;
        }
        let host = host.trim().to_lowercase();
        let ip = host.parse::<IpAddr>().ok();
        if host == "localhost" || ip.is_some_and(|ip| ip.is_loopback()) {
            return false;
        }
        !self.no.split(',').any(|entry| spares(&entry.trim().to_lowercase(), &host, ip, port))
    }
}

/// One entry of NO_PROXY: `*`, a network, an address or a domain, the last two with a port or without.
fn spares(entry: &str, host: &str, ip: Option<IpAddr>, port: u16) -> bool {
    if entry.is_empty() {
        return false;
    }
    if entry == "*" {
        return true;
    }
    if let Ok(network) = entry.parse::<ipnet::IpNet>() {
        return ip.is_some_and(|ip| network.contains(&ip));
    }
    let (name, of_port) = match entry.rsplit_once(':') {
        Some((name, number)) if !name.contains(':') || name.ends_with(']') => match number.parse::<u16>() {
            Ok(number) => (name, Some(number)),
            Err(_) => (entry, None),
        },
        _ => (entry, None),
    };
    if of_port.is_some_and(|of| of != port) {
        return false;
    }
    let name = name.trim_start_matches('[').trim_end_matches(']');
    if let Ok(address) = name.parse::<IpAddr>() {
        return ip == Some(address);
    }
    // `.example.org` and `*.example.org` are the names below it alone.
    match name.strip_prefix('*').unwrap_or(name) {
        below if below.starts_with('.') => host.ends_with(below),
        name => host == name || host.strip_suffix(name).is_some_and(|rest| rest.ends_with('.')),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_proxy_is_read_by_gos_rules() {
        for (no, host, taken) in [
            ("", "kind-control-plane", true),
            ("", "172.18.0.2", true),
            ("", "localhost", false),
            ("", "127.0.0.1", false),
            ("*", "172.18.0.2", false),
            ("10.0.0.0/8, 172.18.0.0/16", "172.18.0.2", false),
            ("172.18.0.0/16", "172.19.0.2", true),
            ("172.18.0.0/16", "kind-control-plane", true),
            ("172.18.0.2", "172.18.0.2", false),
            ("172.18.0.2:6443", "172.18.0.2", false),
            ("172.18.0.2:443", "172.18.0.2", true),
            ("Example.org", "api.example.org", false),
            ("example.org", "example.org", false),
            ("example.org", "badexample.org", true),
            (".example.org", "api.example.org", false),
            (".example.org", "example.org", true),
            ("*.example.org", "api.example.org", false),
            ("fd00::/8", "fd00::1", false),
            ("[fd00::1]:6443", "fd00::1", false),
            ("fd00::1", "fd00::1", false),
        ] {
            let proxies = Proxies { https: "http://proxy:3128".into(), no: no.into() };
            assert_eq!(proxies.take(host, 6443), taken, "{no:?} {host}");
        }
        assert!(!Proxies::default().take("172.18.0.2", 6443));
    }

    #[test]
    fn the_upper_case_name_wins_and_plain_http_is_of_no_account() {
        let of = |set: &'static [(&str, &str)]| {
            Proxies::of(|name| set.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned()))
        };
        assert_eq!(of(&[("https_proxy", "a"), ("HTTPS_PROXY", "b")]).https, "b");
        assert_eq!(of(&[("https_proxy", "a"), ("HTTPS_PROXY", "")]).https, "a");
        assert_eq!(of(&[("no_proxy", "x")]).no, "x");
        assert_eq!(of(&[("HTTP_PROXY", "a")]), Proxies::default());
    }
}
