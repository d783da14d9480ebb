//! Gateways and routes of an attachment, and what a bridge lacks. Pure.
//!
//! Owns what the links are to look like. Never touches the kernel. Called by `bridge`.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::host_local::Lease;
use crate::result::Route;

/// What cannot be planned.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("the route to {dst} has no gateway: the pod has no address of that family")]
    NoGateway { dst: IpNet },
    #[error(
        "bridge {bridge} has address {existing}, the network wants {wanted}; remove one or the other, or set forceAddress"
    )]
    OtherAddress { bridge: String, existing: IpNet, wanted: IpNet },
}

/// The addresses that a bridge has as its pods' gateway.
pub(crate) fn gateways(leases: &[Lease]) -> impl Iterator<Item = IpNet> {
    leases.iter().filter_map(|lease| IpNet::new(lease.gateway?, lease.address.prefix_len()).ok())
}

/// The leases with a gateway each: where the plugin for addresses named none, a bridge that is to be one takes the first
/// address of the subnet.
pub(crate) fn with_gateways(leases: &[Lease], is_gateway: bool) -> Vec<Lease> {
    leases
        .iter()
        .map(|lease| {
            let first = is_gateway.then(|| lease.address.hosts().next()).flatten();
            Lease { gateway: lease.gateway.or(first), ..lease.clone() }
        })
        .collect()
}

/// What is to be done about a bridge's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    Present,
    /// To be added, once these are gone.
    Lacking(Vec<IpNet>),
}

/// Whether a bridge with these addresses lacks the wanted one.
///
/// A second IPv4 address, or an overlapping IPv6 one, means that two networks use one bridge name: refused, as
/// upstream does, unless `forceAddress` says that the newer network is right.
pub(crate) fn address(
    bridge: &str,
    existing: &[IpNet],
    wanted: IpNet,
    force: bool,
) -> Result<Address, Error> {
    if existing.contains(&wanted) {
        return Ok(Address::Present);
    }
    let clashes = |other: &&IpNet| match (other, &wanted) {
        (IpNet::V4(_), IpNet::V4(_)) => true,
        (IpNet::V6(_), IpNet::V6(_)) => other.contains(&wanted.addr()) || wanted.contains(&other.addr()),
        _ => false,
    };
    let in_the_way: Vec<IpNet> = existing.iter().filter(clashes).copied().collect();
    match in_the_way.first() {
        Some(existing) if !force => {
            Err(Error::OtherAddress { bridge: bridge.into(), existing: *existing, wanted })
        }
        _ => Ok(Address::Lacking(in_the_way)),
    }
}

/// The pod's routes: those of the configuration, and a default route for each family if it asks for them.
pub(crate) fn routes(leases: &[Lease], configured: &[Route], is_default_gateway: bool) -> Vec<Route> {
    let mut routes = configured.to_vec();
    for lease in leases.iter().filter(|_| is_default_gateway) {
        let everywhere = match lease.address {
            IpNet::V4(_) => IpNet::V4(Ipv4Net::default()),
            IpNet::V6(_) => IpNet::V6(Ipv6Net::default()),
        };
        let has_one = routes.iter().any(|route| route.dst == everywhere && route.table.is_none());
        if !has_one {
            routes.push(Route::new(everywhere, lease.gateway));
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
                    .filter_map(|lease| lease.gateway)
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
        Lease { address: address.parse().unwrap(), gateway: Some(gateway.parse().unwrap()) }
    }

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    #[test]
    fn gateways_have_the_prefix_of_their_subnet() {
        let leases = [lease("10.87.1.2/16", "10.87.0.1"), lease("fd00::2/64", "fd00::1")];
        assert_eq!(gateways(&leases).collect::<Vec<_>>(), [net("10.87.0.1/16"), net("fd00::1/64")]);
    }

    #[test]
    fn a_bridge_of_another_network_is_refused() {
        let wanted = net("10.87.0.1/16");
        let plain = |existing: &[IpNet], wanted| address("b", existing, wanted, false);
        assert_eq!(plain(&[], wanted).unwrap(), Address::Lacking(Vec::new()));
        assert_eq!(plain(&[wanted], wanted).unwrap(), Address::Present);
        let error = plain(&[net("10.1.0.1/24")], wanted).unwrap_err();
        assert!(error.to_string().contains("10.1.0.1/24"), "{error}");
        let apart = plain(&[net("10.1.0.1/24"), net("fe80::1/64")], net("fd00::1/64")).unwrap();
        assert_eq!(apart, Address::Lacking(Vec::new()));
        assert!(plain(&[net("fd00::9/48")], net("fd00::1/64")).is_err());
    }

    #[test]
    fn a_forced_address_drives_out_those_in_its_way() {
        let existing = [net("10.1.0.1/24"), net("fd00::9/48"), net("fe80::1/64")];
        let forced = |wanted| address("b", &existing, wanted, true).unwrap();
        assert_eq!(forced(net("10.87.0.1/16")), Address::Lacking(vec![net("10.1.0.1/24")]));
        assert_eq!(forced(net("fd00::1/64")), Address::Lacking(vec![net("fd00::9/48")]));
    }

    #[test]
    fn a_bridge_that_is_gateway_has_the_first_address_where_nobody_names_one() {
        let leases =
            [Lease { address: net("10.87.1.2/16"), gateway: None }, lease("10.88.0.2/24", "10.88.0.9")];
        let filled = with_gateways(&leases, true);
        assert_eq!(gateways(&filled).collect::<Vec<_>>(), [net("10.87.0.1/16"), net("10.88.0.9/24")]);
        assert_eq!(with_gateways(&leases, false), leases);
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
