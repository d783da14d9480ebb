//! The configuration of a `bridge` plugin: read and checked.
//!
//! Owns which fields are honoured and which are refused; pure. Never has an effect. Called when a chain is checked.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::host_local;
use crate::result::Dns;

/// Upstream's name for a bridge that the configuration does not name.
const DEFAULT_BRIDGE: &str = "cni0";

/// Fields of the upstream plugin that Gantry does not have. Switched off they are fine; on, they would be missed, some
/// of them as a hole in isolation.
const UNSUPPORTED: [&str; 11] = [
    "ipMasq",
    "vlan",
    "vlanTrunk",
    "promiscMode",
    "forceAddress",
    "macspoofchk",
    "enabledad",
    "disableContainerInterface",
    "portIsolation",
    "args",
    "preserveDefaultVlan",
];

/// Requests that a runtime may pass through `runtimeConfig` and that this plugin would have to obey.
const UNSUPPORTED_AT_RUN_TIME: [&str; 3] = ["mac", "ips", "ipRanges"];

/// A checked configuration.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) bridge: String,
    pub(crate) is_gateway: bool,
    pub(crate) is_default_gateway: bool,
    pub(crate) hairpin: bool,
    /// `None`: the kernel's default.
    pub(crate) mtu: Option<u32>,
    pub(crate) dns: Dns,
    /// `None`: a link without addresses.
    pub(crate) ipam: Option<host_local::Config>,
}

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("the configuration cannot be read")]
    Shape(#[source] serde_json::Error),
    #[error("{field} is not supported yet; remove it or switch it off")]
    Unsupported { field: String },
    #[error("{name:?} is not a name for a bridge")]
    BridgeName { name: String },
    #[error("ipam type {name:?} is not supported; built in is host-local")]
    IpamType { name: String },
    #[error("the address ranges are wrong")]
    Ipam(#[source] host_local::ConfigError),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Raw {
    #[serde(default)]
    bridge: Option<String>,
    #[serde(default)]
    is_gateway: Option<bool>,
    #[serde(default)]
    is_default_gateway: Option<bool>,
    #[serde(default)]
    hairpin_mode: Option<bool>,
    #[serde(default)]
    mtu: Option<u32>,
    #[serde(default)]
    dns: Option<Dns>,
    #[serde(default)]
    ipam: Option<Value>,
    // Only says how to masquerade; whether to is ipMasq, which is refused.
    #[serde(default, rename = "ipMasqBackend")]
    _ip_masq_backend: Option<Value>,
    // Fields of the specification that are the chain's affair.
    #[serde(default, rename = "type")]
    _type: Option<Value>,
    #[serde(default, rename = "name")]
    _name: Option<Value>,
    #[serde(default, rename = "cniVersion")]
    _cni_version: Option<Value>,
    #[serde(default, rename = "capabilities")]
    _capabilities: Option<Value>,
    #[serde(default, rename = "runtimeConfig")]
    _runtime_config: Option<Value>,
    #[serde(default, rename = "prevResult")]
    _prev_result: Option<Value>,
}

impl Config {
    /// Reads a plugin's object of the network; leases lie under `data_dir` if it does not say otherwise.
    pub(crate) fn parse(conf: &Value, network: &str, data_dir: &Path) -> Result<Config, ConfigError> {
        let mut conf = conf.clone();
        refuse_unsupported(&conf)?;
        if let Some(fields) = conf.as_object_mut() {
            for field in UNSUPPORTED {
                fields.remove(field);
            }
        }
        let raw = Raw::deserialize(conf).map_err(ConfigError::Shape)?;
        let bridge = raw.bridge.filter(|name| !name.is_empty()).unwrap_or_else(|| DEFAULT_BRIDGE.into());
        if !crate::chain::is_interface_name(&bridge) {
            return Err(ConfigError::BridgeName { name: bridge });
        }
        let is_default_gateway = raw.is_default_gateway.unwrap_or(false);
        Ok(Config {
            bridge,
            is_gateway: is_default_gateway || raw.is_gateway.unwrap_or(false),
            is_default_gateway,
            hairpin: raw.hairpin_mode.unwrap_or(false),
            mtu: raw.mtu.filter(|mtu| *mtu != 0),
            dns: raw.dns.unwrap_or_default(),
            ipam: parse_ipam(raw.ipam.as_ref(), network, data_dir)?,
        })
    }
}

fn refuse_unsupported(conf: &Value) -> Result<(), ConfigError> {
    if let Some(field) = UNSUPPORTED.into_iter().find(|field| conf.get(field).is_some_and(is_on)) {
        return Err(ConfigError::Unsupported { field: field.into() });
    }
    let run_time = conf.get("runtimeConfig");
    let asked = |field: &str| run_time.and_then(|fields| fields.get(field)).is_some_and(is_on);
    match UNSUPPORTED_AT_RUN_TIME.into_iter().find(|field| asked(field)) {
        Some(field) => Err(ConfigError::Unsupported { field: format!("runtimeConfig.{field}") }),
        None => Ok(()),
    }
}

fn is_on(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Bool(true) => true,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
    }
}

fn parse_ipam(
    ipam: Option<&Value>,
    network: &str,
    data_dir: &Path,
) -> Result<Option<host_local::Config>, ConfigError> {
    let Some(ipam) = ipam.filter(|ipam| is_on(ipam)) else { return Ok(None) };
    match ipam.get("type").and_then(Value::as_str).unwrap_or_default() {
        "" => Ok(None),
        "host-local" => {
            host_local::Config::parse(ipam, network, data_dir).map(Some).map_err(ConfigError::Ipam)
        }
        other => Err(ConfigError::IpamType { name: other.into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(conf: &Value) -> Result<Config, String> {
        Config::parse(conf, "net", Path::new("/data")).map_err(|error| crate::chain::explain(&error))
    }

    #[test]
    fn a_usual_configuration_is_read() {
        let config = check(&json!({
            "cniVersion": "1.0.0", "name": "net", "type": "bridge", "capabilities": {"portMappings": true},
            "bridge": "br1", "isDefaultGateway": true, "hairpinMode": true, "mtu": 1400, "ipMasq": false, "vlan": 0,
            "ipam": {"type": "host-local", "subnet": "10.0.0.0/24"}, "dns": {"nameservers": ["10.0.0.53"]},
            "runtimeConfig": {"portMappings": [{"hostPort": 80}]}, "prevResult": {},
        }))
        .unwrap();
        assert_eq!((config.bridge.as_str(), config.mtu), ("br1", Some(1400)));
        assert!(config.is_gateway && config.is_default_gateway && config.hairpin);
        assert_eq!(config.dns.nameservers, ["10.0.0.53"]);
        assert!(config.ipam.is_some());
    }

    #[test]
    fn defaults_are_those_of_upstream() {
        let config = check(&json!({"type": "bridge", "mtu": 0})).unwrap();
        assert_eq!((config.bridge.as_str(), config.mtu), ("cni0", None));
        assert!(!config.is_gateway && !config.is_default_gateway && !config.hairpin && config.ipam.is_none());
    }

    #[test]
    fn fields_that_are_not_honoured_are_refused_by_name() {
        for field in UNSUPPORTED {
            for on in [json!(true), json!(5), json!([{"id": 1}]), json!({"cni": {}})] {
                let error = check(&json!({"type": "bridge", field: on})).unwrap_err();
                assert!(error.contains(&format!("{field} is not supported yet")), "{error}");
            }
            for off in [json!(null), json!(false), json!(0), json!([]), json!({})] {
                check(&json!({"type": "bridge", field: off})).unwrap();
            }
        }
        let error =
            check(&json!({"type": "bridge", "runtimeConfig": {"mac": "02:00:00:00:00:01"}})).unwrap_err();
        assert!(error.contains("runtimeConfig.mac"), "{error}");
    }

    #[test]
    fn wrong_values_are_refused() {
        for (conf, expected) in [
            (json!({"type": "bridge", "bridge": "../../x"}), "not a name for a bridge"),
            (json!({"type": "bridge", "bridge": "a-name-that-is-long"}), "not a name for a bridge"),
            (json!({"type": "bridge", "mtu": -1}), "invalid value"),
            (json!({"type": "bridge", "hairpin": true}), "unknown field `hairpin`"),
            (json!({"type": "bridge", "ipam": {"type": "dhcp"}}), "ipam type \"dhcp\" is not supported"),
            (json!({"type": "bridge", "ipam": {"type": "host-local"}}), "no subnet and no ranges"),
        ] {
            let error = check(&conf).unwrap_err();
            assert!(error.contains(expected), "{conf}: {error}");
        }
    }
}
