//! Ports of the node that pods want: which clash, and which another process holds already. Owns
//! the comparison and the reading of /proc/net; never binds one. Called by the manifest reader, the
//! manifest folder, before a sandbox is made, and by `gantry doctor`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use gantry_model::pod::{Pod, Port};

/// The first port of the node that both pods want, as `80/TCP` or `10.0.0.1:80/TCP`.
#[must_use]
pub fn clash(pod: &Pod, other: &Pod) -> Option<String> {
    host_ports(pod).find(|port| host_ports(other).any(|taken| overlap(port, taken))).map(show)
}

/// Ports of the node that the pod wants while it runs.
fn host_ports(pod: &Pod) -> impl Iterator<Item = &Port> {
    pod.all_containers().flat_map(|container| &container.ports).filter(|port| port.host_port != 0)
}

fn show(port: &Port) -> String {
    match port.host_ip.as_str() {
        "" => format!("{}/{}", port.host_port, port.protocol),
        ip if ip.contains(':') => format!("[{ip}]:{}/{}", port.host_port, port.protocol),
        ip => format!("{ip}:{}/{}", port.host_port, port.protocol),
    }
}

/// As the scheduler sees it: an address clashes with itself and with every address.
fn overlap(a: &Port, b: &Port) -> bool {
    let every = |port: &Port| matches!(port.host_ip.as_str(), "" | "0.0.0.0" | "::");
    a.host_port == b.host_port && a.protocol == b.protocol && (every(a) || every(b) || a.host_ip == b.host_ip)
}

/// A socket of the node that would answer in a pod's stead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bound {
    address: IpAddr,
    port: u16,
    /// Of the socket, by which its process is found.
    inode: u64,
}

/// What a process of the node already listens on, of the ports that the pod wants; none on the
/// host's network, where the pod's own programs bind them.
///
/// # Errors
/// When the kernel's tables cannot be read.
pub fn find_taken_port(pod: &Pod) -> std::io::Result<Option<String>> {
    if pod.namespaces.host_network {
        return Ok(None);
    }
    for port in host_ports(pod) {
        let tables = match port.protocol.as_str() {
            "TCP" => ["tcp", "tcp6"],
            "UDP" => ["udp", "udp6"],
            // Sockets of SCTP are in no such table.
            _ => continue,
        };
        for table in tables {
            let text = match std::fs::read_to_string(format!("/proc/self/net/{table}")) {
                Ok(text) => text,
                // A kernel without IPv6.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            let mut bound = text.lines().skip(1).filter_map(|line| parse(line, table.starts_with("tcp")));
            if bound.any(|bound| in_the_way(&bound, port)) {
                return Ok(Some(show(port)));
            }
        }
    }
    Ok(None)
}

/// The inode of a socket that listens on this port of TCP, on whatever address; `proc` is /proc/self,
/// or what stands for it.
///
/// # Errors
/// When the kernel's tables cannot be read.
pub fn listener(proc: &Path, port: u16) -> std::io::Result<Option<u64>> {
    for table in ["net/tcp", "net/tcp6"] {
        let text = match std::fs::read_to_string(proc.join(table)) {
            Ok(text) => text,
            // A kernel without IPv6.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && table.ends_with('6') => continue,
            Err(error) => return Err(error),
        };
        let mut bound = text.lines().skip(1).filter_map(|line| parse(line, true));
        if let Some(bound) = bound.find(|bound| bound.port == port) {
            return Ok(Some(bound.inode));
        }
    }
    Ok(None)
}

/// A line of proc_net(5): `sl local_address rem_address st queues timer retrnsmt uid timeout inode …`; only listeners of TCP, and of UDP
/// what has no peer (state 07).
fn parse(line: &str, tcp: bool) -> Option<Bound> {
    let mut words = line.split_whitespace().skip(1);
    let (local, _, state) = (words.next()?, words.next()?, words.next()?);
    if state != if tcp { "0A" } else { "07" } {
        return None;
    }
    let inode = words.nth(5)?.parse().ok()?;
    let (address, port) = local.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    // Words of 32 bits in the machine's order.
    let words: Vec<u32> = (0..address.len() / 8)
        .map(|n| address.get(n * 8..n * 8 + 8).and_then(|w| u32::from_str_radix(w, 16).ok()))
        .collect::<Option<_>>()?;
    let address = match words.as_slice() {
        [word] => IpAddr::V4(Ipv4Addr::from(word.to_ne_bytes())),
        [a, b, c, d] => {
            let mut bytes = [0; 16];
            for (chunk, word) in bytes.chunks_exact_mut(4).zip([a, b, c, d]) {
                chunk.copy_from_slice(&word.to_ne_bytes());
            }
            IpAddr::V6(Ipv6Addr::from(bytes))
        }
        _ => return None,
    };
    Some(Bound { address, port, inode })
}

/// A mapping comes before the listener, and one of them would never be reached. By the rule of the
/// network plugin that maps: a listener on one address, such as 127.0.0.53, does not keep the port of
/// all others.
fn in_the_way(bound: &Bound, port: &Port) -> bool {
    let wanted = port.host_ip.parse::<IpAddr>().ok();
    let on_all = match bound.address {
        // One on all IPv6 addresses usually takes IPv4, too.
        IpAddr::V6(ip) => ip.is_unspecified(),
        IpAddr::V4(ip) => ip.is_unspecified() && !wanted.is_some_and(|ip| ip.is_ipv6()),
    };
    bound.port == port.host_port && (on_all || wanted == Some(bound.address))
}

#[cfg(test)]
mod tests {
    use gantry_model::pod::Container;

    use super::*;
    use crate::pod::tests::{container, pod};

    fn port(host_port: u16, protocol: &str, host_ip: &str) -> Port {
        Port { name: String::new(), port: 80, protocol: protocol.into(), host_port, host_ip: host_ip.into() }
    }

    fn with(port: Port) -> Pod {
        Pod { containers: vec![Container { ports: vec![port], ..container("a") }], ..pod() }
    }

    #[test]
    fn ports_clash_by_number_protocol_and_address() {
        let clash = |a, b| clash(&with(a), &with(b));
        assert_eq!(clash(port(80, "TCP", ""), port(80, "TCP", "")).as_deref(), Some("80/TCP"));
        assert_eq!(
            clash(port(80, "TCP", "10.0.0.1"), port(80, "TCP", "")).as_deref(),
            Some("10.0.0.1:80/TCP")
        );
        assert_eq!(clash(port(80, "TCP", "10.0.0.1"), port(80, "TCP", "10.0.0.2")), None);
        assert_eq!(clash(port(80, "TCP", ""), port(80, "UDP", "")), None);
        assert_eq!(clash(port(80, "TCP", ""), port(81, "TCP", "")), None);
        assert_eq!(clash(port(0, "TCP", ""), port(0, "TCP", "")), None);
    }

    #[test]
    fn listeners_are_read_from_the_kernels_table() {
        let v4 = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1 1";
        assert_eq!(
            parse(v4, true),
            Some(Bound { address: "127.0.0.1".parse().unwrap(), port: 8080, inode: 1 })
        );
        let v6 = "0: 00000000000000000000000001000000:0050 00000000000000000000000000000000:0000 0A 0:0 0:0 0 0 0 7 1";
        assert_eq!(parse(v6, true), Some(Bound { address: "::1".parse().unwrap(), port: 80, inode: 7 }));
        assert_eq!(parse(&v4.replace(" 0A ", " 01 "), true), None);
        assert_eq!(parse("junk", true), None);
    }

    #[test]
    fn a_port_that_a_process_listens_on_is_held() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let number = listener.local_addr().unwrap().port();
        let wanted = format!("127.0.0.1:{number}/TCP");
        assert_eq!(find_taken_port(&with(port(number, "TCP", "127.0.0.1"))).unwrap(), Some(wanted));
        assert_eq!(find_taken_port(&with(port(number, "TCP", "192.0.2.1"))).unwrap(), None);
        assert!(super::listener(Path::new("/proc/self"), number).unwrap().is_some());
        drop(listener);
        assert_eq!(super::listener(Path::new("/proc/self"), number).unwrap(), None);
        assert_eq!(find_taken_port(&with(port(number, "TCP", "127.0.0.1"))).unwrap(), None);
    }

    #[test]
    fn a_listener_on_one_address_does_not_hold_the_port_of_all() {
        for (listener, wanted, expected) in [
            ("127.0.0.53", "", false),
            ("127.0.0.53", "0.0.0.0", false),
            ("127.0.0.53", "127.0.0.53", true),
            ("0.0.0.0", "", true),
            ("0.0.0.0", "192.0.2.1", true),
            ("0.0.0.0", "::", false),
            ("::", "", true),
            ("::", "192.0.2.1", true),
        ] {
            let bound = Bound { address: listener.parse().unwrap(), port: 53, inode: 1 };
            assert_eq!(in_the_way(&bound, &port(53, "TCP", wanted)), expected, "{listener} {wanted:?}");
        }
    }
}
