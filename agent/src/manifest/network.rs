//! Ports, names and resolver of a pod. Pure: owns their checks; never looks at the node's ports or
//! files. Called by [`super::pod`] and [`super::container`].

use std::collections::BTreeSet;
use std::net::IpAddr;

use gantry_model::names;
use gantry_model::pod::{Container, Dns, DnsPolicy, Port};
use k8s_openapi::api::core::v1 as api;

use super::field::{
    DNS_LABEL, DNS_SUBDOMAIN, Result, check, duplicate, invalid, invalid_plain, one_of, required,
    required_because,
};
use super::probe::{port_name, port_number};

const IP: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";

/// On the host's network a port is the node's own: both numbers are the same.
pub(super) fn ports(at: &str, list: Vec<api::ContainerPort>, host_network: bool) -> Result<Vec<Port>> {
    let mut ports: Vec<Port> = Vec::with_capacity(list.len());
    for (index, port) in list.into_iter().enumerate() {
        let api::ContainerPort { container_port, host_ip, host_port, name, protocol } = port;
        let field = format!("{at}[{index}]");
        let name = name.unwrap_or_default();
        if !name.is_empty() {
            port_name(&format!("{field}.name"), &name)?;
            if ports.iter().any(|known| known.name == name) {
                return Err(duplicate(format!("{field}.name"), &name));
            }
        }
        if container_port == 0 {
            return Err(required(format!("{field}.containerPort")));
        }
        let number = port_number(&format!("{field}.containerPort"), i64::from(container_port))?;
        let host_field = format!("{field}.hostPort");
        let host_port = match host_port.unwrap_or(0) {
            0 if host_network => number,
            0 => 0,
            given => port_number(&host_field, i64::from(given))?,
        };
        if host_network && host_port != number {
            return Err(invalid_plain(
                host_field,
                host_port,
                "must match `containerPort` when `hostNetwork` is true",
            ));
        }
        let host_ip = host_ip.unwrap_or_default();
        if !host_ip.is_empty() {
            check(format!("{field}.hostIP"), &host_ip, is_ip, IP)?;
        }
        let protocol = protocol.filter(|p| !p.is_empty()).unwrap_or_else(|| "TCP".to_owned());
        one_of(format!("{field}.protocol"), &protocol, &[("TCP", ()), ("UDP", ()), ("SCTP", ())])?;
        ports.push(Port { name, port: number, protocol, host_port, host_ip });
    }
    Ok(ports)
}

/// No port of the node twice among containers that run side by side.
pub(super) fn unique_host_ports(at: &str, containers: &[Container]) -> Result<()> {
    let mut seen = BTreeSet::new();
    for (index, container) in containers.iter().enumerate() {
        for (number, port) in container.ports.iter().enumerate().filter(|(_, port)| port.host_port != 0) {
            let text = format!("{}/{}/{}", port.protocol, port.host_ip, port.host_port);
            if !seen.insert(text.clone()) {
                return Err(duplicate(format!("{at}[{index}].ports[{number}].hostPort"), &text));
            }
        }
    }
    Ok(())
}

fn is_ip(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok()
}

pub(super) fn dns(policy: Option<&str>, config: Option<api::PodDNSConfig>) -> Result<Dns> {
    let policies = [
        ("ClusterFirst", DnsPolicy::ClusterFirst),
        ("ClusterFirstWithHostNet", DnsPolicy::ClusterFirstWithHostNet),
        ("Default", DnsPolicy::Default),
        ("None", DnsPolicy::None),
    ];
    let policy = match policy {
        None | Some("") => DnsPolicy::ClusterFirst,
        Some(text) => one_of("spec.dnsPolicy", text, &policies)?,
    };
    let at = "spec.dnsConfig";
    if policy == DnsPolicy::None && config.is_none() {
        return Err(required_because(at, "must provide `dnsConfig` when `dnsPolicy` is None"));
    }
    let api::PodDNSConfig { nameservers, options, searches } = config.unwrap_or_default();
    let (nameservers, searches) = (nameservers.unwrap_or_default(), searches.unwrap_or_default());
    let field = format!("{at}.nameservers");
    if policy == DnsPolicy::None && nameservers.is_empty() {
        return Err(required_because(
            field,
            "must provide at least one DNS nameserver when `dnsPolicy` is None",
        ));
    }
    if nameservers.len() > 3 {
        return Err(invalid(field, &nameservers.join(","), "must not have more than 3 nameservers"));
    }
    for (index, server) in nameservers.iter().enumerate() {
        check(format!("{field}[{index}]"), server, is_ip, IP)?;
    }
    searches_ok(&format!("{at}.searches"), &searches)?;
    let mut pairs = Vec::new();
    for (index, option) in options.unwrap_or_default().into_iter().enumerate() {
        let api::PodDNSConfigOption { name, value } = option;
        let field = format!("{at}.options[{index}]");
        let Some(name) = name.filter(|n| !n.is_empty()) else {
            return Err(required_because(field, "must not be empty"));
        };
        let word = |text: &str| !text.contains(char::is_whitespace) && !text.contains('\0');
        check(&field, &name, word, "must be one word")?;
        if let Some(value) = &value {
            check(&field, value, word, "must be one word")?;
        }
        pairs.push((name, value));
    }
    Ok(Dns { policy, nameservers, searches, options: pairs })
}

fn searches_ok(field: &str, searches: &[String]) -> Result<()> {
    let joined = searches.join(" ");
    if searches.len() > 32 {
        return Err(invalid(field, &joined, "must not have more than 32 search paths"));
    }
    if joined.len() > 2048 {
        return Err(invalid(
            field,
            &joined,
            "must not have more than 2048 characters (including spaces) in the search list",
        ));
    }
    for (index, search) in searches.iter().enumerate() {
        let name = search.strip_suffix('.').unwrap_or(search);
        let fine = |_: &str| search == "." || names::is_dns_subdomain(&name.replace('_', "a"));
        check(format!("{field}[{index}]"), search, fine, DNS_SUBDOMAIN)?;
    }
    Ok(())
}

pub(super) fn host_aliases(list: Vec<api::HostAlias>) -> Result<Vec<(String, Vec<String>)>> {
    let mut aliases = Vec::with_capacity(list.len());
    for (index, api::HostAlias { hostnames, ip }) in list.into_iter().enumerate() {
        let at = format!("spec.hostAliases[{index}]");
        check(format!("{at}.ip"), &ip, is_ip, IP)?;
        let hostnames = hostnames.unwrap_or_default();
        for (number, name) in hostnames.iter().enumerate() {
            check(format!("{at}.hostnames[{number}]"), name, names::is_dns_subdomain, DNS_SUBDOMAIN)?;
        }
        aliases.push((ip, hostnames));
    }
    Ok(aliases)
}

/// The pod's name cut to what a host name may hold, unless one is given.
pub(super) fn hostname(given: Option<String>, pod_name: &str) -> Result<String> {
    if let Some(hostname) = given.filter(|h| !h.is_empty()) {
        check("spec.hostname", &hostname, names::is_dns_label, DNS_LABEL)?;
        return Ok(hostname);
    }
    Ok(cut(pod_name))
}

/// At most 63 characters, and none at the end that a host name must not end with.
pub(crate) fn cut(name: &str) -> String {
    match name.get(..63) {
        Some(head) if name.len() > 63 => head.trim_end_matches(['-', '.']).to_owned(),
        _ => name.to_owned(),
    }
}
