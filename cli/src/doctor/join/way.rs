//! The way from this node to an address. Owns asking the kernel; never changes a route. Called by [`super::node`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::Path;

/// The first step of the way, and the address that this node shows there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NetworkRoute {
    /// None when there is no route.
    pub(crate) source: Option<IpAddr>,
    pub(crate) step: NextHop,
}

/// Where a packet goes first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NextHop {
    /// The address is this node's own.
    Here,
    /// Its link is one of this node's.
    Link(String),
    /// Through a router.
    Router { gateway: IpAddr, device: String },
    /// No route is known; a rule of policy routing may still have one.
    Unknown,
}

/// `proc` is /proc/self, or what stands for it.
pub(super) fn to(proc: &Path, target: IpAddr) -> NetworkRoute {
    let source = source(target);
    if source == Some(target) {
        return NetworkRoute { source, step: NextHop::Here };
    }
    NetworkRoute { source, step: first(proc, target) }
}

fn first(proc: &Path, target: IpAddr) -> NextHop {
    let read = |name: &str| std::fs::read_to_string(proc.join("net").join(name)).unwrap_or_default();
    let routes: Vec<Route> = match target {
        IpAddr::V4(_) => read("route").lines().filter_map(v4).collect(),
        IpAddr::V6(_) => read("ipv6_route").lines().filter_map(v6).collect(),
    };
    step(&routes, target)
}

/// Nothing is sent: connecting a UDP socket only looks up the route.
fn source(target: IpAddr) -> Option<IpAddr> {
    let any: IpAddr =
        if target.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(SocketAddr::new(target, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

#[derive(Debug)]
struct Route {
    network: ipnet::IpNet,
    gateway: Option<IpAddr>,
    metric: u32,
    device: String,
}

/// The longest prefix, then the smallest metric.
fn step(routes: &[Route], target: IpAddr) -> NextHop {
    let best = routes
        .iter()
        .filter(|route| route.network.contains(&target))
        .max_by_key(|route| (route.network.prefix_len(), std::cmp::Reverse(route.metric)));
    match best {
        None => NextHop::Unknown,
        Some(Route { gateway: None, device, .. }) => NextHop::Link(device.clone()),
        Some(Route { gateway: Some(gateway), device, .. }) => {
            NextHop::Router { gateway: *gateway, device: device.clone() }
        }
    }
}

/// RTF_UP and RTF_REJECT of linux/route.h.
const UP: u32 = 0x1;
const REJECT: u32 = 0x200;

fn is_used(flags: &str) -> Option<()> {
    let flags = u32::from_str_radix(flags, 16).ok()?;
    (flags & UP != 0 && flags & REJECT == 0).then_some(())
}

/// `Iface Destination Gateway Flags RefCnt Use Metric Mask …`: addresses as words of the machine's order.
fn v4(line: &str) -> Option<Route> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [device, network, gateway, flags, _, _, metric, mask, ..] = words.as_slice() else { return None };
    is_used(flags)?;
    let address =
        |text: &str| u32::from_str_radix(text, 16).ok().map(|word| Ipv4Addr::from(word.to_ne_bytes()));
    let gateway = address(gateway)?;
    Some(Route {
        network: ipnet::Ipv4Net::with_netmask(address(network)?, address(mask)?).ok()?.into(),
        gateway: (!gateway.is_unspecified()).then_some(gateway.into()),
        metric: metric.parse().ok()?,
        device: (*device).to_owned(),
    })
}

/// `destination prefix source prefix next-hop metric references uses flags device`, all in hexadecimal.
fn v6(line: &str) -> Option<Route> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [network, prefix, _, _, gateway, metric, _, _, flags, device] = words.as_slice() else { return None };
    is_used(flags)?;
    let address = |text: &str| u128::from_str_radix(text, 16).ok().map(Ipv6Addr::from);
    let gateway = address(gateway)?;
    let prefix = u8::from_str_radix(prefix, 16).ok()?;
    Some(Route {
        network: ipnet::Ipv6Net::new(address(network)?, prefix).ok()?.into(),
        gateway: (!gateway.is_unspecified()).then_some(gateway.into()),
        metric: u32::from_str_radix(metric, 16).ok()?,
        device: (*device).to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Vagrant leaves it: the management link has the default route, the bridge's one an address.
    const VAGRANT: &str = "\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t0202000A\t0003\t0\t0\t100\t00000000\t0\t0\t0
eth0\t0002000A\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0
eth1\t000012AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
";

    fn looked(files: &[(&str, &str)], target: &str) -> NextHop {
        let proc = tempfile::tempdir().unwrap();
        std::fs::create_dir(proc.path().join("net")).unwrap();
        for (name, text) in files {
            std::fs::write(proc.path().join("net").join(name), text).unwrap();
        }
        first(proc.path(), target.parse().unwrap())
    }

    #[test]
    fn the_longest_prefix_is_the_way() {
        assert_eq!(looked(&[("route", VAGRANT)], "172.18.0.2"), NextHop::Link("eth1".into()));
        let router = NextHop::Router { gateway: "10.0.2.2".parse().unwrap(), device: "eth0".into() };
        assert_eq!(looked(&[("route", VAGRANT)], "172.19.0.2"), router);
        assert_eq!(looked(&[("route", "")], "172.19.0.2"), NextHop::Unknown);
        // Down, and refusing.
        let down = VAGRANT.replace("eth1\t000012AC\t00000000\t0001", "eth1\t000012AC\t00000000\t0200");
        assert_eq!(looked(&[("route", &down)], "172.18.0.2"), router);
    }

    #[test]
    fn addresses_of_ipv6_have_a_table_of_their_own() {
        let table = "\
fd000000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth1
00000000000000000000000000000000 00 00000000000000000000000000000000 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003     eth0
00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 00000001 00000000 00200200       lo
";
        assert_eq!(looked(&[("ipv6_route", table)], "fd00::2"), NextHop::Link("eth1".into()));
        let router = NextHop::Router { gateway: "fe80::1".parse().unwrap(), device: "eth0".into() };
        assert_eq!(looked(&[("ipv6_route", table)], "fd01::2"), router);
    }

    #[test]
    fn an_address_of_this_machine_is_here() {
        let own = IpAddr::from(Ipv4Addr::LOCALHOST);
        assert_eq!(to(Path::new("/proc/self"), own), NetworkRoute { source: Some(own), step: NextHop::Here });
    }
}
