//! D-Bus messages as bytes: what a call to systemd needs, little-endian. Pure. Owns the marshalling (D-Bus
//! Specification, "Message Protocol"); never reads a socket. Called by `bus`.

mod read;
mod write;

pub(crate) use read::{HEAD, MAX_MESSAGE, Message, size_of};
pub(crate) use write::{MethodCall, call};

/// Kinds of messages.
pub(crate) const METHOD_CALL: u8 = 1;
pub(crate) const METHOD_RETURN: u8 = 2;
pub(crate) const ERROR: u8 = 3;
pub(crate) const SIGNAL: u8 = 4;

/// Codes of header fields.
const PATH: u8 = 1;
const INTERFACE: u8 = 2;
const MEMBER: u8 = 3;
const ERROR_NAME: u8 = 4;
const REPLY_SERIAL: u8 = 5;
const DESTINATION: u8 = 6;
const SIGNATURE: u8 = 8;

/// What an argument or a unit's property can be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// `s`
    Text(String),
    /// `b`
    Flag(bool),
    /// `t`
    Number(u64),
    /// `au`
    Numbers(Vec<u32>),
    /// `as`
    Texts(Vec<String>),
    /// `a(sv)`
    Properties(Vec<Property>),
    /// `a(sa(sv))`, always empty: units that are to be made beside.
    NoUnits,
}

impl Value {
    /// Its type, in D-Bus's letters.
    pub(crate) fn signature(&self) -> &'static str {
        match self {
            Self::Text(_) => "s",
            Self::Flag(_) => "b",
            Self::Number(_) => "t",
            Self::Numbers(_) => "au",
            Self::Texts(_) => "as",
            Self::Properties(_) => "a(sv)",
            Self::NoUnits => "a(sa(sv))",
        }
    }
}

/// One property of a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Property {
    /// As systemd names it on the bus.
    pub name: &'static str,
    /// Of the type that systemd expects for it.
    pub value: Value,
}

impl Property {
    /// A switch.
    #[must_use]
    pub fn flag(name: &'static str, on: bool) -> Self {
        Self { name, value: Value::Flag(on) }
    }

    /// An amount; [`u64::MAX`] is none or infinity.
    #[must_use]
    pub fn number(name: &'static str, number: u64) -> Self {
        Self { name, value: Value::Number(number) }
    }

    /// A text.
    #[must_use]
    pub fn text(name: &'static str, text: &str) -> Self {
        Self { name, value: Value::Text(text.to_owned()) }
    }
}

#[cfg(test)]
pub(crate) mod tests;
