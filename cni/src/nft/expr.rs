//! What a rule says, in the few words that masquerading and port mapping need, and how the kernel spells it.
//!
//! Owns the expressions of nf_tables in use: each [`Match`] and [`Verdict`] becomes the same expressions that
//! `nft --debug=netlink` shows for the line in its comment; the tests hold it to that. Pure. Called by `message`.

use std::net::IpAddr;

use ipnet::IpNet;

use super::attr::{self, Attrs};

/// A rule: all of these, then that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) matches: Vec<Match>,
    pub(crate) verdict: Verdict,
}

/// A condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Match {
    /// `fib daddr type local`
    ToThisHost,
    /// `meta nfproto ipv4`, or `ipv6`
    Family { v4: bool },
    /// `ip saddr NET`, after [`Match::Family`]
    From(IpNet),
    /// `ip saddr @SET`, after [`Match::Family`]
    FromSet { v4: bool, set: String },
    /// `ip daddr NET`
    To(IpNet),
    /// `ip daddr != NET`
    NotTo(IpNet),
    /// `meta l4proto PROTOCOL th dport PORT`
    Port { protocol: u8, port: u16 },
    /// `ct status dnat ct original proto-dst PORT`
    ForwardedFrom { port: u16 },
    /// `iifname != "lo"`
    NotFromLoopback,
}

/// A decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// `drop`
    Drop,
    /// `jump CHAIN`
    Jump(&'static str),
    /// `masquerade`
    Masquerade,
    /// `dnat ip to ADDRESS:PORT`
    Forward { to: IpAddr, port: u16 },
}

const LIST_ELEM: u16 = 1;
const EXPR_NAME: u16 = 1;
const EXPR_DATA: u16 = 2;
const DATA_VALUE: u16 = 1;
const DATA_VERDICT: u16 = 2;
const REG_VERDICT: u32 = 0;
const REG_1: u32 = 1;
const REG_2: u32 = 2;
const NFPROTO_IPV4: u8 = 2;
const NFPROTO_IPV6: u8 = 10;
/// Keys of `meta`.
const META_IIFNAME: u32 = 6;
const META_NFPROTO: u32 = 15;
const META_L4PROTO: u32 = 16;
/// Bases of `payload`.
const NETWORK: u32 = 1;
const TRANSPORT: u32 = 2;
/// Of `ct`.
const CT_STATUS: u32 = 2;
const CT_PROTO_DST: u32 = 12;
const IPS_DST_NAT: u32 = 1 << 5;
/// Of `fib`.
const FIB_ADDRTYPE: u32 = 3;
const FIB_DADDR: u32 = 2;
const RTN_LOCAL: u32 = 2;
/// Of `nat`.
const DNAT: u32 = 1;
const RANGE_PROTO_SPECIFIED: u32 = 2;
const NAT_FLAGS: u16 = 7;
/// `IFNAMSIZ`: names are compared with all their padding.
const IFNAMSIZ: usize = 16;

#[derive(Clone, Copy)]
enum Is {
    Equal = 0,
    Unequal = 1,
}

impl Rule {
    /// The rule as a list of expressions.
    pub(super) fn expressions(&self) -> Attrs {
        let all = self.matches.iter().flat_map(Match::expressions).chain(self.verdict.expressions());
        all.fold(Attrs::new(), |list, expression| list.nest(LIST_ELEM, &expression))
    }

    /// Whether expressions that the kernel shows say this rule.
    pub(super) fn matches_kernel(&self, found: &[u8]) -> bool {
        let own = self.expressions();
        let mut found = attr::read(found).map(|(_, expression)| expression);
        let all = attr::read(own.as_slice())
            .all(|(_, own)| found.next().is_some_and(|found| same_expression(own, found)));
        all && found.next().is_none()
    }
}

/// Whether the kernel shows an expression as it was given. It has an order of attributes of its own, shows what it chose
/// itself where nothing was given, and adds to the flags of `nat` that there is an address.
fn same_expression(own: &[u8], found: &[u8]) -> bool {
    let name = attr::find(own, EXPR_NAME);
    let data = |expression| attr::find(expression, EXPR_DATA).unwrap_or_default();
    let nat = name.map(attr::text).as_deref() == Some("nat");
    let same = |kind: u16, own: &[u8], found: &[u8]| match (attr::u32(own), attr::u32(found)) {
        (Some(own), Some(found)) if nat && kind == NAT_FLAGS => own & found == own,
        _ => attr::same_value(kind, own, found),
    };
    attr::find(found, EXPR_NAME) == name
        && attr::read_with_flags(data(own)).all(|(kind, own)| {
            attr::find(data(found), kind & attr::TYPE_MASK).is_some_and(|found| same(kind, own, found))
        })
}

impl Match {
    fn expressions(&self) -> Vec<Attrs> {
        match self {
            Match::ToThisHost => {
                let fib = Attrs::new().u32(3, FIB_DADDR).u32(2, FIB_ADDRTYPE).u32(1, REG_1);
                vec![expression("fib", &fib), compare(Is::Equal, &RTN_LOCAL.to_ne_bytes())]
            }
            Match::Family { v4 } => {
                vec![meta(META_NFPROTO), compare(Is::Equal, &[if *v4 { NFPROTO_IPV4 } else { NFPROTO_IPV6 }])]
            }
            Match::From(net) => address(*net, false, Is::Equal),
            Match::FromSet { v4, set } => {
                let (offset, length) = source(*v4);
                let lookup = Attrs::new().u32(2, REG_1).text(1, set);
                vec![payload(NETWORK, offset, length), expression("lookup", &lookup)]
            }
            Match::To(net) => address(*net, true, Is::Equal),
            Match::NotTo(net) => address(*net, true, Is::Unequal),
            Match::Port { protocol, port } => vec![
                meta(META_L4PROTO),
                compare(Is::Equal, &[*protocol]),
                // TCP, UDP and SCTP all have the destination port behind the source port.
                payload(TRANSPORT, 2, 2),
                compare(Is::Equal, &port.to_be_bytes()),
            ],
            Match::ForwardedFrom { port } => vec![
                expression("ct", &Attrs::new().u32(2, CT_STATUS).u32(1, REG_1)),
                mask(&IPS_DST_NAT.to_ne_bytes()),
                compare(Is::Unequal, &[0; 4]),
                // Of the packet as it came, before it was forwarded: IP_CT_DIR_ORIGINAL.
                expression("ct", &Attrs::new().u32(2, CT_PROTO_DST).u32(1, REG_1).u8(3, 0)),
                compare(Is::Equal, &port.to_be_bytes()),
            ],
            Match::NotFromLoopback => {
                let mut name = [0; IFNAMSIZ];
                name[..2].copy_from_slice(b"lo");
                vec![meta(META_IIFNAME), compare(Is::Unequal, &name)]
            }
        }
    }
}

impl Verdict {
    fn expressions(&self) -> Vec<Attrs> {
        const NF_DROP: i32 = 0;
        const NFT_JUMP: i32 = -3;
        match self {
            Verdict::Drop => vec![verdict_data(&Attrs::new().i32(1, NF_DROP))],
            Verdict::Jump(chain) => vec![verdict_data(&Attrs::new().i32(1, NFT_JUMP).text(2, chain))],
            Verdict::Masquerade => vec![expression("masq", &Attrs::new())],
            Verdict::Forward { to, port } => {
                let (family, bytes) = match to {
                    IpAddr::V4(to) => (NFPROTO_IPV4, to.octets().to_vec()),
                    IpAddr::V6(to) => (NFPROTO_IPV6, to.octets().to_vec()),
                };
                let nat = Attrs::new()
                    .u32(1, DNAT)
                    .u32(2, family.into())
                    .u32(3, REG_1)
                    .u32(5, REG_2)
                    .u32(NAT_FLAGS, RANGE_PROTO_SPECIFIED);
                vec![immediate(REG_1, &bytes), immediate(REG_2, &port.to_be_bytes()), expression("nat", &nat)]
            }
        }
    }
}

/// `ip saddr|daddr [&MASK] ==|!= NET`. The family was matched before.
fn address(net: IpNet, destination: bool, is: Is) -> Vec<Attrs> {
    let bytes = |address: IpAddr| match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let (offset, length) = match (net, destination) {
        (IpNet::V4(_), false) => source(true),
        (IpNet::V4(_), true) => (16, 4),
        (IpNet::V6(_), false) => source(false),
        (IpNet::V6(_), true) => (24, 16),
    };
    let load = payload(NETWORK, offset, length);
    let compared = compare(is, &bytes(net.network()));
    if net.prefix_len() == net.max_prefix_len() {
        vec![load, compared]
    } else {
        vec![load, mask(&bytes(net.netmask())), compared]
    }
}

/// Where the source address is in a packet's header, and how long.
fn source(v4: bool) -> (u32, u32) {
    if v4 { (12, 4) } else { (8, 16) }
}

fn expression(name: &str, data: &Attrs) -> Attrs {
    Attrs::new().text(EXPR_NAME, name).nest(EXPR_DATA, data)
}

fn meta(key: u32) -> Attrs {
    expression("meta", &Attrs::new().u32(2, key).u32(1, REG_1))
}

fn payload(base: u32, offset: u32, length: u32) -> Attrs {
    expression("payload", &Attrs::new().u32(1, REG_1).u32(2, base).u32(3, offset).u32(4, length))
}

fn value(bytes: &[u8]) -> Attrs {
    Attrs::new().bytes(DATA_VALUE, bytes)
}

fn compare(is: Is, with: &[u8]) -> Attrs {
    expression("cmp", &Attrs::new().u32(1, REG_1).u32(2, is as u32).nest(3, &value(with)))
}

fn mask(with: &[u8]) -> Attrs {
    let length = u32::try_from(with.len()).unwrap_or_default();
    let nothing = vec![0; with.len()];
    let data = Attrs::new().u32(1, REG_1).u32(2, REG_1).u32(3, length);
    expression("bitwise", &data.nest(4, &value(with)).nest(5, &value(&nothing)))
}

fn immediate(register: u32, bytes: &[u8]) -> Attrs {
    expression("immediate", &Attrs::new().u32(1, register).nest(2, &value(bytes)))
}

fn verdict_data(verdict: &Attrs) -> Attrs {
    let data = Attrs::new().nest(DATA_VERDICT, verdict);
    expression("immediate", &Attrs::new().u32(1, REG_VERDICT).nest(2, &data))
}
