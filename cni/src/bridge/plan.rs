//! Names, hardware addresses, gateways and routes of an attachment: pure.
//!
//! Owns what the links are to look like; randomness is an argument. Never touches the kernel. Called by `bridge`.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::host_local::Lease;
use crate::result::Route;

/// What cannot be planned.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("the route to {dst} has no gateway: the pod has no address of that family")]
    NoGateway { dst: IpNet },
    #[error("bridge {bridge} has address {existing}, the network wants {wanted}; remove one or the other")]
    OtherAddress { bridge: String, existing: IpNet, wanted: IpNet },
}

/// The host end's name, 15 bytes as the kernel allows. It follows from the attachment, so that DEL finds the link
/// even when the namespace's file is gone but a process keeps the namespace alive.
pub(crate) fn host_name(container_id: &str, ifname: &str) -> String {
    // FNV-1a, 64 bits, of which 44 fit: an accidental clash would take millions of pods, and fails the ADD.
    let hash = container_id
        .bytes()
        .chain([0])
        .chain(ifname.bytes())
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    format!("veth{:011x}", hash >> 20)
}

/// The pod's hardware address. With an IPv4 address it follows from that: when the address passes to another pod, the
/// neighbour entries of the host and of other pods stay right.
pub(crate) fn pod_mac(leases: &[Lease], random: [u8; 6]) -> [u8; 6] {
    let v4 = leases.iter().find_map(|lease| match lease.address.addr() {
        IpAddr::V4(address) => Some(address.octets()),
        IpAddr::V6(_) => None,
    });
    match v4 {
        Some([a, b, c, d]) => [0x0a, 0x58, a, b, c, d],
        None => random,
    }
}

/// Makes any six bytes a unicast address of local administration (IEEE 802: bit 1 of the first byte set, bit 0 not).
pub(crate) fn local_mac(mut bytes: [u8; 6]) -> [u8; 6] {
    bytes[0] = (bytes[0] & 0xfe) | 0x02;
    bytes
}

/// A hardware address as text.
pub(crate) fn mac_text(mac: &[u8]) -> String {
    mac.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")
}

/// The addresses that a bridge has as its pods' gateway.
pub(crate) fn gateways(leases: &[Lease]) -> impl Iterator<Item = IpNet> {
    leases.iter().filter_map(|lease| IpNet::new(lease.gateway, lease.address.prefix_len()).ok())
}

/// Whether a bridge with these addresses lacks the wanted one.
///
/// A second IPv4 address, or an overlapping IPv6 one, means that two networks use one bridge name: refused, as
/// upstream does without `forceAddress`.
pub(crate) fn lacks_address(bridge: &str, existing: &[IpNet], wanted: IpNet) -> Result<bool, Error> {
    if existing.contains(&wanted) {
        return Ok(false);
    }
    let clash = existing.iter().find(|other| match (other, &wanted) {
        (IpNet::V4(_), IpNet::V4(_)) => true,
        (IpNet::V6(_), IpNet::V6(_)) => other.contains(&wanted.addr()) || wanted.contains(&other.addr()),
        _ => false,
    });
    match clash {
        Some(existing) => Err(Error::OtherAddress { bridge: bridge.into(), existing: *existing, wanted }),
        None => Ok(true),
    }
}

/// The pod's routes: those of the configuration, and a default route for each family if it asks for them.
pub(crate) fn routes(leases: &[Lease], configured: &[Route], is_default_gateway: bool) -> Vec<Route> {
    let mut routes = configured.to_vec();
    for lease in leases.iter().filter(|_| is_default_gateway) {
        let everywhere = match lease.gateway {
            IpAddr::V4(_) => IpNet::V4(Ipv4Net::default()),
            IpAddr::V6(_) => IpNet::V6(Ipv6Net::default()),
        };
        let has_one = routes.iter().any(|route| route.dst == everywhere && route.table.is_none());
        if !has_one {
            routes.push(Route::new(everywhere, Some(lease.gateway)));
        }
    }
    routes
}

/// The same routes with a next hop each: that of the first lease of the family, where the configuration has none.
pub(crate) fn resolve_gateways(routes: &[Route], leases: &[Lease]) -> Result<Vec<Route>, Error> {
    routes
        .iter()
        .map(|route| {
            let of_family = || {
                leases
                    .iter()
                    .map(|lease| lease.gateway)
                    .find(|gateway| gateway.is_ipv4() == route.dst.addr().is_ipv4())
            };
            let gw = route.gw.or_else(of_family).ok_or(Error::NoGateway { dst: route.dst })?;
            Ok(Route { gw: Some(gw), ..route.clone() })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(address: &str, gateway: &str) -> Lease {
        Lease { address: address.parse().unwrap(), gateway: gateway.parse().unwrap() }
    }

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    #[test]
    fn host_names_fit_and_differ() {
        let name = host_name("c1", "eth0");
        assert_eq!(name.len(), 15);
        assert_eq!(name, host_name("c1", "eth0"), "DEL must find what ADD made");
        assert_ne!(name, host_name("c1", "eth1"));
        assert_ne!(host_name("c1e", "th0"), name);
    }

    #[test]
    fn the_hardware_address_follows_the_ipv4_address() {
        let dual = [lease("fd00::2/64", "fd00::1"), lease("10.87.1.2/16", "10.87.0.1")];
        assert_eq!(mac_text(&pod_mac(&dual, [9; 6])), "0a:58:0a:57:01:02");
        assert_eq!(pod_mac(&dual[..1], [9; 6]), [9; 6]);
        assert_eq!(local_mac([0xff; 6])[0], 0xfe);
        assert_eq!(local_mac([0x01; 6])[0], 0x02);
    }

    #[test]
    fn gateways_have_the_prefix_of_their_subnet() {
        let leases = [lease("10.87.1.2/16", "10.87.0.1"), lease("fd00::2/64", "fd00::1")];
        assert_eq!(gateways(&leases).collect::<Vec<_>>(), [net("10.87.0.1/16"), net("fd00::1/64")]);
    }

    #[test]
    fn a_bridge_of_another_network_is_refused() {
        let wanted = net("10.87.0.1/16");
        assert!(lacks_address("b", &[], wanted).unwrap());
        assert!(!lacks_address("b", &[wanted], wanted).unwrap());
        let error = lacks_address("b", &[net("10.1.0.1/24")], wanted).unwrap_err();
        assert!(error.to_string().contains("10.1.0.1/24"), "{error}");
        assert!(lacks_address("b", &[net("10.1.0.1/24"), net("fe80::1/64")], net("fd00::1/64")).unwrap());
        assert!(lacks_address("b", &[net("fd00::9/48")], net("fd00::1/64")).is_err());
    }

    #[test]
    fn default_routes_come_once_for_each_family() {
        let leases = [lease("10.87.1.2/16", "10.87.0.1"), lease("fd00::2/64", "fd00::1")];
        let configured = [Route::new(net("0.0.0.0/0"), None)];
        assert_eq!(routes(&leases, &configured, false), configured);
        let all = routes(&leases, &configured, true);
        assert_eq!(all.len(), 2, "{all:?}");
        assert_eq!(all[1], Route::new(net("::/0"), Some("fd00::1".parse().unwrap())));
        let resolved = resolve_gateways(&all, &leases).unwrap();
        assert_eq!(resolved[0].gw, Some("10.87.0.1".parse().unwrap()));
    }

    #[test]
    fn a_route_of_a_family_without_address_is_refused() {
        let error = resolve_gateways(&[Route::new(net("::/0"), None)], &[lease("10.87.1.2/16", "10.87.0.1")])
            .unwrap_err();
        assert!(error.to_string().contains("::/0"), "{error}");
    }
}
