//! Whether a process of the host has a port already.
//!
//! Owns the question only: a forwarded port would silently take the traffic of whoever listens on it (a host port 22
//! would cut off sshd), so the mapping is refused instead. Asks by binding, which is cheap, and only when that fails
//! looks who it is: a mapping on one address leaves a listener on another one alone; a mapping on all addresses takes
//! from every listener. Called by `portmap`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::config::Protocol;

/// Whether a listener would lose its traffic to a mapping of this port. When it cannot be told, nobody does, and the
/// log says so.
pub(super) fn has(protocol: Protocol, at: SocketAddr) -> bool {
    let (kind, tables, listening) = match protocol {
        Protocol::Tcp => (SocketType::STREAM, ["tcp", "tcp6"], "0A"),
        Protocol::Udp => (SocketType::DGRAM, ["udp", "udp6"], "07"),
        // The kernel shows no table of SCTP that would be worth its parser (docs/differences.md).
        Protocol::Sctp => return false,
    };
    if !matches!(bind(kind, at), Err(rustix::io::Errno::ADDRINUSE)) {
        return false;
    }
    tables
        .iter()
        .any(|table| local_addresses(&read(table), listening).any(|listener| is_in_the_way(listener, at)))
}

fn read(table: &str) -> String {
    let path = format!("/proc/thread-self/net/{table}");
    match std::fs::read_to_string(&path) {
        Ok(text) => text,
        // A kernel without IPv6 has no tables of it, and no listeners.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && table.ends_with('6') => String::new(),
        Err(error) => {
            tracing::warn!(
                path,
                "whether a process of the host listens on a host port is not known: {error}"
            );
            String::new()
        }
    }
}

fn bind(kind: SocketType, at: SocketAddr) -> Result<(), rustix::io::Errno> {
    let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    if kind == SocketType::STREAM {
        // Connections that only wait for their end are not in the way.
        sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    rustix::net::bind(&socket, &at)
}

/// Both on the same address, or one of them on all of its family: then the mapping takes from the listener.
fn is_in_the_way(listener: SocketAddr, wanted: SocketAddr) -> bool {
    let (ip, wanted_ip) = (listener.ip().to_canonical(), wanted.ip());
    // A listener on all IPv6 addresses usually takes IPv4, too.
    let same_family = ip.is_ipv4() == wanted_ip.is_ipv4() || (ip.is_ipv6() && ip.is_unspecified());
    let overlap = ip == wanted_ip || ip.is_unspecified() || wanted_ip.is_unspecified();
    listener.port() == wanted.port() && same_family && overlap
}

/// The local addresses of the sockets of one state in a table like `/proc/net/tcp`.
fn local_addresses<'a>(table: &'a str, state: &'a str) -> impl Iterator<Item = SocketAddr> + 'a {
    table.lines().skip(1).filter_map(move |line| {
        let mut words = line.split_whitespace().skip(1);
        let (local, _remote, found) = (words.next()?, words.next()?, words.next()?);
        (found == state).then(|| parse(local)).flatten()
    })
}

/// `0100007F:1F90`: the address as 32-bit words of the machine's own order, the port as a number.
fn parse(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |index: usize| {
        u32::from_str_radix(address.get(index * 8..index * 8 + 8)?, 16).ok().map(u32::to_ne_bytes)
    };
    let ip: IpAddr = if address.len() == 8 {
        Ipv4Addr::from(word(0)?).into()
    } else {
        let words = [word(0)?, word(1)?, word(2)?, word(3)?];
        let mut bytes = [0; 16];
        bytes.iter_mut().zip(words.as_flattened()).for_each(|(to, from)| *to = *from);
        Ipv6Addr::from(bytes).into()
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, UdpSocket};

    #[test]
    fn addresses_of_the_kernels_tables_are_read() {
        let table = "  sl  local_address rem_address   st tx_queue\n   0: 0100007F:1F90 00000000:0000 0A 0\n   \
                     1: 00000000:0016 00000000:0000 01 0\n   2: odd\n";
        assert_eq!(local_addresses(table, "0A").collect::<Vec<_>>(), ["127.0.0.1:8080".parse().unwrap()]);
        let v6 = parse("000080FE00000000FF565450FE41E2FE:0050").unwrap();
        assert_eq!(v6, "[fe80::5054:56ff:fee2:41fe]:80".parse().unwrap());
    }

    #[test]
    fn a_listener_on_the_same_or_on_all_addresses_is_in_the_way() {
        for (listener, wanted, expected) in [
            ("0.0.0.0:80", "0.0.0.0:80", true),
            ("0.0.0.0:80", "192.0.2.1:80", true),
            ("127.0.0.53:80", "0.0.0.0:80", true),
            ("192.0.2.7:80", "0.0.0.0:80", true),
            ("192.0.2.7:80", "192.0.2.1:80", false),
            ("[::ffff:127.0.0.1]:80", "0.0.0.0:80", true),
            ("[::ffff:127.0.0.1]:80", "127.0.0.1:80", true),
            ("[::1]:80", "[::]:80", true),
            ("[::1]:80", "0.0.0.0:80", false),
            ("127.0.0.1:80", "[::]:80", false),
            ("127.0.0.1:80", "127.0.0.1:80", true),
            ("[::]:80", "0.0.0.0:80", true),
            ("0.0.0.0:80", "[::]:80", false),
            ("0.0.0.0:81", "0.0.0.0:80", false),
        ] {
            let found = is_in_the_way(listener.parse().unwrap(), wanted.parse().unwrap());
            assert_eq!(found, expected, "{listener} {wanted}");
        }
    }

    #[test]
    fn real_sockets_are_found_while_they_are_open() {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = tcp.local_addr().unwrap();
        assert!(has(Protocol::Tcp, at));
        let all = SocketAddr::new("0.0.0.0".parse().unwrap(), at.port());
        assert!(has(Protocol::Tcp, all), "a mapping on all addresses takes what comes to 127.0.0.1, too");
        drop(tcp);
        assert!(!has(Protocol::Tcp, all));
        assert!(!has(Protocol::Tcp, at));
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(has(Protocol::Udp, udp.local_addr().unwrap()));
        assert!(!has(Protocol::Sctp, udp.local_addr().unwrap()));
    }
}
