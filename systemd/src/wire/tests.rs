//! The bytes of another implementation, answers as systemd sends them, and damage.

use super::*;

/// An answer or a signal, as systemd would send it.
pub(crate) fn sent(kind: u8, fields: &[(u8, &str, &[u8])], signature: &str, body: &[u8]) -> Vec<u8> {
    let mut list = Vec::new();
    let pad = |bytes: &mut Vec<u8>, to: usize| bytes.resize(bytes.len().next_multiple_of(to), 0);
    let text = |bytes: &[u8]| [&u32::try_from(bytes.len()).unwrap().to_le_bytes()[..], bytes, &[0]].concat();
    for (code, kind, value) in fields {
        pad(&mut list, 8);
        list.extend([*code, 1, kind.as_bytes()[0], 0]);
        match *kind {
            "u" => list.extend(*value),
            _ => list.extend(text(value)),
        }
    }
    if !signature.is_empty() {
        pad(&mut list, 8);
        list.extend([SIGNATURE, 1, b'g', 0, u8::try_from(signature.len()).unwrap()]);
        list.extend(signature.bytes());
        list.push(0);
    }
    let mut bytes = vec![b'l', kind, 1, 1];
    bytes.extend(u32::try_from(body.len()).unwrap().to_le_bytes());
    bytes.extend(9u32.to_le_bytes());
    bytes.extend(u32::try_from(list.len()).unwrap().to_le_bytes());
    bytes.extend(&list);
    pad(&mut bytes, 8);
    bytes.extend(body);
    bytes
}

/// Of the same call by godbus 5.2.2, with the serial it has before it is sent.
const START: &str = "6c010001a8000000000000005600000001016f00020000002f700000000000000201730003000000692e66000000000003017300010000004d\
    000000000000000601730003000000642e65000000000008016700107373612873762961287361287376292900000007000000612e736c69636500\
    070000007265706c6163650082000000000000000800000044656c6567617465000162000100000000000000080000005461736b734d617800\
    01740007000000000000000400000050494473000261750000000004000000090000000500000057616e7473000261730000000c0000000700\
    0000622e736c696365000b0000004465736372697074696f6e0001730000010000007800000000000000";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_call_has_the_bytes_of_another_implementation() {
    let properties = vec![
        Property::flag("Delegate", true),
        Property::number("TasksMax", 7),
        Property { name: "PIDs", value: Value::Numbers(vec![9]) },
        Property { name: "Wants", value: Value::Texts(vec!["b.slice".into()]) },
        Property::text("Description", "x"),
    ];
    let text = |text: &str| Value::Text(text.to_owned());
    let arguments = [text("a.slice"), text("replace"), Value::Properties(properties), Value::NoUnits];
    let asked =
        MethodCall { destination: "d.e", path: "/p", interface: "i.f", member: "M", arguments: &arguments };
    assert_eq!(hex(&call(0, &asked).unwrap()), START);
    let bytes = call(5, &asked).unwrap();
    assert_eq!(size_of(bytes[..16].try_into().unwrap()), Some(bytes.len()));
    let bare = call(5, &MethodCall { arguments: &[], ..asked }).unwrap();
    let read = Message::read(&bare).unwrap();
    assert_eq!((read.kind, read.interface.as_str(), read.member.as_str()), (METHOD_CALL, "i.f", "M"));
}

#[test]
fn a_text_with_a_zero_byte_is_not_sent() {
    let bad = || "a\0b".to_owned();
    let properties = |value| Value::Properties(vec![Property { name: "Description", value }]);
    for value in [
        Value::Text(bad()),
        properties(Value::Text(bad())),
        properties(Value::Texts(vec!["a".into(), bad()])),
    ] {
        let asked =
            MethodCall { destination: "d.e", path: "/p", interface: "i.f", member: "M", arguments: &[value] };
        assert_eq!(call(1, &asked), None, "{asked:?}");
    }
}

#[test]
fn answers_errors_and_signals_are_read() {
    let reply = 5u32.to_le_bytes();
    let job = b"\x04\x00\x00\x00/j/1\x00";
    let read = Message::read(&sent(METHOD_RETURN, &[(REPLY_SERIAL, "u", &reply)], "o", job)).unwrap();
    assert_eq!((read.kind, read.reply_to, read.body), (METHOD_RETURN, Some(5), vec!["/j/1".to_owned()]));
    let fields: [(u8, &str, &[u8]); 2] = [(ERROR_NAME, "s", b"x.NoSuchUnit"), (REPLY_SERIAL, "u", &reply)];
    let read = Message::read(&sent(ERROR, &fields, "s", b"\x02\x00\x00\x00no\x00")).unwrap();
    assert_eq!((read.error.as_str(), read.body), ("x.NoSuchUnit", vec!["no".to_owned()]));
    let fields: [(u8, &str, &[u8]); 2] = [(INTERFACE, "s", b"a.b"), (MEMBER, "s", b"JobRemoved")];
    let body = b"\x07\x00\x00\x00\x02\x00\x00\x00/j\x00\x00\x01\x00\x00\x00u\x00";
    let read = Message::read(&sent(SIGNAL, &fields, "uosa{sv}", body)).unwrap();
    assert_eq!(read.body, ["7", "/j", "u"]);
    for (body, expected) in
        [(&b"\x01s\0\0\x03\0\0\0a b\0"[..], &["a b"][..]), (&b"\x02as\0\0\0\0\0"[..], &[])]
    {
        let read = Message::read(&sent(METHOD_RETURN, &[(REPLY_SERIAL, "u", &reply)], "v", body)).unwrap();
        assert_eq!(read.body, expected);
    }
}

#[test]
fn damage_is_no_message() {
    let whole = sent(METHOD_RETURN, &[(REPLY_SERIAL, "u", &[5, 0, 0, 0])], "o", b"\x04\x00\x00\x00/j/1\x00");
    for length in 0..whole.len() {
        assert_eq!(Message::read(&whole[..length]), None, "{length} bytes");
    }
    let mut head: [u8; HEAD] = whole[..HEAD].try_into().unwrap();
    assert_eq!(size_of(&head), Some(whole.len()));
    head[7] = 0xff;
    assert_eq!(size_of(&head), None, "4 GiB of body");
    head[0] = b'x';
    assert_eq!(size_of(&head), None, "no byte order");
}
