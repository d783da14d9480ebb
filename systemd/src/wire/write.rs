//! Method calls as bytes. Pure. Called by `bus`.

use super::{DESTINATION, INTERFACE, MEMBER, METHOD_CALL, PATH, Property, SIGNATURE, Value};

/// Who is asked for what.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MethodCall<'a> {
    pub(crate) destination: &'a str,
    pub(crate) path: &'a str,
    pub(crate) interface: &'a str,
    pub(crate) member: &'a str,
    pub(crate) arguments: &'a [Value],
}

/// The whole message; none when a text has a zero byte, for which systemd would close the connection. The serial is
/// what the answer names, and never 0.
pub(crate) fn call(serial: u32, call: &MethodCall<'_>) -> Option<Vec<u8>> {
    if call.arguments.iter().any(has_zero) {
        return None;
    }
    let mut body = WireWriter::default();
    let mut signature = String::new();
    for argument in call.arguments {
        signature.push_str(argument.signature());
        body.value(argument);
    }
    let mut head = WireWriter::default();
    // Little-endian, no flags, version 1.
    head.bytes.extend([b'l', METHOD_CALL, 0, 1]);
    head.u32(length(body.bytes.len()));
    head.u32(serial);
    let fields = [
        (PATH, "o", call.path),
        (INTERFACE, "s", call.interface),
        (MEMBER, "s", call.member),
        (DESTINATION, "s", call.destination),
    ];
    head.array(8, |head| {
        for (code, kind, text) in fields {
            head.pad(8);
            head.bytes.push(code);
            head.signature(kind);
            head.text(text);
        }
        if !signature.is_empty() {
            head.pad(8);
            head.bytes.push(SIGNATURE);
            head.signature("g");
            head.signature(&signature);
        }
    });
    head.pad(8);
    head.bytes.extend(body.bytes);
    Some(head.bytes)
}

fn has_zero(value: &Value) -> bool {
    match value {
        Value::Text(text) => text.contains('\0'),
        Value::Texts(texts) => texts.iter().any(|text| text.contains('\0')),
        Value::Properties(list) => list.iter().any(|one| has_zero(&one.value)),
        Value::Flag(_) | Value::Number(_) | Value::Numbers(_) | Value::NoUnits => false,
    }
}

/// Lengths on the wire have 32 bits; what we send is far from that.
fn length(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// Bytes with the padding that each type wants, counted from the first one.
#[derive(Debug, Default)]
struct WireWriter {
    bytes: Vec<u8>,
}

impl WireWriter {
    fn pad(&mut self, to: usize) {
        while !self.bytes.len().is_multiple_of(to) {
            self.bytes.push(0);
        }
    }

    fn u32(&mut self, number: u32) {
        self.pad(4);
        self.bytes.extend(number.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.u32(length(text.len()));
        self.bytes.extend(text.bytes());
        self.bytes.push(0);
    }

    fn signature(&mut self, text: &str) {
        self.bytes.push(u8::try_from(text.len()).unwrap_or(u8::MAX));
        self.bytes.extend(text.bytes());
        self.bytes.push(0);
    }

    /// Its length counts the elements, not the padding before the first.
    fn array(&mut self, alignment: usize, elements: impl FnOnce(&mut Self)) {
        self.u32(0);
        let at = self.bytes.len();
        self.pad(alignment);
        let begin = self.bytes.len();
        elements(self);
        let written = length(self.bytes.len() - begin).to_le_bytes();
        for (place, byte) in self.bytes.iter_mut().skip(at - 4).zip(written) {
            *place = byte;
        }
    }

    fn value(&mut self, value: &Value) {
        match value {
            Value::Text(text) => self.text(text),
            Value::Flag(on) => self.u32(u32::from(*on)),
            Value::Number(number) => {
                self.pad(8);
                self.bytes.extend(number.to_le_bytes());
            }
            Value::Numbers(numbers) => self.array(4, |it| numbers.iter().for_each(|number| it.u32(*number))),
            Value::Texts(texts) => self.array(4, |it| texts.iter().for_each(|text| it.text(text))),
            Value::Properties(list) => self.array(8, |it| list.iter().for_each(|one| it.property(one))),
            Value::NoUnits => self.array(8, |_| {}),
        }
    }

    fn property(&mut self, property: &Property) {
        self.pad(8);
        self.text(property.name);
        self.signature(property.value.signature());
        self.value(&property.value);
    }
}
