//! Addresses of links.
//!
//! Owns how an address becomes an `RTM_*ADDR` message. Never decides which address goes where. Called by the bridge.

use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::{Error, Netlink};

impl Netlink {
    /// Gives a link an address, at once usable: with `IFA_F_NODAD` the kernel does not first wait a second for others
    /// to claim it (RFC 4862 §5.4), which the allocation rules out.
    pub(crate) fn add_address(&mut self, index: u32, address: IpNet) -> Result<(), Error> {
        let message = address_message(index, address);
        self.request(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_EXCL).map(drop)
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

fn address_message(index: u32, address: IpNet) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = family(address.addr());
    message.header.prefix_len = address.prefix_len();
    message.header.index = index;
    message.attributes.push(AddressAttribute::Local(address.addr()));
    message.attributes.push(AddressAttribute::Address(address.addr()));
    match address {
        IpNet::V4(net) => message.attributes.push(AddressAttribute::Broadcast(net.broadcast())),
        IpNet::V6(_) => {
            message.header.flags = AddressHeaderFlags::Nodad;
            message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        }
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

    #[test]
    fn addresses_go_out_and_come_back() {
        for text in ["10.87.0.2/16", "fd00::2/64"] {
            let address: IpNet = text.parse().unwrap();
            assert_eq!(read(&address_message(3, address)), Some(address));
        }
    }

    #[test]
    fn ipv6_addresses_are_usable_at_once() {
        let message = address_message(3, "fd00::2/64".parse().unwrap());
        assert!(message.attributes.contains(&AddressAttribute::Flags(AddressFlags::Nodad)));
    }
}
