//! Routes.
//!
//! Owns how a route becomes an `RTM_NEWROUTE` message, and what is read of the kernel's routes. Never decides which
//! routes there are. Called by `veth`, `ptp` and `portmap`.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteMetric, RouteProtocol, RouteScope,
    RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::addr::family;
use super::{Error, Netlink};
use crate::result::Route;

impl Netlink {
    /// Adds a route out of a link; `from` is the address that packets by it come from.
    pub(crate) fn add_route(&mut self, index: u32, route: &Route, from: Option<IpAddr>) -> Result<(), Error> {
        let mut message = route_message(index, route);
        let from = from.map(|from| RouteAttribute::PrefSource(RouteAddress::from(from)));
        message.attributes.extend(from);
        self.request(RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_EXCL).map(drop)
    }

    /// The destinations of all routes of a family, in every table.
    pub(crate) fn destinations(&mut self, family_of: IpNet) -> Result<Vec<IpNet>, Error> {
        let mut message = RouteMessage::default();
        message.header.address_family = family(family_of.addr());
        let answers = self.dump(&RouteNetlinkMessage::GetRoute(message))?;
        Ok(answers
            .iter()
            .filter_map(|answer| match answer {
                RouteNetlinkMessage::NewRoute(message) => destination(message),
                _ => None,
            })
            .collect())
    }

    /// Removes the routes of the main table into these networks, but for the kernel's own, which come and go with an
    /// address. Tells their destinations.
    pub(crate) fn delete_routes(&mut self, within: &[IpNet]) -> Result<Vec<IpNet>, Error> {
        let mut gone = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut message = RouteMessage::default();
            message.header.address_family = family;
            for answer in self.dump(&RouteNetlinkMessage::GetRoute(message))? {
                let RouteNetlinkMessage::NewRoute(message) = answer else { continue };
                let Some(to) = destination(&message).filter(|to| is_theirs(&message, *to, within)) else {
                    continue;
                };
                self.request(RouteNetlinkMessage::DelRoute(message), 0)?;
                gone.push(to);
            }
        }
        Ok(gone)
    }

    /// The name of the link by which packets to an address leave.
    pub(crate) fn way_to(&mut self, address: IpAddr) -> Result<String, Error> {
        let mut message = RouteMessage::default();
        message.header.address_family = family(address);
        message.header.destination_prefix_length = IpNet::from(address).prefix_len();
        message.attributes.push(RouteAttribute::Destination(RouteAddress::from(address)));
        let answers = self.request(RouteNetlinkMessage::GetRoute(message), 0)?;
        let index = answers.iter().find_map(|answer| match answer {
            RouteNetlinkMessage::NewRoute(message) => {
                message.attributes.iter().find_map(|attribute| match attribute {
                    RouteAttribute::Oif(index) => Some(*index),
                    _ => None,
                })
            }
            _ => None,
        });
        let absent = || Error::Refused { detail: None, source: io::ErrorKind::NotFound.into() };
        self.link_name(index.ok_or_else(absent)?)?.ok_or_else(absent)
    }
}

fn is_theirs(message: &RouteMessage, to: IpNet, within: &[IpNet]) -> bool {
    message.header.table == RouteHeader::RT_TABLE_MAIN
        && message.header.kind == RouteType::Unicast
        && message.header.protocol != RouteProtocol::Kernel
        && within.iter().any(|net| net.contains(&to))
}

fn destination(message: &RouteMessage) -> Option<IpNet> {
    let length = message.header.destination_prefix_length;
    let address = message.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Destination(RouteAddress::Inet(address)) => Some(IpAddr::V4(*address)),
        RouteAttribute::Destination(RouteAddress::Inet6(address)) => Some(IpAddr::V6(*address)),
        _ => None,
    });
    // The way to everywhere has no destination.
    let everywhere = match message.header.address_family {
        AddressFamily::Inet => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        _ => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    IpNet::new(address.unwrap_or(everywhere), length).ok()
}

fn route_message(index: u32, route: &Route) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = family(route.dst.addr());
    message.header.destination_prefix_length = route.dst.prefix_len();
    message.header.protocol = RouteProtocol::Boot;
    message.header.kind = RouteType::Unicast;
    message.header.scope = match route.scope {
        Some(scope) => RouteScope::from(scope),
        None => RouteScope::Universe,
    };
    // Tables above 255 do not fit the header; the attribute holds any.
    message.header.table = match route.table {
        None => RouteHeader::RT_TABLE_MAIN,
        Some(_) => RouteHeader::RT_TABLE_UNSPEC,
    };
    let attributes = &mut message.attributes;
    attributes.extend(route.table.map(RouteAttribute::Table));
    attributes.push(RouteAttribute::Destination(RouteAddress::from(route.dst.network())));
    attributes.extend(route.gw.map(|gw| RouteAttribute::Gateway(RouteAddress::from(gw))));
    attributes.push(RouteAttribute::Oif(index));
    attributes.extend(route.priority.map(RouteAttribute::Priority));
    let metrics: Vec<_> =
        route.mtu.map(RouteMetric::Mtu).into_iter().chain(route.advmss.map(RouteMetric::Advmss)).collect();
    if !metrics.is_empty() {
        attributes.push(RouteAttribute::Metrics(metrics));
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_route_goes_to_the_main_table() {
        let route = Route::new("0.0.0.0/0".parse().unwrap(), Some("10.87.0.1".parse().unwrap()));
        let message = route_message(4, &route);
        assert_eq!(message.header.table, RouteHeader::RT_TABLE_MAIN);
        assert_eq!(message.header.destination_prefix_length, 0);
        assert!(message.attributes.contains(&RouteAttribute::Oif(4)));
        assert!(
            message.attributes.contains(&RouteAttribute::Gateway(RouteAddress::Inet([10, 87, 0, 1].into())))
        );
    }

    #[test]
    fn routes_into_a_network_are_those_of_others_than_the_kernel() {
        let within = ["10.244.0.0/16".parse().unwrap(), "fd00::/48".parse().unwrap()];
        let mut message = route_message(4, &Route::new("10.244.3.0/24".parse().unwrap(), None));
        let is = |message: &RouteMessage, to: &str| is_theirs(message, to.parse().unwrap(), &within);
        assert!(is(&message, "10.244.3.0/24") && is(&message, "10.244.0.0/16") && is(&message, "fd00::/64"));
        assert!(!is(&message, "0.0.0.0/0") && !is(&message, "10.0.0.0/8") && !is(&message, "10.245.0.0/24"));
        message.header.protocol = RouteProtocol::Kernel;
        assert!(!is(&message, "10.244.3.0/24"));
    }

    #[test]
    fn each_wish_of_a_route_is_passed_on() {
        let route = Route {
            mtu: Some(1400),
            advmss: Some(1360),
            priority: Some(5),
            table: Some(1000),
            scope: Some(253),
            ..Route::new("fd01::7/64".parse().unwrap(), None)
        };
        let message = route_message(4, &route);
        assert_eq!(message.header.scope, RouteScope::Link);
        assert!(message.attributes.contains(&RouteAttribute::Table(1000)));
        assert!(message.attributes.contains(&RouteAttribute::Priority(5)));
        assert!(
            message
                .attributes
                .contains(&RouteAttribute::Metrics(vec![RouteMetric::Mtu(1400), RouteMetric::Advmss(1360)]))
        );
        let network: std::net::Ipv6Addr = "fd01::".parse().unwrap();
        assert!(message.attributes.contains(&RouteAttribute::Destination(RouteAddress::Inet6(network))));
    }
}
