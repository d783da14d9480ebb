//! Forgetting connections: UDP flows that were tracked before a port was forwarded, or while it was.
//!
//! Owns the messages of ctnetlink. UDP has no end that conntrack could see: a client that keeps sending from one port
//! keeps its flow alive, and with it the old decision where packets go. TCP needs none of this. Never fails an
//! attachment: the caller logs. Called by `portmap` after its rules have changed. See
//! `linux/netfilter/nfnetlink_conntrack.h`.

use std::net::IpAddr;

use super::attr::{self, Attrs};
use super::{Error, Netfilter};

/// `NFNL_SUBSYS_CTNETLINK`, in the upper byte of a message's type.
const SUBSYSTEM: u16 = 1 << 8;
const NEW: u16 = SUBSYSTEM;
const GET: u16 = SUBSYSTEM | 1;
const DELETE: u16 = SUBSYSTEM | 2;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const TUPLE_ORIG: u16 = 1;
const ID: u16 = 12;
const ZONE: u16 = 18;
const TUPLE_IP: u16 = 1;
const TUPLE_PROTO: u16 = 2;
const IP_V4_DST: u16 = 2;
const IP_V6_DST: u16 = 4;
const PROTO_NUM: u16 = 1;
const PROTO_DST_PORT: u16 = 3;
const UDP: u8 = 17;
const ENOENT: i32 = rustix::io::Errno::NOENT.raw_os_error();
/// `NLA_F_NESTED`.
const NESTED: u16 = 0x8000;

/// Forgets UDP flows to these ports; an address that is not unspecified counts, too. Says how many there were.
pub(crate) fn forget_udp(v4: bool, ports: &[(IpAddr, u16)]) -> Result<usize, Error> {
    if ports.is_empty() {
        return Ok(0);
    }
    let family = if v4 { AF_INET } else { AF_INET6 };
    super::with(|socket| socket.forget_udp(family, ports))
}

impl Netfilter {
    fn forget_udp(&mut self, family: u8, ports: &[(IpAddr, u16)]) -> Result<usize, Error> {
        let flows = self.dump("to list connections", GET, family, &[])?;
        let mut forgotten = 0;
        for flow in flows.iter().filter(|answer| answer.kind == NEW && is_to(&answer.body, ports)) {
            match self.request("to forget a connection", DELETE, family, key(&flow.body).as_slice()) {
                Ok(_) => forgotten += 1,
                // It ended by itself.
                Err(Error::Refused { source, .. }) if source.raw_os_error() == Some(ENOENT) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(forgotten)
    }
}

/// Whether a flow went to one of the ports when it came.
fn is_to(body: &[u8], ports: &[(IpAddr, u16)]) -> bool {
    let number = attr::path(body, &[TUPLE_ORIG, TUPLE_PROTO, PROTO_NUM]).and_then(|value| value.first());
    let port = attr::path(body, &[TUPLE_ORIG, TUPLE_PROTO, PROTO_DST_PORT]).and_then(attr::u16);
    let to = address(body);
    let hits = |(address, wanted): &(IpAddr, u16)| {
        Some(*wanted) == port && (address.is_unspecified() || Some(*address) == to)
    };
    number == Some(&UDP) && ports.iter().any(hits)
}

fn address(body: &[u8]) -> Option<IpAddr> {
    let of = |kind| attr::path(body, &[TUPLE_ORIG, TUPLE_IP, kind]);
    let v4 = of(IP_V4_DST).and_then(|value| <[u8; 4]>::try_from(value).ok()).map(IpAddr::from);
    v4.or_else(|| of(IP_V6_DST).and_then(|value| <[u8; 16]>::try_from(value).ok()).map(IpAddr::from))
}

/// What names a flow for its deletion.
fn key(body: &[u8]) -> Attrs {
    [(TUPLE_ORIG, NESTED), (ID, 0), (ZONE, 0)].into_iter().fold(Attrs::new(), |attributes, (kind, flag)| {
        match attr::find(body, kind) {
            Some(value) => attributes.bytes(kind | flag, value),
            None => attributes,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(protocol: u8, port: u16) -> Attrs {
        let ip = Attrs::new().bytes(1, &[10, 0, 0, 9]).bytes(IP_V4_DST, &[192, 0, 2, 1]);
        let proto = Attrs::new().u8(PROTO_NUM, protocol).bytes(PROTO_DST_PORT, &port.to_be_bytes());
        Attrs::new().nest(TUPLE_ORIG, &Attrs::new().nest(TUPLE_IP, &ip).nest(TUPLE_PROTO, &proto)).u32(ID, 7)
    }

    #[test]
    fn only_udp_to_the_port_and_address_is_meant() {
        let any: IpAddr = "0.0.0.0".parse().unwrap();
        let this: IpAddr = "192.0.2.1".parse().unwrap();
        let other: IpAddr = "192.0.2.2".parse().unwrap();
        let udp = flow(UDP, 53);
        assert!(is_to(udp.as_slice(), &[(any, 53)]) && is_to(udp.as_slice(), &[(other, 53), (this, 53)]));
        assert!(!is_to(udp.as_slice(), &[(any, 54)]) && !is_to(udp.as_slice(), &[(other, 53)]));
        assert!(!is_to(flow(6, 53).as_slice(), &[(any, 53)]));
        assert_eq!(key(udp.as_slice()), udp);
    }
}
