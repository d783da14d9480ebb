//! nf_tables and conntrack over `NETLINK_NETFILTER`.
//!
//! Owns the framing of messages and the transaction: read the table, decide, write under the generation that
//! was read, and start anew when somebody else was faster. So nothing needs a lock, and no other user of nf_tables is
//! ever overwritten. Never decides what the rules are: `masquerade` and `portmap` do. Messages are encoded here instead
//! of by a crate: docs/adr/0010-own-nf-tables-messages.md. See `linux/netfilter/nf_tables.h`.

mod attr;
pub(crate) mod conntrack;
mod expr;
mod kept;
mod kube;
mod members;
mod message;
mod owner;
mod set;
mod table;

pub(crate) use expr::{Match, Rule, Verdict};
pub(crate) use kept::with;
pub(crate) use kube::{Family, NftTable, remove as remove_kube, tables as kube_tables};
pub(crate) use members::{MemberLayout, Which, remove as remove_members};
pub(crate) use message::Hook;
pub(crate) use owner::{RuleOwner, garbage};
pub(crate) use table::{Edit, InstalledRule, RuleChange, TableChain, TableLayout, remove};

use std::io;

use netlink_sys::protocols::NETLINK_NETFILTER;

use crate::socket::{self, Socket};

/// Lengths of `struct nlmsghdr` and `struct nfgenmsg`.
const HEADER: usize = 16;
const FAMILY_HEADER: usize = 4;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLMSG_OVERRUN: u16 = 4;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
const NLM_F_DUMP: u16 = 0x300;
const NLM_F_DUMP_INTR: u16 = 0x10;
const NLM_F_CREATE: u16 = 0x400;
const NLM_F_APPEND: u16 = 0x800;
/// How often a dump is taken again when the kernel says that something changed while it ran.
const DUMP_TRIES: u32 = 20;

/// `NFPROTO_UNSPEC` and `NFPROTO_INET`.
const UNSPEC: u8 = 0;
const INET: u8 = 1;

/// Why the kernel's tables could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Socket(#[from] socket::Error),
    #[error("the kernel has no nf_tables")]
    Absent(#[source] io::Error),
    #[error("the kernel's answer {what} is broken")]
    Broken { what: &'static str },
    #[error("the kernel lost messages of its answer {what}")]
    Overrun { what: &'static str },
    #[error("the kernel refused {what}{}", hint(.source))]
    Refused {
        what: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("the kernel's rules changed {tries} times while they were read or written")]
    Restless { tries: u32 },
    #[error("chain {chain} has {found} rules {whose}, not {expected}")]
    Count { chain: &'static str, whose: String, found: usize, expected: usize },
    #[error("a rule {whose} in chain {chain} says something else")]
    Changed { chain: &'static str, whose: String },
    #[error("the pod has the addresses [{found}], not [{expected}]")]
    Addresses { found: String, expected: String },
    #[error("set {set} has no {address} of the pod")]
    Member { set: String, address: std::net::IpAddr },
}

/// What an errno means here that its own text does not tell.
fn hint(error: &io::Error) -> &'static str {
    const ENOENT: i32 = rustix::io::Errno::NOENT.raw_os_error();
    const EINVAL: i32 = rustix::io::Errno::INVAL.raw_os_error();
    const EOPNOTSUPP: i32 = rustix::io::Errno::OPNOTSUPP.raw_os_error();
    match error.raw_os_error() {
        Some(ENOENT | EINVAL | EOPNOTSUPP) => {
            " (it may lack the modules nft_chain_nat, nft_nat, nft_masq, nft_ct and nft_fib_inet)"
        }
        _ => "",
    }
}

impl Error {
    /// Whether the kernel has no nf_tables at all: then nothing of ours can be in it.
    pub(crate) fn is_unsupported(&self) -> bool {
        const EPROTONOSUPPORT: i32 = rustix::io::Errno::PROTONOSUPPORT.raw_os_error();
        match self {
            Error::Absent(_) => true,
            Error::Socket(socket::Error::Open(source)) => source.raw_os_error() == Some(EPROTONOSUPPORT),
            _ => false,
        }
    }

    /// Whether what was asked for is not there.
    fn is_missing(&self) -> bool {
        const ENOENT: i32 = rustix::io::Errno::NOENT.raw_os_error();
        matches!(self, Error::Refused { source, .. } if source.raw_os_error() == Some(ENOENT))
    }

    /// Whether rules have changed since the generation that a batch was planned on.
    fn is_stale(&self) -> bool {
        const ERESTART: i32 = 85;
        matches!(self, Error::Refused { source, .. } if source.raw_os_error() == Some(ERESTART))
    }
}

/// A message of the kernel: its type and what follows the family header.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NftReply {
    pub(crate) kind: u16,
    pub(crate) body: Vec<u8>,
}

/// A socket to the kernel's packet filter, of the calling thread's network namespace.
pub(crate) struct Netfilter {
    socket: Socket,
    /// Whether all answers are read.
    is_settled: bool,
}

impl Netfilter {
    pub(super) fn open() -> Result<Netfilter, Error> {
        Ok(Netfilter { socket: Socket::open(NETLINK_NETFILTER)?, is_settled: true })
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.is_settled = false;
        Ok(self.socket.send(bytes)?)
    }

    /// Asks for a whole list.
    fn dump(
        &mut self,
        what: &'static str,
        kind: u16,
        family: u8,
        attributes: &[u8],
    ) -> Result<Vec<NftReply>, Error> {
        let mut before = None;
        for _ in 0..DUMP_TRIES {
            let mut bytes = Vec::new();
            let sequence = self.append(&mut bytes, kind, NLM_F_REQUEST | NLM_F_DUMP, family, 0, attributes);
            self.send(&bytes)?;
            let answers = self.receive(what, sequence)?;
            if !answers.consistent {
                continue;
            }
            // Each part begins where a count says, and what others prepare and give up in between is counted: some
            // would be told twice or not at all. Not by the same ones in the same way, so that two lists agree.
            if answers.parts < 2 || before.as_ref() == Some(&answers.list) {
                return Ok(answers.list);
            }
            before = Some(answers.list);
        }
        Err(Error::Restless { tries: DUMP_TRIES })
    }

    /// Asks for one thing, or for one change outside of batches.
    fn request(
        &mut self,
        what: &'static str,
        kind: u16,
        family: u8,
        attributes: &[u8],
    ) -> Result<Vec<NftReply>, Error> {
        let mut bytes = Vec::new();
        let sequence = self.append(&mut bytes, kind, NLM_F_REQUEST | NLM_F_ACK, family, 0, attributes);
        self.send(&bytes)?;
        self.receive(what, sequence).map(|answers| answers.list)
    }

    /// Appends a message to a datagram and returns its sequence number.
    fn append(
        &mut self,
        bytes: &mut Vec<u8>,
        kind: u16,
        flags: u16,
        family: u8,
        resource: u16,
        attributes: &[u8],
    ) -> u32 {
        let sequence = self.socket.next();
        let length = u32::try_from(HEADER + FAMILY_HEADER + attributes.len()).unwrap_or(u32::MAX);
        bytes.extend_from_slice(&length.to_ne_bytes());
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&flags.to_ne_bytes());
        bytes.extend_from_slice(&sequence.to_ne_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&[family, 0]);
        bytes.extend_from_slice(&resource.to_be_bytes());
        // Attributes are padded to multiples of four bytes already.
        bytes.extend_from_slice(attributes);
        sequence
    }

    /// Reads up to the verdict on the message of this number, or to the first refusal of any.
    fn receive(&mut self, what: &'static str, sequence: u32) -> Result<NftReplies, Error> {
        let mut answers = NftReplies::new(what, sequence);
        let received = answers.receive_all(&mut self.socket);
        self.is_settled = answers.is_over;
        received.map(|()| answers)
    }
}

/// What the kernel has said so far to a message.
struct NftReplies {
    what: &'static str,
    sequence: u32,
    list: Vec<NftReply>,
    /// Datagrams that brought some of it.
    parts: usize,
    /// False for a dump that something changed under.
    consistent: bool,
    /// Whether the verdict on the message was in it, be it a refusal.
    is_over: bool,
}

impl NftReplies {
    fn new(what: &'static str, sequence: u32) -> NftReplies {
        NftReplies { what, sequence, list: Vec::new(), parts: 0, consistent: true, is_over: false }
    }

    fn receive_all(&mut self, socket: &mut Socket) -> Result<(), Error> {
        while !self.is_over {
            let told = self.list.len();
            self.receive_datagram(socket.receive()?)?;
            self.parts += usize::from(self.list.len() > told);
        }
        Ok(())
    }

    /// Takes a datagram in. One that cannot be read to its end is an error: the verdict may have been there, and no other
    /// one would come.
    fn receive_datagram(&mut self, mut rest: &[u8]) -> Result<(), Error> {
        let what = self.what;
        while !rest.is_empty() && !self.is_over {
            let message = ReplyMessage::parse_first(rest).ok_or(Error::Broken { what })?;
            rest = rest.get(message.aligned..).unwrap_or_default();
            self.consistent &= message.flags & NLM_F_DUMP_INTR == 0;
            match message.kind {
                NLMSG_ERROR | NLMSG_DONE => {
                    let code = message.code().ok_or(Error::Broken { what })?;
                    self.is_over = message.sequence == self.sequence;
                    if code != 0 {
                        let source = io::Error::from_raw_os_error(code.saturating_abs());
                        return Err(Error::Refused { what, source });
                    }
                }
                NLMSG_OVERRUN => return Err(Error::Overrun { what }),
                kind if message.sequence == self.sequence => {
                    let body = message.payload.get(FAMILY_HEADER..).unwrap_or_default().to_vec();
                    self.list.push(NftReply { kind, body });
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// One message of a datagram.
struct ReplyMessage<'a> {
    kind: u16,
    flags: u16,
    sequence: u32,
    payload: &'a [u8],
    aligned: usize,
}

impl<'a> ReplyMessage<'a> {
    fn parse_first(bytes: &'a [u8]) -> Option<ReplyMessage<'a>> {
        let header: &[u8; HEADER] = bytes.first_chunk()?;
        let [l0, l1, l2, l3, k0, k1, f0, f1, s0, s1, s2, s3, ..] = *header;
        let length = usize::try_from(u32::from_ne_bytes([l0, l1, l2, l3])).ok()?;
        Some(ReplyMessage {
            kind: u16::from_ne_bytes([k0, k1]),
            flags: u16::from_ne_bytes([f0, f1]),
            sequence: u32::from_ne_bytes([s0, s1, s2, s3]),
            payload: bytes.get(HEADER..length)?,
            aligned: length.div_ceil(4).checked_mul(4)?,
        })
    }

    /// The verdict of an error message or of a dump's end: 0 or a negative errno.
    fn code(&self) -> Option<i32> {
        self.payload.first_chunk().map(|code| i32::from_ne_bytes(*code))
    }
}

#[cfg(test)]
mod tests;
