//! What stands behind a flag, to the JSON of the field that it sets. Pure: owns the syntax of each
//! type; never whether a value makes sense. Called by [`super`].

use std::net::IpAddr;

use gantry_model::go_duration::Span;
use serde_json::{Map, Value, json};

use super::Flag;
use crate::config::taint;

/// Whether one value is of the flag's type.
pub(super) fn check(flag: &Flag, value: &str) -> Result<(), String> {
    json(flag, &[value.to_owned()]).map(|_| ())
}

/// Lists and maps add up; of all others the last counts.
pub(super) fn json(flag: &Flag, values: &[String]) -> Result<Value, String> {
    let last = values.last().map_or("", String::as_str);
    Ok(match flag.kind {
        "bool" => boolean(last)?.into(),
        "version" => match last {
            text if text == "raw" || text.starts_with('v') => text.into(),
            text => boolean(text)?.into(),
        },
        "int32" => integer(last, i64::from(i32::MIN), i64::from(i32::MAX))?.into(),
        "int" | "int64" => integer(last, i64::MIN, i64::MAX)?.into(),
        "Level" => level(last)?.into(),
        "duration" => Span::parse(last)?.to_string().into(),
        "ip" => address(last)?.into(),
        "stringSlice" => list(values),
        "mapStringBool" => each_pair(values, '=', "bool", |key, text| {
            boolean(text).map(Value::from).map_err(|e| format!("invalid value of {key}: {text}, err: {e}"))
        })?,
        "mapStringString" if flag.name == "cpu-manager-policy-options" => one_pair_each(values)?,
        "mapStringString" if matches!(flag.name, "eviction-hard" | "eviction-soft") => {
            each_pair(values, '<', "string", |_, text| Ok(text.into()))?
        }
        "mapStringString" if flag.name == "node-labels" => labels(values),
        "mapStringString" => each_pair(values, '=', "string", |_, text| Ok(text.into()))?,
        "colonSeparatedMultimapStringString" => headers(values)?,
        "[]v1.Taint" => taint::parse_list(last)?,
        "reserved-memory" => reserved_memory(values)?,
        "pattern=N,..." => patterns(last)?,
        _ => last.into(),
    })
}

fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(format!("strconv.ParseBool: parsing {text:?}: invalid syntax")),
    }
}

/// With Go's prefixes of other bases.
fn integer(text: &str, min: i64, max: i64) -> Result<i64, String> {
    let wrong = |what| format!("strconv.ParseInt: parsing {text:?}: {what}");
    let (sign, digits) = match text.strip_prefix(['-', '+']) {
        Some(digits) => (if text.starts_with('-') { -1 } else { 1 }, digits),
        None => (1, text),
    };
    let lower = digits.to_ascii_lowercase();
    let (base, digits) = match lower.as_bytes() {
        [b'0', b'x', ..] => (16, &lower[2..]),
        [b'0', b'o', ..] => (8, &lower[2..]),
        [b'0', b'b', ..] => (2, &lower[2..]),
        [b'0', _, ..] => (8, &lower[1..]),
        _ => (10, lower.as_str()),
    };
    let digits: String = digits.chars().filter(|c| *c != '_').collect();
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(base)) {
        return Err(wrong("invalid syntax"));
    }
    let value = i128::from_str_radix(&digits, base).map_err(|_| wrong("value out of range"))? * sign;
    i64::try_from(value)
        .ok()
        .filter(|value| (min..=max).contains(value))
        .ok_or_else(|| wrong("value out of range"))
}

fn level(text: &str) -> Result<i64, String> {
    integer(text, 0, i64::from(i32::MAX)).map_err(|e| e.replace("ParseInt", "ParseUint"))
}

fn address(text: &str) -> Result<&str, String> {
    if text.is_empty() || text.parse::<IpAddr>().is_ok() {
        Ok(text)
    } else {
        Err(format!("{text:?} is not a valid IP address"))
    }
}

/// A line of comma separated values, where quotes keep a comma.
fn list(values: &[String]) -> Value {
    let mut found: Vec<Value> = Vec::new();
    for line in values.iter().filter(|line| !line.is_empty()) {
        let (mut item, mut quoted) = (String::new(), false);
        for c in line.chars() {
            match c {
                '"' => quoted = !quoted,
                ',' if !quoted => found.push(std::mem::take(&mut item).into()),
                c => item.push(c),
            }
        }
        found.push(item.into());
    }
    found.into()
}

fn each_pair(
    values: &[String],
    between: char,
    kind: &str,
    read: impl Fn(&str, &str) -> Result<Value, String>,
) -> Result<Value, String> {
    let mut found = Map::new();
    for pair in values.iter().flat_map(|line| line.split(',')).filter(|pair| !pair.is_empty()) {
        let Some((key, value)) = pair.split_once(between) else {
            return Err(format!("malformed pair, expect string{between}{kind}"));
        };
        let (key, value) = (key.trim(), value.trim());
        found.insert(key.to_owned(), read(key, value)?);
    }
    Ok(found.into())
}

/// One pair for each time the flag is given: the value may hold commas.
fn one_pair_each(values: &[String]) -> Result<Value, String> {
    let mut found = Map::new();
    for pair in values {
        let Some((key, value)) = pair.split_once('=') else {
            return Err("malformed pair, expect string=string".to_owned());
        };
        found.insert(key.trim().to_owned(), value.trim().into());
    }
    Ok(found.into())
}

/// A label without a value is one with an empty value.
fn labels(values: &[String]) -> Value {
    let pairs = values.iter().flat_map(|line| line.split(',')).filter(|pair| !pair.is_empty());
    let pair = |pair: &str| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (key.trim().to_owned(), Value::from(value.trim()))
    };
    Value::Object(pairs.map(pair).collect())
}

fn headers(values: &[String]) -> Result<Value, String> {
    let mut found = Map::new();
    for pair in values.iter().flat_map(|line| line.split(',')).filter(|pair| !pair.is_empty()) {
        let Some((key, value)) = pair.split_once(':') else {
            return Err("malformed pair, expect string:string".to_owned());
        };
        let of_key = found.entry(key.trim()).or_insert_with(|| json!([]));
        if let Value::Array(of_key) = of_key {
            of_key.push(value.trim().into());
        }
    }
    Ok(found.into())
}

/// `0:memory=1Gi,hugepages-2Mi=2Gi;1:memory=2Gi`.
fn reserved_memory(values: &[String]) -> Result<Value, String> {
    let mut found = Vec::new();
    for node in values.iter().flat_map(|line| line.split(';')).filter(|node| !node.is_empty()) {
        let wrong = || {
            format!(
                "the reserved memory has incorrect format, expected numaNodeID:type=quantity[,type=quantity...], \
                 got {node}"
            )
        };
        let (id, kinds) = node.split_once(':').ok_or_else(wrong)?;
        let id: i32 = id
            .parse()
            .map_err(|_| format!("failed to convert the NUMA node ID, expected integer, got {id}"))?;
        let mut limits = Map::new();
        for kind in kinds.split(',') {
            let (name, quantity) = kind.split_once('=').ok_or_else(|| {
                format!("the reserved limit has incorrect value, expected type=quantity, got {kind}")
            })?;
            if name != "memory" && !name.starts_with("hugepages-") {
                return Err(format!("memory type conversion error, unknown type: {name:?}"));
            }
            limits.insert(name.to_owned(), quantity.into());
        }
        found.push(json!({ "numaNode": id, "limits": limits }));
    }
    Ok(found.into())
}

/// `file=3,other*=5`.
fn patterns(text: &str) -> Result<Value, String> {
    let mut found = Vec::new();
    for item in text.split(',').filter(|item| !item.is_empty()) {
        let wrong = || format!("{item:?} does not have the pattern=N format");
        let (pattern, number) =
            item.split_once('=').filter(|(p, n)| !p.is_empty() && !n.is_empty()).ok_or_else(wrong)?;
        let number = level(number).map_err(|e| format!("parsing verbosity in {item:?}: {e}"))?;
        found.push(json!({ "filePattern": pattern, "verbosity": number }));
    }
    Ok(found.into())
}
