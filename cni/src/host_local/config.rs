//! The `ipam` object of a configuration: read, checked, made whole.
//!
//! Owns what a range is; pure, but for knowing a folder's path. Never allocates. Called when a chain is checked, before
//! any effect.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use serde::Deserialize;
use serde_json::Value;

use super::{Lease, alloc};
use crate::request::{self, PluginContext};
use crate::result::Route;

/// Addresses from `start` to `end`, both included, of a subnet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AddressRange {
    pub(crate) subnet: IpNet,
    pub(crate) start: IpAddr,
    pub(crate) end: IpAddr,
    pub(crate) gateway: IpAddr,
}

/// Ranges of one family of which an attachment gets one address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RangeSet {
    pub(crate) ranges: Vec<AddressRange>,
}

/// A checked configuration.
#[derive(Debug, Clone)]
pub(crate) struct HostLocalConfig {
    /// The folder of this network's leases.
    pub(crate) dir: PathBuf,
    pub(crate) sets: Vec<RangeSet>,
    /// Addresses that were asked for, by the number of the set that has them.
    pub(crate) requested: BTreeMap<usize, Lease>,
    pub(crate) routes: Vec<Route>,
    /// The file whose name servers are passed on.
    pub(crate) resolv_conf: Option<PathBuf>,
}

/// What is wrong with an `ipam` object.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HostLocalConfigError {
    #[error("ipam cannot be read")]
    Shape(#[source] serde_json::Error),
    #[error("there is no ipam object")]
    Absent,
    #[error("{field} cannot be read")]
    Wish {
        field: &'static str,
        #[source]
        source: serde_json::Error,
    },
    #[error("{text:?}, asked for by {field}, is no address")]
    NoAddress { field: &'static str, text: String },
    #[error("address {address} was asked for, but no range can give it (twice asked, outside, or reserved)")]
    NotToBeHad { address: IpAddr },
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
struct RawHostLocalConfig {
    #[serde(rename = "type")]
    _type: String,
    #[serde(default)]
    routes: Option<Vec<Route>>,
    #[serde(default)]
    data_dir: Option<PathBuf>,
    #[serde(default)]
    resolv_conf: Option<PathBuf>,
    #[serde(default)]
    ranges: Option<Vec<Vec<RawRange>>>,
    subnet: Option<IpNet>,
    range_start: Option<IpAddr>,
    range_end: Option<IpAddr>,
    gateway: Option<IpAddr>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawRange {
    subnet: Option<IpNet>,
    range_start: Option<IpAddr>,
    range_end: Option<IpAddr>,
    gateway: Option<IpAddr>,
}

impl HostLocalConfig {
    /// Reads the `ipam` object of a call's configuration and what the call asks for. Leases lie in a folder of the
    /// network's name, below the object's `dataDir` if it has one.
    pub(crate) fn parse(
        conf: &Value,
        context: &PluginContext<'_>,
    ) -> Result<HostLocalConfig, HostLocalConfigError> {
        let ipam =
            conf.get("ipam").filter(|ipam| request::is_on(ipam)).ok_or(HostLocalConfigError::Absent)?;
        let raw = RawHostLocalConfig::deserialize(ipam).map_err(HostLocalConfigError::Shape)?;
        let sets = sets(conf, &raw)?;
        refuse_overlaps(&sets)?;
        let data_dir = raw.data_dir.filter(|dir| !dir.as_os_str().is_empty());
        Ok(HostLocalConfig {
            dir: data_dir.as_deref().unwrap_or(context.data_dir).join(context.network),
            requested: requested_leases(&requested_addresses(conf, context)?, &sets)?,
            sets,
            routes: raw.routes.unwrap_or_default(),
            resolv_conf: raw.resolv_conf.filter(|path| !path.as_os_str().is_empty()),
        })
    }
}

/// Ranges of the call come first, then the old single range, then the list: the numbers count, they are part of file
/// names.
fn sets(conf: &Value, raw: &RawHostLocalConfig) -> Result<Vec<RangeSet>, HostLocalConfigError> {
    let single = RawRange {
        subnet: raw.subnet,
        range_start: raw.range_start,
        range_end: raw.range_end,
        gateway: raw.gateway,
    };
    let single = single.is_set().then(|| vec![single]);
    let of_call = conf.pointer("/runtimeConfig/ipRanges").filter(|ranges| request::is_on(ranges));
    let of_call: Vec<Vec<RawRange>> = match of_call {
        None => Vec::new(),
        Some(ranges) => Deserialize::deserialize(ranges)
            .map_err(|source| HostLocalConfigError::Wish { field: "runtimeConfig.ipRanges", source })?,
    };
    let listed = raw.ranges.clone().unwrap_or_default();
    let sets: Vec<RangeSet> = of_call
        .into_iter()
        .chain(single)
        .chain(listed)
        .map(|set| RangeSet::check(&set))
        .collect::<Result<_, _>>()?;
    if sets.is_empty() { Err(HostLocalConfigError::NoRanges) } else { Ok(sets) }
}

/// The addresses that a call asks for: in `CNI_ARGS`, in `args` and as a capability.
fn requested_addresses(
    conf: &Value,
    context: &PluginContext<'_>,
) -> Result<Vec<IpAddr>, HostLocalConfigError> {
    let mut texts: Vec<(&'static str, String)> = Vec::new();
    let argument = request::argument(context.args, "IP").filter(|text| !text.is_empty());
    texts.extend(argument.map(|text| ("CNI_ARGS IP", text.to_owned())));
    for (field, pointer) in [("args.cni.ips", "/args/cni/ips"), ("runtimeConfig.ips", "/runtimeConfig/ips")] {
        if let Some(list) = conf.pointer(pointer).filter(|list| request::is_on(list)) {
            let list = Vec::<String>::deserialize(list)
                .map_err(|source| HostLocalConfigError::Wish { field, source })?;
            texts.extend(list.into_iter().map(|text| (field, text)));
        }
    }
    texts
        .into_iter()
        .map(|(field, text)| {
            // With or without a prefix length, which is the range's affair.
            let address = text.split('/').next().unwrap_or_default().parse();
            address.map_err(|_| HostLocalConfigError::NoAddress { field, text })
        })
        .collect()
}

/// Which set gives which of the addresses asked for; at most one of each.
fn requested_leases(
    wishes: &[IpAddr],
    sets: &[RangeSet],
) -> Result<BTreeMap<usize, Lease>, HostLocalConfigError> {
    let mut requested = BTreeMap::new();
    for address in wishes {
        let has_it = |(number, set): (usize, &RangeSet)| {
            let free = !requested.contains_key(&number);
            alloc::lease_requested(set, *address).filter(|_| free).map(|lease| (number, lease))
        };
        let found = sets.iter().enumerate().find_map(has_it);
        let (number, lease) = found.ok_or(HostLocalConfigError::NotToBeHad { address: *address })?;
        requested.insert(number, lease);
    }
    Ok(requested)
}

fn refuse_overlaps(sets: &[RangeSet]) -> Result<(), HostLocalConfigError> {
    let ranges: Vec<&AddressRange> = sets.iter().flat_map(|set| &set.ranges).collect();
    for (index, first) in ranges.iter().enumerate() {
        if let Some(second) = ranges.iter().skip(index + 1).find(|second| first.overlaps(second)) {
            return Err(HostLocalConfigError::Overlap {
                first: first.to_string(),
                second: second.to_string(),
            });
        }
    }
    Ok(())
}

impl RangeSet {
    fn check(raw: &[RawRange]) -> Result<RangeSet, HostLocalConfigError> {
        let ranges: Vec<AddressRange> = raw.iter().map(AddressRange::check).collect::<Result<_, _>>()?;
        let first = ranges.first().ok_or(HostLocalConfigError::EmptySet)?;
        if ranges.iter().any(|range| range.start.is_ipv4() != first.start.is_ipv4()) {
            return Err(HostLocalConfigError::MixedFamilies);
        }
        Ok(RangeSet { ranges })
    }
}

impl RawRange {
    fn is_set(&self) -> bool {
        self.subnet.is_some()
            || self.range_start.is_some()
            || self.range_end.is_some()
            || self.gateway.is_some()
    }
}

impl AddressRange {
    fn check(raw: &RawRange) -> Result<AddressRange, HostLocalConfigError> {
        let subnet = raw.subnet.ok_or(HostLocalConfigError::NoSubnet)?;
        if subnet.trunc() != subnet {
            return Err(HostLocalConfigError::HostBits { subnet, network: subnet.trunc() });
        }
        // Network address, gateway and (IPv4) broadcast address leave nothing of a /31 or /32.
        if subnet.prefix_len() > subnet.max_prefix_len() - 2 {
            return Err(HostLocalConfigError::TooSmall { subnet });
        }
        let inside = |field, address: Option<IpAddr>, default: IpAddr| match address {
            Some(address) if !subnet.contains(&address) => {
                Err(HostLocalConfigError::Outside { field, address, subnet })
            }
            Some(address) => Ok(address),
            None => Ok(default),
        };
        let first = from_number(subnet.addr(), to_number(subnet.network()) + 1);
        let last = match subnet {
            IpNet::V4(net) => from_number(subnet.addr(), to_number(net.broadcast().into()) - 1),
            IpNet::V6(net) => net.broadcast().into(),
        };
        let range = AddressRange {
            subnet,
            start: inside("rangeStart", raw.range_start, first)?,
            end: inside("rangeEnd", raw.range_end, last)?,
            // A gateway elsewhere is allowed: it is then another machine's affair to be reachable.
            gateway: raw.gateway.unwrap_or(first),
        };
        if range.start > range.end {
            return Err(HostLocalConfigError::Reversed { start: range.start, end: range.end });
        }
        Ok(range)
    }

    /// Whether the address is one of this range.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.start.is_ipv4() && self.start <= address && address <= self.end
    }

    fn overlaps(&self, other: &AddressRange) -> bool {
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
pub(super) fn to_number(address: IpAddr) -> u128 {
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

impl fmt::Display for AddressRange {
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
pub(super) mod tests {
    use super::*;
    use serde_json::json;
    use std::path::Path;

    /// A configuration of network `net`, leases below `/data`, from an `ipam` object.
    pub(crate) fn parse(ipam: &Value) -> Result<HostLocalConfig, HostLocalConfigError> {
        HostLocalConfig::parse(&json!({ "ipam": ipam }), &context(Path::new("/data"), &[]))
    }

    pub(crate) fn context<'a>(data_dir: &'a Path, args: &'a [(String, String)]) -> PluginContext<'a> {
        PluginContext { network: "net", args, data_dir, bin_dirs: &[], prefer_external: false }
    }

    fn check(ipam: &Value) -> Result<HostLocalConfig, String> {
        in_words(parse(ipam))
    }

    fn in_words(config: Result<HostLocalConfig, HostLocalConfigError>) -> Result<HostLocalConfig, String> {
        config.map_err(|error| {
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
            (json!({"type": "host-local", "subnets": []}), "unknown field `subnets`"),
            (json!({"type": "host-local", "subnet": "ten"}), "invalid IP address syntax"),
        ] {
            let error = check(&ipam).unwrap_err();
            assert!(error.contains(expected), "{ipam}: {error}");
        }
    }

    fn call(args: &[(&str, &str)], more: &Value) -> Result<HostLocalConfig, String> {
        let mut conf = json!({"ipam": {"type": "host-local", "ranges": [
            [{"subnet": "10.0.0.0/24"}], [{"subnet": "10.1.0.0/24", "rangeEnd": "10.1.0.9"}]]}});
        conf.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let args: Vec<_> = args.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        in_words(HostLocalConfig::parse(&conf, &context(Path::new("/data"), &args)))
    }

    #[test]
    fn addresses_are_asked_for_in_three_ways() {
        let asked = |config: HostLocalConfig| -> Vec<(usize, String)> {
            config.requested.into_iter().map(|(set, lease)| (set, lease.address.to_string())).collect()
        };
        assert_eq!(asked(call(&[("IP", "10.1.0.7")], &json!({})).unwrap()), [(1, "10.1.0.7/24".into())]);
        let more = json!({"args": {"cni": {"ips": ["10.0.0.7"]}}, "runtimeConfig": {"ips": ["10.1.0.7/16"]}});
        assert_eq!(asked(call(&[], &more).unwrap()), [(0, "10.0.0.7/24".into()), (1, "10.1.0.7/24".into())]);
        for (wish, expected) in [
            ("10.2.0.7", "10.2.0.7 was asked for, but no range can give it"),
            ("10.1.0.10", "no range can give it"),
            ("10.0.0.1", "no range can give it"),
            ("ten", "\"ten\", asked for by CNI_ARGS IP, is no address"),
        ] {
            let error = call(&[("IP", wish)], &json!({})).unwrap_err();
            assert!(error.contains(expected), "{wish}: {error}");
        }
        let twice = json!({"runtimeConfig": {"ips": ["10.0.0.7", "10.0.0.8"]}});
        assert!(call(&[], &twice).unwrap_err().contains("10.0.0.8 was asked for"), "one for each set");
    }

    #[test]
    fn ranges_of_the_call_come_first() {
        let config =
            call(&[], &json!({"runtimeConfig": {"ipRanges": [[{"subnet": "10.9.0.0/24"}]]}})).unwrap();
        assert_eq!(config.sets.len(), 3);
        assert_eq!(config.sets[0].ranges[0].gateway.to_string(), "10.9.0.1");
    }
}
