//! The configuration of `ptp`: read and checked.
//!
//! Owns which fields there are; pure. Never has an effect. Called when a chain is checked.

use serde::Deserialize;
use serde_json::Value;

use crate::ipam::{self, Ipam};
use crate::request::{self, PluginContext};
use crate::result::Dns;

/// A checked configuration.
#[derive(Debug, Clone)]
pub(crate) struct PtpConfig {
    pub(super) ip_masq: bool,
    /// `None`: the kernel's default.
    pub(super) mtu: Option<u32>,
    pub(super) dns: Dns,
    pub(crate) ipam: Ipam,
}

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PtpConfigError {
    #[error("the configuration cannot be read")]
    Shape(#[source] serde_json::Error),
    #[error("there is no ipam object with a type: a point-to-point link needs addresses")]
    NoIpam,
    #[error(transparent)]
    Ipam(ipam::IpamConfigError),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawPtpConfig {
    #[serde(default)]
    ip_masq: Option<bool>,
    // Only says how to masquerade.
    #[serde(default, rename = "ipMasqBackend")]
    _ip_masq_backend: Option<Value>,
    #[serde(default)]
    mtu: Option<u32>,
    #[serde(default)]
    dns: Option<Dns>,
    #[serde(default, rename = "ipam")]
    _ipam: Option<Value>,
}

impl PtpConfig {
    /// Reads the configuration of a call.
    pub(crate) fn parse(conf: &Value, context: &PluginContext<'_>) -> Result<PtpConfig, PtpConfigError> {
        let raw = RawPtpConfig::deserialize(request::own_fields(conf)).map_err(PtpConfigError::Shape)?;
        Ok(PtpConfig {
            ip_masq: raw.ip_masq.unwrap_or(false),
            mtu: raw.mtu.filter(|mtu| *mtu != 0),
            dns: raw.dns.unwrap_or_default(),
            ipam: Ipam::parse(conf, context).map_err(PtpConfigError::Ipam)?.ok_or(PtpConfigError::NoIpam)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use gantry_base::error::chain;

    use super::*;
    use serde_json::json;
    use std::path::Path;

    fn parse(conf: &Value) -> Result<PtpConfig, String> {
        let context = PluginContext {
            network: "net",
            args: &[],
            data_dir: Path::new("/data"),
            bin_dirs: &[],
            prefer_external: false,
        };
        PtpConfig::parse(conf, &context).map_err(|error| chain(&error))
    }

    #[test]
    fn a_usual_configuration_is_read() {
        let config = parse(&json!({
            "cniVersion": "0.3.1", "name": "kindnet", "type": "ptp", "ipMasq": false, "mtu": 1500,
            "ipam": {"type": "host-local", "dataDir": "/run/cni-ipam-state", "routes": [{"dst": "0.0.0.0/0"}],
                "ranges": [[{"subnet": "10.244.0.0/24"}]]},
        }))
        .unwrap();
        assert_eq!((config.ip_masq, config.mtu, config.ipam.kind()), (false, Some(1500), "host-local"));
    }

    #[test]
    fn wrong_ones_are_refused() {
        for (conf, expected) in [
            (json!({"type": "ptp"}), "no ipam object"),
            (json!({"type": "ptp", "ipam": {}}), "no ipam object"),
            (json!({"type": "ptp", "bridge": "b", "ipam": {"type": "x"}}), "unknown field `bridge`"),
            (json!({"type": "ptp", "ipam": {"type": "host-local"}}), "no subnet and no ranges"),
        ] {
            let error = parse(&conf).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
