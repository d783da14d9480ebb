//! The `ipam` object of a configuration: read, checked, made whole.
//!
//! Owns what a range is; pure, but for knowing a folder's path. Never allocates. Called when a chain is checked, before
//! any effect.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use serde::Deserialize;
use serde_json::Value;

use crate::result::Route;

/// Addresses from `start` to `end`, both included, of a subnet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) subnet: IpNet,
    pub(crate) start: IpAddr,
    pub(crate) end: IpAddr,
    pub(crate) gateway: IpAddr,
}

/// Ranges of one family of which an attachment gets one address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RangeSet {
    pub(crate) ranges: Vec<Range>,
}

/// A checked configuration.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// The folder of this network's leases.
    pub(crate) dir: PathBuf,
    pub(crate) sets: Vec<RangeSet>,
    pub(crate) routes: Vec<Route>,
}

/// What is wrong with an `ipam` object.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("ipam cannot be read")]
    Shape(#[source] serde_json::Error),
    #[error("ipam.{field} is not supported yet; remove it")]
    Unsupported { field: &'static str },
    #[error("ipam names no subnet and no ranges")]
    NoRanges,
    #[error("ipam.ranges has an empty set")]
    EmptySet,
    #[error("a range of ipam has no subnet")]
    NoSubnet,
    #[error("subnet {subnet} is too small to allocate from")]
    TooSmall { subnet: IpNet },
    #[error("subnet {subnet} has host bits set; the network is {network}")]
    HostBits { subnet: IpNet, network: IpNet },
    #[error("{field} {address} is not in subnet {subnet}")]
    Outside { field: &'static str, address: IpAddr, subnet: IpNet },
    #[error("rangeStart {start} is behind rangeEnd {end}")]
    Reversed { start: IpAddr, end: IpAddr },
    #[error("a range set mixes IPv4 and IPv6; make two sets of it")]
    MixedFamilies,
    #[error("ranges {first} and {second} overlap")]
    Overlap { first: String, second: String },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Raw {
    #[serde(rename = "type")]
    _type: String,
    #[serde(default)]
    routes: Option<Vec<Route>>,
    #[serde(default)]
    data_dir: Option<PathBuf>,
    #[serde(default)]
    resolv_conf: Option<String>,
    #[serde(default)]
    ranges: Option<Vec<Vec<RawRange>>>,
    subnet: Option<IpNet>,
    range_start: Option<IpAddr>,
    range_end: Option<IpAddr>,
    gateway: Option<IpAddr>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawRange {
    subnet: Option<IpNet>,
    range_start: Option<IpAddr>,
    range_end: Option<IpAddr>,
    gateway: Option<IpAddr>,
}

impl Config {
    /// Reads an `ipam` object; leases lie in `data_dir/network` unless the object has a `dataDir`.
    pub(crate) fn parse(ipam: &Value, network: &str, data_dir: &Path) -> Result<Config, ConfigError> {
        let raw = Raw::deserialize(ipam).map_err(ConfigError::Shape)?;
        if raw.resolv_conf.is_some_and(|path| !path.is_empty()) {
            return Err(ConfigError::Unsupported { field: "resolvConf" });
        }
        // The old single range comes before the list, as upstream has it: it is set number 0.
        let single = RawRange {
            subnet: raw.subnet,
            range_start: raw.range_start,
            range_end: raw.range_end,
            gateway: raw.gateway,
        };
        let single = single.is_given().then(|| vec![single]);
        let sets: Vec<RangeSet> = single
            .into_iter()
            .chain(raw.ranges.unwrap_or_default())
            .map(|set| RangeSet::check(&set))
            .collect::<Result<_, _>>()?;
        if sets.is_empty() {
            return Err(ConfigError::NoRanges);
        }
        refuse_overlaps(&sets)?;
        let data_dir =
            raw.data_dir.filter(|dir| !dir.as_os_str().is_empty()).unwrap_or_else(|| data_dir.into());
        Ok(Config { dir: data_dir.join(network), sets, routes: raw.routes.unwrap_or_default() })
    }
}

fn refuse_overlaps(sets: &[RangeSet]) -> Result<(), ConfigError> {
    let ranges: Vec<&Range> = sets.iter().flat_map(|set| &set.ranges).collect();
    for (index, first) in ranges.iter().enumerate() {
        if let Some(second) = ranges.iter().skip(index + 1).find(|second| first.overlaps(second)) {
            return Err(ConfigError::Overlap { first: first.to_string(), second: second.to_string() });
        }
    }
    Ok(())
}

impl RangeSet {
    fn check(raw: &[RawRange]) -> Result<RangeSet, ConfigError> {
        let ranges: Vec<Range> = raw.iter().map(Range::check).collect::<Result<_, _>>()?;
        let first = ranges.first().ok_or(ConfigError::EmptySet)?;
        if ranges.iter().any(|range| range.start.is_ipv4() != first.start.is_ipv4()) {
            return Err(ConfigError::MixedFamilies);
        }
        Ok(RangeSet { ranges })
    }
}

impl RawRange {
    fn is_given(&self) -> bool {
        self.subnet.is_some()
            || self.range_start.is_some()
            || self.range_end.is_some()
            || self.gateway.is_some()
    }
}

impl Range {
    fn check(raw: &RawRange) -> Result<Range, ConfigError> {
        let subnet = raw.subnet.ok_or(ConfigError::NoSubnet)?;
        if subnet.trunc() != subnet {
            return Err(ConfigError::HostBits { subnet, network: subnet.trunc() });
        }
        // Network address, gateway and (IPv4) broadcast address leave nothing of a /31 or /32.
        if subnet.prefix_len() > subnet.max_prefix_len() - 2 {
            return Err(ConfigError::TooSmall { subnet });
        }
        let inside = |field, address: Option<IpAddr>, default: IpAddr| match address {
            Some(address) if !subnet.contains(&address) => {
                Err(ConfigError::Outside { field, address, subnet })
            }
            Some(address) => Ok(address),
            None => Ok(default),
        };
        let first = from_number(subnet.addr(), number(subnet.network()) + 1);
        let last = match subnet {
            IpNet::V4(net) => from_number(subnet.addr(), number(net.broadcast().into()) - 1),
            IpNet::V6(net) => net.broadcast().into(),
        };
        let range = Range {
            subnet,
            start: inside("rangeStart", raw.range_start, first)?,
            end: inside("rangeEnd", raw.range_end, last)?,
            // A gateway elsewhere is allowed: it is then another machine's affair to be reachable.
            gateway: raw.gateway.unwrap_or(first),
        };
        if range.start > range.end {
            return Err(ConfigError::Reversed { start: range.start, end: range.end });
        }
        Ok(range)
    }

    /// Whether the address is one of this range.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.start.is_ipv4() && self.start <= address && address <= self.end
    }

    fn overlaps(&self, other: &Range) -> bool {
        self.contains(other.start) || other.contains(self.start)
    }

    /// Whether the address may never be given: the gateway, the network's own and the broadcast address.
    pub(crate) fn reserves(&self, address: IpAddr) -> bool {
        let ends =
            address == self.subnet.network() || (address.is_ipv4() && address == self.subnet.broadcast());
        ends || address == self.gateway
    }
}

/// An address as a number, to count with.
pub(super) fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// The address of this number, of the same family as `like`.
pub(super) fn from_number(like: IpAddr, number: u128) -> IpAddr {
    match like {
        IpAddr::V4(_) => IpAddr::V4(u32::try_from(number).unwrap_or(u32::MAX).into()),
        IpAddr::V6(_) => IpAddr::V6(number.into()),
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.start, self.end)
    }
}

impl fmt::Display for RangeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, range) in self.ranges.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{range}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(ipam: &Value) -> Result<Config, String> {
        Config::parse(ipam, "net", Path::new("/data")).map_err(|error| {
            let source = std::error::Error::source(&error).map(|s| format!(": {s}")).unwrap_or_default();
            format!("{error}{source}")
        })
    }

    #[test]
    fn defaults_are_filled_in() {
        let config = check(&json!({"type": "host-local", "subnet": "10.1.2.0/24"})).unwrap();
        assert_eq!(config.sets[0].to_string(), "10.1.2.1-10.1.2.254");
        assert_eq!(config.sets[0].ranges[0].gateway.to_string(), "10.1.2.1");
        assert_eq!(config.dir, Path::new("/data/net"));
        let config = check(&json!({"type": "host-local", "dataDir": "/x", "subnet": "fd00::/120"})).unwrap();
        assert_eq!(config.sets[0].to_string(), "fd00::1-fd00::ff");
        assert_eq!(config.dir, Path::new("/x/net"));
    }

    #[test]
    fn the_single_range_comes_before_the_list() {
        let config = check(&json!({"type": "host-local", "subnet": "10.1.0.0/24", "ranges": [[
            {"subnet": "fd00::/64", "gateway": "fd00::5"}, {"subnet": "fd01::/64"}]]}))
        .unwrap();
        assert_eq!(config.sets.len(), 2);
        assert!(config.sets[0].ranges[0].start.is_ipv4());
        assert_eq!(config.sets[1].ranges[0].gateway.to_string(), "fd00::5");
    }

    #[test]
    fn bad_objects_are_refused_by_name() {
        for (ipam, expected) in [
            (json!({"type": "host-local"}), "no subnet and no ranges"),
            (json!({"type": "host-local", "ranges": [[]]}), "empty set"),
            (json!({"type": "host-local", "rangeStart": "10.0.0.4"}), "has no subnet"),
            (json!({"type": "host-local", "subnet": "10.0.0.0/31"}), "10.0.0.0/31 is too small"),
            (
                json!({"type": "host-local", "subnet": "10.0.0.1/24"}),
                "host bits set; the network is 10.0.0.0/24",
            ),
            (
                json!({"type": "host-local", "subnet": "10.0.0.0/24", "rangeEnd": "10.0.1.9"}),
                "rangeEnd 10.0.1.9 is not in subnet 10.0.0.0/24",
            ),
            (
                json!({"type": "host-local", "subnet": "10.0.0.0/24", "rangeStart": "10.0.0.9", "rangeEnd": "10.0.0.4"}),
                "rangeStart 10.0.0.9 is behind rangeEnd 10.0.0.4",
            ),
            (
                json!({"type": "host-local", "ranges": [[{"subnet": "10.0.0.0/24"}, {"subnet": "fd00::/64"}]]}),
                "mixes IPv4 and IPv6",
            ),
            (
                json!({"type": "host-local", "ranges": [[{"subnet": "10.0.0.0/24"}], [{"subnet": "10.0.0.0/16"}]]}),
                "ranges 10.0.0.1-10.0.0.254 and 10.0.0.1-10.0.255.254 overlap",
            ),
            (
                json!({"type": "host-local", "subnet": "10.0.0.0/24", "resolvConf": "/etc/resolv.conf"}),
                "ipam.resolvConf",
            ),
            (json!({"type": "host-local", "subnets": []}), "unknown field `subnets`"),
            (json!({"type": "host-local", "subnet": "ten"}), "invalid IP address syntax"),
        ] {
            let error = check(&ipam).unwrap_err();
            assert!(error.contains(expected), "{ipam}: {error}");
        }
    }
}
