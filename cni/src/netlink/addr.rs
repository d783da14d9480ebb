//! Addresses of links.
//!
//! Owns how an address becomes an `RTM_*ADDR` message. Never decides which address goes where. Called by the bridge.

use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::{Error, Netlink};

/// How a link is to have an address.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewAddress {
    /// Whether it brings the route to its subnet with it.
    pub(crate) on_link: bool,
    /// Whether an IPv6 address is usable at once: with `IFA_F_NODAD` the kernel does not first wait a second for others
    /// to claim it (RFC 4862 §5.4), which the allocation rules out.
    pub(crate) skip_dad: bool,
}

impl Netlink {
    /// Gives a link an address.
    pub(crate) fn add_address(&mut self, index: u32, address: IpNet, how: NewAddress) -> Result<(), Error> {
        let message = address_message(index, address, how);
        self.request(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_EXCL).map(drop)
    }

    /// Takes an address from a link.
    pub(crate) fn delete_address(&mut self, index: u32, address: IpNet) -> Result<(), Error> {
        let mut message = AddressMessage::default();
        message.header.family = family(address.addr());
        message.header.prefix_len = address.prefix_len();
        message.header.index = index;
        message.attributes.push(AddressAttribute::Local(address.addr()));
        self.request(RouteNetlinkMessage::DelAddress(message), 0).map(drop)
    }

    /// The addresses of a link, of one family.
    pub(crate) fn addresses(&mut self, index: u32, family_of: IpAddr) -> Result<Vec<IpNet>, Error> {
        let mut message = AddressMessage::default();
        message.header.family = family(family_of);
        // Not all kernels filter a dump by index, so it is done here.
        let answers = self.dump(&RouteNetlinkMessage::GetAddress(message))?;
        Ok(answers
            .iter()
            .filter_map(|answer| match answer {
                RouteNetlinkMessage::NewAddress(message) if message.header.index == index => read(message),
                _ => None,
            })
            .collect())
    }
}

pub(super) fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

fn address_message(index: u32, address: IpNet, how: NewAddress) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = family(address.addr());
    message.header.prefix_len = address.prefix_len();
    message.header.index = index;
    message.attributes.push(AddressAttribute::Local(address.addr()));
    message.attributes.push(AddressAttribute::Address(address.addr()));
    let mut flags = AddressFlags::empty();
    if !how.on_link {
        flags |= AddressFlags::Noprefixroute;
    }
    match address {
        IpNet::V4(net) => message.attributes.push(AddressAttribute::Broadcast(net.broadcast())),
        IpNet::V6(_) if how.skip_dad => flags |= AddressFlags::Nodad,
        IpNet::V6(_) => {}
    }
    if !flags.is_empty() {
        message.attributes.push(AddressAttribute::Flags(flags));
    }
    message
}

fn read(message: &AddressMessage) -> Option<IpNet> {
    // IFA_LOCAL is the link's own address; IFA_ADDRESS may be that of the other end. IPv6 has only the latter.
    let local = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    });
    let address = local.or_else(|| {
        message.attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Address(address) => Some(*address),
            _ => None,
        })
    })?;
    IpNet::new(address, message.header.prefix_len).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: NewAddress = NewAddress { on_link: true, skip_dad: true };

    #[test]
    fn addresses_go_out_and_come_back() {
        for text in ["10.87.0.2/16", "fd00::2/64"] {
            let address: IpNet = text.parse().unwrap();
            assert_eq!(read(&address_message(3, address, USUAL)), Some(address));
        }
    }

    #[test]
    fn ipv6_addresses_are_usable_at_once() {
        let flags = |address: &str, how| {
            let message = address_message(3, address.parse().unwrap(), how);
            message.attributes.iter().find_map(|attribute| match attribute {
                AddressAttribute::Flags(flags) => Some(*flags),
                _ => None,
            })
        };
        assert_eq!(flags("fd00::2/64", USUAL), Some(AddressFlags::Nodad));
        assert_eq!(flags("10.0.0.2/24", USUAL), None);
        assert_eq!(flags("fd00::2/64", NewAddress { skip_dad: false, ..USUAL }), None);
        let behind = NewAddress { on_link: false, ..USUAL };
        assert_eq!(flags("10.0.0.2/24", behind), Some(AddressFlags::Noprefixroute));
    }
}
