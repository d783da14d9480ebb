//! Which address is next. Pure.
//!
//! Owns the rule: round robin from the one given last, so that a crash-looping pod does not get the same address at
//! once again and its peers' stale neighbour entries and connections do not meet a stranger. Never looks at the disk.
//! Called by `host_local::add` under the network's lock.

use std::collections::HashSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::Lease;
use super::config::{AddressRange, RangeSet, from_number, to_number};

/// The next free address of the set behind `last`, around and up to `last` itself; `None` when all are taken.
///
/// Ends soon even in huge ranges: it goes on only past addresses that are taken or reserved.
pub(super) fn choose(set: &RangeSet, last: Option<IpAddr>, taken: &HashSet<IpAddr>) -> Option<Lease> {
    let reserved = |address| set.ranges.iter().any(|range| range.reserves(address));
    stretches(set, last).into_iter().find_map(|(range, from, to)| {
        (from..=to)
            .map(|n| from_number(range.start, n))
            .find(|address| !taken.contains(address) && !reserved(*address))
            .and_then(|address| lease(range, address))
    })
}

/// The lease of an address that was asked for; `None` when the set does not have it or may not give it.
pub(super) fn lease_requested(set: &RangeSet, address: IpAddr) -> Option<Lease> {
    let range = set.ranges.iter().find(|range| range.contains(address))?;
    let reserved = set.ranges.iter().any(|range| range.reserves(address));
    (!reserved).then(|| lease(range, address)).flatten()
}

fn lease(range: &AddressRange, address: IpAddr) -> Option<Lease> {
    // The prefix length comes from a valid subnet of the same family, so this cannot be None.
    let address = IpNet::new(address, range.subnet.prefix_len()).ok()?;
    Some(Lease { address, gateway: Some(range.gateway) })
}

/// The set's addresses as stretches of numbers, in the order of search.
fn stretches(set: &RangeSet, last: Option<IpAddr>) -> Vec<(&AddressRange, u128, u128)> {
    let whole =
        |range| -> (&AddressRange, u128, u128) { (range, to_number(range.start), to_number(range.end)) };
    let position =
        last.and_then(|last| set.ranges.iter().position(|range| range.contains(last)).zip(Some(last)));
    // A last address of no range is one of an earlier configuration: start anew.
    let Some((index, last)) = position else { return set.ranges.iter().map(whole).collect() };
    let (before, rest) = set.ranges.split_at(index);
    let Some((current, after)) = rest.split_first() else { return set.ranges.iter().map(whole).collect() };
    let last = to_number(last);
    let mut stretches = Vec::with_capacity(set.ranges.len() + 1);
    if last < to_number(current.end) {
        stretches.push((current, last + 1, to_number(current.end)));
    }
    stretches.extend(after.iter().map(whole));
    stretches.extend(before.iter().map(whole));
    stretches.push((current, to_number(current.start), last));
    stretches
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn set(ranges: &serde_json::Value) -> RangeSet {
        let ipam = json!({"type": "host-local", "ranges": [ranges]});
        crate::host_local::config::tests::parse(&ipam).unwrap().sets.remove(0)
    }

    fn check(set: &RangeSet, last: Option<&str>, taken: &[&str], expected: Option<&str>) {
        let taken = taken.iter().map(|text| text.parse().unwrap()).collect();
        let found = choose(set, last.map(|text| text.parse().unwrap()), &taken);
        assert_eq!(found.map(|lease| lease.address.to_string()).as_deref(), expected);
    }

    #[test]
    fn the_first_address_is_behind_the_gateway() {
        check(&set(&json!([{"subnet": "10.0.0.0/24"}])), None, &[], Some("10.0.0.2/24"));
        check(&set(&json!([{"subnet": "fd00::/64"}])), None, &[], Some("fd00::2/64"));
        check(
            &set(&json!([{"subnet": "10.0.0.0/24", "gateway": "10.0.0.2"}])),
            None,
            &["10.0.0.1"],
            Some("10.0.0.3/24"),
        );
    }

    #[test]
    fn network_and_broadcast_addresses_are_never_given() {
        let set = set(&json!([{"subnet": "10.0.0.0/30", "rangeStart": "10.0.0.0", "rangeEnd": "10.0.0.3"}]));
        check(&set, None, &[], Some("10.0.0.2/30"));
        check(&set, Some("10.0.0.2"), &["10.0.0.2"], None);
    }

    #[test]
    fn search_goes_around_through_all_ranges_once() {
        let set = set(&json!([
            {"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.8", "rangeEnd": "10.0.0.9"},
            {"subnet": "10.0.1.0/24", "rangeStart": "10.0.1.8", "rangeEnd": "10.0.1.9"},
        ]));
        check(&set, Some("10.0.0.8"), &[], Some("10.0.0.9/24"));
        check(&set, Some("10.0.0.9"), &[], Some("10.0.1.8/24"));
        check(&set, Some("10.0.1.9"), &[], Some("10.0.0.8/24"));
        check(&set, Some("10.0.1.8"), &["10.0.1.9", "10.0.0.8"], Some("10.0.0.9/24"));
        check(&set, Some("10.0.0.8"), &["10.0.0.9", "10.0.1.8", "10.0.1.9"], Some("10.0.0.8/24"));
        check(&set, None, &["10.0.0.8", "10.0.0.9", "10.0.1.8", "10.0.1.9"], None);
        check(&set, Some("192.168.0.1"), &[], Some("10.0.0.8/24"));
    }

    #[test]
    fn the_last_address_of_all_does_not_overflow() {
        let top = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
        let set = set(&json!([{"subnet": "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff0/124", "rangeStart": top}]));
        check(&set, None, &[], Some("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/124"));
        check(&set, Some(top), &[top], None);
    }
}
