//! Resolver files: the node's, and what each pod gets by its dnsPolicy and dnsConfig. Pure: owns the
//! parser and the kubelet's merging and limits; never reads a file. Called by the agent's wiring and
//! the CRI mapping.

use std::net::IpAddr;

use crate::pod::spec::{DnsPolicy, Pod};

/// What glibc reads.
const MAX_SERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_CHARS: usize = 2048;

/// What a resolv.conf says, and what the runtime writes into each pod's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DnsConfig {
    /// Addresses of name servers, in order.
    pub servers: Vec<String>,
    /// The last `search` line.
    pub searches: Vec<String>,
    /// The last `options` line.
    pub options: Vec<String>,
}

/// Reads resolv.conf(5). Unknown keywords are skipped, as the resolver itself does; the
/// last of several `search` or `options` lines wins.
#[must_use]
pub fn parse_resolv_conf(text: &str) -> DnsConfig {
    let mut config = DnsConfig::default();
    for line in text.lines() {
        let line = line.trim();
        if line.starts_with(['#', ';']) {
            continue;
        }
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") => config.servers.extend(words.next().map(str::to_owned)),
            Some("search") => config.searches = words.map(str::to_owned).collect(),
            Some("options") => config.options = words.map(str::to_owned).collect(),
            _ => {}
        }
    }
    config
}

/// What pods with a network of their own can use of the node's resolver: its name servers, when they
/// are all on the node's loopback, are nobody there; `resolved` then names those behind.
#[must_use]
pub fn beyond_loopback(node: &DnsConfig, resolved: DnsConfig) -> DnsConfig {
    let is_local = |server: &String| server.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    let only_local = |config: &DnsConfig| config.servers.iter().all(is_local);
    if !node.servers.is_empty() && only_local(node) && !only_local(&resolved) {
        resolved
    } else {
        node.clone()
    }
}

/// What the pod gets. There is no cluster resolver yet: ClusterFirst is the node's, as the kubelet
/// falls back to with the event MissingClusterDNS.
#[must_use]
pub fn of_pod(pod: &Pod, node: &DnsConfig) -> DnsConfig {
    let mut config = match pod.dns.policy {
        DnsPolicy::None => DnsConfig::default(),
        DnsPolicy::Default | DnsPolicy::ClusterFirst | DnsPolicy::ClusterFirstWithHostNet => node.clone(),
    };
    add_new(&mut config.servers, &pod.dns.nameservers);
    add_new(&mut config.searches, &pod.dns.searches);
    for (name, value) in &pod.dns.options {
        config.options.retain(|option| option.split(':').next() != Some(name.as_str()));
        config.options.push(match value.as_deref() {
            None | Some("") => name.clone(),
            Some(value) => format!("{name}:{value}"),
        });
    }
    fit(&mut config);
    config
}

fn add_new(list: &mut Vec<String>, more: &[String]) {
    for item in more {
        if !list.contains(item) {
            list.push(item.clone());
        }
    }
}

/// What is beyond the limits is left out, as the kubelet does with the event DNSConfigForming.
fn fit(config: &mut DnsConfig) {
    config.servers.truncate(MAX_SERVERS);
    config.searches.truncate(MAX_SEARCHES);
    while config.searches.join(" ").len() > MAX_SEARCH_CHARS {
        config.searches.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::spec::Dns;
    use crate::pod::tests::pod;

    fn of(policy: DnsPolicy, servers: &[&str], options: &[(&str, Option<&str>)]) -> DnsConfig {
        let node = parse_resolv_conf("nameserver 10.0.0.1\nsearch a b\noptions ndots:2 edns0\n");
        let owned = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect();
        let dns = Dns {
            policy,
            nameservers: owned(servers),
            searches: owned(&["b", "c"]),
            options: options.iter().map(|(n, v)| ((*n).to_owned(), v.map(str::to_owned))).collect(),
        };
        of_pod(&Pod { dns, ..pod() }, &node)
    }

    #[test]
    fn a_pods_resolver_is_merged_and_fits_the_limits() {
        let config =
            of(DnsPolicy::Default, &["1.1.1.1", "10.0.0.1"], &[("ndots", Some("5")), ("rotate", None)]);
        assert_eq!(config.servers, ["10.0.0.1", "1.1.1.1"]);
        assert_eq!(config.searches, ["a", "b", "c"]);
        assert_eq!(config.options, ["edns0", "ndots:5", "rotate"]);
        let own = of(DnsPolicy::None, &["1.1.1.1"], &[]);
        assert_eq!((own.servers.len(), own.searches.len(), own.options.len()), (1, 2, 0));
        let many = of(DnsPolicy::ClusterFirst, &["1.1.1.1", "1.1.1.2", "1.1.1.3"], &[]);
        assert_eq!(many.servers, ["10.0.0.1", "1.1.1.1", "1.1.1.2"]);
    }

    #[test]
    fn a_resolver_on_loopback_alone_is_not_for_pods() {
        let of = |servers: &[&str]| DnsConfig {
            servers: servers.iter().map(|s| (*s).to_owned()).collect(),
            ..DnsConfig::default()
        };
        let choose = |node, resolved| beyond_loopback(&of(node), of(resolved)).servers;
        assert_eq!(choose(&["127.0.0.53"], &["10.0.0.1"]), ["10.0.0.1"]);
        assert_eq!(choose(&["::1", "127.0.0.1"], &["10.0.0.1", "127.0.0.1"]), ["10.0.0.1", "127.0.0.1"]);
        assert_eq!(choose(&["127.0.0.53", "10.0.0.2"], &["10.0.0.1"]), ["127.0.0.53", "10.0.0.2"]);
        assert_eq!(choose(&["127.0.0.53"], &[]), ["127.0.0.53"]);
        assert_eq!(choose(&[], &["10.0.0.1"]), Vec::<String>::new());
    }

    #[test]
    fn the_last_search_line_wins_and_comments_are_skipped() {
        let text = "# nameserver 1.1.1.1\nnameserver 10.0.0.1\nnameserver 10.0.0.2 \nsearch a\nsearch b c\noptions ndots:2 edns0\nsortlist x\n";
        let config = parse_resolv_conf(text);
        assert_eq!(config.servers, ["10.0.0.1", "10.0.0.2"]);
        assert_eq!(config.searches, ["b", "c"]);
        assert_eq!(config.options, ["ndots:2", "edns0"]);
    }
}
