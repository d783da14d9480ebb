//! Where fields stand: in a document's value, and in the text that it was read from. Pure. Called by [`super`] and
//! [`super::faults`].

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_saphyr::Spanned;

/// One step from a document's root to a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PathSegment {
    Key(String),
    Index(usize),
}

/// As errors name fields.
pub(super) fn render(steps: &[PathSegment]) -> String {
    steps.iter().fold(String::new(), |path, step| match step {
        PathSegment::Key(key) if path.is_empty() => key.clone(),
        PathSegment::Key(key) => format!("{path}.{key}"),
        PathSegment::Index(index) => format!("{path}[{index}]"),
    })
}

/// The steps to a field as far as the value has it, and what is left of the name.
pub(super) fn steps<'a>(mut value: &Value, field: &'a str) -> (Vec<PathSegment>, &'a str) {
    let (mut steps, mut rest) = (Vec::new(), field);
    loop {
        let found = match value {
            Value::Object(map) => {
                let inner = rest.strip_prefix('.').unwrap_or(rest);
                // The longest, as keys of labels have dots; those may also stand in brackets.
                let keys = map.iter().filter_map(|(key, child)| {
                    let dotted = inner.strip_prefix(key.as_str());
                    let left = dotted.filter(|left| left.is_empty() || left.starts_with(['.', '[', ' ']));
                    let bracketed = || rest.strip_prefix('[')?.strip_prefix(key.as_str())?.strip_prefix(']');
                    Some((PathSegment::Key(key.clone()), child, left.or_else(bracketed)?))
                });
                keys.min_by_key(|(_, _, left)| left.len())
            }
            Value::Array(items) => rest.strip_prefix('[').and_then(|inner| {
                let (number, left) = inner.split_once(']')?;
                let index: usize = number.parse().ok()?;
                Some((PathSegment::Index(index), items.get(index)?, left))
            }),
            _ => None,
        };
        let Some((step, child, left)) = found.filter(|_| !rest.is_empty()) else { return (steps, rest) };
        steps.push(step);
        (value, rest) = (child, left);
    }
}

/// Line and column of what a text holds, from 1.
pub(super) type Place = (u64, u64);

/// A text's documents with the place of each key and item.
#[derive(Debug)]
pub(super) struct Places(Vec<YamlNode>);

impl Places {
    /// None where the text can't be read.
    pub(super) fn of(text: &str) -> Option<Self> {
        let mut nodes: Vec<YamlNode> =
            serde_saphyr::from_multiple_with_options(text, super::parse::options()).ok()?;
        nodes.retain(|node| !matches!(node, YamlNode::Null));
        Some(Self(nodes))
    }

    /// Of the field, or of what should hold it; `document` counts those that are not empty, from 0.
    pub(super) fn find(&self, document: usize, steps: &[PathSegment]) -> Option<Place> {
        let mut node = self.0.get(document)?;
        let mut place = None;
        for step in steps {
            let (at, inner) = match (node, step) {
                (YamlNode::Map(entries), PathSegment::Key(key)) => {
                    let Some((name, inner)) = entries.iter().find(|(name, _)| name.value == *key) else {
                        break;
                    };
                    (&name.referenced, inner)
                }
                (YamlNode::Seq(items), PathSegment::Index(index)) => {
                    let Some(inner) = items.get(*index) else { break };
                    (&inner.referenced, inner)
                }
                _ => break,
            };
            place = Some((at.line(), at.column()));
            node = &inner.value;
        }
        place.filter(|(line, _)| *line > 0)
    }
}

#[derive(Debug)]
enum YamlNode {
    Map(Vec<(Spanned<String>, Spanned<YamlNode>)>),
    Seq(Vec<Spanned<YamlNode>>),
    Scalar,
    Null,
}

impl<'de> Deserialize<'de> for YamlNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = YamlNode;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("YAML")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<YamlNode, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = map.next_key()? {
            entries.push((key, map.next_value()?));
        }
        Ok(YamlNode::Map(entries))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<YamlNode, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(YamlNode::Seq(items))
    }

    fn visit_bool<E>(self, _: bool) -> Result<YamlNode, E> {
        Ok(YamlNode::Scalar)
    }

    fn visit_i64<E>(self, _: i64) -> Result<YamlNode, E> {
        Ok(YamlNode::Scalar)
    }

    fn visit_u64<E>(self, _: u64) -> Result<YamlNode, E> {
        Ok(YamlNode::Scalar)
    }

    fn visit_f64<E>(self, _: f64) -> Result<YamlNode, E> {
        Ok(YamlNode::Scalar)
    }

    fn visit_str<E>(self, _: &str) -> Result<YamlNode, E> {
        Ok(YamlNode::Scalar)
    }

    fn visit_unit<E>(self) -> Result<YamlNode, E> {
        Ok(YamlNode::Null)
    }

    fn visit_none<E>(self) -> Result<YamlNode, E> {
        Ok(YamlNode::Null)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TEXT: &str =
        "# pods\n---\na: {b.c: 1, b: [x, {d: 2}]}\n---\nspec:\n  list:\n  - name: x\n    long:\n    - y\n";

    #[test]
    fn a_field_is_found_by_its_name_as_far_as_it_is_there() {
        let value = json!({"a": {"b.c": 1, "b": ["x", {"d": 2}]}});
        let key = |name: &str| PathSegment::Key(name.to_owned());
        assert_eq!(steps(&value, "a.b.c"), (vec![key("a"), key("b.c")], ""));
        assert_eq!(steps(&value, "a[b.c]"), (vec![key("a"), key("b.c")], ""));
        let all = vec![key("a"), key("b"), PathSegment::Index(1), key("d")];
        assert_eq!(steps(&value, "a.b[1].d"), (all.clone(), ""));
        assert_eq!(render(&all), "a.b[1].d");
        assert_eq!(steps(&value, "a.b[1].e"), (vec![key("a"), key("b"), PathSegment::Index(1)], ".e"));
        assert_eq!(steps(&value, "a.b[7].e"), (vec![key("a"), key("b")], "[7].e"));
        assert_eq!(steps(&value, "z"), (vec![], "z"));
    }

    #[test]
    fn the_place_is_that_of_the_key_or_of_what_should_hold_it() {
        let places = Places::of(TEXT).unwrap();
        let at = |document, steps: &[PathSegment]| places.find(document, steps);
        let key = |name: &str| PathSegment::Key(name.to_owned());
        assert_eq!(at(0, &[key("a"), key("b"), PathSegment::Index(1), key("d")]), Some((3, 21)));
        assert_eq!(at(1, &[key("spec"), key("list"), PathSegment::Index(0), key("long")]), Some((8, 5)));
        assert_eq!(at(1, &[key("spec"), key("list"), PathSegment::Index(0), key("none")]), Some((7, 5)));
        assert_eq!(at(1, &[]), None);
        assert_eq!(at(2, &[key("a")]), None);
    }
}
