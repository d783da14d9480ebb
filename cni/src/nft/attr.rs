//! Attributes of netfilter messages: type, length, value, padded to four bytes; numbers in network order.
//!
//! Owns their encoding and decoding; pure. Never knows what they mean. Called by the other files of `nft`.

/// `NLA_F_NESTED`, and the bits that are no part of a type.
const NESTED: u16 = 0x8000;
pub(super) const TYPE_MASK: u16 = 0x3fff;
const ATTRIBUTE_HEADER: usize = 4;

/// Attributes being written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Attrs(Vec<u8>);

impl Attrs {
    pub(super) fn new() -> Attrs {
        Attrs::default()
    }

    pub(super) fn bytes(mut self, kind: u16, value: &[u8]) -> Attrs {
        let length = u16::try_from(ATTRIBUTE_HEADER + value.len()).unwrap_or(u16::MAX);
        self.0.extend_from_slice(&length.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    pub(super) fn u8(self, kind: u16, value: u8) -> Attrs {
        self.bytes(kind, &[value])
    }

    pub(super) fn u32(self, kind: u16, value: u32) -> Attrs {
        self.bytes(kind, &value.to_be_bytes())
    }

    pub(super) fn i32(self, kind: u16, value: i32) -> Attrs {
        self.bytes(kind, &value.to_be_bytes())
    }

    pub(super) fn u64(self, kind: u16, value: u64) -> Attrs {
        self.bytes(kind, &value.to_be_bytes())
    }

    /// Text with the zero byte that the kernel wants.
    pub(super) fn text(self, kind: u16, value: &str) -> Attrs {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.bytes(kind, &bytes)
    }

    pub(super) fn nest(self, kind: u16, inner: &Attrs) -> Attrs {
        self.bytes(kind | NESTED, &inner.0)
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        &self.0
    }
}

/// Attributes being read, as type and value. Ends at the first that does not fit.
pub(super) fn read(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    read_with_flags(bytes).map(|(kind, value)| (kind & TYPE_MASK, value))
}

/// Whether `found` says what `own` says, in the same order. Only ours are marked where they are nested: the kernel
/// leaves that out.
pub(super) fn same(own: &[u8], found: &[u8]) -> bool {
    let mut found = read(found);
    let all = read_with_flags(own).all(|(kind, own)| {
        found.next().is_some_and(|(other, found)| other == kind & TYPE_MASK && same_value(kind, own, found))
    });
    all && found.next().is_none()
}

/// As [`same`], of one value; `kind` is our own.
pub(super) fn same_value(kind: u16, own: &[u8], found: &[u8]) -> bool {
    if kind & NESTED == 0 { own == found } else { same(own, found) }
}

/// As [`read`], with the marks of what is nested.
pub(super) fn read_with_flags(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let [l0, l1, k0, k1] = *bytes.first_chunk::<ATTRIBUTE_HEADER>()?;
        let length = usize::from(u16::from_ne_bytes([l0, l1]));
        let value = bytes.get(ATTRIBUTE_HEADER..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((u16::from_ne_bytes([k0, k1]), value))
    })
}

/// The value of the first attribute of a type.
pub(super) fn find(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    read(bytes).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}

/// The value at the end of a path of nested attributes.
pub(super) fn path<'a>(bytes: &'a [u8], kinds: &[u16]) -> Option<&'a [u8]> {
    kinds.iter().try_fold(bytes, |bytes, kind| find(bytes, *kind))
}

pub(super) fn text(value: &[u8]) -> String {
    let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

pub(super) fn u64(value: &[u8]) -> Option<u64> {
    value.try_into().ok().map(u64::from_be_bytes)
}

pub(super) fn u32(value: &[u8]) -> Option<u32> {
    value.try_into().ok().map(u32::from_be_bytes)
}

pub(super) fn u16(value: &[u8]) -> Option<u16> {
    value.try_into().ok().map(u16::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_and_nested() {
        let attrs = Attrs::new().text(1, "nat").nest(2, &Attrs::new().u32(1, 0x0a).u8(3, 7));
        assert_eq!(
            attrs.as_slice(),
            [
                8, 0, 1, 0, b'n', b'a', b't', 0, //
                20, 0, 2, 0x80, 8, 0, 1, 0, 0, 0, 0, 10, 5, 0, 3, 0, 7, 0, 0, 0,
            ]
        );
        assert_eq!(path(attrs.as_slice(), &[2, 1]).and_then(u32), Some(10));
        assert_eq!(find(attrs.as_slice(), 1).map(text), Some("nat".into()));
        assert_eq!(path(attrs.as_slice(), &[2, 9]), None);
    }

    #[test]
    fn what_the_kernel_does_not_mark_is_the_same_and_a_value_is_never_taken_for_a_list() {
        let own = Attrs::new().nest(1, &Attrs::new().u8(2, 3));
        let shown = Attrs::new().bytes(1, Attrs::new().u8(2, 3).as_slice());
        assert!(same(own.as_slice(), shown.as_slice()));
        assert!(!same(own.as_slice(), &[]) && !same(&[], shown.as_slice()));
        // 4.0.1.128 and 4.0.1.0 would differ in a mark only.
        let [one, other] = [[4, 0, 1, 128], [4, 0, 1, 0]].map(|value| Attrs::new().bytes(1, &value));
        assert!(!same(one.as_slice(), other.as_slice()));
    }

    #[test]
    fn broken_lengths_end_the_list() {
        for bytes in [&[0, 0, 1, 0][..], &[3, 0, 1, 0], &[200, 0, 1, 0, 1], &[4], &[]] {
            assert_eq!(read(bytes).count(), 0, "{bytes:?}");
        }
    }
}
