//! Sets and their elements as messages of a batch, and elements as they are read back.
//!
//! Owns the attributes of these objects, and what the sets of subnets are called; pure. Never sends. Called by `members`.

use std::net::IpAddr;

use ipnet::IpNet;

use super::NLM_F_CREATE;
use super::attr::{self, Attrs};
use super::message::{self, BatchMessage, SUBSYSTEM, message};

const NEW_SET: u16 = SUBSYSTEM | 9;
const DEL_SET: u16 = SUBSYSTEM | 11;
pub(super) const NEW_ELEMENTS: u16 = SUBSYSTEM | 12;
pub(super) const GET_ELEMENTS: u16 = SUBSYSTEM | 13;
const DEL_ELEMENTS: u16 = SUBSYSTEM | 14;

const SET_TABLE: u16 = 1;
const SET_NAME: u16 = 2;
const SET_FLAGS: u16 = 3;
const SET_KEY_TYPE: u16 = 4;
const SET_KEY_LENGTH: u16 = 5;
const SET_ID: u16 = 10;
const SET_USERDATA: u16 = 13;
const LIST_TABLE: u16 = 1;
const LIST_SET: u16 = 2;
const LIST_ELEMENTS: u16 = 3;
const LIST_ELEM: u16 = 1;
const ELEMENT_KEY: u16 = 1;
const ELEMENT_USERDATA: u16 = 6;
const DATA_VALUE: u16 = 1;

/// `NFTNL_UDATA_SET_KEYBYTEORDER` of libnftnl, and `nft`'s number of network order.
const KEY_BYTE_ORDER: u8 = 0;
const BIG_ENDIAN: u32 = 2;

/// What the names of subnets' sets begin with.
const OF_SUBNET: &str = "pods-";

/// What the elements of a set are, as `nft` calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyType {
    /// `ipv4_addr`
    Ipv4,
    /// `ipv6_addr`
    Ipv6,
    /// `mark . mark . mark . mark . mark`, of which `nft` shows each as a number of eight hexadecimal digits
    Marks,
}

impl KeyType {
    pub(super) fn of(subnet: IpNet) -> KeyType {
        match subnet {
            IpNet::V4(_) => KeyType::Ipv4,
            IpNet::V6(_) => KeyType::Ipv6,
        }
    }

    /// The number that `nft` knows it by, and the length in bytes. A number of six bits for each part.
    fn parts(self) -> (u32, u32) {
        const MARK: u32 = 19;
        match self {
            KeyType::Ipv4 => (7, 4),
            KeyType::Ipv6 => (8, 16),
            KeyType::Marks => ((0..5).fold(0, |number, _| number << 6 | MARK), 20),
        }
    }

    /// What `nft` keeps with a set to show it.
    fn userdata(self) -> Vec<u8> {
        match self {
            KeyType::Ipv4 | KeyType::Ipv6 => [&[KEY_BYTE_ORDER, 4], &BIG_ENDIAN.to_ne_bytes()[..]].concat(),
            KeyType::Marks => Vec::new(),
        }
    }
}

/// An element as it stands in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KernelElement {
    pub(super) key: Vec<u8>,
    pub(super) comment: String,
}

/// What the set of a subnet's pods is called. `nft` takes letters, digits and `/-_.` in names.
pub(super) fn subnet_set(subnet: IpNet) -> String {
    format!("{OF_SUBNET}{}", subnet.to_string().replace(':', "-"))
}

/// The subnet whose set has this name.
pub(super) fn read_subnet_set(name: &str) -> Option<IpNet> {
    let subnet = name.strip_prefix(OF_SUBNET)?.replace('-', ":").parse().ok()?;
    (subnet_set(subnet) == name).then_some(subnet)
}

/// An address as the key of an element.
pub(super) fn address_key(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// The address that is the key of an element.
pub(super) fn read_address_key(key: &[u8]) -> Option<IpAddr> {
    let v4 = || <[u8; 4]>::try_from(key).ok().map(IpAddr::from);
    v4().or_else(|| <[u8; 16]>::try_from(key).ok().map(IpAddr::from))
}

/// Makes the set unless it is there.
pub(super) fn new_set(table: &str, name: &str, key: KeyType) -> BatchMessage {
    let (number, length) = key.parts();
    let attributes = Attrs::new()
        .text(SET_TABLE, table)
        .text(SET_NAME, name)
        .u32(SET_FLAGS, 0)
        .u32(SET_KEY_TYPE, number)
        .u32(SET_KEY_LENGTH, length)
        // By which a batch may name a set that has no name yet. Ours have.
        .u32(SET_ID, 1);
    let userdata = key.userdata();
    let attributes = if userdata.is_empty() { attributes } else { attributes.bytes(SET_USERDATA, &userdata) };
    message(NEW_SET, NLM_F_CREATE, attributes)
}

/// Removes the set with all that is in it. No rule may look into it any more.
pub(super) fn delete_set(table: &str, name: &str) -> BatchMessage {
    message(DEL_SET, 0, Attrs::new().text(SET_TABLE, table).text(SET_NAME, name))
}

/// Adds an element. One with this key must not be there: it would stay as it is.
pub(super) fn new_element(table: &str, set: &str, key: &[u8], comment: &str) -> BatchMessage {
    let element = element(key).bytes(ELEMENT_USERDATA, &message::userdata(comment));
    message(NEW_ELEMENTS, NLM_F_CREATE, elements(table, set, &element))
}

pub(super) fn delete_element(table: &str, set: &str, key: &[u8]) -> BatchMessage {
    message(DEL_ELEMENTS, 0, elements(table, set, &element(key)))
}

/// The attributes that ask for one element.
pub(super) fn element_of(table: &str, set: &str, key: &[u8]) -> Attrs {
    elements(table, set, &element(key))
}

/// The attributes that ask for all elements of a set.
pub(super) fn elements_of(table: &str, set: &str) -> Attrs {
    Attrs::new().text(LIST_TABLE, table).text(LIST_SET, set)
}

/// The attributes of a message about one element.
fn elements(table: &str, set: &str, element: &Attrs) -> Attrs {
    elements_of(table, set).nest(LIST_ELEMENTS, &Attrs::new().nest(LIST_ELEM, element))
}

fn element(key: &[u8]) -> Attrs {
    Attrs::new().nest(ELEMENT_KEY, &Attrs::new().bytes(DATA_VALUE, key))
}

/// The elements of an answer. What has no key is left out.
pub(super) fn read_elements(body: &[u8]) -> Vec<KernelElement> {
    let read = |element: &[u8]| {
        let comment = attr::find(element, ELEMENT_USERDATA).and_then(message::read_userdata);
        let key = attr::path(element, &[ELEMENT_KEY, DATA_VALUE])?.to_vec();
        Some(KernelElement { key, comment: comment.unwrap_or_default() })
    };
    let list = attr::find(body, LIST_ELEMENTS).unwrap_or_default();
    attr::read(list).filter_map(|(_, element)| read(element)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subnets_set_has_a_name_that_nft_takes_and_that_tells_the_subnet() {
        for (subnet, name) in [
            ("10.87.0.0/16", "pods-10.87.0.0/16"),
            ("fd00:87::/64", "pods-fd00-87--/64"),
            ("::ffff:0.0.0.0/96", "pods---ffff-0.0.0.0/96"),
        ] {
            let subnet: IpNet = subnet.parse().unwrap();
            assert_eq!(subnet_set(subnet), name);
            assert_eq!(read_subnet_set(name), Some(subnet), "{name}");
        }
        for other in
            ["", "pods-", "pods-10.87.0.0", "pods-10.87.0.0/016", "pods-fd00:87::/64", "10.87.0.0/16"]
        {
            assert_eq!(read_subnet_set(other), None, "{other}");
        }
    }

    #[test]
    fn elements_are_read_back_with_key_and_comment() {
        let commented = element(&[10, 0, 0, 5]).bytes(ELEMENT_USERDATA, &message::userdata("who"));
        let list = Attrs::new().nest(LIST_ELEM, &commented).nest(LIST_ELEM, &element(&[10, 0, 0, 6]));
        let odd = list.nest(LIST_ELEM, &Attrs::new());
        let body = elements_of("t", "s").nest(LIST_ELEMENTS, &odd);
        let read = |key: &[u8], comment: &str| KernelElement { key: key.into(), comment: comment.into() };
        assert_eq!(read_elements(body.as_slice()), [read(&[10, 0, 0, 5], "who"), read(&[10, 0, 0, 6], "")]);
        assert_eq!(read_elements(&[1, 2, 3]), []);
    }

    #[test]
    fn addresses_are_keys() {
        for address in ["10.0.0.5", "fd00::5"] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(read_address_key(&address_key(address)), Some(address));
        }
        assert_eq!(read_address_key(&[1, 2, 3]), None);
    }
}
