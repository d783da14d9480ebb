//! Answers and signals from bytes. Pure. What comes is checked: lengths, kinds, text. Called by `bus`.

use super::{ERROR_NAME, INTERFACE, MEMBER, REPLY_SERIAL, SIGNATURE};

/// Bytes up to and with the length of the header's fields: what tells how long a message is.
pub(crate) const HEAD: usize = 16;

/// Nothing that systemd answers us comes near.
pub(crate) const MAX_MESSAGE: usize = 1 << 20;

/// The bytes of a whole message by its first [`HEAD`]; none when they are no message, or too long.
pub(crate) fn size_of(head: &[u8; HEAD]) -> Option<usize> {
    let order = ByteOrder::of(head[0])?;
    let number = |at: usize| usize::try_from(order.u32(head.get(at..at + 4)?)?).ok();
    let (body, fields) = (number(4)?, number(12)?);
    let size = HEAD.checked_add(fields)?.checked_next_multiple_of(8)?.checked_add(body)?;
    (size <= MAX_MESSAGE).then_some(size)
}

/// What a message says, as far as we ask.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) kind: u8,
    /// The call that it answers.
    pub(crate) reply_to: Option<u32>,
    pub(crate) interface: String,
    pub(crate) member: String,
    pub(crate) error: String,
    /// The texts and object paths at the front of the body, and with them its 32-bit numbers as text; of a variant
    /// what is in it.
    pub(crate) body: Vec<String>,
}

impl Message {
    /// Reads a whole message; none when it is damaged.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let mut reader = WireReader { bytes, at: 0, order: ByteOrder::of(*bytes.first()?)? };
        let kind = *bytes.get(1)?;
        reader.at = 12;
        let fields = usize::try_from(reader.u32()?).ok()?;
        let end = reader.at.checked_add(fields)?;
        let mut message = Self { kind, ..Self::default() };
        let mut signature = String::new();
        while reader.at < end {
            reader.pad(8)?;
            let code = reader.byte()?;
            let value = match reader.signature()?.as_str() {
                "s" | "o" => Field::Text(reader.text()?),
                "g" => Field::Text(reader.signature()?),
                "u" => Field::Number(reader.u32()?),
                _ => return None,
            };
            match (code, value) {
                (INTERFACE, Field::Text(text)) => message.interface = text,
                (MEMBER, Field::Text(text)) => message.member = text,
                (ERROR_NAME, Field::Text(text)) => message.error = text,
                (SIGNATURE, Field::Text(text)) => signature = text,
                (REPLY_SERIAL, Field::Number(number)) => message.reply_to = Some(number),
                // Fields that nobody asked for are passed over, as the specification wants.
                _ => {}
            }
        }
        reader.pad(8)?;
        message.body = reader.leading(&signature)?;
        Some(message)
    }
}

enum Field {
    Text(String),
    Number(u32),
}

#[derive(Clone, Copy)]
enum ByteOrder {
    Little,
    Big,
}

impl ByteOrder {
    fn of(mark: u8) -> Option<Self> {
        match mark {
            b'l' => Some(Self::Little),
            b'B' => Some(Self::Big),
            _ => None,
        }
    }

    fn u32(self, bytes: &[u8]) -> Option<u32> {
        let bytes = bytes.try_into().ok()?;
        Some(match self {
            Self::Little => u32::from_le_bytes(bytes),
            Self::Big => u32::from_be_bytes(bytes),
        })
    }
}

struct WireReader<'a> {
    bytes: &'a [u8],
    at: usize,
    order: ByteOrder,
}

impl WireReader<'_> {
    fn take(&mut self, count: usize) -> Option<&[u8]> {
        let end = self.at.checked_add(count)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    fn pad(&mut self, to: usize) -> Option<()> {
        let next = self.at.checked_next_multiple_of(to)?;
        self.take(next - self.at).map(drop)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn u32(&mut self) -> Option<u32> {
        self.pad(4)?;
        let order = self.order;
        order.u32(self.take(4)?)
    }

    fn text(&mut self) -> Option<String> {
        let length = usize::try_from(self.u32()?).ok()?;
        self.zero_terminated(length)
    }

    fn signature(&mut self) -> Option<String> {
        let length = usize::from(self.byte()?);
        self.zero_terminated(length)
    }

    fn zero_terminated(&mut self, length: usize) -> Option<String> {
        let text = String::from_utf8(self.take(length)?.to_vec()).ok()?;
        (self.byte()? == 0).then_some(text)
    }

    /// Up to the first type that is none of them.
    fn leading(&mut self, signature: &str) -> Option<Vec<String>> {
        let mut found = Vec::new();
        for kind in signature.bytes() {
            let kind = match kind {
                b'v' => match self.signature()?.as_bytes() {
                    [kind] => *kind,
                    _ => break,
                },
                kind => kind,
            };
            match kind {
                b's' | b'o' => found.push(self.text()?),
                b'u' => found.push(self.u32()?.to_string()),
                _ => break,
            }
        }
        Some(found)
    }
}
