//! Names and hardware addresses of a veth pair: pure.
//!
//! Owns how they follow from the attachment; randomness is an argument. Never touches the kernel. Called by `veth`.

use std::net::IpAddr;

use crate::host_local::Lease;

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

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(address: &str, gateway: &str) -> Lease {
        Lease { address: address.parse().unwrap(), gateway: Some(gateway.parse().unwrap()) }
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
}
