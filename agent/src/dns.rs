//! Resolver files: the node's, and what each pod gets by its dnsPolicy and dnsConfig. Pure: owns the
//! parser and the kubelet's merging and limits; only [`source`] reads a file. Called for each sandbox, by
//! the pods' workers and the CRI client.

pub(crate) mod source;

use std::net::IpAddr;

use gantry_model::pod::{DnsPolicy, Pod};
use source::Source;

/// What glibc reads.
const MAX_SERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_CHARS: usize = 2048;
/// Of one domain.
const MAX_SEARCH: usize = 253;

/// What a resolv.conf says, and what the runtime writes into each pod's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DnsConfig {
    /// Addresses of name servers, in order.
    pub servers: Vec<String>,
    /// The last `search` line.
    pub searches: Vec<String>,
    /// Of all `options` lines, each once.
    pub options: Vec<String>,
}

/// A name server that has no address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("nameserver list is empty ")]
pub struct Malformed;

/// Reads resolv.conf(5). Unknown keywords are skipped, as the resolver itself does; the last of several
/// `search` lines wins, and of an option its last value. The root is no domain to search in, and a dot
/// at a domain's end would make it another one.
///
/// # Errors
/// As upstream, when a name server has no address.
pub(crate) fn parse_resolv_conf(text: &str) -> Result<DnsConfig, Malformed> {
    let mut config = DnsConfig::default();
    for line in text.lines() {
        let line = line.trim();
        if line.starts_with(['#', ';']) {
            continue;
        }
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") => config.servers.push(words.next().ok_or(Malformed)?.to_owned()),
            Some("search") => {
                let domains = words.filter(|word| *word != ".");
                config.searches =
                    domains.map(|word| word.strip_suffix('.').unwrap_or(word).to_owned()).collect();
            }
            Some("options") => words.for_each(|word| set_option(&mut config.options, word.to_owned())),
            _ => {}
        }
    }
    Ok(config)
}

/// In place of what the option was before.
fn set_option(options: &mut Vec<String>, new: String) {
    fn name(option: &str) -> &str {
        option.split(':').next().unwrap_or_default()
    }
    options.retain(|option| name(option) != name(&new));
    options.push(new);
}

/// What pods with a network of their own can use of the node's resolver: its name servers, when they
/// are all on the node's loopback, are nobody there; `resolved` then names those behind.
#[must_use]
pub(crate) fn beyond_loopback(node: &DnsConfig, resolved: DnsConfig) -> DnsConfig {
    let is_local = |server: &String| server.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    let only_local = |config: &DnsConfig| config.servers.iter().all(is_local);
    if !node.servers.is_empty() && only_local(node) && !only_local(&resolved) {
        resolved
    } else {
        node.clone()
    }
}

/// Where the resolvers of a node's pods come from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resolver {
    /// The node's.
    pub source: Source,
    /// Addresses of the cluster's name servers; none without a cluster.
    pub cluster: Vec<String>,
    /// Of services; may be empty.
    pub cluster_domain: String,
}

/// What the pod gets, and what is to be told of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Formed {
    /// For its sandbox.
    pub config: DnsConfig,
    /// Messages of DNSConfigForming: what did not fit.
    pub omitted: Vec<String>,
    /// It wants the cluster's resolver, and there is none: MissingClusterDNS.
    pub missing: bool,
}

impl Resolver {
    /// What the pod gets, from the node's files as they are now.
    ///
    /// # Errors
    /// When they cannot be read: no pod can be begun until then, whatever its policy.
    pub async fn of_pod(&self, pod: &Pod) -> Result<Formed, source::Error> {
        Ok(form(pod, self, self.source.read(pod.namespaces.host_network).await?))
    }
}

/// By dnsPolicy and dnsConfig. Without a cluster's resolver ClusterFirst is the node's.
fn form(pod: &Pod, node: &Resolver, of_node: DnsConfig) -> Formed {
    let on_host = pod.namespaces.host_network;
    let of_cluster = match pod.dns.policy {
        DnsPolicy::ClusterFirstWithHostNet => true,
        DnsPolicy::ClusterFirst => !on_host,
        DnsPolicy::Default | DnsPolicy::None => false,
    };
    let missing = of_cluster && node.cluster.is_empty();
    let mut config = match pod.dns.policy {
        DnsPolicy::None => DnsConfig::default(),
        _ if of_cluster && !missing => of_cluster_first(pod, node, &of_node),
        _ => match &node.source {
            Source::Nowhere(ips) => of_itself(ips),
            Source::File(_) | Source::Machine { .. } => of_node,
        },
    };
    add_new(&mut config.servers, &pod.dns.nameservers);
    add_new(&mut config.searches, &pod.dns.searches);
    for (name, value) in &pod.dns.options {
        let option = match value.as_deref() {
            None | Some("") => name.clone(),
            Some(value) => format!("{name}:{value}"),
        };
        set_option(&mut config.options, option);
    }
    let omitted = fit(&mut config);
    Formed { config, omitted, missing }
}

/// Without the node's there is nobody to ask, and to say nothing would be the runtime's own choice.
fn of_itself(ips: &[IpAddr]) -> DnsConfig {
    let own = |ip: &IpAddr| if ip.is_ipv6() { "::1" } else { "127.0.0.1" }.to_owned();
    let mut servers: Vec<String> = ips.iter().map(own).collect();
    if servers.is_empty() {
        servers.push("127.0.0.1".to_owned());
    }
    DnsConfig { servers, searches: vec![".".to_owned()], options: Vec::new() }
}

fn of_cluster_first(pod: &Pod, node: &Resolver, of_node: &DnsConfig) -> DnsConfig {
    let domain = &node.cluster_domain;
    let mut searches = Vec::new();
    if !domain.is_empty() {
        searches = vec![format!("{}.svc.{domain}", pod.namespace), format!("svc.{domain}"), domain.clone()];
    }
    add_new(&mut searches, &of_node.searches);
    DnsConfig { servers: node.cluster.clone(), searches, options: vec!["ndots:5".to_owned()] }
}

fn add_new(list: &mut Vec<String>, more: &[String]) {
    for item in more {
        if !list.contains(item) {
            list.push(item.clone());
        }
    }
}

/// What is beyond the limits is left out; the events' messages.
fn fit(config: &mut DnsConfig) -> Vec<String> {
    let mut told = Vec::new();
    if config.servers.len() > MAX_SERVERS {
        config.servers.truncate(MAX_SERVERS);
        told.push(format!(
            "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: {}",
            config.servers.join(" ")
        ));
    }
    let before = config.searches.clone();
    config.searches.truncate(MAX_SEARCHES);
    config.searches.retain(|search| search.len() <= MAX_SEARCH);
    while config.searches.join(" ").len() > MAX_SEARCH_CHARS {
        config.searches.pop();
    }
    if config.searches != before {
        told.push(format!(
            "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: {}",
            config.searches.join(" ")
        ));
    }
    told
}

#[cfg(test)]
mod tests {
    use gantry_model::pod::Dns;

    use super::*;
    use crate::pod::tests::pod;

    fn of(policy: DnsPolicy, servers: &[&str], options: &[(&str, Option<&str>)]) -> DnsConfig {
        let node = parse_resolv_conf("nameserver 10.0.0.1\nsearch a b\noptions ndots:2 edns0\n").unwrap();
        let owned = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect();
        let dns = Dns {
            policy,
            nameservers: owned(servers),
            searches: owned(&["b", "c"]),
            options: options.iter().map(|(n, v)| ((*n).to_owned(), v.map(str::to_owned))).collect(),
        };
        form(&Pod { dns, ..pod() }, &in_a_file(), node).config
    }

    fn in_a_file() -> Resolver {
        Resolver { source: Source::File("/etc/resolv.conf".into()), ..Resolver::default() }
    }

    #[test]
    fn cluster_first_is_the_clusters_resolver_before_the_nodes_domains() {
        let of = |policy, on_host, cluster: &[&str]| {
            let node = Resolver {
                cluster: cluster.iter().map(|ip| (*ip).to_owned()).collect(),
                cluster_domain: "cluster.local".into(),
                ..in_a_file()
            };
            let file = "nameserver 10.0.0.1\nsearch a cluster.local\noptions edns0\n";
            let mut pod = Pod { dns: Dns { policy, ..Dns::default() }, ..pod() };
            pod.namespaces.host_network = on_host;
            form(&pod, &node, parse_resolv_conf(file).unwrap())
        };
        let first = of(DnsPolicy::ClusterFirst, false, &["10.96.0.10"]).config;
        assert_eq!(first.servers, ["10.96.0.10"]);
        assert_eq!(first.searches, ["default.svc.cluster.local", "svc.cluster.local", "cluster.local", "a"]);
        assert_eq!(first.options, ["ndots:5"]);
        let on_host = of(DnsPolicy::ClusterFirst, true, &["10.96.0.10"]);
        assert_eq!((on_host.config.servers, on_host.missing), (vec!["10.0.0.1".to_owned()], false));
        let with = of(DnsPolicy::ClusterFirstWithHostNet, true, &["10.96.0.10"]).config;
        assert_eq!(with.servers, ["10.96.0.10"]);
        let without = of(DnsPolicy::ClusterFirst, false, &[]);
        assert_eq!((without.config.servers, without.missing), (vec!["10.0.0.1".to_owned()], true));
        assert!(!of(DnsPolicy::Default, false, &[]).missing);
    }

    #[test]
    fn what_does_not_fit_is_told() {
        let mut config = DnsConfig {
            servers: ["1", "2", "3", "4"].map(str::to_owned).into(),
            searches: vec!["a".into(), "x".repeat(254), "b".into()],
            options: vec![],
        };
        let told = fit(&mut config);
        assert_eq!((config.servers.len(), config.searches.len()), (3, 2));
        assert_eq!(
            told,
            [
                "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: 1 2 3",
                "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: a b"
            ]
        );
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
        let config = parse_resolv_conf(text).unwrap();
        assert_eq!(config.servers, ["10.0.0.1", "10.0.0.2"]);
        assert_eq!(config.searches, ["b", "c"]);
        assert_eq!(config.options, ["ndots:2", "edns0"]);
    }

    /// systemd-resolved writes `search .` where a host has no domain.
    #[test]
    fn the_root_and_trailing_dots_are_not_searched_and_options_add_up() {
        let of = |text| parse_resolv_conf(text).unwrap();
        assert_eq!(of("search .\n").searches, [""; 0]);
        assert_eq!(of("search a. b.. . c\n").searches, ["a", "b.", "c"]);
        let options = of("options ndots:2 edns0\noptions timeout:1 ndots:5 edns0\n").options;
        assert_eq!(options, ["timeout:1", "ndots:5", "edns0"]);
        assert_eq!(parse_resolv_conf("nameserver \n"), Err(Malformed));
        let node = Resolver { cluster: vec!["10.96.0.10".into()], cluster_domain: "x".into(), ..in_a_file() };
        let config = form(&pod(), &node, of("search . x.\n")).config;
        assert_eq!(config.searches, ["default.svc.x", "svc.x", "x"]);
    }
}
