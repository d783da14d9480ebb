//! Links: bridges, veth pairs, bridge ports.
//!
//! Owns how a wish becomes an `RTM_*LINK` message and what is read from one. Never chooses names or order: the bridge
//! plugin does, and `loopback`.

use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    BridgePortState, InfoBridgePort, InfoData, InfoKind, InfoPortData, InfoPortKind, InfoVeth, LinkAttribute,
    LinkFlags, LinkInfo, LinkMessage, State,
};

use super::{Error, Netlink};

/// What the plugins need to know of a link.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) mac: Vec<u8>,
    pub(crate) up: bool,
    /// Whether frames pass: up at both ends, and the kernel's work queue has taken note of it.
    pub(crate) operational: bool,
    pub(crate) is_bridge: bool,
    /// Index of the bridge it is a port of.
    pub(crate) master: Option<u32>,
    /// Whether, as a bridge port, it passes frames on.
    pub(crate) forwarding: bool,
}

/// A veth pair to be made: one end here, perhaps a port of a bridge, the other in another namespace, both down.
#[derive(Debug)]
pub(crate) struct VethPair<'a> {
    pub(crate) host_name: &'a str,
    pub(crate) bridge_index: Option<u32>,
    pub(crate) peer_name: &'a str,
    pub(crate) peer_mac: [u8; 6],
    pub(crate) peer_netns: BorrowedFd<'a>,
    pub(crate) mtu: Option<u32>,
}

impl Netlink {
    /// Looks a link up; `None` when there is none of this name.
    pub(crate) fn link(&mut self, name: &str) -> Result<Option<Link>, Error> {
        let answers = match self.request(RouteNetlinkMessage::GetLink(message_with_name(name)), 0) {
            Err(error) if error.is_no_device() => return Ok(None),
            other => other?,
        };
        Ok(read_links(answers).next())
    }

    /// All links of the namespace.
    pub(crate) fn links(&mut self) -> Result<Vec<Link>, Error> {
        let answers = self.dump(&RouteNetlinkMessage::GetLink(LinkMessage::default()))?;
        Ok(read_links(answers).collect())
    }

    /// Makes a bridge with a hardware address of its own: one that is set explicitly stays when ports come and go,
    /// while the kernel's choice follows the lowest of the ports (`br_stp_recalculate_bridge_id`).
    pub(crate) fn add_bridge(&mut self, name: &str, mac: [u8; 6], mtu: Option<u32>) -> Result<(), Error> {
        let message = bridge_message(name, mac, mtu);
        self.request(RouteNetlinkMessage::NewLink(message), NLM_F_CREATE | NLM_F_EXCL).map(drop)
    }

    /// Makes a veth pair whose peer is born in its namespace under its final name.
    pub(crate) fn add_veth(&mut self, pair: &VethPair<'_>) -> Result<(), Error> {
        let message = veth_message(pair);
        self.request(RouteNetlinkMessage::NewLink(message), NLM_F_CREATE | NLM_F_EXCL).map(drop)
    }

    /// Sets a bridge port's hairpin mode and isolation and brings it up.
    pub(crate) fn set_port_up(&mut self, name: &str, hairpin: bool, isolated: bool) -> Result<(), Error> {
        self.request(RouteNetlinkMessage::NewLink(port_message(name, hairpin, isolated)), 0).map(drop)
    }

    /// Makes a link take all frames, whoever they are for.
    pub(crate) fn set_promiscuous(&mut self, name: &str) -> Result<(), Error> {
        let mut message = message_with_name(name);
        message.header.flags = LinkFlags::Promisc;
        message.header.change_mask = LinkFlags::Promisc;
        self.request(RouteNetlinkMessage::SetLink(message), 0).map(drop)
    }

    /// The name of the link of this index.
    pub(super) fn link_name(&mut self, index: u32) -> Result<Option<String>, Error> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        match self.request(RouteNetlinkMessage::GetLink(message), 0) {
            Err(error) if error.is_no_device() => Ok(None),
            other => Ok(read_links(other?).next().map(|link| link.name)),
        }
    }

    /// Brings a link up.
    pub(crate) fn set_up(&mut self, name: &str) -> Result<(), Error> {
        let mut message = message_with_name(name);
        set_flag_up(&mut message);
        self.request(RouteNetlinkMessage::SetLink(message), 0).map(drop)
    }

    /// Makes the hardware address that a link has one that was set by hand.
    pub(crate) fn set_mac(&mut self, name: &str, mac: &[u8]) -> Result<(), Error> {
        let mut message = message_with_name(name);
        message.attributes.push(LinkAttribute::Address(mac.to_vec()));
        self.request(RouteNetlinkMessage::SetLink(message), 0).map(drop)
    }

    /// Removes a link; false when there was none of this name.
    pub(crate) fn delete_link(&mut self, name: &str) -> Result<bool, Error> {
        match self.request(RouteNetlinkMessage::DelLink(message_with_name(name)), 0) {
            Ok(_) => Ok(true),
            Err(error) if error.is_no_device() => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn message_with_name(name: &str) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.attributes.push(LinkAttribute::IfName(name.into()));
    message
}

fn set_flag_up(message: &mut LinkMessage) {
    message.header.flags = LinkFlags::Up;
    message.header.change_mask = LinkFlags::Up;
}

fn bridge_message(name: &str, mac: [u8; 6], mtu: Option<u32>) -> LinkMessage {
    let mut message = message_with_name(name);
    message.attributes.push(LinkAttribute::Address(mac.to_vec()));
    message.attributes.extend(mtu.map(LinkAttribute::Mtu));
    message.attributes.push(LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Bridge)]));
    message
}

fn veth_message(pair: &VethPair<'_>) -> LinkMessage {
    let mut peer = message_with_name(pair.peer_name);
    peer.attributes.push(LinkAttribute::Address(pair.peer_mac.to_vec()));
    peer.attributes.push(LinkAttribute::NetNsFd(pair.peer_netns.as_raw_fd()));
    peer.attributes.extend(pair.mtu.map(LinkAttribute::Mtu));
    let mut message = message_with_name(pair.host_name);
    message.attributes.extend(pair.bridge_index.map(LinkAttribute::Controller));
    message.attributes.extend(pair.mtu.map(LinkAttribute::Mtu));
    message.attributes.push(LinkAttribute::LinkInfo(vec![
        LinkInfo::Kind(InfoKind::Veth),
        LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
    ]));
    message
}

fn port_message(name: &str, hairpin: bool, isolated: bool) -> LinkMessage {
    let mut message = message_with_name(name);
    set_flag_up(&mut message);
    message.attributes.push(LinkAttribute::LinkInfo(vec![
        LinkInfo::PortKind(InfoPortKind::Bridge),
        LinkInfo::PortData(InfoPortData::BridgePort(vec![
            InfoBridgePort::HairpinMode(hairpin),
            InfoBridgePort::Isolated(isolated),
        ])),
    ]));
    message
}

fn read_links(answers: Vec<RouteNetlinkMessage>) -> impl Iterator<Item = Link> {
    answers.into_iter().filter_map(|answer| match answer {
        RouteNetlinkMessage::NewLink(message) => Some(read_link(message)),
        _ => None,
    })
}

fn read_link(message: LinkMessage) -> Link {
    let mut link = Link {
        index: message.header.index,
        up: message.header.flags.contains(LinkFlags::Up),
        ..Link::default()
    };
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name = name,
            LinkAttribute::Address(mac) => link.mac = mac,
            LinkAttribute::OperState(state) => link.operational = state == State::Up,
            LinkAttribute::Controller(index) => link.master = Some(index),
            LinkAttribute::LinkInfo(infos) => {
                link.is_bridge = infos.contains(&LinkInfo::Kind(InfoKind::Bridge));
                link.forwarding = infos.iter().any(is_forwarding);
            }
            _ => {}
        }
    }
    link
}

fn is_forwarding(info: &LinkInfo) -> bool {
    let LinkInfo::PortData(InfoPortData::BridgePort(port)) = info else { return false };
    port.contains(&InfoBridgePort::State(BridgePortState::Forwarding))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_bridge_is_born_down_with_its_own_address() {
        let message = bridge_message("gantry0", [2, 0, 0, 0, 0, 1], None);
        assert_eq!(message.header.flags, LinkFlags::empty());
        assert!(message.attributes.contains(&LinkAttribute::Address(vec![2, 0, 0, 0, 0, 1])));
        assert!(!message.attributes.iter().any(|a| matches!(a, LinkAttribute::Mtu(_))), "{message:?}");
    }

    #[test]
    fn a_pair_is_born_down_in_two_namespaces() {
        let here = std::fs::File::open("/proc/thread-self/ns/net").unwrap();
        let message = veth_message(&VethPair {
            host_name: "veth1",
            bridge_index: Some(7),
            peer_name: "eth0",
            peer_mac: [2; 6],
            peer_netns: here.as_fd(),
            mtu: Some(1400),
        });
        assert_eq!(message.header.flags, LinkFlags::empty());
        assert!(message.attributes.contains(&LinkAttribute::Controller(7)));
        assert!(message.attributes.contains(&LinkAttribute::Mtu(1400)));
        let Some(LinkAttribute::LinkInfo(infos)) = message.attributes.last() else { panic!("{message:?}") };
        let Some(LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer)))) = infos.last() else {
            panic!("{infos:?}")
        };
        assert_eq!(
            peer.attributes,
            [
                LinkAttribute::IfName("eth0".into()),
                LinkAttribute::Address(vec![2; 6]),
                LinkAttribute::NetNsFd(here.as_raw_fd()),
                LinkAttribute::Mtu(1400),
            ]
        );
    }

    #[test]
    fn a_port_that_forwards_is_recognised() {
        let state = |state| {
            let mut message = message_with_name("veth1");
            message.attributes.push(LinkAttribute::LinkInfo(vec![
                LinkInfo::PortKind(InfoPortKind::Bridge),
                LinkInfo::PortData(InfoPortData::BridgePort(vec![InfoBridgePort::State(state)])),
            ]));
            read_link(message).forwarding
        };
        assert!(state(BridgePortState::Forwarding));
        assert!(!state(BridgePortState::Disabled));
    }
}
