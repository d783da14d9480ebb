//! Links, addresses and routes over `NETLINK_ROUTE`: one request, its answers, the kernel's verdict.
//!
//! Owns the conversation, `socket` the descriptor. Never decides what to ask for: `link`, `addr` and `route` build the messages, the plugins choose them.
//! See `netlink(7)` and `rtnetlink(7)`.

mod addr;
mod link;
mod route;

pub(crate) use addr::NewAddress;
pub(crate) use link::{Link, VethPair};

use std::io;

use netlink_packet_core::{
    DecodeError, ErrorMessage, NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkHeader,
    NetlinkMessage, NetlinkPayload, NlasIterator,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::protocols::NETLINK_ROUTE;

use crate::socket::{self, Socket};

/// `NLMSGERR_ATTR_MSG` of `linux/netlink.h`: the kernel's own words.
const NLMSGERR_ATTR_MSG: u16 = 1;
/// Length of the request's header, which an error repeats before its attributes.
const NLMSG_HEADER: usize = 16;
/// How often a dump is taken again when the kernel says that something changed while it ran.
const DUMP_TRIES: u32 = 10;

const EEXIST: i32 = rustix::io::Errno::EXIST.raw_os_error();
const ENODEV: i32 = rustix::io::Errno::NODEV.raw_os_error();

/// Why a request brought no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Socket(#[from] socket::Error),
    #[error("cannot decode a netlink answer")]
    Decode(#[source] DecodeError),
    #[error("the kernel's list changed {DUMP_TRIES} times while it was read")]
    Interrupted,
    #[error("the kernel lost netlink messages")]
    Overrun,
    #[error("the kernel refused{}", detail.as_ref().map(|text| format!(" ({text})")).unwrap_or_default())]
    Refused {
        detail: Option<String>,
        #[source]
        source: io::Error,
    },
}

impl Error {
    /// Whether the kernel says that the thing is there already.
    pub(crate) fn is_exists(&self) -> bool {
        matches!(self, Error::Refused { source, .. } if source.raw_os_error() == Some(EEXIST))
    }

    /// Whether the kernel says that there is no such link.
    pub(crate) fn is_no_device(&self) -> bool {
        matches!(self, Error::Refused { source, .. } if source.raw_os_error() == Some(ENODEV))
    }
}

/// A socket to the kernel's routing and link tables.
pub(crate) struct Netlink {
    socket: Socket,
}

impl Netlink {
    /// Opens a socket in the calling thread's network namespace.
    pub(crate) fn open() -> Result<Netlink, Error> {
        Ok(Netlink { socket: Socket::open(NETLINK_ROUTE)? })
    }

    /// Asks for one change, or for one thing: the answer is what came before the acknowledgement.
    fn request(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> Result<Vec<RouteNetlinkMessage>, Error> {
        let sequence = self.send(message, flags | NLM_F_REQUEST | NLM_F_ACK)?;
        let (answers, _) = self.receive(sequence)?;
        Ok(answers)
    }

    /// Asks for a whole table.
    fn dump(&mut self, message: &RouteNetlinkMessage) -> Result<Vec<RouteNetlinkMessage>, Error> {
        for _ in 0..DUMP_TRIES {
            let sequence = self.send(message.clone(), NLM_F_REQUEST | NLM_F_DUMP)?;
            let (answers, consistent) = self.receive(sequence)?;
            if consistent {
                return Ok(answers);
            }
        }
        Err(Error::Interrupted)
    }

    fn send(&mut self, message: RouteNetlinkMessage, flags: u16) -> Result<u32, Error> {
        let sequence = self.socket.next();
        let mut header = NetlinkHeader::default();
        header.flags = flags;
        header.sequence_number = sequence;
        let mut packet = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        self.socket.send(&bytes)?;
        Ok(sequence)
    }

    /// Reads up to the verdict on the request of this number; the flag is false for a dump that something changed under.
    fn receive(&mut self, sequence: u32) -> Result<(Vec<RouteNetlinkMessage>, bool), Error> {
        let mut answers = Vec::new();
        let mut consistent = true;
        loop {
            let mut rest = self.socket.receive()?;
            while !rest.is_empty() {
                let packet =
                    NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest).map_err(Error::Decode)?;
                rest = rest.get(align_length(packet.header.length)..).unwrap_or_default();
                if packet.header.sequence_number != sequence {
                    continue;
                }
                consistent &= packet.header.flags & NLM_F_DUMP_INTR == 0;
                match packet.payload {
                    NetlinkPayload::InnerMessage(answer) => answers.push(answer),
                    NetlinkPayload::Error(verdict) if verdict.code.is_none() => {
                        return Ok((answers, consistent));
                    }
                    NetlinkPayload::Error(verdict) => return Err(kernel_error(&verdict)),
                    NetlinkPayload::Done(done) if done.code == 0 => return Ok((answers, consistent)),
                    NetlinkPayload::Done(done) => {
                        let source = io::Error::from_raw_os_error(done.code.saturating_abs());
                        return Err(Error::Refused { detail: None, source });
                    }
                    NetlinkPayload::Overrun(_) => return Err(Error::Overrun),
                    _ => {}
                }
            }
        }
    }
}

/// Messages of one datagram start at multiples of four bytes; never zero, so that reading always moves on.
fn align_length(length: u32) -> usize {
    usize::try_from(length).unwrap_or(usize::MAX).max(NLMSG_HEADER).div_ceil(4).saturating_mul(4)
}

fn kernel_error(verdict: &ErrorMessage) -> Error {
    Error::Refused { detail: kernel_words(&verdict.header), source: verdict.to_io() }
}

/// The text that the kernel adds to an error, if it has one.
fn kernel_words(payload: &[u8]) -> Option<String> {
    let attributes = payload.get(NLMSG_HEADER..)?;
    let text =
        NlasIterator::new(attributes).flatten().find(|attribute| attribute.kind() == NLMSGERR_ATTR_MSG)?;
    let bytes = text.value();
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_words_are_found_behind_the_header() {
        let mut payload = vec![0; NLMSG_HEADER];
        payload.extend_from_slice(&[8, 0, 2, 0, 1, 2, 3, 4]); // another attribute first
        payload.extend_from_slice(&[8, 0, 1, 0, b'n', b'o', 0, 0]);
        assert_eq!(kernel_words(&payload).as_deref(), Some("no"));
        assert_eq!(kernel_words(&payload[..NLMSG_HEADER]), None);
        assert_eq!(kernel_words(&[1, 2]), None);
    }

    #[test]
    fn reading_moves_on_even_past_a_broken_length() {
        assert_eq!(align_length(17), 20);
        assert_eq!(align_length(0), 16);
    }

    #[test]
    fn links_can_be_read_without_privileges() {
        let link = Netlink::open().unwrap().link("lo").unwrap().unwrap();
        assert_eq!(link.name, "lo");
        assert!(Netlink::open().unwrap().link("no-such-link").unwrap().is_none());
    }
}
