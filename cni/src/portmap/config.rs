//! The configuration of `portmap`, with the ports that the call asks for: read and checked.
//!
//! Owns which fields are honoured and which are refused; pure. Never has an effect. Called when a chain is checked.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use serde::Deserialize;
use serde_json::Value;

use crate::request;

pub(super) const ANY_V4: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
pub(super) const ANY_V6: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

/// Conditions are words in the languages of `nft` and `iptables`, and a chain to jump to is one of iptables: neither is
/// run here.
const UNSUPPORTED: [&str; 3] = ["conditionsV4", "conditionsV6", "externalSetMarkChain"];

/// A protocol with ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    pub(super) fn name(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Sctp => "sctp",
        }
    }

    /// Its number in an IP header.
    pub(super) fn number(self) -> u8 {
        match self {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
            Protocol::Sctp => 132,
        }
    }

    fn parse(name: &str) -> Option<Protocol> {
        [Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
            .into_iter()
            .find(|protocol| protocol.name().eq_ignore_ascii_case(name))
    }
}

/// A port of the host that leads to a port of the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(super) host_port: u16,
    pub(super) container_port: u16,
    pub(super) protocol: Protocol,
    /// The address that it is on; `None` or an unspecified one: all, of its family.
    pub(super) host_ip: Option<IpAddr>,
}

impl Mapping {
    /// Where it is for a pod's address of this family; `None` when it is for the other family only.
    pub(super) fn host_address(&self, pod: IpAddr) -> Option<SocketAddr> {
        let any = if pod.is_ipv4() { ANY_V4 } else { ANY_V6 };
        let ip = self.host_ip.unwrap_or(any);
        (ip.is_ipv4() == pod.is_ipv4()).then(|| SocketAddr::new(ip, self.host_port))
    }
}

/// A checked configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PortmapConfig {
    pub(super) mappings: Vec<Mapping>,
    /// Whether the pod's own connections and those from 127.0.0.1 get the node's address, without which they fail.
    pub(super) snat: bool,
    /// Whether all connections through mapped ports do.
    pub(super) masq_all: bool,
}

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PortmapConfigError {
    #[error("the configuration cannot be read")]
    Shape(#[source] serde_json::Error),
    #[error("{field} is not supported; remove it")]
    Unsupported { field: &'static str },
    #[error("backend {name:?} is not known; ports are mapped with nftables")]
    Backend { name: String },
    #[error("the ports asked for cannot be read")]
    Mappings(#[source] serde_json::Error),
    #[error("{field} {port} of a port mapping is not from 1 to 65535")]
    Port { field: &'static str, port: i64 },
    #[error("protocol {name:?} of host port {port} is not tcp, udp or sctp")]
    Protocol { name: String, port: u16 },
    #[error("hostIP {text:?} of host port {port} is no address")]
    HostIp { text: String, port: u16 },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawPortmapConfig {
    #[serde(default)]
    backend: Option<String>,
    #[serde(default)]
    snat: Option<bool>,
    #[serde(default)]
    masq_all: Option<bool>,
    // A bit in the marks of the iptables backend; with nftables nothing is marked.
    #[serde(default, rename = "markMasqBit")]
    _mark_masq_bit: Option<u8>,
    // Upstream's common fields, without a meaning here.
    #[serde(default, rename = "ipam")]
    _ipam: Option<Value>,
    #[serde(default, rename = "dns")]
    _dns: Option<Value>,
}

#[derive(Deserialize)]
struct RawMapping {
    #[serde(default, rename = "hostport")]
    host_port: i64,
    #[serde(default, rename = "containerport")]
    container_port: i64,
    #[serde(default)]
    protocol: String,
    #[serde(default, rename = "hostip")]
    host_ip: String,
}

/// containerd writes `HostPort` where the conventions have `hostPort`; upstream's reader takes either.
fn in_small_letters(mappings: &Value) -> Value {
    let one = |mapping: &Value| match mapping.as_object() {
        Some(fields) => fields.iter().map(|(key, value)| (key.to_ascii_lowercase(), value.clone())).collect(),
        None => mapping.clone(),
    };
    match mappings.as_array() {
        Some(mappings) => mappings.iter().map(one).collect(),
        None => mappings.clone(),
    }
}

impl PortmapConfig {
    /// Reads the configuration of a call.
    pub(crate) fn parse(conf: &Value) -> Result<PortmapConfig, PortmapConfigError> {
        let mut own = request::own_fields(conf);
        for field in UNSUPPORTED {
            if let Some(value) = own.as_object_mut().and_then(|fields| fields.remove(field))
                && request::is_on(&value)
            {
                return Err(PortmapConfigError::Unsupported { field });
            }
        }
        let raw = RawPortmapConfig::deserialize(own).map_err(PortmapConfigError::Shape)?;
        // Which backend only says how; what is asked for happens either way.
        if let Some(name) = raw.backend.filter(|name| !matches!(name.as_str(), "" | "nftables" | "iptables"))
        {
            return Err(PortmapConfigError::Backend { name });
        }
        let asked = conf.pointer("/runtimeConfig/portMappings").filter(|asked| request::is_on(asked));
        let asked: Vec<RawMapping> = match asked {
            None => Vec::new(),
            Some(asked) => {
                Deserialize::deserialize(in_small_letters(asked)).map_err(PortmapConfigError::Mappings)?
            }
        };
        Ok(PortmapConfig {
            mappings: asked.iter().map(mapping).collect::<Result<_, _>>()?,
            snat: raw.snat.unwrap_or(true),
            masq_all: raw.masq_all.unwrap_or(false),
        })
    }
}

fn mapping(raw: &RawMapping) -> Result<Mapping, PortmapConfigError> {
    let port = |field, port: i64| {
        u16::try_from(port).ok().filter(|port| *port != 0).ok_or(PortmapConfigError::Port { field, port })
    };
    let host_port = port("hostPort", raw.host_port)?;
    let protocol = match raw.protocol.as_str() {
        "" => Protocol::Tcp,
        name => Protocol::parse(name)
            .ok_or_else(|| PortmapConfigError::Protocol { name: name.into(), port: host_port })?,
    };
    let host_ip = match raw.host_ip.as_str() {
        "" => None,
        text => {
            let wrong = |_| PortmapConfigError::HostIp { text: text.into(), port: host_port };
            Some(text.parse::<IpAddr>().map_err(wrong)?)
        }
    };
    Ok(Mapping { host_port, container_port: port("containerPort", raw.container_port)?, protocol, host_ip })
}

#[cfg(test)]
pub(super) mod tests {
    use gantry_base::error::chain;

    use super::*;
    use serde_json::json;

    pub(crate) fn parse(more: Value, mappings: &Value) -> Result<PortmapConfig, String> {
        let mut conf = json!({"type": "portmap", "name": "net", "cniVersion": "1.0.0", "prevResult": {},
            "runtimeConfig": {"portMappings": mappings}});
        let Value::Object(more) = more else { panic!() };
        conf.as_object_mut().unwrap().extend(more);
        PortmapConfig::parse(&conf).map_err(|error| chain(&error))
    }

    #[test]
    fn ports_are_read_as_runtimes_write_them() {
        let config = parse(
            json!({"snat": false, "markMasqBit": 13, "backend": "nftables"}),
            &json!([
                {"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": ""},
                {"hostPort": 53, "containerPort": 5353, "protocol": "UDP", "hostIP": "127.0.0.1"},
                {"HostPort": 99, "ContainerPort": 99, "Protocol": "sctp", "HostIP": "::"},
            ]),
        )
        .unwrap();
        assert!(!config.snat && !config.masq_all);
        let on = |index: usize, pod: &str| {
            config.mappings[index].host_address(pod.parse().unwrap()).map(|at| at.to_string())
        };
        assert_eq!(on(0, "10.0.0.2").as_deref(), Some("0.0.0.0:8080"));
        assert_eq!(on(0, "fd00::2").as_deref(), Some("[::]:8080"));
        assert_eq!(on(1, "10.0.0.2").as_deref(), Some("127.0.0.1:53"));
        assert_eq!(on(1, "fd00::2"), None);
        assert_eq!(on(2, "10.0.0.2"), None);
        assert_eq!(config.mappings[1].protocol, Protocol::Udp);
    }

    #[test]
    fn no_ports_are_fine_and_snat_is_on() {
        for none in [json!(null), json!([])] {
            let config = parse(json!({}), &none).unwrap();
            assert!(config.mappings.is_empty() && config.snat);
        }
    }

    #[test]
    fn what_cannot_be_done_is_refused_by_name() {
        for (more, expected) in [
            (json!({"conditionsV4": ["ip", "daddr", "1.2.3.4"]}), "conditionsV4 is not supported"),
            (json!({"externalSetMarkChain": "KUBE-MARK-MASQ"}), "externalSetMarkChain is not supported"),
            (json!({"backend": "ebpf"}), "backend \"ebpf\" is not known"),
            (json!({"sNat": true}), "unknown field `sNat`"),
        ] {
            let error = parse(more, &json!([])).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        parse(json!({"conditionsV4": [], "externalSetMarkChain": null}), &json!([])).unwrap();
        for (mapping, expected) in [
            (json!({"hostPort": 0, "containerPort": 80}), "hostPort 0 of a port mapping"),
            (json!({"hostPort": 80, "containerPort": 70000}), "containerPort 70000"),
            (
                json!({"hostPort": 80, "containerPort": 80, "protocol": "icmp"}),
                "protocol \"icmp\" of host port 80",
            ),
            (json!({"hostPort": 80, "containerPort": 80, "hostIP": "ten"}), "hostIP \"ten\" of host port 80"),
            (json!("80"), "cannot be read"),
        ] {
            let error = parse(json!({}), &json!([mapping])).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
