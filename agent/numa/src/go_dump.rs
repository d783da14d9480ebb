//! How upstream sums a checkpoint: FNV-1a over the printed form of a Go value. Pure: owns the sum, and how maps and lists are
//! printed; the form is the checkpoint's. Used by the checkpoints of the CPU manager and of the memory manager.
//!
//! Source: `k8s.io/kubernetes/pkg/kubelet/checkpointmanager/checksum`, whose printer is `k8s.io/utils/dump.ForHash`: spew's
//! `%#v`, with maps sorted by key.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};

/// FNV-1a of 32 bits, as Go's hash/fnv.
#[must_use]
pub(crate) fn fnv32a(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |sum, byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

pub(crate) fn print_map<K: Display, V>(
    text: &mut String,
    map: Option<&BTreeMap<K, V>>,
    print: impl Fn(&mut String, &V),
) {
    let Some(map) = map else {
        text.push_str("<nil>");
        return;
    };
    text.push_str("map[");
    for (at, (key, value)) in map.iter().enumerate() {
        let space = if at > 0 { " " } else { "" };
        let _ = write!(text, "{space}{key}:");
        print(text, value);
    }
    text.push(']');
}

pub(crate) fn print_list<V>(text: &mut String, list: Option<&[V]>, print: impl Fn(&mut String, &V)) {
    let Some(list) = list else {
        text.push_str("<nil>");
        return;
    };
    text.push('[');
    for (at, value) in list.iter().enumerate() {
        if at > 0 {
            text.push(' ');
        }
        print(text, value);
    }
    text.push(']');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_maps_and_lists_are_gos() {
        assert_eq!((fnv32a(""), fnv32a("foobar")), (0x811c_9dc5, 0xbf9c_f968));
        let (mut text, of) = (String::new(), BTreeMap::from([("b", 2), ("a", 1)]));
        print_map(&mut text, Some(&of), |text, value| text.push_str(&value.to_string()));
        print_list(&mut text, Some(&[3, 4]), |text, value| text.push_str(&value.to_string()));
        print_map::<u8, u8>(&mut text, None, |_, _| {});
        assert_eq!(text, "map[a:1 b:2][3 4]<nil>");
    }
}
