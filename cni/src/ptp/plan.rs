//! The routes of a point-to-point link: pure.
//!
//! Owns the shape: the gateway is on the link, everything else of the subnet is behind it. Never touches the kernel.
//! Called by `ptp`.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::masquerade::host_net;
use crate::result::Route;

/// `RT_SCOPE_LINK` of `rtnetlink(7)`.
const LINK: u8 = 253;

/// For each address of the pod: the way to its gateway, and by it to the subnet.
pub(super) fn routes_of_pod(ends: &[(IpNet, IpAddr)]) -> Vec<(Route, Option<IpAddr>)> {
    let mut routes: Vec<(Route, Option<IpAddr>)> = Vec::new();
    for (address, gateway) in ends {
        let from = Some(address.addr());
        let to_gateway = Route { scope: Some(LINK), ..Route::new(host_net(*gateway), None) };
        for route in [to_gateway, Route::new(address.trunc(), Some(*gateway))] {
            // Two addresses of one subnet share both.
            if !routes.iter().any(|(other, _)| other.dst == route.dst) {
                routes.push((route, from));
            }
        }
    }
    routes
}

/// The host's way to the pod.
pub(super) fn route_to(pod: IpAddr) -> Route {
    Route { scope: Some(LINK), ..Route::new(host_net(pod), None) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_subnet_is_behind_the_gateway() {
        let end = |address: &str, gateway: &str| (address.parse().unwrap(), gateway.parse().unwrap());
        let ends =
            [end("10.1.0.5/24", "10.1.0.1"), end("10.1.0.6/24", "10.1.0.1"), end("fd00::5/64", "fd00::1")];
        let routes = routes_of_pod(&ends);
        let text: Vec<String> = routes
            .iter()
            .map(|(route, from)| {
                let gw = route.gw.map(|gw| format!(" via {gw}")).unwrap_or_default();
                format!("{}{gw} from {}", route.dst, from.unwrap())
            })
            .collect();
        assert_eq!(
            text,
            [
                "10.1.0.1/32 from 10.1.0.5",
                "10.1.0.0/24 via 10.1.0.1 from 10.1.0.5",
                "fd00::1/128 from fd00::5",
                "fd00::/64 via fd00::1 from fd00::5",
            ]
        );
        assert_eq!(route_to("10.1.0.5".parse().unwrap()).dst.to_string(), "10.1.0.5/32");
    }
}
