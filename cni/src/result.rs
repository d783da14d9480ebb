//! What an ADD answers: the result types of CNI 1.1.0, on the wire and in the cache.
//!
//! Owns the names of fields; never touches the kernel. Made by the plugins, stored by [`crate::chain`], read by the
//! runtime for the pod's addresses. <https://www.cni.dev/docs/spec/#section-5-result-types>

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// The outcome of a chain of plugins.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CniResult {
    /// The version of the specification whose shape this result has: that of the configuration.
    #[serde(rename = "cniVersion")]
    pub cni_version: String,
    /// Links that were made, on the host and in the pod.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<Interface>,
    /// Addresses of the pod, in the order of the configuration's range sets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<IpConfig>,
    /// Routes of the pod.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<Route>,
    /// Name resolution, if the network has an opinion on it.
    #[serde(skip_serializing_if = "Dns::is_empty")]
    pub dns: Dns,
}

/// A link.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its hardware address.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mac: String,
    /// The path of the network namespace it is in; empty for the host.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub sandbox: String,
}

/// An address with what goes with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpConfig {
    /// `4` or `6`; only configurations older than 1.0.0 have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Index into [`CniResult::interfaces`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<usize>,
    /// The address with its subnet's prefix length.
    pub address: IpNet,
    /// The subnet's gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
}

/// A route in the pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Where it leads.
    pub dst: IpNet,
    /// Next hop; without one, the gateway of the pod's address of this family.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gw: Option<IpAddr>,
    /// Path MTU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Advertised maximal segment size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advmss: Option<u32>,
    /// Metric.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
    /// Routing table; main without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<u32>,
    /// Scope (`rtnetlink(7)`); global without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<u8>,
}

impl Route {
    /// A route to `dst` by `gw` and no other wishes.
    pub fn new(dst: IpNet, gw: Option<IpAddr>) -> Route {
        Route { dst, gw, mtu: None, advmss: None, priority: None, table: None, scope: None }
    }

    /// Whether this leads everywhere.
    pub fn is_default(&self) -> bool {
        self.dst.prefix_len() == 0
    }
}

/// Name resolution.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dns {
    /// Name servers, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nameservers: Vec<String>,
    /// The local domain.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub domain: String,
    /// Search domains, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<String>,
    /// Options for the resolver.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

impl Dns {
    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        *self == Dns::default()
    }
}

impl CniResult {
    /// Gives the result the shape of a configuration's version: before 1.0.0 each address names its family.
    #[must_use]
    pub(crate) fn in_version(mut self, cni_version: &str) -> CniResult {
        let names_family = cni_version.starts_with("0.");
        for ip in &mut self.ips {
            let family = if ip.address.addr().is_ipv4() { "4" } else { "6" };
            ip.version = names_family.then(|| family.into());
        }
        self.cni_version = cni_version.into();
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sample() -> CniResult {
        CniResult {
            interfaces: vec![Interface {
                name: "eth0".into(),
                mac: "0a:58:0a:57:00:02".into(),
                sandbox: "/run/netns/a".into(),
            }],
            ips: vec![IpConfig {
                version: None,
                interface: Some(0),
                address: "10.87.0.2/16".parse().unwrap(),
                gateway: Some("10.87.0.1".parse().unwrap()),
            }],
            routes: vec![Route::new("0.0.0.0/0".parse().unwrap(), None)],
            ..CniResult::default()
        }
    }

    #[test]
    fn the_wire_form_is_that_of_the_specification() {
        let value = serde_json::to_value(sample().in_version("1.1.0")).unwrap();
        assert_eq!(
            value,
            json!({
                "cniVersion": "1.1.0",
                "interfaces": [{"name": "eth0", "mac": "0a:58:0a:57:00:02", "sandbox": "/run/netns/a"}],
                "ips": [{"interface": 0, "address": "10.87.0.2/16", "gateway": "10.87.0.1"}],
                "routes": [{"dst": "0.0.0.0/0"}],
            })
        );
        assert_eq!(serde_json::from_value::<CniResult>(value).unwrap(), sample().in_version("1.1.0"));
    }

    #[test]
    fn results_before_1_0_name_the_family() {
        let value = serde_json::to_value(sample().in_version("0.4.0")).unwrap();
        assert_eq!(value["ips"][0]["version"], "4");
        assert_eq!(value["cniVersion"], "0.4.0");
    }
}
