//! The configuration of a `bridge` plugin: read and checked.
//!
//! Owns which fields are honoured and which are refused; pure. Never has an effect. Called when a chain is checked.

use serde::Deserialize;
use serde_json::Value;

use crate::ipam::{self, Ipam};
use crate::request::{self, PluginContext};
use crate::result::Dns;

/// Upstream's name for a bridge that the configuration does not name.
const DEFAULT_BRIDGE: &str = "cni0";

/// Fields of the upstream plugin that Gantry does not have. Switched off they are fine; on, they would be missed, some
/// of them as a hole in isolation.
const UNSUPPORTED: [&str; 4] = ["vlan", "vlanTrunk", "macspoofchk", "preserveDefaultVlan"];

/// A checked configuration.
#[derive(Debug, Clone)]
pub(crate) struct BridgeConfig {
    pub(crate) bridge: String,
    pub(crate) is_gateway: bool,
    pub(crate) is_default_gateway: bool,
    /// Whether a gateway's address drives out others that the bridge has.
    pub(crate) force_address: bool,
    pub(crate) ip_masq: bool,
    pub(crate) hairpin: bool,
    pub(crate) promiscuous: bool,
    /// Whether pods with this setting cannot reach each other by the bridge.
    pub(crate) port_isolation: bool,
    /// Whether the kernel asks others before it uses an IPv6 address.
    pub(crate) enable_dad: bool,
    /// Leaves the pod's end down.
    pub(crate) disable_container_interface: bool,
    /// `None`: the kernel's default.
    pub(crate) mtu: Option<u32>,
    /// The pod's hardware address, if the call asks for one.
    pub(crate) mac: Option<[u8; 6]>,
    pub(crate) dns: Dns,
    /// `None`: a link without addresses.
    pub(crate) ipam: Option<Ipam>,
}

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BridgeConfigError {
    #[error("the configuration cannot be read")]
    Shape(#[source] serde_json::Error),
    #[error("{field} is not supported; remove it or switch it off")]
    Unsupported { field: &'static str },
    #[error("{name:?} is not a name for a bridge")]
    BridgeName { name: String },
    #[error("{field} asks for {text:?}, which is no hardware address of one link")]
    Mac { field: &'static str, text: String },
    #[error("hairpinMode and promiscMode cannot both be on")]
    HairpinAndPromiscuous,
    #[error(
        "disableContainerInterface and ipam cannot both be set: a link that stays down has no use for addresses"
    )]
    AddressesForNothing,
    #[error(transparent)]
    Ipam(ipam::IpamConfigError),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawBridgeConfig {
    #[serde(default)]
    bridge: Option<String>,
    #[serde(default)]
    is_gateway: Option<bool>,
    #[serde(default)]
    is_default_gateway: Option<bool>,
    #[serde(default)]
    force_address: Option<bool>,
    #[serde(default)]
    ip_masq: Option<bool>,
    // Only says how to masquerade; whether to is ipMasq.
    #[serde(default, rename = "ipMasqBackend")]
    _ip_masq_backend: Option<Value>,
    #[serde(default)]
    hairpin_mode: Option<bool>,
    #[serde(default)]
    promisc_mode: Option<bool>,
    #[serde(default)]
    port_isolation: Option<bool>,
    #[serde(default, rename = "enabledad")]
    enable_dad: Option<bool>,
    #[serde(default)]
    disable_container_interface: Option<bool>,
    #[serde(default)]
    mtu: Option<u32>,
    #[serde(default)]
    dns: Option<Dns>,
    #[serde(default, rename = "ipam")]
    _ipam: Option<Value>,
}

impl BridgeConfig {
    /// Reads the configuration of a call.
    pub(crate) fn parse(
        conf: &Value,
        context: &PluginContext<'_>,
    ) -> Result<BridgeConfig, BridgeConfigError> {
        let mut own = request::own_fields(conf);
        for field in UNSUPPORTED {
            if let Some(value) = own.as_object_mut().and_then(|fields| fields.remove(field))
                && request::is_on(&value)
            {
                return Err(BridgeConfigError::Unsupported { field });
            }
        }
        let raw = RawBridgeConfig::deserialize(own).map_err(BridgeConfigError::Shape)?;
        let bridge = raw.bridge.filter(|name| !name.is_empty()).unwrap_or_else(|| DEFAULT_BRIDGE.into());
        if !crate::request::is_interface_name(&bridge) {
            return Err(BridgeConfigError::BridgeName { name: bridge });
        }
        let on = |switch: Option<bool>| switch.unwrap_or(false);
        let config = BridgeConfig {
            bridge,
            is_gateway: on(raw.is_default_gateway) || on(raw.is_gateway),
            is_default_gateway: on(raw.is_default_gateway),
            force_address: on(raw.force_address),
            ip_masq: on(raw.ip_masq),
            hairpin: on(raw.hairpin_mode),
            promiscuous: on(raw.promisc_mode),
            port_isolation: on(raw.port_isolation),
            enable_dad: on(raw.enable_dad),
            disable_container_interface: on(raw.disable_container_interface),
            mtu: raw.mtu.filter(|mtu| *mtu != 0),
            mac: mac_of_call(conf, context)?,
            dns: raw.dns.unwrap_or_default(),
            ipam: Ipam::parse(conf, context).map_err(BridgeConfigError::Ipam)?,
        };
        if config.hairpin && config.promiscuous {
            return Err(BridgeConfigError::HairpinAndPromiscuous);
        }
        if config.disable_container_interface && config.ipam.is_some() {
            return Err(BridgeConfigError::AddressesForNothing);
        }
        Ok(config)
    }
}

/// The hardware address that a call asks for: as a capability, in `args`, in `CNI_ARGS`, in this order.
fn mac_of_call(conf: &Value, context: &PluginContext<'_>) -> Result<Option<[u8; 6]>, BridgeConfigError> {
    let at = |pointer| conf.pointer(pointer).and_then(Value::as_str);
    let wishes = [
        ("runtimeConfig.mac", at("/runtimeConfig/mac")),
        ("args.cni.mac", at("/args/cni/mac")),
        ("CNI_ARGS MAC", request::argument(context.args, "MAC")),
    ];
    let wish =
        wishes.into_iter().find_map(|(field, text)| Some((field, text.filter(|text| !text.is_empty())?)));
    let Some((field, text)) = wish else { return Ok(None) };
    let mut mac = [0; 6];
    // A sign is a number's for Rust.
    let is_pair = |part: &str| part.len() == 2 && part.bytes().all(|digit| digit.is_ascii_hexdigit());
    let mut parts = text.split([':', '-']);
    for byte in &mut mac {
        let part =
            parts.next().filter(|part| is_pair(part)).and_then(|part| u8::from_str_radix(part, 16).ok());
        *byte = part.ok_or_else(|| BridgeConfigError::Mac { field, text: text.into() })?;
    }
    // The lowest bit of the first byte means a group of links.
    if parts.next().is_some() || mac[0] & 1 == 1 {
        return Err(BridgeConfigError::Mac { field, text: text.into() });
    }
    Ok(Some(mac))
}

#[cfg(test)]
mod tests {
    use gantry_base::error::chain;

    use super::*;
    use serde_json::json;
    use std::path::Path;

    fn check_with(conf: &Value, args: &[(String, String)]) -> Result<BridgeConfig, String> {
        let context = PluginContext {
            network: "net",
            args,
            data_dir: Path::new("/data"),
            bin_dirs: &[],
            prefer_external: false,
        };
        BridgeConfig::parse(conf, &context).map_err(|error| chain(&error))
    }

    fn check(conf: &Value) -> Result<BridgeConfig, String> {
        check_with(conf, &[])
    }

    #[test]
    fn a_usual_configuration_is_read() {
        let config = check(&json!({
            "cniVersion": "1.0.0", "name": "net", "type": "bridge", "capabilities": {"portMappings": true},
            "bridge": "br1", "isDefaultGateway": true, "hairpinMode": true, "mtu": 1400, "ipMasq": true, "vlan": 0,
            "forceAddress": true, "portIsolation": true, "enabledad": true,
            "ipam": {"type": "host-local", "subnet": "10.0.0.0/24"}, "dns": {"nameservers": ["10.0.0.53"]},
            "runtimeConfig": {"portMappings": [{"hostPort": 80}]}, "prevResult": {},
        }))
        .unwrap();
        assert_eq!((config.bridge.as_str(), config.mtu), ("br1", Some(1400)));
        assert!(config.is_gateway && config.is_default_gateway && config.hairpin && config.ip_masq);
        assert!(config.force_address && config.port_isolation && config.enable_dad);
        assert_eq!(config.dns.nameservers, ["10.0.0.53"]);
        assert!(config.ipam.is_some());
    }

    #[test]
    fn defaults_are_those_of_upstream() {
        let config = check(&json!({"type": "bridge", "mtu": 0})).unwrap();
        assert_eq!((config.bridge.as_str(), config.mtu, config.mac), ("cni0", None, None));
        assert!(!config.is_gateway && !config.is_default_gateway && !config.hairpin && config.ipam.is_none());
        assert!(!config.ip_masq && !config.force_address && !config.enable_dad && !config.port_isolation);
    }

    #[test]
    fn fields_that_are_not_honoured_are_refused_by_name() {
        for field in UNSUPPORTED {
            for on in [json!(true), json!(5), json!([{"id": 1}]), json!({"cni": {}})] {
                let error = check(&json!({"type": "bridge", field: on})).unwrap_err();
                assert!(error.contains(&format!("{field} is not supported")), "{error}");
            }
            for off in [json!(null), json!(false), json!(0), json!([]), json!({})] {
                check(&json!({"type": "bridge", field: off})).unwrap();
            }
        }
    }

    #[test]
    fn a_hardware_address_is_asked_for_in_three_ways() {
        let args = [("MAC".to_owned(), "02:00:00:00:00:03".to_owned())];
        let mut conf = json!({"type": "bridge"});
        let last = |conf: &Value| check_with(conf, &args).unwrap().mac.unwrap()[5];
        assert_eq!(last(&conf), 3);
        conf["args"] = json!({"cni": {"mac": "02-00-00-00-00-02"}});
        assert_eq!(last(&conf), 2);
        conf["runtimeConfig"] = json!({"mac": "02:00:00:00:00:01"});
        assert_eq!(last(&conf), 1);
        for wrong in [
            "02:00:00:00:00",
            "02:00:00:00:00:01:02",
            "01:00:00:00:00:01",
            "2:0:0:0:0:1",
            "02:00:00:00:00:+1",
            "x",
        ] {
            let error = check(&json!({"type": "bridge", "runtimeConfig": {"mac": wrong}})).unwrap_err();
            assert!(error.contains("runtimeConfig.mac asks for"), "{error}");
        }
    }

    #[test]
    fn wrong_values_are_refused() {
        for (conf, expected) in [
            (json!({"type": "bridge", "bridge": "../../x"}), "not a name for a bridge"),
            (json!({"type": "bridge", "bridge": "a-name-that-is-long"}), "not a name for a bridge"),
            (json!({"type": "bridge", "mtu": -1}), "invalid value"),
            (json!({"type": "bridge", "hairpin": true}), "unknown field `hairpin`"),
            (json!({"type": "bridge", "hairpinMode": true, "promiscMode": true}), "cannot both be on"),
            (
                json!({"type": "bridge", "disableContainerInterface": true, "ipam": {"type": "dhcp"}}),
                "cannot both be set",
            ),
            (json!({"type": "bridge", "ipam": {"type": "host-local"}}), "no subnet and no ranges"),
        ] {
            let error = check(&conf).unwrap_err();
            assert!(error.contains(expected), "{conf}: {error}");
        }
    }
}
