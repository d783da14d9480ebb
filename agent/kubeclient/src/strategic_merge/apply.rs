//! What an API server does with a strategic merge patch. Owns the half of the rules that
//! [`super::diff`] makes use of; never part of a node. Called by [`crate::fake_apiserver`] and tests.

use serde_json::{Map, Value};

use super::{Lists, Strategy, below, strategy};

const ORDER: &str = "$setElementOrder/";

/// Changes `target` by `patch`.
pub(crate) fn apply(target: &mut Value, patch: &Value, lists: Lists) {
    if let (Value::Object(target), Value::Object(patch)) = (target, patch) {
        map(target, patch, "", lists);
    }
}

fn map(target: &mut Map<String, Value>, patch: &Map<String, Value>, path: &str, lists: Lists) {
    for (key, value) in patch.iter().filter(|(key, _)| !key.starts_with('$')) {
        let at = below(path, key);
        match value {
            Value::Null => {
                target.remove(key);
            }
            Value::Object(inner) => {
                let entry = target.entry(key.clone()).or_insert_with(|| Value::Object(Map::new()));
                match entry {
                    Value::Object(entry) => map(entry, inner, &at, lists),
                    other => *other = value.clone(),
                }
            }
            // Tests' tables say of these that their key is not unique; the server would merge them
            // but for the directive.
            Value::Array(items) => match strategy(&at, lists) {
                Some(Strategy::Merge(by)) => {
                    let entry = target.entry(key.clone()).or_insert_with(|| Value::Array(Vec::new()));
                    if let Value::Array(entry) = entry {
                        list(entry, items, by, lists);
                    }
                }
                Some(Strategy::Replace) | None => {
                    let plain = items.iter().filter(|item| item.get("$patch").is_none()).cloned().collect();
                    target.insert(key.clone(), Value::Array(plain));
                }
            },
            other => {
                target.insert(key.clone(), other.clone());
            }
        }
    }
    for (key, order) in patch.iter().filter_map(|(key, order)| Some((key.strip_prefix(ORDER)?, order))) {
        let Some(Strategy::Merge(by)) = strategy(&below(path, key), lists) else { continue };
        if let (Some(Value::Array(items)), Value::Array(order)) = (target.get_mut(key), order) {
            let place = |item: &Value| order.iter().position(|other| other.get(by) == item.get(by));
            // Items that the patch does not name keep their place behind those it does.
            items.sort_by_key(|item| place(item).unwrap_or(usize::MAX));
        }
    }
}

fn list(target: &mut Vec<Value>, patch: &[Value], by: &str, lists: Lists) {
    for item in patch {
        let same = |other: &Value| other.get(by) == item.get(by);
        if item.get("$patch").and_then(Value::as_str) == Some("delete") {
            target.retain(|other| !same(other));
            continue;
        }
        match (target.iter_mut().find(|other| same(other)), item) {
            (Some(Value::Object(old)), Value::Object(new)) => map(old, new, "", lists),
            (Some(old), new) => *old = new.clone(),
            (None, new) => target.push(new.clone()),
        }
    }
}
