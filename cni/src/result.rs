//! What an ADD answers: the result types of CNI 1.1.0, on the wire and in the cache.
//!
//! Owns the names of fields; never touches the kernel. Made by the plugins, stored by [`crate::chain`], read by the
//! runtime for the pod's addresses. <https://www.cni.dev/docs/spec/#section-5-result-types>

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// The outcome of a chain of plugins.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CniResult {
    /// The version of the specification whose shape this result has: that of the configuration.
    #[serde(rename = "cniVersion")]
    pub cni_version: String,
    /// Links that were made, on the host and in the pod.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_is_default")]
    pub interfaces: Vec<Interface>,
    /// Addresses of the pod, in the order of the configuration's range sets.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_is_default")]
    pub ips: Vec<IpConfig>,
    /// Routes of the pod.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_is_default")]
    pub routes: Vec<Route>,
    /// Name resolution, if the network has an opinion on it.
    #[serde(skip_serializing_if = "Dns::is_empty", deserialize_with = "null_is_default")]
    pub dns: Dns,
}

/// Go writes an absent list as null where its field lacks `omitempty`.
fn null_is_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Option::deserialize(from).map(Option::unwrap_or_default)
}

/// A link.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its hardware address.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mac: String,
    /// Its MTU (since 1.1.0).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub mtu: u32,
    /// The path of the network namespace it is in; empty for the host.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub sandbox: String,
    /// The socket of a userspace network (since 1.1.0).
    #[serde(default, rename = "socketPath", skip_serializing_if = "String::is_empty")]
    pub socket_path: String,
    /// The PCI device behind it (since 1.1.0).
    #[serde(default, rename = "pciID", skip_serializing_if = "String::is_empty")]
    pub pci_id: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
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
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_is_default")]
    pub nameservers: Vec<String>,
    /// The local domain.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub domain: String,
    /// Search domains, in order.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_is_default")]
    pub search: Vec<String>,
    /// Options for the resolver.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_is_default")]
    pub options: Vec<String>,
}

impl Dns {
    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        *self == Dns::default()
    }
}

impl CniResult {
    /// Gives the result the shape of a configuration's version: before 1.0.0 each address names its family and links have
    /// a name, an address and a sandbox only.
    #[must_use]
    pub(crate) fn in_version(mut self, cni_version: &str) -> CniResult {
        let is_old = cni_version.starts_with("0.");
        for ip in &mut self.ips {
            let family = if ip.address.addr().is_ipv4() { "4" } else { "6" };
            ip.version = is_old.then(|| family.into());
        }
        for interface in self.interfaces.iter_mut().filter(|_| is_old) {
            let Interface { name, mac, sandbox, .. } = std::mem::take(interface);
            *interface = Interface { name, mac, sandbox, ..Interface::default() };
        }
        self.cni_version = cni_version.into();
        self
    }

    /// The result as JSON.
    pub(crate) fn to_value(&self) -> Value {
        // Strings, numbers and lists of them always have a JSON form.
        serde_json::to_value(self).unwrap_or_default()
    }

    /// Its addresses that belong to this interface of the sandbox, or to no interface in particular. Of a plugin that
    /// says of no interface of this name that it is the sandbox's, those of the name alone.
    pub fn addresses_of(&self, ifname: &str) -> impl Iterator<Item = &IpConfig> {
        let told = self.inside(ifname).is_some();
        self.ips.iter().filter(move |ip| {
            let interface = ip.interface.and_then(|index| self.interfaces.get(index));
            interface.is_none_or(|found| found.name == ifname && (!told || !found.sandbox.is_empty()))
        })
    }

    /// The interface of this name inside the sandbox.
    pub(crate) fn inside(&self, ifname: &str) -> Option<&Interface> {
        self.interfaces.iter().find(|found| found.name == ifname && !found.sandbox.is_empty())
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
                ..Interface::default()
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
    fn an_address_belongs_to_the_interface_of_the_sandbox_or_else_of_the_name() {
        let count = |result: &CniResult| result.addresses_of("eth0").count();
        let mut result = sample();
        assert_eq!(count(&result), 1);
        result.interfaces[0].sandbox = String::new();
        assert_eq!(count(&result), 1, "flannel's and others' plugins of old leave the sandbox out");
        result.interfaces.push(Interface { sandbox: "/run/netns/a".into(), ..result.interfaces[0].clone() });
        assert_eq!(count(&result), 0, "the host's end has the pod's name, and the address");
        result.ips[0].interface = None;
        assert_eq!(count(&result), 1);
        result.interfaces.clear();
        result.ips.clear();
        assert_eq!(count(&result), 0);
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

    #[test]
    fn what_an_old_version_does_not_have_is_left_out() {
        let mut result = sample();
        result.interfaces[0].mtu = 1400;
        result.interfaces[0].pci_id = "0000:01:00.0".into();
        assert_eq!(result.clone().in_version("1.1.0").to_value()["interfaces"][0]["mtu"], 1400);
        let old = result.in_version("0.3.1").to_value();
        assert_eq!(
            old["interfaces"][0],
            json!({"name": "eth0", "mac": "0a:58:0a:57:00:02", "sandbox": "/run/netns/a"})
        );
        let back: CniResult = serde_json::from_value(old).unwrap();
        assert_eq!(back.in_version("1.0.0").ips[0].version, None);
    }

    #[test]
    fn nulls_of_go_are_empty_lists() {
        let value = json!({"cniVersion": "1.0.0", "interfaces": null, "ips": null, "routes": null, "dns": {"search": null}});
        assert_eq!(
            serde_json::from_value::<CniResult>(value).unwrap(),
            CniResult::default().in_version("1.0.0")
        );
    }

    #[test]
    fn addresses_of_other_links_are_told_apart() {
        let mut result = sample();
        result.interfaces.push(Interface { name: "veth0".into(), ..Interface::default() });
        for (interface, expected) in [(Some(0), 1), (Some(1), 0), (Some(9), 1), (None, 1)] {
            result.ips[0].interface = interface;
            assert_eq!(result.addresses_of("eth0").count(), expected, "{interface:?}");
        }
    }
}
