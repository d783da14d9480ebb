//! Messages with every field set, made from the descriptor alone so that no field can be left
//! out. The twin of `tests/go/proto/fill.go`. Owns the values; never encodes. Called by the round
//! trip.

use std::collections::HashMap;

use anyhow::{Context, Result, bail, ensure};
use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, Value};

/// No message of CRI holds itself; one that did would never be filled.
const DEEPEST: u32 = 16;

/// Sets every field to something that is not its default: lists and maps get two entries.
pub(crate) fn fill(message: &MessageDescriptor, depth: u32) -> Result<DynamicMessage> {
    let name = message.full_name();
    ensure!(depth <= DEEPEST, "{name} holds itself: say here where to end");
    // Checked on both sides: with the first one, each arm needs an encoding of its own.
    ensure!(message.oneofs().len() == 0, "{name} has a oneof: encode it once for each arm");
    let mut filled = DynamicMessage::new(message.clone());
    for field in message.fields() {
        let value = if field.is_map() {
            entries(&field, depth)?
        } else if field.is_list() {
            Value::List(vec![element(&field, 0, depth)?, element(&field, 1, depth)?])
        } else {
            element(&field, 0, depth)?
        };
        filled.set_field(&field, value);
    }
    Ok(filled)
}

fn entries(field: &FieldDescriptor, depth: u32) -> Result<Value> {
    let Kind::Message(entry) = field.kind() else { bail!("{} is no map", field.full_name()) };
    let mut map = HashMap::new();
    for number in 0..2 {
        let Value::String(key) = element(&entry.map_entry_key_field(), number, depth)? else {
            bail!("{}: a key that is no string", field.full_name());
        };
        map.insert(MapKey::String(key), element(&entry.map_entry_value_field(), number, depth)?);
    }
    Ok(Value::Map(map))
}

/// Numbers need more than half their bits and, where there is one, the sign.
fn element(field: &FieldDescriptor, number: u32, depth: u32) -> Result<Value> {
    let own = (field.number() << 8) + number;
    let signed = i32::try_from(own).context("a field number over 2^22")?;
    Ok(match field.kind() {
        Kind::Bool => Value::Bool(true),
        Kind::Int32 => Value::I32(i32::MIN + signed),
        Kind::Int64 => Value::I64(i64::MIN + i64::from(own)),
        Kind::Uint32 => Value::U32(u32::MAX - own),
        Kind::Uint64 => Value::U64(u64::MAX - u64::from(own)),
        Kind::Double => Value::F64(-f64::from(own) / 3.0),
        Kind::String => Value::String(format!("{} {number} ü", field.full_name())),
        Kind::Bytes => Value::Bytes(vec![0, 0xff, u8::try_from(number)?].into()),
        Kind::Enum(values) => {
            Value::EnumNumber(values.values().last().context("an enum without values")?.number())
        }
        Kind::Message(message) => Value::Message(fill(&message, depth + 1)?),
        other => bail!("{}: no value for a {other:?}", field.full_name()),
    })
}
